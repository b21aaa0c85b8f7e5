"""Gradients under patient-level privacy: each sample's own is clipped before they are summed, and noise is added.

A step's gradient is sum_i weight_i * g_i * min(1, clip / |g_i|) + noise, with |g_i| over all parameters together
(Abadi et al. 2016, algorithm 1). A batch's weights and noise come from :class:`fedsmall.training.batches.Lots`.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedsmall.training.gradients.losses import Batch, Gradients
from fedsmall.training.gradients.mlp import MlpGradients, Use, backwards, collect_gradients, forwards, move_parameters
from fedsmall.training.stack import Tensors


class ClippedMlp:
    """Linear layers and ReLUs of K models, without making any sample's gradient.

    The gradient of a linear layer for sample i is the outer product of the slope behind it and the input before it, so
    its squared norm is |slope_i|^2 (|input_i|^2 + 1), the one for the bias (Goodfellow 2015). The products are then
    those without clipping, of scaled slopes.
    """

    path = "mlp"
    pads = True
    chunk: int | None = None

    def __init__(self, inner: MlpGradients, clip: float) -> None:
        self._inner, self._layers, self._loss, self._clip = inner, inner.layers, inner.loss, clip

    def __call__(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outputs and the clipped, summed and noised gradients of all models."""
        gradients: Tensors = {}
        outputs = self._pass(parameters, batch, collect_gradients(gradients))
        return outputs, _noised(gradients, batch.noise)

    def descend(self, parameters: Tensors, batch: Batch, lr: float) -> Tensor:
        """One step of plain gradient descent in place, as :meth:`MlpGradients.descend`."""
        outputs = self._pass(parameters, batch, move_parameters(parameters, lr))
        for name, noise in batch.noise.items():
            parameters[name].sub_(noise, alpha=lr)
        return outputs

    def predict(self, parameters: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """The outputs of all models."""
        return self._inner.predict(parameters, buffers, x)

    def _pass(self, parameters: Tensors, batch: Batch, use: Use) -> Tensor:
        outputs, inputs = forwards(self._layers, parameters, batch)
        slope = self._loss.slope(outputs, batch.y)
        layers = list(backwards(self._layers, parameters, batch, inputs, slope))
        squares = torch.zeros_like(outputs[..., 0])  # (models, samples)
        for layer, behind, before in layers:
            squares += _squares(behind) * (_squares(before) + layer.bias)
        share = _shares(squares, self._clip, batch)[..., None]
        for layer, behind, before in layers:
            use(layer, behind * share, before)
        return outputs


class ClippedOneByOne:
    """Any model without BatchNorm, by another path: every sample is a model with a batch of one.

    A model's samples go together, in parts of the inner path's own size.
    """

    pads = True
    chunk: int | None = None

    def __init__(self, inner: Gradients, clip: float) -> None:
        self._inner, self._clip, self.path = inner, clip, inner.path

    def __call__(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outputs and the clipped, summed and noised gradients of all models."""
        outputs, sums = zip(*(self._one(parameters, buffers, batch, row) for row in range(len(batch.x))), strict=True)
        gradients = {name: torch.stack([of_one[name] for of_one in sums]) for name in parameters}
        return torch.stack(outputs), _noised(gradients, batch.noise)

    def predict(self, parameters: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """The outputs of all models."""
        return self._inner.predict(parameters, buffers, x)

    def _one(self, parameters: Tensors, buffers: Tensors, batch: Batch, row: int) -> tuple[Tensor, Tensors]:
        """One model's outputs, (samples, width), and the sum of its clipped gradients."""
        samples = batch.x.shape[1]
        size = self._inner.chunk or samples
        outputs: list[Tensor] = []
        total = {name: torch.zeros_like(tensor[row]) for name, tensor in parameters.items()}
        for first in range(0, samples, size):
            part = slice(first, min(first + size, samples))
            count = part.stop - part.start
            copies, held = (
                {name: t[row].expand(count, *t.shape[1:]) for name, t in tensors.items()}
                for tensors in (parameters, buffers)
            )
            masks = {name: mask[row, part, None] for name, mask in batch.masks.items()}
            alone = Batch(batch.x[row, part, None], batch.y[row, part, None], None, masks)
            given, gradients = self._inner(copies, held, alone)
            outputs.append(given[:, 0])
            squares = torch.stack([_squares(gradient.flatten(1)) for gradient in gradients.values()]).sum(0)
            share = _shares(squares, self._clip, batch._replace(weight=_of(batch.weight, row, part)))
            for name, gradient in gradients.items():
                total[name] += torch.tensordot(share, gradient, 1)
        return torch.cat(outputs), total


def clipped(inner: Gradients, clip: float) -> Gradients:
    """The way of computing gradients with each sample's clipped to ``clip``, at the least cost."""
    return ClippedMlp(inner, clip) if isinstance(inner, MlpGradients) else ClippedOneByOne(inner, clip)


def _squares(x: Tensor) -> Tensor:
    squares: Tensor = torch.linalg.vecdot(x, x)
    return squares


def _of(weight: Tensor | None, row: int, part: slice) -> Tensor | None:
    return None if weight is None else weight[row, part]


def _shares(squares: Tensor, clip: float, batch: Batch) -> Tensor:
    factor = clip / squares.sqrt().clamp_min(clip)
    return factor / batch.x.shape[1] if batch.weight is None else factor * batch.weight


def _noised(gradients: Tensors, noise: Mapping[str, Tensor]) -> Tensors:
    for name, drawn in noise.items():
        gradients[name] += drawn
    return gradients
