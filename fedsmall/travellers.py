"""The models on their way through a federation, as rows of one stack: where they are, and what a contact does."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from fedsmall.aggregation.combiners import Updates
from fedsmall.errors import ReplyError
from fedsmall.gate import charge, halves, outsize, sizes, too_large
from fedsmall.plan import Plan
from fedsmall.privacy.site_level import at_contacts, noise_rng, privatise
from fedsmall.schedule import Action, Contact, bijection, contacts_of, participants
from fedsmall.training.stack import Rows, Stack, leaving
from fedsmall.training.trainer import Leg, Signals, Trainer
from fedsmall.wire import Arrays, Traveller

NOT_FINITE = "the model holds a number that is not finite (NaN or Inf)"
GROWN = 3.0  # an update can be too large only where a model has grown more than so

Initial = Callable[[str | None], Arrays]  # the model with which a site starts, or the common one for None


class Moment(NamedTuple):
    """What is there after a contact, or after a piece of one, before anything else moves.

    ``common`` is the model that the contact made, if it aggregates. ``sites`` have just trained, and ``models`` gives
    what they trained, {name: (sites, ...)}, in the order of their names. ``updates`` (rounds of local training, over
    all sites), ``bytes_sent`` and ``events`` have come since the moment before; ``memory`` is what the sites remember.
    """

    contact: Contact
    common: Arrays | None
    sites: tuple[str, ...]
    models: Callable[[], Arrays]
    updates: int
    bytes_sent: int
    events: list[dict[str, Any]]
    memory: Arrays


def moved(plan: Plan, sites: int, at: np.ndarray, before: Contact, contact: Contact) -> np.ndarray:
    """The sites at which travellers train for ``contact``, which were at the sites ``at`` for the one ``before``.

    A piece of a contact moves nobody. Where all sites take part, an aggregation does not either; where a fraction of
    them does, every traveller goes to a site that was drawn for ``contact``, so that none waits at one that was not.
    """
    everyone = plan.method.fraction >= 1
    if not before.travels or (everyone and before.action is Action.AGGREGATE):
        return at
    route = bijection(plan.seed, before.t, len(at))
    if everyone:
        return np.asarray(route[at])
    return np.asarray(drawn(plan, sites, contact)[route[np.argsort(np.argsort(at))]])


def drawn(plan: Plan, sites: int, contact: Contact) -> np.ndarray:
    """The numbers of the sites that take part in a contact, in order."""
    if plan.method.fraction >= 1 or plan.method.family != "federated":
        return np.arange(sites)
    return np.array(participants(plan.seed, contact.due, range(sites), plan.method.fraction))


def journey(plan: Plan, sites: int) -> Iterator[tuple[Contact, np.ndarray]]:
    """Every contact of a run over so many sites, and the sites at which its travellers train for it."""
    at, before = np.arange(sites), None
    for contact in contacts_of(plan):
        at = drawn(plan, sites, contact) if before is None else moved(plan, sites, at, before, contact)
        yield contact, at
        before = contact


class Travellers:
    """The models on their way, a row each: where they are, what they have been through, and what their bytes cost."""

    def __init__(self, plan: Plan, trainer: Trainer, initial: Initial) -> None:
        self.plan, self.trainer, self.names = plan, trainer, trainer.names
        if list(self.names) != sorted(self.names):
            raise ValueError("sites must come in the order of their names")
        self._initial = initial
        self._before: Contact | None = None
        self._memory: Arrays = {}
        self._sizes: list[np.ndarray] = []  # of the models as they stand, where they are known
        self._noisy = at_contacts(plan)
        self.careful = self._noisy is not None  # contact by contact: each has noise of its own
        self._federated = plan.method.family == "federated"
        self.gate = float(plan.method.gate) if self._federated else 0.0
        self._last = initial(None)  # the last common model

    def _depart(self, contact: Contact) -> None:
        """Give a model to every site that takes part in the first contact."""
        self.at = drawn(self.plan, len(self.names), contact)
        own = self.plan.initial_models == "independent"
        start = [self._initial(self.names[site] if own else None) for site in (self.at if own else self.at[:1])]
        self.stack: Stack = self.trainer.stack([Traveller(model) for model in start])
        if not own:
            self.stack = self.stack.rows(np.zeros(len(self.at), dtype=np.int64))
        rows = len(self.at)
        self.common = np.full(rows, not own)  # the last common model, untouched
        self.trained = np.zeros(rows, dtype=bool)  # since the last aggregation, so it counts in the next
        self._by = np.full(rows, -1)  # the site that trained it last
        self._examples, self._steps = np.zeros(rows), np.zeros(rows, dtype=np.int64)
        self._carries = np.zeros(rows, dtype=bool)  # optimizer state goes along
        self._rule: Arrays = {}

    def walk(self, stretch: Sequence[Contact], order_rule: Arrays) -> Moment | None:
        """Train all travellers from contact to contact; None, and nothing has happened, where one contact at a time
        must be looked at. A traveller whose model is not finite after one contact is as it was before it.
        """
        if self._before is None:
            self._depart(stretch[0])
        legs, at, before = [], self.at, self._before
        for contact in stretch:
            at = at if before is None else moved(self.plan, len(self.names), at, before, contact)
            arrived = before is None or before.travels
            legs.append(Leg(at, contact.t, contact.rounds, arrived, contact.action is Action.AGGREGATE))
            before = contact
        received = self.stack.clone()
        trained = self.trainer.walk(self.stack, legs, Signals(self.common, order_rule, self._memory))
        if contact.travels:
            self._make_private(received, at, contact.t)
        good = Rows(self.stack.state | self.stack.optimizer).finite()
        grown = self._grown(received)
        if not good.all() or grown.any():
            self._sizes = []  # some models will be put back
        if len(stretch) > 1 and not (good.all() and not grown.any()):
            self.stack, self.careful = received, self.careful or not good.all()
            return None
        reasons = dict.fromkeys(np.flatnonzero(~good).tolist(), NOT_FINITE)
        if grown.any():
            reasons |= self._too_large(received, np.flatnonzero(good))
        good[list(reasons)] = False
        sent = self._bytes(stretch, order_rule, trained.rule, good)
        self.at, self._before, self._memory = at, contact, trained.memory
        events = self._set_aside(received, reasons, contact, legs[-1].arrived)
        self._examples[good] = trained.examples[good]
        self._steps[good] = trained.steps[good] + (0 if legs[-1].arrived else self._steps[good])
        self._rule = trained.rule if (good | ~self.trained).all() else {}
        order = np.flatnonzero(good)[np.argsort(at[good])]
        sites = tuple(self.names[site] for site in at[order])
        updates = sum(contact.rounds for contact in stretch) * len(at)
        models = Rows(self.stack.state)
        return Moment(contact, None, sites, lambda: models.arrays(order.tolist()), updates, sent, events, self._memory)

    def updates(self) -> Updates:
        """What counts in the aggregation: every traveller that was trained since the last, wherever it is."""
        rows = np.argsort(self.at)
        rows = rows[self.trained[rows]]
        return Updates(
            sites=tuple(self.names[site] for site in self.at[rows]),
            stack=Rows(self.stack.state).arrays(rows.tolist()),
            weights=self._examples[rows] if self.plan.method.weighted else None,
            steps=self._steps[rows],
            rule={name: array[rows] for name, array in self._rule.items()},
            sites_in_all=len(self.names),
        )

    def become(self, common: Arrays, afresh: bool = False) -> None:
        """Every traveller is the common model now, weights and buffers; its moments stay with it, unless ``afresh``."""
        self.stack.replace(common)
        one = self.stack.rows(slice(0, 1))
        self._sizes = [np.repeat(sizes, len(self.at)) for sizes in _sizes_of(one)] if self.gate else []
        self.common[:], self.trained[:], self._last = True, False, common
        if afresh:
            self._forget(np.arange(len(self.at)))

    def _forget(self, rows: np.ndarray) -> None:
        for tensor in self.stack.optimizer.values():
            tensor[torch.from_numpy(rows).to(tensor.device)] = 0
        self._carries[rows], self._by[rows] = False, -1

    def _grown(self, received: Stack) -> np.ndarray:
        """Which models may have had an update that is too large; a quick look, for most have not."""
        if not self.gate:
            return np.zeros(len(self.at), dtype=bool)
        was = self._sizes or _sizes_of(received)
        self._sizes = now = _sizes_of(self.stack)
        return np.asarray(np.any([after > GROWN * before for after, before in zip(now, was, strict=True)], axis=0))

    def _too_large(self, received: Stack, rows: np.ndarray) -> dict[int, str]:
        came, sent = Rows(self.stack.state).arrays(rows.tolist()), Rows(received.state).arrays(rows.tolist())
        return {int(rows[row]): why for row, why in too_large(came, sent, self._last, self.gate).items()}

    def _set_aside(
        self, received: Stack, reasons: dict[int, str], contact: Contact, arrived: bool
    ) -> list[dict[str, Any]]:
        """Put back what came to the sites whose models are set aside, or the last common model if that was absurd."""
        good = np.setdiff1d(np.arange(len(self.at)), list(reasons))
        if not len(good):
            told = next(iter(reasons.values()))
            raise ReplyError(f"No site gave a model that may be used at round {contact.t}: {told}.")
        self.common[good], self.trained[good] = False, True
        events = self._put_back(received, reasons, contact.t, arrived) if reasons else []
        self._by[good] = self.at[good]
        return events

    def _put_back(self, received: Stack, reasons: dict[int, str], t: int, arrived: bool) -> list[dict[str, Any]]:
        bad = np.array(sorted(reasons, key=lambda row: self.at[row]))
        self.stack.put(bad, received.rows(bad))
        moments = leaving(self.plan.recipe, received.optimizer) if arrived else received.optimizer
        models = sizes(halves(Rows(received.state).arrays())[0])
        beside = sizes(Rows(moments).arrays()) if moments else np.zeros(len(models))
        absurd = outsize(models, beside, self._last) & (self._by >= 0) & self._federated
        events = []
        for row in bad:
            site, by = self.names[self.at[row]], self.names[self._by[row]]
            told = charge(site, reasons[row], by if absurd[row] else None)
            events.append({"t": t, **dict(zip(("site", "kind", "reason"), told, strict=True))})
        if absurd[bad].any():
            self._restart(bad[absurd[bad]])
        return events

    def _restart(self, rows: np.ndarray) -> None:
        """Make rows the last common model, as nobody has trained it."""
        model = {name: np.repeat(array[None], len(rows), axis=0) for name, array in self._last.items()}
        for name, tensor in self.stack.state.items():
            tensor[torch.from_numpy(rows).to(tensor.device)] = torch.from_numpy(model[name]).to(tensor)
        self.common[rows], self.trained[rows] = True, False
        self._forget(rows)

    def _make_private(self, received: Stack, at: np.ndarray, t: int) -> None:
        """Clip and noise, or blur, what leaves the sites, as each would do it, where the plan asks for that."""
        if self._noisy is None:
            return
        rngs = [noise_rng(self.plan.seed, self.names[site], t) for site in at]
        sent = privatise(Rows(self.stack.state).arrays(), Rows(received.state).arrays(), self._noisy, rngs)
        for name, tensor in self.stack.state.items():
            tensor.copy_(torch.from_numpy(sent[name]))

    def _bytes(self, stretch: Sequence[Contact], order_rule: Arrays, sent_rule: Arrays, good: np.ndarray) -> int:
        """The bytes of the arrays that the messages of a stretch carry: an order before it if models have travelled
        since the last training, a reply after it if they will. Those who train alone send nothing.
        """
        if self.plan.method.family != "federated":
            return 0
        model = Rows(self.stack.state).bytes_per_row
        moments = Rows(leaving(self.plan.recipe, self.stack.optimizer)).bytes_per_row
        rule = sum(array.nbytes for array in order_rule.values())
        total, before = 0, self._before
        for contact in stretch:
            if before is None or before.travels:
                total += len(self.at) * (model + rule) + int(self._carries.sum()) * moments
            accepted = good if contact is stretch[-1] else np.ones_like(good)
            if contact.travels:
                total += int(accepted.sum()) * (model + moments)
            self._carries = self._carries | (accepted & bool(moments))
            before = contact
        return total + sum(int(array[good].nbytes) for array in sent_rule.values())


def _sizes_of(stack: Stack) -> list[np.ndarray]:
    """The norms of the models' weights, and of their running statistics where they have any: (models,) each."""
    return [Rows(half).norms() for half in halves(stack.state) if half]
