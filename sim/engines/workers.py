"""A cohort whose models train in several processes, here or across a Ray cluster.

Between two aggregations models are independent, so a walk is cut into parts of its rows; each worker holds the whole
federation's samples, for a model may be sent to any site, and walks one part at a time with one thread.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.plan import Plan
from fedsmall.sim.engines.ray import connect, gpu_share
from fedsmall.training.cohort import Cohort
from fedsmall.training.device import choose_device, process_context
from fedsmall.training.stack import Rows, Stack, Tensors
from fedsmall.training.trainer import Leg, OneModelTrainer, Signals, Trained, Trainer
from fedsmall.wire import Arrays

SMALLEST = 4  # rows; less are not worth a worker


class StackPart(NamedTuple):
    """Some rows of a stack, and where each of them goes."""

    state: Arrays
    carried: Arrays
    legs: list[Leg]


class Walked(NamedTuple):
    """The rows after their walk, and what :class:`fedsmall.training.cohort.Trained` says of them."""

    state: Arrays
    carried: Arrays
    loss: np.ndarray


class ParallelCohort(OneModelTrainer):
    """A cohort that gives the walking of many models to ``workers``.

    Plans whose sites remember something (a local rule, moments that stay) train in this process. Numbers are those
    without workers up to the arithmetic of the batched path, and the same to the bit for the same number of workers.
    """

    def __init__(self, cohort: Cohort, workers: "LocalWorkers | RayWorkers") -> None:
        self.inner, self._workers = cohort, workers
        self.plan, self.task, self.names, self.samples = cohort.plan, cohort.task, cohort.names, cohort.samples
        self.path, self.device = cohort.path, cohort.device
        self.reason = f"{cohort.reason}; {workers.count} workers"
        self._alone = cohort.plan.method.rule != "none" or cohort.plan.recipe.optimizer_state == "stay"

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """As :meth:`Trainer.stack_of`."""
        return self.inner.stack_of(state, carried)

    def predict(self, stack: Stack, x: np.ndarray) -> np.ndarray:
        """As :meth:`Cohort.predict`."""
        return self.inner.predict(stack, x)

    def walk(self, stack: Stack, legs: Sequence[Leg], signals: Signals) -> Trained:
        """As :meth:`Trainer.walk`, each worker with its share of the rows."""
        count = min(self._workers.count, len(stack) // SMALLEST)
        if self._alone or count < 2:
            return self.inner.walk(stack, legs, signals)
        shares = [slice(int(a), int(b)) for a, b in pairwise(np.linspace(0, len(stack), count + 1).astype(int))]
        walked = self._workers.walk([_part(stack, legs, rows) for rows in shares])
        for rows, result in zip(shares, walked, strict=True):
            for kept, walked_rows in ((stack.state, result.state), (stack.optimizer, result.carried)):
                for name, tensor in _tensors(walked_rows).items():
                    kept[name][rows] = tensor
        return self.inner.report(np.concatenate([result.loss for result in walked]), legs[-1])


def _part(stack: Stack, legs: Sequence[Leg], rows: slice) -> StackPart:
    share = stack.rows(rows)
    part_legs = [leg._replace(sites=leg.sites[rows]) for leg in legs]
    return StackPart(Rows(share.state).arrays(), Rows(share.optimizer).arrays(), part_legs)


def _tensors(arrays: Arrays) -> Tensors:
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


Given = tuple[Plan, Task, tuple[str, ...], tuple[Samples, ...], str, str]


class Worker:
    """What is in a worker's process, a Ray actor among them: a cohort of its own, on one thread."""

    def __init__(self, given: Given) -> None:
        plan, task, names, samples, path, device = given
        torch.set_num_threads(1)
        self._cohort = Cohort(plan, task, names, samples, path=path, device=device)

    def walk(self, part: StackPart) -> Walked:
        """The rows of a part after their walk."""
        stack = self._cohort.stack_of(_tensors(part.state), _tensors(part.carried))
        trained = self._cohort.walk(stack, part.legs, Signals())
        return Walked(Rows(stack.state).arrays(), Rows(stack.optimizer).arrays(), trained.loss)

    def node(self) -> str:
        """The machine that a Ray actor runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())


_here: list[Worker] = []  # in a process of LocalWorkers


def _begin(given: Given) -> None:
    _here[:] = [Worker(given)]


def _walk(part: StackPart) -> Walked:
    return _here[0].walk(part)


class LocalWorkers:
    """Processes on this machine, one for each core that may be used."""

    def __init__(self, given: Given, count: int | None = None) -> None:
        self.count = count or os.cpu_count() or 1
        context = process_context(given[-1], [__name__])
        self._pool = ProcessPoolExecutor(self.count, context, initializer=_begin, initargs=(given,))

    def walk(self, parts: Sequence[StackPart]) -> list[Walked]:
        """Walk the parts side by side."""
        return list(self._pool.map(_walk, parts))

    def close(self) -> None:
        """Let the processes end."""
        self._pool.shutdown()


class RayWorkers:
    """Ray actors on whatever machines a cluster has: ``address`` of a running one, or a local one for the run."""

    def __init__(self, given: Given, count: int | None = None, address: str | None = None) -> None:
        self._started = connect(address)
        import ray

        self._ray = ray
        share, resources = gpu_share(choose_device(given[-1], 0)), ray.cluster_resources()
        most = resources.get("GPU", 0) // share if share else resources.get("CPU", 1)
        self.count = count or max(1, int(min(most, resources.get("CPU", 1))))
        held = ray.put(given)  # the samples go once to each machine
        actor = ray.remote(Worker).options(num_cpus=1, num_gpus=share)
        self._actors = [actor.remote(held) for _ in range(self.count)]

    def walk(self, parts: Sequence[StackPart]) -> list[Walked]:
        """Walk the parts side by side; Ray gives the arrays back read-only."""
        walking = [actor.walk.remote(part) for actor, part in zip(self._actors, parts, strict=False)]
        walked: list[Walked] = self._ray.get(walking)
        return walked

    def nodes(self) -> set[str]:
        """The machines on which the workers run, by Ray's ids."""
        return set(self._ray.get([actor.node.remote() for actor in self._actors]))

    def close(self) -> None:
        """End the actors, and the connection if this made it."""
        for actor in self._actors:
            self._ray.kill(actor)
        if self._started:
            self._ray.shutdown()


@contextmanager
def with_workers(
    cohort: Trainer, federation: Federation, *, workers: int | None = None, address: str | None = None
) -> Iterator[Trainer]:
    """The cohort with ``workers`` processes here, or the actors of the Ray cluster at ``address``.

    Replica trees, sites with models of their own, and sites in folds always train in one process.
    """
    if not isinstance(cohort, Cohort):
        yield cohort
        return
    way = ("auto", "kernel") if cohort.path == "kernel" else (cohort.path, str(cohort.device))
    given = cohort.plan, cohort.task, federation.names, federation.train, *way
    pool = LocalWorkers(given, workers) if address is None else RayWorkers(given, workers, address)
    try:
        yield ParallelCohort(cohort, pool)
    finally:
        pool.close()
