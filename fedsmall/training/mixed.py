"""Sites with models of their own that share some layers: these travel and are aggregated, the rest never leaves.

On the wire there is one model, the shared part, which a site completes with its own layers; these are in its memory,
and so outlive communication rounds and restarts. Source: Ghilea and Rekik, section 3.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedsmall.aggregation.server_optimizers import parameters_of
from fedsmall.data.federation import Samples, Task, task_at
from fedsmall.models.own_models import Kind, check_own_models, is_shared, kinds_of, plan_of_kind, shared_layers
from fedsmall.models.registry import agreed_part, initial_model
from fedsmall.plan import Plan
from fedsmall.training.cohort import Cohort
from fedsmall.training.stack import Stack, Tensors
from fedsmall.training.trainer import Phase, Trainer, TrainInput, TrainResult
from fedsmall.wire import Arrays, ModelState

PRIVATE, MOMENTS, INNER = "private", "private-moments", "inner"  # first words of the names in a site's memory
KNOWN = f"{PRIVATE}-known"  # 1 for a site that has trained

MakeCohort = Callable[[Plan, Task, Sequence[str], Sequence[Samples]], Trainer]


@dataclass(frozen=True)
class _Group:
    """The sites of one architecture, their cohort, and the private arrays of each at first."""

    number: int
    sites: np.ndarray
    cohort: Trainer
    private: tuple[Arrays, ...]


class MixedCohort(Trainer):
    """Sites with models of their own; used as a :class:`Cohort` whose models are the shared part.

    ``make`` builds the cohort of the sites of one architecture. PlanError where the sites' shared layers differ.
    """

    def __init__(
        self, plan: Plan, task: Task, names: Sequence[str], samples: Sequence[Samples], make: MakeCohort = Cohort
    ) -> None:
        check_own_models(plan, len(names))
        self.plan, self.task, self.names = plan, task, tuple(names)
        self.samples = tuple(map(len, samples))
        self._shared = shared_layers(plan)
        tasks = [task_at(task, site.y) for site in samples]
        self._like = agreed_part(plan, tasks)
        pairs = list(zip(kinds_of(plan), tasks, strict=True))
        kinds = [pair for place, pair in enumerate(pairs) if pairs.index(pair) == place]
        self._groups = [
            self._group(number, kind, own, [i for i, pair in enumerate(pairs) if pair == (kind, own)], samples, make)
            for number, (kind, own) in enumerate(kinds)
        ]
        first = self._groups[0].cohort
        self.path, self.device = first.path, first.device
        self.unmet_need = next((group.cohort.unmet_need for group in self._groups if group.cohort.unmet_need), "")

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """A stack of the shared parts' tensors, as :meth:`Cohort.stack_of`."""
        return self.put_together(list(self._like), parameters_of(self._like), state, carried)

    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """As :meth:`Trainer.walk`: every row is completed with the layers of the site it is at."""
        for phase in phases:
            trained = self._phase(stack, phase, inputs)
            inputs = TrainInput(memory=trained.memory)
        return trained

    def _phase(self, stack: Stack, phase: Phase, inputs: TrainInput) -> TrainResult:
        report = {name: np.zeros(len(phase.sites), dtype=np.float64) for name in ("loss", "steps", "examples")}
        flags, memory = inputs.flags(len(stack)), dict(inputs.memory)
        for group in self._groups:
            rows = np.flatnonzero(np.isin(phase.sites, group.sites))
            if len(rows):
                group_phase = phase._replace(sites=phase.sites[rows])
                trained, memory = self._train_group(group, stack, rows, group_phase, flags[rows], memory)
                for name, column in report.items():
                    column[rows] = getattr(trained, name)
        return TrainResult(report["loss"], report["steps"].astype(int), report["examples"].astype(int), {}, memory)

    def predict_at(self, site: int, model: Arrays, x: np.ndarray, memory: Mapping[str, np.ndarray]) -> np.ndarray:
        """Outputs, (samples, width), of a shared part completed with the layers that site number ``site`` remembers."""
        group = next(group for group in self._groups if site in group.sites)
        return group.cohort.predict_at(site, self._complete(group, ModelState(model), site, memory).model, x, {})

    def _group(
        self, number: int, kind: Kind, task: Task, sites: list[int], samples: Sequence[Samples], make: MakeCohort
    ) -> _Group:
        plan = plan_of_kind(self.plan, kind)
        names = [self.names[site] for site in sites]
        models = (initial_model(plan, task, name) for name in names)
        private = [{key: a for key, a in model.items() if not is_shared(key, self._shared)} for model in models]
        cohort = make(plan, task, names, [samples[site] for site in sites])
        return _Group(number, np.array(sites), cohort, tuple(private))

    def _train_group(
        self, group: _Group, stack: Stack, rows: np.ndarray, phase: Phase, is_global: np.ndarray, memory: Arrays
    ) -> tuple[TrainResult, Arrays]:
        inner, sites = group.cohort, phase.sites
        pairs = zip(rows, sites, strict=True)
        states = [self._complete(group, stack.model_state(row), site, memory) for row, site in pairs]
        models = inner.stack(states)
        local = phase._replace(sites=np.searchsorted(group.sites, sites))
        prefix = f"{INNER}/{group.number}/"
        kept_here = {key.removeprefix(prefix): a[group.sites] for key, a in memory.items() if key.startswith(prefix)}
        trained = inner.walk(models, [local], TrainInput(is_global, memory=kept_here))
        kept = {name: array.copy() if name.startswith(PRIVATE) else array for name, array in memory.items()}
        for key, array in trained.memory.items():
            kept[f"{prefix}{key}"] = np.zeros((len(self.names), *array.shape[1:]), array.dtype)
            kept[f"{prefix}{key}"][group.sites] = array
        kept.setdefault(KNOWN, np.zeros(len(self.names)))[sites] = 1
        for place, (row, site) in enumerate(zip(rows, sites, strict=True)):
            self._part_ways(group, stack, int(row), int(site), models.model_state(place), kept)
        return trained, kept

    def _complete(self, group: _Group, state: ModelState, site: int, memory: Mapping[str, np.ndarray]) -> ModelState:
        private = dict(group.private[int(np.searchsorted(group.sites, site))])
        moments: Arrays = {}
        if KNOWN in memory and memory[KNOWN][site]:
            for word, into in ((PRIVATE, private), (MOMENTS, moments)):
                prefix = f"{word}/{group.number}/"
                into |= {key.removeprefix(prefix): held[site] for key, held in memory.items() if key.startswith(prefix)}
        return ModelState({**state.model, **private}, {**state.carried, **moments})

    def _part_ways(self, group: _Group, stack: Stack, row: int, site: int, own: ModelState, kept: Arrays) -> None:
        shared = stack.state | stack.optimizer
        for word, arrays in ((PRIVATE, own.model), (MOMENTS, own.carried)):
            for name, array in arrays.items():
                if name in shared:
                    shared[name][row] = torch.from_numpy(np.array(array))
                    continue
                like = np.zeros((len(self.names), *array.shape), array.dtype)
                kept.setdefault(f"{word}/{group.number}/{name}", like)[site] = array
