"""Federated daisy-chaining (Kamp, Fischer & Vreeken, ICLR 2023, Algorithm 1), for every engine and real sites.

Row k of a stack is a model, and ``at[k]`` the site where it is (:mod:`fedsmall.algorithm.model_states`). A permutation
changes ``at``, an aggregation the rows. Sites train here, or behind a grid.
"""

from collections.abc import Callable, Iterable, Iterator

from fedsmall.aggregation.combiners import Combiner, combiner_for
from fedsmall.algorithm.dynamic import DynamicAverages
from fedsmall.algorithm.gossip import Peers
from fedsmall.algorithm.model_states import ModelStates
from fedsmall.algorithm.topologies import Region, Regions, Server, Topology, United, become_global
from fedsmall.entry_points import Registry
from fedsmall.plan import Plan
from fedsmall.training.trainer import Trainer
from fedsmall.travel.journey import Initial, RoundResult
from fedsmall.travel.schedule import Action, CommRound

TOPOLOGIES = Registry[Callable[[Plan, ModelStates], Topology]]("fedsmall.topologies", {"gossip": Peers, "ring": Peers})
TOGETHER = 2**14  # rounds of sites that go by without a result


def topology_for(
    plan: Plan, trainer: Trainer, initial: Initial, combiner: Combiner | None = None, united: United | None = None
) -> Topology:
    """The sites of ``trainer`` as the plan's method lets them average; ``combiner`` in place of the method's own.

    ``initial`` gives each site its own model, or all one under None. ``united`` is a line to other regions.
    """
    if united is not None:
        within = plan.model_copy(update={"method": plan.method.model_copy(update={"regions": None})})
        return Region(within, ModelStates(within, trainer, combiner_for(plan), initial), plan, united)
    method, states = plan.method, ModelStates(plan, trainer, combiner or combiner_for(plan), initial)
    if method.topology is not None:
        return TOPOLOGIES[method.topology.by](plan, states)
    if method.is_dynamic:
        return DynamicAverages(plan, states)
    return Server(plan, states) if method.has_one_server else Regions(plan, states)


def daisy_chain(
    topology: Topology, comm_rounds: Iterable[CommRound], due: Callable[[CommRound], bool] = lambda comm_round: False
) -> Iterator[RoundResult]:
    """Algorithm 1 over the sites of a topology: a result for each stretch of communication rounds walked in one go.

    A stretch ends with an aggregation, and where models must be seen (``due``) or noised. Aggregation wins a tie.
    """
    states = topology.states
    for walks, seen in _together(
        topology, stretches(comm_rounds, lambda comm_round: states.careful or due(comm_round)), due
    ):
        result, done = (None, 0) if seen else topology.walk_on(walks)
        if result is not None:
            yield from become_global(states, result, [])
        left = walks[done:]
        while left:
            now = left.pop(0)
            result = topology.walk(now)  # lines 4 to 8: train, and let models travel
            if result is None:  # a model is not what it should be: again in parts, so that it is stopped where it arose
                length = 1 if states.careful else (len(now) + 1) // 2
                left = [*(now[k : k + length] for k in range(0, len(now), length)), *left]
            elif now[-1].action is Action.AGGREGATE:
                yield from topology.average(result)  # lines 9 to 12: the models become one, which all sites get
            else:
                yield result


def stretches(comm_rounds: Iterable[CommRound], ends: Callable[[CommRound], bool]) -> Iterator[list[CommRound]]:
    """Communication rounds that can be walked in one go: up to the next one at whose end somebody must act."""
    stretch: list[CommRound] = []
    for comm_round in comm_rounds:
        stretch.append(comm_round)
        if comm_round.action is Action.AGGREGATE or ends(comm_round):
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _together(
    topology: Topology, walks: Iterable[list[CommRound]], due: Callable[[CommRound], bool]
) -> Iterator[tuple[list[list[CommRound]], bool]]:
    """Walks and whether each is seen: between aggregations whose models nobody sees several at a time, else alone."""
    states, together, left, last = topology.states, list[list[CommRound]](), 0, Action.AGGREGATE
    for walk in walks:
        whole = last is walk[-1].action is Action.AGGREGATE
        seen, last = not (whole and states.goes_on) or due(walk[-1]), walk[-1].action
        if together and (seen or left < len(walk)):
            yield together, False
            together = []
        if seen:
            yield [walk], True
            continue
        left = (left if together else TOGETHER // len(states.names)) - len(walk)
        together.append(walk)
    if together:
        yield together, False
