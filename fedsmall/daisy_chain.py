"""Federated daisy-chaining on one stack of models (Kamp, Fischer & Vreeken, ICLR 2023, Algorithm 1).

Row k of the stack is a traveller: a model, and ``at[k]`` the site where it is. A permutation changes ``at``, an
aggregation the rows. Everything that runs without a network calls :func:`daisy_chain`; at real sites
:class:`strategies.daisy_chain.DaisyChain` does the same with messages, and shares the routes, the draws, what counts
and the combiners. A test holds the two together.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from fedsmall.aggregation.combiners import Combiner, Updates
from fedsmall.gate import refusal
from fedsmall.plan import Plan
from fedsmall.schedule import Action, Contact
from fedsmall.training.trainer import Trainer
from fedsmall.travellers import Initial, Moment, Travellers
from fedsmall.wire import Arrays


def daisy_chain(
    plan: Plan,
    trainer: Trainer,
    combiner: Combiner,
    contacts: Iterable[Contact],
    initial: Initial,
    due: Callable[[Contact], bool] = lambda contact: False,
) -> Iterator[Moment]:
    """Algorithm 1 over the sites of ``trainer``: a moment for each stretch of contacts that can be walked in one go.

    A stretch ends with an aggregation, and where somebody must see the models (``due``) or draw noise for them.
    Departs from Algorithm 1 as printed as :class:`~fedsmall.schedule.Schedule` does: aggregation wins a tie.
    """
    common = initial(None)
    travellers = Travellers(plan, trainer, initial)
    for stretch in stretches(contacts, lambda contact: travellers.careful or due(contact)):
        left = [stretch]
        while left:
            now = left.pop(0)
            moment = travellers.walk(now, combiner.order_rule())  # lines 4 to 8: train, and let models travel
            if moment is None:  # a model is not what it should be: again in parts, so that it is stopped where it arose
                length = 1 if travellers.careful else (len(now) + 1) // 2
                left = [*(now[k : k + length] for k in range(0, len(now), length)), *left]
                continue
            contact = now[-1]
            if contact.action is Action.AGGREGATE:  # lines 9 to 12: the models become one, which all sites get
                common, refused = combined(combiner, common, travellers.updates(), contact.t, travellers.gate)
                yield moment._replace(common=common, events=moment.events + refused)
                travellers.become(common, afresh=bool(refused))
            else:
                yield moment


def combined(
    combiner: Combiner, common: Arrays, updates: Updates, t: int, gate: float
) -> tuple[Arrays, list[dict[str, Any]]]:
    """The common model after an aggregation, and an event where that is the last one for want of a sound aggregate.

    Then the combiner, too, remembers what it did before.
    """
    go_back = combiner.bookmark()
    with np.errstate(over="ignore", invalid="ignore"):
        model = combiner.combine(common, updates, t)
        reason = refusal(model, common, gate)
    if reason is None:
        return model, []
    go_back()
    kept = f"{reason}; all keep the last common model"
    return common, [{"t": t, "site": "server", "kind": "refused", "reason": kept}]


def stretches(contacts: Iterable[Contact], ends: Callable[[Contact], bool]) -> Iterator[list[Contact]]:
    """Contacts that can be walked in one go: up to the next one at whose end somebody must act."""
    stretch: list[Contact] = []
    for contact in contacts:
        stretch.append(contact)
        if contact.action is Action.AGGREGATE or ends(contact):
            yield stretch
            stretch = []
    if stretch:
        yield stretch
