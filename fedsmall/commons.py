"""The common models of a federation: one, or one for each group of models that travel and are never merged.

The batched engine and the Flower strategy both keep them here. Groups are averaged each by itself; the members of the
result are judged and used together (:mod:`fedsmall.evaluation.ensembles`).
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from fedsmall.aggregation.combiners import Combiner, Updates
from fedsmall.gate import refusal
from fedsmall.plan import Method
from fedsmall.wire import Arrays

Event = dict[str, Any]


class Commons:
    """The groups' common models, and what is made of them.

    ``models`` holds the last common model of each group; ``start`` are those that the run began with. ``turn`` is the
    group to which all models belong where groups take turns.
    """

    def __init__(self, combiner: Combiner, method: Method, start: Sequence[Arrays]) -> None:
        self.models = list(start)
        self.turn = 0
        self._method = method
        self._combiners = [combiner, *(deepcopy(combiner) for _ in start[1:])]
        self._averages: list[Arrays | None] = [None for _ in start]
        self._kept: list[deque[Arrays]] = [deque(maxlen=method.snapshots) for _ in start]

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.models)

    def order_rule(self) -> Arrays:
        """What the local rule at the sites needs from the server; rules that need anything have one group."""
        return self._combiners[0].order_rule()

    def aggregate(self, updates: Callable[[int], Updates], t: int, gate: float) -> tuple[set[int], list[Event]]:
        """Make each group's common model of its ``updates``; those of which nothing counts keep theirs.

        Gives the groups whose aggregate was refused (:func:`fedsmall.gate.refusal`), which keep theirs too, and events.
        """
        refused, events = set(), []
        for group in [self.turn] if self._method.turns else range(len(self.models)):
            counted = updates(group)
            if not counted.sites:
                continue
            model, told = combined(self._combiners[group], self.models[group], counted, t, gate)
            if told:
                refused.add(group)
                events += told
            self._take(group, model)
        if self._method.turns:
            self.turn = (self.turn + 1) % len(self.models)
        return refused, events

    def result(self) -> Arrays:
        """What is judged and kept: one model, or several with a leading axis of members (``Method.is_ensemble``)."""
        groups = range(len(self.models))
        if not self._method.is_ensemble:
            return self._judged(0)[0]
        members = [model for group in groups for model in self._judged(group)]
        return {name: np.stack([model[name] for model in members]) for name in members[0]}

    def _judged(self, group: int) -> list[Arrays]:
        return list(self._kept[group]) or [self._average(group)]

    def _average(self, group: int) -> Arrays:
        return self._averages[group] or self.models[group]

    def _take(self, group: int, model: Arrays) -> None:
        self.models[group] = model
        last = self._averages[group]
        if self._method.ema:
            self._averages[group] = model if last is None else _between(last, model, self._method.ema)
        if self._method.snapshots > 1:
            self._kept[group].append(self._average(group))

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """What must be kept to go on after a restart, beside the combiner of a single group."""
        arrays: Arrays = {}
        for group, combiner in enumerate(self._combiners[1:], start=1):
            arrays |= _named(f"combiner/{group}", combiner.state()[0])
        for group, model in enumerate(self.models):
            arrays |= _named(f"model/{group}", model) if len(self.models) > 1 else {}
            arrays |= _named(f"average/{group}", self._averages[group] or {})
            for number, kept in enumerate(self._kept[group]):
                arrays |= _named(f"kept/{group}/{number}", kept)
        numbers = [combiner.state()[1] for combiner in self._combiners[1:]]
        return arrays, {"turn": self.turn, "combiners": numbers}

    def restore(self, arrays: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self.turn = int(numbers["turn"])
        for group, combiner in enumerate(self._combiners[1:], start=1):
            combiner.restore(_under(f"combiner/{group}", arrays), numbers["combiners"][group - 1])
        for group in range(len(self.models)):
            self.models[group] = _under(f"model/{group}", arrays) or self.models[group]
            self._averages[group] = _under(f"average/{group}", arrays) or None
            for number in range(self._method.snapshots):
                kept = _under(f"kept/{group}/{number}", arrays)
                self._kept[group] += [kept] if kept else []


def combined(combiner: Combiner, common: Arrays, updates: Updates, t: int, gate: float) -> tuple[Arrays, list[Event]]:
    """The common model after an aggregation, and an event where that is the last one for want of a sound aggregate.

    Then the combiner, too, remembers what it did before.
    """
    go_back = combiner.bookmark()
    with np.errstate(over="ignore", invalid="ignore"):
        model = combiner.combine(common, updates, t)
        reason = refusal(model, common, gate)
    if reason is None:
        return model, []
    go_back()
    kept = f"{reason}; all keep the last common model"
    return common, [{"t": t, "site": "server", "kind": "refused", "reason": kept}]


def _between(last: Arrays, model: Arrays, ema: float) -> Arrays:
    """The moving average one step on; integer buffers are those of the model."""
    return {
        name: np.asarray(ema * last[name] + (1 - ema) * array, dtype=array.dtype) if array.dtype.kind == "f" else array
        for name, array in model.items()
    }


def _named(word: str, model: Mapping[str, np.ndarray]) -> Arrays:
    return {f"{word}/{name}": np.asarray(array) for name, array in model.items()}


def _under(word: str, arrays: Mapping[str, np.ndarray]) -> Arrays:
    return {name.removeprefix(f"{word}/"): array for name, array in arrays.items() if name.startswith(f"{word}/")}
