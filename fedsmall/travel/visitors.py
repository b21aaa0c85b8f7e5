"""The last models that have trained at each site, kept there as they left it: an ensemble that costs no message."""

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from fedsmall.plan import Plan
from fedsmall.travel.journey import journey
from fedsmall.travel.moments import Moment
from fedsmall.travel.schedule import Contact
from fedsmall.wire import Arrays


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
    """What the sites ``names`` keep of a simulated run: it looks at the moments at which the last visitors leave.

    A visitor that was set aside is not kept, and none is in its place.
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
        return {site: together(kept) for site, kept in self._kept.items() if kept}


def together(models: Sequence[Arrays]) -> Arrays:
    """Models as one result with a leading axis of members."""
    return {name: np.stack([model[name] for model in models]) for name in models[0]}
