"""K models as one stacked state: every array of a model, with a leading axis of models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsmall.parts import Recipe
from fedsmall.wire import Arrays, ModelState

Tensors = dict[str, Tensor]
Held = TypeVar("Held")
REPLICA = "replica"  # first word of the names of what travels as a tree with its anchor


@dataclass(frozen=True)
class Rows:
    """Named tensors with a leading axis of models, as someone reads them who must not write."""

    tensors: Tensors

    def arrays(self, rows: Sequence[int] | None = None) -> Arrays:
        """{name: (rows, ...)}: copies of some rows; all of them, in order, are views that later training moves."""
        if rows is None or list(rows) == list(range(len(self))):
            return {name: _view(tensor) for name, tensor in self.tensors.items()}
        index = np.asarray(rows, dtype=np.int64)  # of no rows, too
        return {name: _view(tensor[index_of(index, tensor)]) for name, tensor in self.tensors.items()}

    def row(self, row: int) -> Arrays:
        """The arrays of one row, on the CPU views that cannot be written."""
        return {name: _view(tensor[row]) for name, tensor in self.tensors.items()}

    @cached_property
    def bytes_per_row(self) -> int:
        """The bytes of a row's numbers."""
        return sum(tensor[0].numel() * tensor.element_size() for tensor in self.tensors.values())

    def finite(self) -> np.ndarray:
        """For each row, whether all its numbers are finite."""
        floats = [t.flatten(1) for t in self.tensors.values() if t.is_floating_point()]
        # zero times a number is zero unless the number is not finite; one pass, no array of booleans
        sums = [torch.mv(t, t.new_zeros(t.shape[1])) for t in floats if t.shape[1]]
        if not sums:
            return np.ones(len(self), dtype=bool)
        finite: np.ndarray = torch.isfinite(torch.stack(sums).sum(0)).cpu().numpy()
        return finite

    def norms(self) -> np.ndarray:
        """For each row, the norm over all its floats, in their own precision."""
        floats = [torch.linalg.vector_norm(t.flatten(1), dim=1) for t in self.tensors.values() if t.is_floating_point()]
        if not floats:
            return np.zeros(len(self))
        norms: np.ndarray = torch.linalg.vector_norm(torch.stack(floats), dim=0).cpu().numpy()
        return norms

    def __len__(self) -> int:
        """The number of models."""
        return len(next(iter(self.tensors.values()), ()))


@dataclass
class Stack:
    """The state of K models, row k of every tensor being model k.

    ``names`` are a model's arrays in the order of torch's ``state_dict``; each is in ``parameters`` or in ``buffers``.
    ``optimizer`` holds the state that travels ("momentum/0.weight", "step").
    """

    names: tuple[str, ...]
    parameters: Tensors
    buffers: Tensors
    optimizer: Tensors = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of models."""
        return len(next(iter(self.parameters.values())))

    @property
    def state(self) -> Tensors:
        """Parameters and buffers in the order of ``names``, each (models, ...)."""
        both = self.parameters | self.buffers
        return {name: both[name] for name in self.names}

    def model_state(self, row: int) -> ModelState:
        """One model with its optimizer state; on the CPU views that cannot be written and that later training moves."""
        return ModelState(Rows(self.state).row(row), Rows(self.optimizer).row(row))

    def replace(self, model: Mapping[str, np.ndarray]) -> None:
        """Make every row the given model, weights and buffers; the optimizer state stays with its row."""
        for name, tensor in self.state.items():
            tensor.copy_(torch.from_numpy(np.array(model[name])))

    def rows(self, index: slice | np.ndarray) -> "Stack":
        """Some of the models: views for a slice, copies for row numbers."""
        return Stack(self.names, *({name: t[index_of(index, t)] for name, t in part.items()} for part in self._parts()))

    def put(self, index: np.ndarray, models: "Stack") -> None:
        """Write ``models`` into the rows ``index``."""
        for name, tensor in models.optimizer.items():  # sites elsewhere say what goes beside a model
            if name not in self.optimizer:
                self.optimizer[name] = tensor.new_zeros((len(self), *tensor.shape[1:]))
        for rows_here, theirs in zip(self._parts(), models._parts(), strict=True):
            for name, tensor in rows_here.items():
                tensor[index_of(index, tensor)] = theirs.get(name, 0)

    def clone(self) -> "Stack":
        """A copy that shares nothing with this stack."""
        return Stack(self.names, *({name: t.clone() for name, t in part.items()} for part in self._parts()))

    def _parts(self) -> tuple[Tensors, Tensors, Tensors]:
        return self.parameters, self.buffers, self.optimizer


def leaving_state(recipe: Recipe, optimizer: Mapping[str, Held]) -> dict[str, Held]:
    """What of a model's optimizer state goes along when it leaves a site: nothing that starts afresh on arrival."""
    if recipe.optimizer_state != "reset":
        return dict(optimizer)
    return {name: held for name, held in optimizer.items() if name.startswith(f"{REPLICA}/")}


def stacked(arrays: Sequence[Mapping[str, np.ndarray]], names: Sequence[str]) -> Tensors:
    """Copies of equally named arrays as tensors with a leading axis, {name: (models, ...)}."""
    return {name: torch.from_numpy(np.stack([a[name] for a in arrays])) for name in names}


def group_means(tensors: Tensors) -> Tensors:
    """The means, {name: (groups, ...)}, of groups' models {name: (models of one, groups, ...)}, in float64."""
    means: Tensors = {}
    for name, turns in tensors.items():
        total = turns[0].to(torch.float64, copy=True)
        for turn in turns[1:]:  # torch's own mean over the first axis takes five times as long
            total += turn
        means[name] = (total / len(turns)).to(turns.dtype)
    return means


def tensors_of(arrays: Mapping[str, np.ndarray]) -> Tensors:
    """Copies of the arrays as tensors on the CPU."""
    return {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}


def rows_of(tensors: Tensors, rows: int | slice) -> Tensors:
    """The tensors of one model, or of some."""
    return {name: tensor[rows] for name, tensor in tensors.items()}


def index_of(index: slice | np.ndarray, tensor: Tensor) -> slice | Tensor:
    """Row numbers as an index of ``tensor``, on its device."""
    return index if isinstance(index, slice) else torch.from_numpy(index).to(tensor.device)


def _view(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    array.flags.writeable = False  # a receiver that writes would change a living model
    return array
