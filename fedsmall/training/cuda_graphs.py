"""Training steps on a CUDA GPU, recorded as CUDA graphs: a step is then one launch and not some dozens."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fedsmall.training.gradients.losses import Batch
from fedsmall.training.stack import Stack, Tensors

Step = Callable[[Stack, Tensors, Tensors, Batch, float], Tensor]
RECORDED_AFTER = 20  # steps on the same tensors, after which recording one pays: it takes as long as some hundred
KEPT = 256  # graphs of one trainer


class Graph(NamedTuple):
    """A recorded step: it reads its batch from ``batch`` and writes what the step returned into ``outputs``."""

    graph: torch.cuda.CUDAGraph
    batch: Batch
    outputs: Tensor


class ReplayedStep:
    """A step that works in place on its models and their state, replayed where it meets the same tensors again.

    It must neither wait for the GPU nor change anything that is no tensor there.
    """

    def __init__(self, step: Step) -> None:
        self._step = step
        self._met: Counter[object] = Counter()
        self._graphs: dict[object, Graph] = {}
        self._batches: dict[object, Batch] = {}  # by shapes: graphs that take equal batches read them in one place
        self._pool = torch.cuda.graph_pool_handle()  # one for all graphs: no two run at a time

    def __call__(self, models: Stack, state: Tensors, variables: Tensors, batch: Batch, lr: float) -> Tensor:
        """As the step itself; the outputs stand until the next step."""
        held = (models.parameters, models.buffers, state, variables)
        where = tuple((tensor.data_ptr(), tensor.shape) for tensors in held for tensor in tensors.values())
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in _tensors_of(batch))
        key = where, shapes, lr
        if key not in self._graphs:
            self._met[key] += 1
            if self._met[key] <= RECORDED_AFTER or len(self._graphs) == KEPT:
                if len(self._met) == 10 * KEPT:  # each is met but once, as where the learning rate falls every round
                    self._met.clear()
                return self._step(models, state, variables, batch, lr)
            if shapes not in self._batches:
                self._batches[shapes] = _copy_of(batch)
            self._graphs[key] = self._record(models, state, variables, self._batches[shapes], lr)
        graph = self._graphs[key]
        for kept, given in zip(_tensors_of(graph.batch), _tensors_of(batch), strict=True):
            kept.copy_(given)
        graph.graph.replay()
        return graph.outputs

    def _record(self, models: Stack, state: Tensors, variables: Tensors, batch: Batch, lr: float) -> Graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):  # trains nothing yet
            outputs = self._step(models, state, variables, batch, lr)
        return Graph(graph, batch, outputs)


def _tensors_of(batch: Batch) -> Iterator[Tensor]:
    for part in batch:
        if isinstance(part, Mapping):
            yield from part.values()
        elif part is not None:
            yield part


def _copy_of(batch: Batch) -> Batch:
    masks, noise = ({name: tensor.clone() for name, tensor in part.items()} for part in (batch.masks, batch.noise))
    weight, grid = (None if part is None else part.clone() for part in (batch.weight, batch.grid))
    return Batch(batch.x.clone(), batch.y.clone(), weight, masks, noise, grid)
