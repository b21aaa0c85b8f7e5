"""Dynamic averages on a stack of models: what is different at a contact, for :mod:`fedsmall.travel.daisy_chain`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedsmall.aggregation.combiners import Updates
from fedsmall.plan import Plan
from fedsmall.travel.commons import Event, combined
from fedsmall.travel.departing import bytes_on_the_way
from fedsmall.travel.dynamic.balancing import Coordinator, Weighed, squared_distances
from fedsmall.travel.moments import Moment
from fedsmall.travel.travellers import Travellers
from fedsmall.wire import Arrays


class DynamicAverages:
    """The averages of a run that may be left out; a model that takes no part stays at its site as it was trained.

    ``travellers`` are the sites' models.
    """

    def __init__(self, plan: Plan, travellers: Travellers) -> None:
        assert plan.method.divergence is not None
        self.plan, self.travellers, self.commons = plan, travellers, travellers.commons
        self._coordinator = Coordinator(plan.method.divergence, plan.travel_seed)
        self._to_send = len(travellers.names)  # sites that get a model with the next order: the first goes to all

    def average(self, moment: Moment) -> Iterator[Moment]:
        """The moment of an average that is due; after it, what took part has become its mean."""
        t, came = moment.contact.t, self.travellers.updates()
        reference, sites = self.commons.models[0], len(self.travellers.names)
        beyond = squared_distances(came.stack, reference) > self._coordinator.bound if came.sites else ()
        present = dict(zip(came.sites, np.asarray(beyond, dtype=bool).tolist(), strict=True))
        taken = self._coordinator.settle(t, reference, present, _Models(came), sites, last=t >= self.plan.rounds)
        events, mean = self._made(t, taken.whole, of_sites(came, taken.sites))
        size, _ = bytes_on_the_way(self.plan, self.travellers.stack)
        yield moment._replace(
            common=self.commons.result(),
            commons=tuple(self.commons.models) if taken.whole else (),
            bytes_sent=(self._to_send + len(taken.sites)) * size,
            events=moment.events + events,
            averaged=(len(taken.sites), taken.whole),
        )
        self._to_send = sites if taken.whole else len(taken.sites)
        if taken.whole:
            self.travellers.become_common()
        elif mean is not None:
            self._become(taken.sites, mean)

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


class _Models:
    """The models of a stack by site, for whoever asks for some."""

    def __init__(self, came: Updates) -> None:
        self._came, self._row = came, {site: row for row, site in enumerate(came.sites)}

    def __call__(self, sites: Sequence[str]) -> Mapping[str, Weighed]:
        return {site: self._of(self._row[site]) for site in sites}

    def _of(self, row: int) -> Weighed:
        weight = 1.0 if self._came.weights is None else float(self._came.weights[row])
        return Weighed({name: array[row] for name, array in self._came.stack.items()}, weight)


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
