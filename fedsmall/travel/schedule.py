"""When models travel, and how: the part that makes federated averaging, daisy-chaining and FedDC one algorithm."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from math import lcm
from typing import NamedTuple, final

import numpy as np

from fedsmall.plan import Plan
from fedsmall.randomness import rng_for


class Action(StrEnum):
    """What follows the local update of a round."""

    TRAIN = "train"  # nothing: no communication round
    PERMUTE = "permute"  # every model goes to a site drawn at random
    AGGREGATE = "aggregate"  # the models become one, which goes to every site


class CommRound(NamedTuple):
    """A communication round ``t``, after which models travel, and the local rounds since the one before it.

    A piece of a communication round, cut for an evaluation, has action TRAIN, and ``leads_to`` its last round.
    """

    t: int
    rounds: int
    action: Action
    leads_to: int = 0  # 0: to its own round

    @property
    def travels(self) -> bool:
        """Whether models leave the sites after it."""
        return self.action is not Action.TRAIN

    @property
    def due(self) -> int:
        """The round of the communication round that ends these local rounds."""
        return self.leads_to or self.t


@dataclass(frozen=True)
class AbstractSchedule(ABC):
    """What the schedules share: two periods in rounds (the papers' d and b), either of which may be None for never.

    Raises ValueError for a period below 1.
    """

    permute_every: int | None = None
    aggregate_every: int | None = None

    def __post_init__(self) -> None:
        _check_period("permute_every", self.permute_every)
        _check_period("aggregate_every", self.aggregate_every)

    @abstractmethod
    def action(self, t: int) -> Action:
        """What is due after round ``t`` = 1, 2, ... of a run that goes on after it."""

    def comm_rounds(self, rounds: int | None = None) -> Iterator[CommRound]:
        """The communication rounds of a run, in order; every local round belongs to exactly one of them.

        A run of ``rounds`` rounds ends with an aggregation, due or not; None goes on for ever. Raises ValueError for a
        number below 1, and where an endless run would never come to a communication round.
        """
        _check_period("rounds", rounds)
        if not (rounds or self.permute_every or self.aggregate_every):
            raise ValueError(
                "a schedule without periods has a communication round only at the end of the run; "
                "give permute_every, aggregate_every or the number of rounds"
            )
        return self._comm_rounds(rounds)

    def _comm_rounds(self, rounds: int | None) -> Iterator[CommRound]:
        before = 0
        for t in count(1) if rounds is None else range(1, rounds + 1):
            action = Action.AGGREGATE if t == rounds else self.action(t)
            if action is not Action.TRAIN:
                yield CommRound(t, t - before, action)
                before = t


@final
@dataclass(frozen=True)
class Schedule(AbstractSchedule):
    """Permute every d rounds and aggregate every b rounds.

    With d alone it is daisy-chaining, with b alone federated averaging, with both FedDC (Kamp et al. 2023, Alg. 1).
    We depart from Algorithm 1 as printed in one thing: it tests daisy-chaining first and aggregates "else", so that
    with d = 1, the paper's own setting, it would never aggregate. Here aggregation wins where both are due.

    >>> [f"{c.t} {c.action}" for c in Schedule(permute_every=2, aggregate_every=6).comm_rounds(9)]
    ['2 permute', '4 permute', '6 aggregate', '8 permute', '9 aggregate']
    """

    def action(self, t: int) -> Action:
        """What is due after round ``t`` = 1, 2, ...: aggregation before permutation."""
        if self.aggregate_every and t % self.aggregate_every == 0:
            return Action.AGGREGATE
        if self.permute_every and t % self.permute_every == 0:
            return Action.PERMUTE
        return Action.TRAIN


@final
@dataclass(frozen=True)
class RandomSchedule(AbstractSchedule):
    """Permute and aggregate in random rounds, each as often as :class:`Schedule` on average.

    A site then cannot tell from the round whether it is sent a neighbour's model or the aggregate (proposed in the
    first version of Kamp et al., arXiv:2110.03469v1). Every round does what a uniformly random round of the fixed
    schedule would do; its draw has a stream of its own, so that any round can be replayed alone.
    """

    seed: int = 0

    def action(self, t: int) -> Action:
        """What follows round ``t`` = 1, 2, ...; the same at every call."""
        period = lcm(self.permute_every or 1, self.aggregate_every or 1)
        drawn = int(rng_for(self.seed, "schedule", t).integers(period))
        return Schedule(self.permute_every, self.aggregate_every).action(drawn)


def schedule_for(plan: Plan) -> AbstractSchedule:
    """The schedule of the plan's method: periods, or random with the same expected counts."""
    method = plan.method
    if method.random_schedule:
        return RandomSchedule(method.permute_every, method.aggregate_every, plan.seed)
    return Schedule(method.permute_every, method.aggregate_every)


def cut_at_evaluations(comm_rounds: Iterable[CommRound], every: int | None) -> Iterator[CommRound]:
    """Communication rounds, cut after each ``every`` rounds of the run: there models can be evaluated where they are.

    Cutting changes no number. Raises ValueError for a number below 1.
    """
    _check_period("evaluate_every", every)
    for comm_round in comm_rounds:
        start = comm_round.t - comm_round.rounds
        for t in range(start - start % every + every, comm_round.t, every) if every else ():
            yield CommRound(t, t - start, Action.TRAIN, comm_round.t)
            start = t
        yield comm_round._replace(rounds=comm_round.t - start)


def comm_rounds_of(plan: Plan, in_pieces: bool = False) -> list[CommRound]:
    """The communication rounds of a plan; nothing travels where all train alone; ``in_pieces`` for evaluations."""
    comm_rounds = schedule_for(plan).comm_rounds(plan.rounds)
    if in_pieces:
        is_whole = plan.method.top_share is not None or plan.privacy.at_comm_rounds  # a piece would begin a new update
        comm_rounds = cut_at_evaluations(comm_rounds, None if is_whole else plan.evaluate_every)
    alone = not plan.method.is_federated
    return [comm_round._replace(action=Action.TRAIN) if alone else comm_round for comm_round in comm_rounds]


def times_travelled(plan: Plan, rounds: int) -> int:
    """After how many of the first ``rounds`` rounds of a plan models have travelled."""
    return sum(comm_round.travels and comm_round.t <= rounds for comm_round in comm_rounds_of(plan))


def participants(
    seed: int, t: int, sites: Iterable[int], fraction: float = 1.0, models: int | None = None, attempt: int = 0
) -> list[int]:
    """The numbers of the sites that take part in the communication round after round ``t``, in order.

    A ``fraction`` of them is drawn, or as many as there are ``models``; anew for each ``attempt``.
    """
    numbers = sorted(sites)
    if fraction >= 1 and (models is None or models >= len(numbers)):
        return numbers
    count = max(1, round(fraction * len(numbers))) if models is None else models
    words = (t, attempt) if attempt else (t,)
    drawn = rng_for(seed, "participants", *words).choice(len(numbers), count, replace=False)
    return [numbers[place] for place in sorted(drawn)]


def bijection(seed: int, t: int, models: int) -> np.ndarray:
    """The permutation of communication round ``t``: the model at the i-th site, by name, goes to the drawn[i]-th.

    Uniform over all permutations, fixed points allowed. Source: Kamp et al. 2023, Algorithm 1.
    """
    return np.asarray(rng_for(seed, "permute", t).permutation(models))


def _check_period(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        never = "; leave it out for never" if name.endswith("every") else ""
        raise ValueError(f"{name} is a number of rounds, at least 1; got {value}{never}")
