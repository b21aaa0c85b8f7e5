"""Dynamic averages on a stack of models: what is different at a contact, for :mod:`fedsmall.travel.daisy_chain`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import numpy as np
import torch

from fedsmall.aggregation.combiners import Updates
from fedsmall.plan import Plan
from fedsmall.travel.commons import Event, combined
from fedsmall.travel.departing import bytes_on_the_way
from fedsmall.travel.dynamic.balancing import Coordinator, Weighed, squared_distances
from fedsmall.travel.moments import Moment
from fedsmall.travel.topologies import Topology
from fedsmall.travel.travellers import Travellers
from fedsmall.wire import Arrays


@final
class DynamicAverages(Topology):
    """The averages of a run that may be left out; a model that takes no part stays at its site as it was trained.

    ``travellers`` are the sites' models.
    """

    def __init__(self, plan: Plan, travellers: Travellers) -> None:
        super().__init__(plan, travellers)
        assert plan.method.divergence is not None
        self.commons = travellers.commons
        self._coordinator = Coordinator(plan.method.divergence, plan.travel_seed)
        self._pending: tuple[Sequence[str], Arrays] = (), {}  # a mean, and the sites that are about to become it
        self._bytes = 0  # of models that were asked for
        self._to_send = len(travellers.names)  # sites that get a model with the next order: the first goes to all

    def average(self, moment: Moment) -> Iterator[Moment]:
        """The moment of an average that is due; after it, what took part has become its mean."""
        t, travellers = moment.contact.t, self.travellers
        self._came = came = travellers.updates()  # as far as models are here
        reference, sites = self.commons.models[0], len(travellers.names)
        self._bytes = 0
        taken = self._coordinator.settle(
            t, reference, self._beyond(came, reference), self._fetch, sites, last=t >= self.plan.rounds
        )
        events, mean = self._made(t, taken.whole, of_sites(self._came, taken.sites))
        if taken.whole:
            travellers.publish()
        elif mean is not None:
            self._pending = taken.sites, mean
        yield moment._replace(
            common=self.commons.result(),
            commons=tuple(self.commons.models) if taken.whole else (),
            bytes_sent=moment.bytes_sent + self._bytes + self._bytes_of(len(taken.sites)),
            events=moment.events + events,
            averaged=(len(taken.sites), taken.whole),
        )
        self._to_send = sites if taken.whole else len(taken.sites)
        if taken.whole:
            travellers.become_common()
        elif mean is not None:
            self._become(taken.sites, mean)
        self._pending = (), {}

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """The violations, and a mean that its sites have not become yet."""
        sites, mean = self._pending
        return mean, {"violations": self._coordinator.violations, "sites": list(sites), "to_send": self._to_send}

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self._coordinator.violations, self._to_send = int(words["violations"]), int(words["to_send"])
        if words["sites"]:
            self._become(words["sites"], arrays)

    def _beyond(self, came: Updates, reference: Arrays) -> dict[str, bool]:
        """Whose model is beyond the bound; sites elsewhere say so by sending it."""
        travellers = self.travellers
        if travellers.trainer.is_remote:
            sent = {travellers.names[site] for site in travellers.at[travellers.has_sent]}
            return {site: site in sent for site in came.sites}
        beyond = squared_distances(came.stack, reference) > self._coordinator.bound if came.sites else ()
        return dict(zip(came.sites, np.asarray(beyond, dtype=bool).tolist(), strict=True))

    def _fetch(self, sites: Sequence[str]) -> Mapping[str, Weighed]:
        """The models of some sites, as they are on the stack or sent now."""
        there, sent = self.travellers.fetch(sites)
        self._bytes += sent
        if sent:  # models are here that were not
            self._came = self.travellers.updates()
        updates = of_sites(self._came, sorted(there))
        weights = np.ones(len(there)) if updates.weights is None else updates.weights
        return {
            site: Weighed({name: array[row] for name, array in updates.stack.items()}, float(weights[row]))
            for row, site in enumerate(updates.sites)
        }

    def _bytes_of(self, taken: int) -> int:
        """The bytes of the models that went out for this contact, and of those that came for its average; messages say
        of themselves what they hold.
        """
        if self.travellers.trainer.is_remote:
            return 0
        size, _ = bytes_on_the_way(self.plan, self.travellers.stack)
        return (self._to_send + taken) * size

    def _made(self, t: int, whole: bool, updates: Updates) -> tuple[list[Event], Arrays | None]:
        """The events of an average, and the mean of one that is not whole."""
        gate = self.travellers.gate
        if whole:
            self.travellers.refused, told = self.commons.aggregate(lambda group: updates, t, gate)
            return told, None
        if not updates.sites:
            return [], None
        mean, told = combined(self.commons.combiner, self.commons.models[0], updates, t, gate)
        return told, mean

    def _become(self, sites: Sequence[str], mean: Arrays) -> None:
        places = np.flatnonzero(np.isin(self.travellers.names, sites))
        models = {name: torch.from_numpy(np.stack([array] * len(places))) for name, array in mean.items()}
        self.travellers.become(self.travellers.at, places, models)


def of_sites(updates: Updates, sites: Sequence[str]) -> Updates:
    """What counts in an average of some of the sites."""
    if tuple(sites) == updates.sites:
        return updates
    rows = np.flatnonzero(np.isin(updates.sites, sites))
    return replace(
        updates,
        sites=tuple(sites),
        stack={name: array[rows] for name, array in updates.stack.items()},
        weights=None if updates.weights is None else updates.weights[rows],
        steps=updates.steps[rows],
        rule={name: array[rows] for name, array in updates.rule.items()},
    )
