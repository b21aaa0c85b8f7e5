"""Who averages with whom: one server, a server for each region, or one region's own; others are beside this module."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import final

import numpy as np

from fedsmall.algorithm.model_states import ModelStates
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.travel.journey import Event, Moment, meet, regions_of, route_within
from fedsmall.travel.schedule import Action, Contact
from fedsmall.wire import Arrays, Restorable

# Takes a round, a region's global model after it and the weight behind that; gives the model of all regions.
United = Callable[[int, Arrays, float], Arrays]


class Topology(Restorable, ABC):
    """Moves the models of ``states``; it ``has_places`` where the plan alone says where every model goes next."""

    has_places = True

    def __init__(self, plan: Plan, states: ModelStates) -> None:
        self.plan, self.states = plan, states

    def walk(self, stretch: Sequence[Contact]) -> Moment | None:
        """Train all models from contact to contact; None, and nothing has happened, where that must go in parts."""
        return self.states.walk(stretch)

    def walk_on(self, walks: Sequence[Sequence[Contact]]) -> tuple[Moment | None, int]:
        """The moment after as many walks, each up to an aggregation, as can be gone unseen; None and 0 for none."""
        return None, 0

    @abstractmethod
    def average(self, moment: Moment) -> Iterator[Moment]:
        """The moment of an aggregation; after it, models are what it has made of them."""


@final
class Server(Topology):
    """One server, which makes the next global model, or one for each group; plain means of groups at once."""

    def walk_on(self, walks: Sequence[Sequence[Contact]]) -> tuple[Moment | None, int]:
        """As :meth:`ModelStates.walk_on`."""
        return self.states.walk_on(walks)

    def average(self, moment: Moment) -> Iterator[Moment]:
        """Let every group's models become one."""
        states, t = self.states, moment.contact.t
        commons, means, events = states.commons, states.means(), list[Event]()
        if means is None:
            states.refused, events = commons.aggregate(states.updates, t, states.gate)
        else:
            commons.go_on_with(means)
            states.refused = set()
        yield from become_global(states, moment, events)


@final
class Regions(Topology):
    """A server for each region; now and then the regions' global models become one."""

    def average(self, moment: Moment) -> Iterator[Moment]:
        """Let every region's models become one, and the regions' where they meet."""
        states, commons = self.states, self.states.commons
        states.group = regions_of(self.plan, len(states.names))[states.at]
        states.refused, events = commons.aggregate(states.updates, moment.contact.t, states.gate)
        between = commons.unite(states.shares()) if meet(self.plan, moment.contact) else 0
        yield from become_global(states, moment, events, between)


@final
class Region(Topology):
    """One region's server among several: now and then its global model becomes one with those of the others.

    ``whole`` is the plan of all regions, given to the sites; routes are drawn over the sites of all, by name, so that
    the regions together equal their simulation to the bit. ``united`` gives the model of all.
    """

    def __init__(self, plan: Plan, states: ModelStates, whole: Plan, united: United) -> None:
        super().__init__(plan, states)
        states.move, self._whole, self._united = self._move, whole, united

    def average(self, moment: Moment) -> Iterator[Moment]:
        """Let the region's models become one, and that one with the other regions' where they meet."""
        states, commons, t = self.states, self.states.commons, moment.contact.t
        weight = float(states.shares().sum())  # of what counts, before it is averaged
        states.refused, events = commons.aggregate(states.updates, t, states.gate)
        if meet(self._whole, moment.contact):
            model = commons.models[0]
            united = self._united(t, model, weight)
            layouts = [{name: (a.shape, a.dtype) for name, a in part.items()} for part in (model, united)]
            if layouts[0] != layouts[1]:
                raise PlanError("the united model has other arrays than this region's")
            commons.go_on_with({name: united[name][None] for name in model})
        yield from become_global(states, moment, events)

    def _move(self, at: np.ndarray, before: Contact, contact: Contact) -> np.ndarray:
        if before.action is not Action.PERMUTE:
            return at
        names = self.states.names
        to = route_within(self._whole, names, before.t)
        return np.array([names.index(to[names[site]]) for site in at])


def become_global(states: ModelStates, moment: Moment, events: Sequence[Event], between: int = 0) -> Iterator[Moment]:
    """The moment with what its aggregation, which had these ``events``, has made; after it all models are that."""
    states.publish()
    commons = states.commons
    yield moment._replace(
        common=commons.result() if commons.agreed else None,
        commons=tuple(commons.models),
        of_routes=commons.of_routes,
        events=[*moment.events, *events],
        bytes_between=moment.bytes_between + between,
    )
    states.become_common()
