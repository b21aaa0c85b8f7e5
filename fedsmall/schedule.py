"""When models travel, and how: the part that makes federated averaging, daisy-chaining and FedDC one algorithm."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from math import lcm
from typing import NamedTuple, final

from fedsmall.randomness import rng_for


class Action(StrEnum):
    """What follows the local update of a round."""

    TRAIN = "train"  # nothing: no contact
    LOOK = "look"  # models are seen where they are, as a simulation's evaluation does; nothing travels
    PERMUTE = "permute"  # every model goes to a site drawn at random
    AGGREGATE = "aggregate"  # the models become one, which goes to every site


class Contact(NamedTuple):
    """A round ``t`` after which models travel (or are looked at), and the local rounds since the contact before it."""

    t: int
    rounds: int
    action: Action


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

    def contacts(self, rounds: int | None = None, look_every: int | None = None) -> Iterator[Contact]:
        """The contacts of a run, in order; every local round belongs to exactly one of them.

        A run of ``rounds`` rounds ends with an aggregation, due or not. ``rounds=None`` is a run whose end nobody knows
        yet: contacts go on for ever and none is forced. ``look_every`` adds LOOK contacts where nothing else is due.

        Raises ValueError for a number below 1, and where an endless run would never come to a contact.
        """
        _check_period("rounds", rounds)
        _check_period("look_every", look_every)
        if not (rounds or look_every or self.permute_every or self.aggregate_every):
            raise ValueError(
                "a schedule without periods has a contact only at the end of the run; "
                "give permute_every, aggregate_every or the number of rounds"
            )
        return self._contacts(rounds, look_every)

    def _contacts(self, rounds: int | None, look_every: int | None) -> Iterator[Contact]:
        before = 0
        for t in count(1) if rounds is None else range(1, rounds + 1):
            action = Action.AGGREGATE if t == rounds else self.action(t)
            if action is Action.TRAIN and look_every and t % look_every == 0:
                action = Action.LOOK
            if action is not Action.TRAIN:
                yield Contact(t, t - before, action)
                before = t


@final
@dataclass(frozen=True)
class Schedule(AbstractSchedule):
    """Permute every d rounds and aggregate every b rounds.

    With d alone it is daisy-chaining, with b alone federated averaging, with both FedDC (Kamp et al. 2023, Alg. 1).
    We depart from Algorithm 1 as printed in one thing: it tests daisy-chaining first and aggregates "else", so that
    with d = 1, the paper's own setting, it would never aggregate. Here aggregation wins where both are due.

    >>> [f"{contact.t} {contact.action}" for contact in Schedule(permute_every=2, aggregate_every=6).contacts(9)]
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

    A site that is sent a model then cannot tell from the round alone whether it is a neighbour's or the aggregate
    (proposed in the first version of Kamp et al., arXiv:2110.03469v1). Every round does what a uniformly random round
    of the fixed schedule would do, so the expected counts are equal exactly, ties included; its draw has a stream
    of its own, so that any round can be replayed alone.
    """

    seed: int = 0

    def action(self, t: int) -> Action:
        """What follows round ``t`` = 1, 2, ...; the same at every call."""
        period = lcm(self.permute_every or 1, self.aggregate_every or 1)
        drawn = int(rng_for(self.seed, "schedule", t).integers(period))
        return Schedule(self.permute_every, self.aggregate_every).action(drawn)


def permutation(seed: int, t: int, sites: Sequence[str]) -> dict[str, str]:
    """Where the models go at contact ``t``: from the site whose model it is to the site that gets it, in name order.

    Uniform over all permutations, fixed points allowed, whatever the order in which ``sites`` come.

    Raises ValueError where two sites have the same name.
    Source: Kamp et al. 2023, Algorithm 1.
    """
    names = sorted(sites)
    if len(set(names)) < len(names):
        raise ValueError("two sites have the same name; every site needs a name of its own")
    targets = rng_for(seed, "permute", t).permutation(len(names))
    return {name: names[target] for name, target in zip(names, targets, strict=True)}


def _check_period(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        never = "; leave it out for never" if name.endswith("every") else ""
        raise ValueError(f"{name} is a number of rounds, at least 1; got {value}{never}")
