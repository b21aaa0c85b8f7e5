"""Dynamic averaging: who takes part in an average that is due, decided by distances from the last global model.

Every site checks ||f - r||^2 <= bound, in which r is the last model that all sites had. Where all keep to it so does
the mean of all models, for a ball is convex, and nothing is sent. Violators send their models; further ones are asked
for until the mean of those that came is within the bound, or all have come. Those that came become their mean; if all
came, it is the next r.

Source: Kamp, Adilova, Sicking, Hüger, Schlicht, Wirtz & Wrobel, Efficient Decentralized Deep Learning by Dynamic Model
Averaging (ECML PKDD 2018), Algorithms 1 and 2. Further sites are asked one by one, in a random order. Three departures:
the last average of a run takes all models. All are asked for where the violations since the last whole average come to
the number of sites or more (in the paper: just that); a whole average resets that count. The silent are passed over.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np
import torch

from fedsmall.aggregation.server_optimizers import Updates, parameters_of
from fedsmall.algorithm.global_models import combine_soundly
from fedsmall.algorithm.model_states import ModelStates
from fedsmall.algorithm.topologies import Topology
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.travel.journey import Event, RoundResult
from fedsmall.wire import Arrays, stack_of_one


class Weighed(NamedTuple):
    """A site's model, and how much it counts in a mean."""

    model: Mapping[str, np.ndarray]
    weight: float = 1.0


class Taken(NamedTuple):
    """The sites whose models an average takes, in order; none where it is left out. ``whole``: these are all."""

    sites: tuple[str, ...]
    whole: bool


Fetch = Callable[[Sequence[str]], Mapping[str, Weighed]]  # sites' models, without those that cannot be had


