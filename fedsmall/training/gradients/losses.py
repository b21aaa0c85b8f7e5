"""What is minimised, and what every way of computing gradients takes and gives."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fedsmall.data.outcomes import HUBER
from fedsmall.models.networks import cumulative
from fedsmall.training.stack import Tensors


class Loss(NamedTuple):
    """Values (..., samples), and slopes as the outputs (..., samples, width); targets are (..., samples) or as wide."""

    value: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


def _cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return torch.logsumexp(outputs, -1) - outputs.gather(-1, targets[..., None])[..., 0]


def _cross_entropy_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    slope = torch.softmax(outputs, -1)
    return slope.scatter_add_(-1, targets[..., None], slope.new_full((1,), -1.0).expand(*targets.shape, 1))


def _signed(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    sign = (2 * targets - 1).to(outputs.dtype)  # classes 0 and 1 are -1 and +1
    return sign, sign * outputs[..., 0]


def _margin(outputs: Tensor, targets: Tensor) -> Tensor:
    return _signed(outputs, targets)[1]


def _logistic_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    sign, margin = _signed(outputs, targets)
    return (-sign * torch.sigmoid(-margin))[..., None]


def _hinge_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    sign, margin = _signed(outputs, targets)
    return torch.where(margin < 1, -sign, torch.zeros_like(sign))[..., None]


def _error(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs - targets.reshape(outputs.shape)


def _hazard(outputs: Tensor, targets: Tensor) -> Tensor:
    through, event = _of_intervals(outputs, targets)
    return (F.softplus(outputs) * through + F.softplus(-outputs) * event).sum(-1)


def _hazard_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    through, event = _of_intervals(outputs, targets)
    return torch.sigmoid(outputs) * through - torch.sigmoid(-outputs) * event


def _of_intervals(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Which intervals a sample has come through, and in which the event happened: 0 and 1, shaped as the outputs."""
    place = torch.arange(outputs.shape[-1], device=outputs.device, dtype=targets.dtype)
    through, happened = targets[..., 0:1], targets[..., 1:2]
    return (place < through).to(outputs.dtype), ((place == through) * happened).to(outputs.dtype)


def _ordinal(outputs: Tensor, targets: Tensor) -> Tensor:
    odds = cumulative(outputs)
    passed, ahead, within = _of_grades(outputs, targets)
    losses = F.softplus(-odds) * passed + F.softplus(odds) * ahead + F.softplus(-outputs) * within
    return losses.sum(-1)


def _ordinal_slope(outputs: Tensor, targets: Tensor) -> Tensor:
    odds, narrow = cumulative(outputs), torch.sigmoid(-outputs)
    passed, ahead, within = _of_grades(outputs, targets)
    of_odds = torch.sigmoid(odds) * ahead - torch.sigmoid(-odds) * passed
    behind = of_odds.flip(-1).cumsum(-1).flip(-1)  # an output moves all log-odds from its own on
    first = torch.arange(outputs.shape[-1], device=outputs.device) == 0
    return torch.where(first, behind, -(1 - narrow) * behind - narrow * within)


def _of_grades(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    place, grade = torch.arange(outputs.shape[-1], device=outputs.device), targets[..., None]
    ahead = place == grade
    return tuple(part.to(outputs.dtype) for part in (place == grade - 1, ahead, ahead & (place > 0)))  # type: ignore[return-value]


def weighted(loss: Loss, weights: Sequence[float]) -> Loss:
    """The loss with every sample's value and slope times the weight of its class."""

    def of(targets: Tensor, like: Tensor) -> Tensor:
        return torch.as_tensor(weights, dtype=like.dtype, device=like.device)[targets]

    def value(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss.value(outputs, targets) * of(targets, outputs)

    def slope(outputs: Tensor, targets: Tensor) -> Tensor:
        return loss.slope(outputs, targets) * of(targets, outputs)[..., None]

    return Loss(value, slope)


LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss(_cross_entropy, _cross_entropy_slope),
    "logistic": Loss(lambda out, y: F.softplus(-_margin(out, y)), _logistic_slope),
    "hinge": Loss(lambda out, y: F.relu(1 - _margin(out, y)), _hinge_slope),
    "l1": Loss(lambda out, y: _error(out, y).abs().mean(-1), lambda out, y: _error(out, y).sign() / out.shape[-1]),
    "mse": Loss(lambda out, y: _error(out, y).square().mean(-1), lambda out, y: 2 * _error(out, y) / out.shape[-1]),
    "huber": Loss(
        lambda out, y: F.huber_loss(out, y.reshape(out.shape), reduction="none", delta=HUBER).mean(-1),
        lambda out, y: _error(out, y).clamp(-HUBER, HUBER) / out.shape[-1],
    ),
    # of several labels, each 0 or 1 (fedsmall.data.outcomes.Findings): the mean over them
    "binary_cross_entropy": Loss(
        lambda out, y: (F.softplus(out) - y * out).mean(-1), lambda out, y: (torch.sigmoid(out) - y) / out.shape[-1]
    ),
    # of classes in their order: the negative log-likelihood of a cumulative logit (fedsmall.models.networks)
    "ordinal": Loss(_ordinal, _ordinal_slope),
    # of times until an event (fedsmall.data.outcomes.Survival): the negative log-likelihood of discrete hazards
    "hazard": Loss(_hazard, _hazard_slope),
    # of probabilities in place of classes, (..., samples, outputs), which sum to one
    "soft_cross_entropy": Loss(
        lambda out, y: torch.logsumexp(out, -1) - (y * out).sum(-1), lambda out, y: torch.softmax(out, -1) - y
    ),
    "soft_logistic": Loss(lambda out, y: (F.softplus(out) - y * out)[..., 0], lambda out, y: torch.sigmoid(out) - y),
}


class Batch(NamedTuple):
    """One step's samples of K models.

    ``x`` is (models, samples, *input), ``y`` (models, samples, ...). ``weight`` (models, samples) sums to one for each
    model and is zero for padding (None: 1 / samples); under patient-level privacy it is 1 / the expected size of a lot.
    ``masks`` holds for every dropout layer zeros and 1 / (1 - p), (models, samples, *features of the layer). Gradients
    are then rounded to multiples of ``grid``, (models,), and float64 ``noise``, {parameter: (models, ...)}, is added.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None
    masks: Tensors
    noise: Mapping[str, Tensor] = MappingProxyType({})
    grid: Tensor | None = None


class Gradients(ABC):
    """Loss and gradient of K models on K batches.

    ``pads`` says whether batches of unequal size may be filled up and weighted (never under BatchNorm); ``chunk`` is
    the number of models to take at a time, None for what fits the cache. Most are made of a model as
    :func:`~fedsmall.training.gradients.layers.prepare_model` gives it and a loss, or ValueError where it does not fit.
    """

    path: str
    pads = True
    chunk: int | None = None

    @abstractmethod
    def __call__(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outputs (models, samples, width) and the gradients of the mean loss; running statistics move in place."""

    @abstractmethod
    def predict(self, parameters: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """The outputs (models, samples, width) in eval mode of every model on the same samples."""


def mean_loss(loss: Loss, outputs: Tensor, batch: Batch) -> Tensor:
    """The mean loss of each model on its batch, (models,)."""
    values = loss.value(outputs, batch.y)
    return values.mean(-1) if batch.weight is None else torch.linalg.vecdot(values, batch.weight)
