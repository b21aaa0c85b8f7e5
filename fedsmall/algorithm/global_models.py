"""The global models of a federation: one, or one for each group of models that travel and are never merged."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from fedsmall.aggregation.aggregate import aggregate
from fedsmall.aggregation.combiners import Aggregate, Combiner
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.algorithm.gate import halves, refusal, size
from fedsmall.codec import Known, SentModel, add_residual, encode_model
from fedsmall.plan import Method, Plan
from fedsmall.training.stack import Rows, Stack, Tensors, group_means
from fedsmall.travel.journey import Event, event, route_of
from fedsmall.wire import Arrays, join, parts

NEAR = 100.0  # times its size: no global model is refused that has not grown so far, nor one that is finite


class GlobalModels:
    """The groups' global models, and what is made of them.

    ``models`` holds the last of each group. ``turn`` is the group to which all models belong where groups take turns.
    ``agreed``: there is something to evaluate (regions have become one).
    """

    def __init__(self, combiner: Combiner, method: Method, start: Sequence[Arrays]) -> None:
        self.models = list(start)
        self.turn = 0
        self.agreed = True
        self._stack: Arrays = {}  # the models of all groups, where they were made at once
        self._method = method
        self._combiners = [combiner, *(deepcopy(combiner) for _ in start[1:])]
        self._averages: list[Arrays | None] = [None for _ in start]
        self._kept: list[deque[Arrays]] = [deque(maxlen=method.snapshots) for _ in start]

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.models)

    @property
    def combiner(self) -> Combiner:
        """The combiner of the first group, the only one of most methods."""
        return self._combiners[0]

    def order_rule(self) -> Arrays:
        """What the local rule at the sites needs from the server; rules that need anything have one group."""
        return self._combiners[0].order_rule()

    def aggregate(self, updates: Callable[[int], Updates], t: int, gate: float) -> tuple[set[int], list[Event]]:
        """Make each group's global model of its ``updates``; those of which nothing counts keep theirs.

        Returns the groups whose aggregate was refused (:func:`~fedsmall.algorithm.gate.refusal`), and events.
        """
        refused, events = set(), []
        self.agreed = self._method.region_count == 1
        for group in [self.turn] if self._method.by_samples else range(len(self.models)):
            counted = updates(group)
            if not counted.sites:
                continue
            model, refusals = combine_soundly(self._combiners[group], self.models[group], counted, t, gate)
            if refusals:
                refused.add(group)
                events += refusals
            self._take(group, model)
        if self._method.by_samples:
            self.turn = (self.turn + 1) % len(self.models)
        return refused, events

    def follow(self, mean: Arrays, sites: tuple[str, ...], t: int, gate: float) -> bool:
        """Make the global model of a sound ``mean`` of models; False, with nothing changed, where it is refused."""
        if type(self.combiner) is Aggregate:  # a mean is no larger than what it is of
            self._take(0, mean)
            return True
        updates = Updates(sites, {}, None, np.ones(len(sites)), sites_in_all=len(sites), aggregate=mean)
        model, refusals = combine_soundly(self.combiner, self.models[0], updates, t, gate)
        if not refusals:
            self._take(0, model)
        return not refusals

    @property
    def are_means(self) -> bool:
        """Whether several groups' next global models are the plain means of their models, and nothing else."""
        plain = all(type(combiner) is Aggregate and combiner.aggregator == "mean" for combiner in self._combiners)
        return plain and len(self.models) > 1 and not (self._method.weighted or self._method.by_samples)

    def unite(self, weights: np.ndarray) -> int:
        """Make the regions' global models their mean with ``weights``, (regions,); returns the bytes sent."""
        mean = aggregate(self.stack(), "mean", weights, {}, np.random.default_rng(0))  # a mean draws nothing
        for group in range(len(self.models)):
            self._take(group, mean)
        self.agreed = True
        return 2 * len(self.models) * sum(array.nbytes for array in mean.values())

    def go_on_with(self, stack: Arrays) -> None:
        """Take the groups' next global models, {name: (groups, ...)}, made at once where they :attr:`are_means`."""
        for group in range(len(self.models)):
            self._take(group, {name: array[group] for name, array in stack.items()})
        self._stack = stack

    def stack(self) -> Arrays:
        """The groups' global models, {name: (groups, ...)}; nobody may write into them."""
        return self._stack or {name: np.stack([model[name] for model in self.models]) for name in self.models[0]}

    def result(self) -> Arrays:
        """What is judged and kept: one model, or several with a leading axis of members (``Method.is_ensemble``)."""
        if not self._method.is_ensemble:
            return self._judged(0)[0]
        if self._stack and not self._method.ema and self._method.snapshots == 1:
            return self._stack
        return self._members(range(len(self.models)))

    def of_routes(self) -> tuple[Arrays, ...]:
        """For each route what is judged of its groups, with a leading axis of members; without routes nothing."""
        routes = route_of(np.arange(len(self.models)), self._method.routes or 1)
        return tuple(self._members(np.flatnonzero(routes == route).tolist()) for route in range(self._method.routes))

    def _members(self, groups: Iterable[int]) -> Arrays:
        members = [model for group in groups for model in self._judged(group)]
        return {name: np.stack([model[name] for model in members]) for name in members[0]}

    def largest(self) -> int:
        """The group whose global model has the largest norm; the gate judges by that model."""
        return 0 if len(self.models) == 1 else max(range(len(self.models)), key=lambda group: size(self.models[group]))

    def _judged(self, group: int) -> list[Arrays]:
        return list(self._kept[group]) or [self._average(group)]

    def _average(self, group: int) -> Arrays:
        return self._averages[group] or self.models[group]

    def _take(self, group: int, model: Arrays) -> None:
        self.models[group], self._stack = model, {}
        last = self._averages[group]
        if self._method.ema:
            self._averages[group] = model if last is None else _between(last, model, self._method.ema)
        if self._method.snapshots > 1:
            self._kept[group].append(self._average(group))

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """What must be kept to go on after a restart, beside the combiner of a single group."""
        sets = {f"combiner.{group}": combiner.state()[0] for group, combiner in self._others()}
        for group, model in enumerate(self.models):
            sets[f"model.{group}"] = model if len(self.models) > 1 else {}
            sets[f"average.{group}"] = self._averages[group] or {}
            sets |= {f"kept.{group}.{number}": kept for number, kept in enumerate(self._kept[group])}
        return join(**sets), {"turn": self.turn, "combiners": [combiner.state()[1] for _, combiner in self._others()]}

    def restore(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        names = list(self.models[0])
        self.turn, sets = int(numbers["turn"]), parts(arrays)
        sets |= {part: {name: held[name] for name in names} for part, held in sets.items() if held.keys() == set(names)}
        for group, combiner in self._others():
            combiner.restore(sets.get(f"combiner.{group}", {}), numbers["combiners"][group - 1])
        self._stack = {}
        for group in range(len(self.models)):
            self.models[group] = sets.get(f"model.{group}", self.models[group])
            self._averages[group] = sets.get(f"average.{group}")
            kept = (sets.get(f"kept.{group}.{number}") for number in range(self._method.snapshots))
            self._kept[group].extend(model for model in kept if model)

    def _others(self) -> Iterator[tuple[int, Combiner]]:
        return enumerate(self._combiners[1:], start=1)


class Outbox:
    """The groups' global models as they are sent, each packed once, for all sites; ``known`` is who has which."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._of: list[Arrays | None] = []
        self._made: list[int] = []  # after which round each was made
        self.sent: list[SentModel] = []
        self.known = Known()

    def take(self, models: Sequence[Arrays], t: int) -> list[Arrays]:
        """The models as sites read them that were made after round ``t``, 0 for the first; in full, themselves."""
        for group, model in enumerate(models):
            if group >= len(self._of) or self._of[group] is not model:
                self.sent[group : group + 1] = [self._pack(model, t, group)]
                self._made[group : group + 1] = [t]
        self._of = list(models)
        return [packed.read for packed in self.sent]

    def add_residual(self, models: Arrays, group: int) -> Arrays:
        """Models {name: (models, ...)} that came of a group's global model, with what sites were not told of it."""
        global_model = self._of[group]
        if self._plan.method.top_share is None or global_model is None:
            return models
        return add_residual(models, global_model, self.sent[group].read)

    def state(self, models: Sequence[Arrays]) -> tuple[Arrays, dict[str, Any]]:
        """What must be kept to send the same again after a restart, where these are the groups' models now."""
        known = self.known
        same = [packed is model for packed, model in zip(self._of, models, strict=True)]
        numbers = {
            "made": self._made,
            "same": same,
            "has": known.has,
            "taken": known.taken,
            "comm_rounds": known.comm_rounds,
        }
        return join(**{str(t): model for t, model in known.models.items()}), numbers

    def restore(self, models: Sequence[Arrays], arrays: Arrays, numbers: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        of = {int(t): model for t, model in parts(arrays).items()}
        self.known = Known(of, dict(numbers["has"]), dict(numbers["taken"]), int(numbers["comm_rounds"]))
        self._made = list(numbers["made"])
        self._of = [model if same else None for model, same in zip(models, numbers["same"], strict=True)]
        restored = of and [SentModel(of[max(of)], of[max(of)], max(of))]
        pairs = zip(models, self._made, strict=True)
        self.sent = restored or [self._pack(model, t, group) for group, (model, t) in enumerate(pairs)]

    def _pack(self, model: Arrays, t: int, group: int) -> SentModel:
        compressed = self._plan.method.is_compressed
        return encode_model(self._plan, model, t, group, self.known) if compressed else SentModel({}, model, t)


def combine_soundly(
    combiner: Combiner, global_model: Arrays, updates: Updates, t: int, gate: float
) -> tuple[Arrays, list[Event]]:
    """The global model after an aggregation; where the aggregate is unsound the last one, with an event.

    The combiner then keeps its last state, too.
    """
    go_back = combiner.checkpoint()
    with np.errstate(over="ignore", invalid="ignore"):
        model = combiner.combine(global_model, updates, t)
        reason = refusal(model, global_model, gate)
    if reason is None:
        return model, []
    go_back()
    return global_model, [event(t, "server", "refused", f"{reason}; all keep the last global model")]


def sound_means(models: Tensors, last: Tensors) -> Tensors | None:
    """The means of groups' ``models``, {name: (models of a group, groups, ...)}, or None where a mean may be refused.

    ``last`` are their last global models, {name: (groups, ...)}. None, too, where models have counters.
    """
    if not all(tensor.is_floating_point() for tensor in models.values()):
        return None
    made = group_means(models)
    for new, old in zip(halves(made), halves(last), strict=True):
        if new and not (Rows(new).norms() < NEAR * Rows(old).norms()).all():
            return None
    return made


def _between(last: Arrays, model: Arrays, ema: float) -> Arrays:
    return {
        name: np.asarray(ema * last[name] + (1 - ema) * array, dtype=array.dtype) if array.dtype.kind == "f" else array
        for name, array in model.items()
    }


def sizes_of(stack: Stack) -> list[np.ndarray]:
    """The norms of the models' weights, and of their running statistics where they have any: (models,) each."""
    return [Rows(half).norms() for half in halves(stack.state) if half]