def squared_distances(models: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> np.ndarray:
    """Squared float64 distances (models,) of models {name: (models, ...)} from a reference, by weights alone."""
    total = np.zeros(len(next(iter(models.values()))))
    for name in parameters_of(reference):
        apart = models[name].astype(np.float64) - reference[name]
        apart = apart.reshape(len(total), -1)  # (models, numbers)
        total += np.einsum("mp,mp->m", apart, apart)
    return total


def order_of_asking(seed: int, t: int, sites: Iterable[str]) -> list[str]:
    """The order in which sites are asked for their models at the average of round ``t``."""
    names = sorted(sites)
    return [names[place] for place in rng_for(seed, "balance", t).permutation(len(names))]


@dataclass
class Coordinator:
    """Decides who takes part in averages, and counts the ``violations`` of the ``bound`` since the last whole one."""

    bound: float
    seed: int
    violations: int = 0

    def settle(
        self,
        t: int,
        reference: Mapping[str, np.ndarray],
        present: Mapping[str, bool],
        fetch: Fetch,
        sites: int,
        last: bool = False,
    ) -> Taken:
        """Who takes part in the average that is due after round ``t``, the ``last`` of the run or not.

        ``present`` are the sites, of ``sites`` in all, that have answered, and whether each is beyond the bound.
        """
        beyond = sorted(site for site, violates in present.items() if violates)
        self.violations += len(beyond)
        others = order_of_asking(self.seed, t, present.keys() - set(beyond))
        if last or self.violations >= sites:
            asked, taking_part = len(present), set(fetch([*beyond, *others]))
        elif beyond:
            asked, taking_part = balance_by_asking(reference, self.bound, [beyond, *([site] for site in others)], fetch)
        else:
            return Taken((), False)
        whole = bool(taking_part) and asked == len(present)
        self.violations = 0 if whole else self.violations
        return Taken(tuple(sorted(taking_part)), whole)


def balance_by_asking(
    reference: Mapping[str, np.ndarray], bound: float, turns: Iterable[Sequence[str]], fetch: Fetch
) -> tuple[int, set[str]]:
    """How many sites were asked, turn after turn, until the mean of what came is within the bound; and who came."""
    sums, weight = {name: np.zeros(reference[name].shape) for name in parameters_of(reference)}, 0.0
    nothing = {name: np.zeros(total.shape) for name, total in sums.items()}
    taking_part, asked = set[str](), 0
    for turn in turns:
        models = fetch(turn)
        for _, (model, share) in sorted(models.items()):
            weight += share
            for name, total in sums.items():
                total += share * (model[name].astype(np.float64) - reference[name])
        taking_part |= models.keys()
        asked += len(turn)
        mean = {name: total / weight for name, total in sums.items()} if taking_part else {}
        if mean and squared_distances(stack_of_one(mean), nothing)[0] <= bound:
            break
    return asked, taking_part


@final
class DynamicAverages(Topology):
    """The averages of a run that may be left out; a model that takes no part stays at its site as it was trained."""

    def __init__(self, plan: Plan, states: ModelStates) -> None:
        super().__init__(plan, states)
        assert plan.method.divergence is not None
        self.global_models = states.global_models
        self._coordinator = Coordinator(plan.method.divergence, plan.travel_seed)
        self._pending: tuple[Sequence[str], Arrays] = (), {}  # a mean, and the sites that are about to become it
        self._bytes = 0  # of models that were asked for
        self._to_send = len(states.names)  # sites that get a model with the next order: the first goes to all

    def average(self, result: RoundResult) -> Iterator[RoundResult]:
        """The result of an average that is due; after it, what took part has become its mean."""
        t, states = result.comm_round.t, self.states
        self._came = updates = states.updates()  # as far as models are here
        reference, sites = self.global_models.models[0], len(states.names)
        self._bytes = 0
        taken = self._coordinator.settle(
            t, reference, self._beyond(updates, reference), self._fetch, sites, last=t >= self.plan.rounds
        )
        events, mean = self._made(t, taken.whole, of_sites(self._came, taken.sites))
        if taken.whole:
            states.publish()
        elif mean is not None:
            self._pending = taken.sites, mean
        models = 0 if self.states.trainer.is_remote else self._to_send + len(taken.sites)
        yield result._replace(
            global_model=self.global_models.result(),
            global_models=tuple(self.global_models.models) if taken.whole else (),
            bytes_sent=result.bytes_sent + self._bytes + models * self.states.sizes_of_one[0],
            events=result.events + events,
            averaged=(len(taken.sites), taken.whole),
        )
        self._to_send = sites if taken.whole else len(taken.sites)
        if taken.whole:
            states.become_global()
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

    def _beyond(self, updates: Updates, reference: Arrays) -> dict[str, bool]:
        states = self.states
        if states.trainer.is_remote:
            sent = {states.names[site] for site in states.at[states.has_sent]}
            return {site: site in sent for site in updates.sites}
        beyond = squared_distances(updates.stack, reference) > self._coordinator.bound if updates.sites else ()
        return dict(zip(updates.sites, np.asarray(beyond, dtype=bool).tolist(), strict=True))

    def _fetch(self, sites: Sequence[str]) -> Mapping[str, Weighed]:
        present, sent = self.states.fetch(sites)
        self._bytes += sent
        if sent:  # models are here that were not
            self._came = self.states.updates()
        updates = of_sites(self._came, sorted(present))
        weights = np.ones(len(present)) if updates.weights is None else updates.weights
        return {
            site: Weighed({name: array[row] for name, array in updates.stack.items()}, float(weights[row]))
            for row, site in enumerate(updates.sites)
        }

    def _made(self, t: int, whole: bool, updates: Updates) -> tuple[list[Event], Arrays | None]:
        gate = self.states.gate
        if whole:
            self.states.refused, events = self.global_models.aggregate(lambda group: updates, t, gate)
            return events, None
        if not updates.sites:
            return [], None
        mean, events = combine_soundly(self.global_models.combiner, self.global_models.models[0], updates, t, gate)
        return events, mean

    def _become(self, sites: Sequence[str], mean: Arrays) -> None:
        places = np.flatnonzero(np.isin(self.states.names, sites))
        models = {name: torch.from_numpy(np.stack([array] * len(places))) for name, array in mean.items()}
        self.states.become(self.states.at, places, models)


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
