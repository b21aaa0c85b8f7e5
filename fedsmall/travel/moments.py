"""What is seen of a run: the moment after each stretch of contacts, and those who look at it."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedsmall.plan import Plan
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Contact
from fedsmall.wire import Arrays


class Moment(NamedTuple):
    """What is there after a contact, or after a piece of one, before anything else moves.

    ``common`` is the evaluated and kept result of a contact that aggregates, and ``commons`` are the groups' models
    from which all set out after it; ``of_routes`` gives what is evaluated of each route. ``sites`` have just trained,
    and ``models`` gives what they trained, {name: (sites, ...)}, in the order of their names. ``updates`` (rounds of
    local training, over all sites), ``bytes_sent``, ``bytes_between`` (servers of regions) and ``events`` are those
    since the moment before; ``memory`` is what the sites remember. ``averaged`` is how many models a dynamic average
    took (:mod:`fedsmall.algorithm.dynamic`), and whether these were all; None for others.
    """

    contact: Contact
    common: Arrays | None
    sites: tuple[str, ...]
    models: Callable[[], Arrays]
    updates: int
    bytes_sent: int
    events: list[dict[str, Any]]
    memory: Arrays
    bytes_between: int = 0
    commons: tuple[Arrays, ...] = ()
    of_routes: Callable[[], tuple[Arrays, ...]] = tuple
    averaged: tuple[int, bool] | None = None


def nobody(contact: Contact, memory: Arrays) -> Moment:
    """The moment after a contact at which no site had a model to train."""
    return Moment(contact, None, (), dict, 0, 0, [], memory)


class Watcher(Protocol):
    """Somebody who looks at the moments of a run and changes nothing."""

    def needs(self, contact: Contact) -> bool:
        """Whether the models must be seen as they leave at this contact."""

    def see(self, moment: Moment) -> None:
        """Take in a moment."""


def watching(moments: Iterable[Moment], watchers: Sequence[Watcher]) -> Iterator[Moment]:
    """The moments of a run, each shown to the ``watchers`` before anybody else sees it."""
    for moment in moments:
        for watcher in watchers:
            watcher.see(moment)
        yield moment


def last_visits(plan: Plan, sites: int, samples: Sequence[int] = ()) -> frozenset[int]:
    """The rounds after which some site is left by one of the last visitors that it keeps."""
    assert plan.method.keep_last is not None
    visits: Counter[int] = Counter()
    rounds = set()
    for contact, at in reversed(list(journey(plan, sites, samples))):
        keepers = [site for site in at.tolist() if visits[site] < plan.method.keep_last]
        visits.update(keepers)
        rounds |= {contact.t} if keepers else set()
    return frozenset(rounds)


class Visitors:
    """What the sites ``names`` keep of a simulated run, from the moments at which the last visitors leave.

    A visitor that was set aside is not kept, nor replaced.
    """

    def __init__(self, plan: Plan, names: Sequence[str], samples: Sequence[int] = ()) -> None:
        self._rounds = last_visits(plan, len(names), samples)
        self._kept: dict[str, deque[Arrays]] = {site: deque(maxlen=plan.method.keep_last) for site in names}

    def needs(self, contact: Contact) -> bool:
        """Whether the models that leave at a contact are kept anywhere."""
        return contact.travels and contact.t in self._rounds

    def see(self, moment: Moment) -> None:
        """Keep what leaves, at each site its own."""
        if not self.needs(moment.contact):
            return
        models = moment.models()
        for row, site in enumerate(moment.sites):
            self._kept[site].append({name: array[row].copy() for name, array in models.items()})

    def members(self) -> dict[str, Arrays]:
        """The visitors that each site has kept, {name: (members, ...)}, oldest first; only of sites that have any."""
        return {site: stack_members(models) for site, models in self._kept.items() if models}


def stack_members(models: Sequence[Arrays]) -> Arrays:
    """Models as one result with a leading axis of members."""
    return {name: np.stack([model[name] for model in models]) for name in models[0]}


Event = dict[str, Any]  # what became of a site at a round that did not go as it should
Initial = Callable[[str | None], Arrays]  # the model with which a site starts, or the common one for None


def event(t: int, site: str, kind: str, reason: str) -> Event:
    """What is written down of a site at round ``t``; the report has a row for it."""
    return {"t": t, "site": site, "kind": kind, "reason": reason}


def starting(plan: Plan, sites: int, initial: Initial) -> list[Arrays]:
    """The models with which the groups start: all one, or each its own where initial models are independent."""
    method = plan.method
    groups = method.region_count if method.region_count > 1 else method.group_count(sites)
    independent = plan.initial_models == "independent" and method.group_count(sites) > 1
    return [initial(f"group-{group}") if independent else initial(None) for group in range(groups)]
