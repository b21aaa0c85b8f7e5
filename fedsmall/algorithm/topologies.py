"""Who averages with whom: one server, a server for each region, or one region's own; others are beside this module."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import final

import numpy as np

from fedsmall.algorithm.model_states import ModelStates
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.travel.journey import Event, RoundResult, meet, regions_of, route_within
from fedsmall.travel.schedule import Action, CommRound
from fedsmall.wire import Arrays, Restorable

# Takes a round, a region's global model after it and the weight behind that; gives the model of all regions.
United = Callable[[int, Arrays, float], Arrays]


class Topology(Restorable, ABC):
    """Moves the models of ``states``; it ``has_places`` where the plan alone says where every model goes next."""

    has_places = True

    def __init__(self, plan: Plan, states: ModelStates) -> None:
        self.plan, self.states = plan, states

    def walk(self, stretch: Sequence[CommRound]) -> RoundResult | None:
        """Train all models through several communication rounds; None, and nothing is changed, if each must be seen."""
        return self.states.walk(stretch)

    def walk_on(self, walks: Sequence[Sequence[CommRound]]) -> tuple[RoundResult | None, int]:
        """The result after as many walks, each up to an aggregation, as can be gone unseen; None and 0 for none."""
        return None, 0

    @abstractmethod
    def average(self, result: RoundResult) -> Iterator[RoundResult]:
        """The result of an aggregation; after it, models are what it has made of them."""


@final
class Server(Topology):
    """One server, which makes the next global model, or one for each group; plain means of groups at once."""

    def walk_on(self, walks: Sequence[Sequence[CommRound]]) -> tuple[RoundResult | None, int]:
        """As :meth:`ModelStates.walk_on`."""
        return self.states.walk_on(walks)

    def average(self, result: RoundResult) -> Iterator[RoundResult]:
        """Let every group's models become one."""
        states, t = self.states, result.comm_round.t
        global_models, means, events = states.global_models, states.means(), list[Event]()
        if means is None:
            states.refused, events = global_models.aggregate(states.updates, t, states.gate)
        else:
            global_models.go_on_with(means)
            states.refused = set()
        yield from become_global(states, result, events)


@final
class Regions(Topology):
    """A server for each region; now and then the regions' global models become one."""

    def average(self, result: RoundResult) -> Iterator[RoundResult]:
        """Let every region's models become one, and the regions' where they meet."""
        states, global_models = self.states, self.states.global_models
        states.group = regions_of(self.plan, len(states.names))[states.at]
        states.refused, events = global_models.aggregate(states.updates, result.comm_round.t, states.gate)
        between = global_models.unite(states.shares()) if meet(self.plan, result.comm_round) else 0
        yield from become_global(states, result, events, between)


@final
class Region(Topology):
    """One region's server among several: now and then its global model becomes one with those of the others.

    ``whole`` is the plan of all regions, given to the sites; routes are drawn over the sites of all, by name, so that
    the regions together equal their simulation to the bit. ``united`` gives the model of all.
    """

    def __init__(self, plan: Plan, states: ModelStates, whole: Plan, united: United) -> None:
        super().__init__(plan, states)
        states.move, self._whole, self._united = self._move, whole, united

    def average(self, result: RoundResult) -> Iterator[RoundResult]:
        """Let the region's models become one, and that one with the other regions' where they meet."""
        states, global_models, t = self.states, self.states.global_models, result.comm_round.t
        weight = float(states.shares().sum())  # of what counts, before it is averaged
        states.refused, events = global_models.aggregate(states.updates, t, states.gate)
        if meet(self._whole, result.comm_round):
            model = global_models.models[0]
            united = self._united(t, model, weight)
            layouts = [{name: (a.shape, a.dtype) for name, a in part.items()} for part in (model, united)]
            if layouts[0] != layouts[1]:
                raise PlanError("the united model has other arrays than this region's")
            global_models.go_on_with({name: united[name][None] for name in model})
        yield from become_global(states, result, events)

    def _move(self, at: np.ndarray, before: CommRound, comm_round: CommRound) -> np.ndarray:
        if before.action is not Action.PERMUTE:
            return at
        names = self.states.names
        to = route_within(self._whole, names, before.t)
        return np.array([names.index(to[names[site]]) for site in at])


def become_global(
    states: ModelStates, of: RoundResult, events: Sequence[Event], between: int = 0
) -> Iterator[RoundResult]:
    """The result with what its aggregation, which had these ``events``, has made; after it all models are that."""
    states.publish()
    global_models = states.global_models
    yield of._replace(
        global_model=global_models.result() if global_models.agreed else None,
        global_models=tuple(global_models.models),
        of_routes=global_models.of_routes,
        events=[*of.events, *events],
        bytes_between=of.bytes_between + between,
    )
    states.become_global()
