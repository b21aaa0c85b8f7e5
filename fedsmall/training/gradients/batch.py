"""What every way of computing gradients takes and gives."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from fedsmall.training.gradients.losses import Loss
from fedsmall.training.stack import Tensors


class Batch(NamedTuple):
    """One step's samples of K models.

    ``x`` is (models, samples, *input), ``y`` (models, samples, ...). ``weight`` (models, samples) sums to one for each
    model and is zero where a smaller batch was filled up; ``None`` means 1 / samples everywhere. ``masks`` holds for
    every dropout layer zeros and 1 / (1 - p), (models, samples, *features of the layer).

    Under patient-level privacy a weight is 1 / the expected size of a lot, and they need not sum to one; ``noise`` is
    what is added to the gradients, {parameter: (models, ...)}.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None
    masks: Tensors
    noise: Mapping[str, Tensor] = MappingProxyType({})


class Gradients(Protocol):
    """Loss and gradient of K models on K batches.

    ``path`` names the way; ``pads`` says whether batches of unequal size may be filled up and weighted (never under
    BatchNorm); ``chunk`` is the number of models to take at a time, None for what fits the cache.
    """

    path: str
    pads: bool
    chunk: int | None

    def __call__(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outputs (models, samples, width) and the gradients of the mean loss; running statistics move in place."""
        ...

    def predict(self, parameters: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """The outputs (models, samples, width) in eval mode of every model on the same samples."""
        ...


def mean_loss(loss: Loss, outputs: Tensor, batch: Batch) -> Tensor:
    """The mean loss of each model on its batch, (models,)."""
    values = loss.value(outputs, batch.y)
    return values.mean(-1) if batch.weight is None else torch.linalg.vecdot(values, batch.weight)
