"""Linear layers and ReLUs of K models as stacked matrix products, with the backward pass written out.

Under patient-level privacy each sample's gradient is clipped before they are summed, and noise is added: sum_i weight_i
* g_i * min(1, clip / |g_i|) + noise, with |g_i| over all parameters together (Abadi et al. 2016, algorithm 1). A
batch's weights and noise come from :class:`fedsmall.training.batches.Lots`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedsmall.training.gradients.layers import MaskedDropout, chain, check_trains
from fedsmall.training.gradients.losses import Batch, Gradients, Loss
from fedsmall.training.stack import Tensors


class Layer(NamedTuple):
    """A layer of a chain, and the name of its arrays."""

    kind: str  # "linear", "relu" or "dropout"
    name: str
    bias: bool = False


class MlpGradients(Gradients):
    """The gradients of a chain of linear layers, ReLUs and dropout, all models in one product per layer."""

    path = "mlp"

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.layers, self.loss = layers_of(model), loss

    def __call__(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outputs and gradients of all models."""
        outputs, layers = self._pass(parameters, batch)
        return outputs, gradients_of(layers)

    def descend(self, parameters: Tensors, batch: Batch, lr: float) -> Tensor:
        """One step of plain gradient descent in place; saves the memory traffic of making the gradients first."""
        outputs, layers = self._pass(parameters, batch)
        for layer, slope, x in layers:
            parameters[f"{layer.name}.weight"].baddbmm_(slope.mT, x, alpha=-lr)
            if layer.bias:
                parameters[f"{layer.name}.bias"].sub_(slope.sum(1), alpha=lr)
        return outputs

    def predict(self, parameters: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """The outputs of all models."""
        models = len(next(iter(parameters.values())))
        x = x.flatten(1).expand(models, -1, -1)
        for layer in self.layers:
            if layer.kind != "dropout":
                x = forward(layer, parameters, x, {})
        return x

    def _pass(self, parameters: Tensors, batch: Batch) -> tuple[Tensor, Iterator[tuple[Layer, Tensor, Tensor]]]:
        outputs, inputs = forwards(self.layers, parameters, batch)
        slope = self.loss.slope(outputs, batch.y)
        slope.mul_(1 / outputs.shape[1] if batch.weight is None else batch.weight[..., None])
        return outputs, backwards(self.layers, parameters, batch, inputs, slope)


def gradients_of(layers: Iterable[tuple[Layer, Tensor, Tensor]]) -> Tensors:
    """The gradients of linear layers, from the slopes behind and the inputs before each."""
    gradients: Tensors = {}
    for layer, slope, x in layers:
        gradients[f"{layer.name}.weight"] = torch.bmm(slope.mT, x)  # (models, outputs, inputs)
        if layer.bias:
            gradients[f"{layer.name}.bias"] = slope.sum(1)
    return gradients


def forwards(layers: Sequence[Layer], parameters: Tensors, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """The outputs of all models, and what came into each layer."""
    x = batch.x.flatten(2)  # (models, samples, features)
    inputs: list[Tensor] = []
    for layer in layers:
        inputs.append(x)
        x = forward(layer, parameters, x, batch.masks)
    return x, inputs


def backwards(
    layers: Sequence[Layer], parameters: Tensors, batch: Batch, inputs: Sequence[Tensor], slope: Tensor
) -> Iterator[tuple[Layer, Tensor, Tensor]]:
    """Each linear layer, the last first, with slopes behind and inputs before it; its weights may then be moved."""
    for layer, before in zip(reversed(layers), reversed(inputs), strict=True):
        if layer.kind == "relu":
            slope = torch.ops.aten.threshold_backward(slope, before, 0)
        elif layer.kind == "dropout":
            slope = slope * batch.masks[layer.name]
        else:
            behind = slope
            if layer is not layers[0]:
                slope = torch.bmm(slope, parameters[f"{layer.name}.weight"])
            yield layer, behind, before


def forward(layer: Layer, parameters: Tensors, x: Tensor, masks: Tensors) -> Tensor:
    """What a layer of each model makes of ``x``, (models, samples, features)."""
    if layer.kind == "relu":
        return torch.relu(x)
    if layer.kind == "dropout":
        return x * masks[layer.name]
    weight = parameters[f"{layer.name}.weight"].mT  # (models, inputs, outputs)
    if not layer.bias:
        return torch.bmm(x, weight)
    return torch.baddbmm(parameters[f"{layer.name}.bias"][:, None], x, weight)


def layers_of(model: nn.Module) -> list[Layer]:
    """The layers of a chain of linear layers, ReLUs and dropout; ValueError for any other model."""
    check_trains(model)
    layers: list[Layer] = []
    for name, layer in chain(model):
        if isinstance(layer, nn.Linear):
            layers.append(Layer("linear", name, layer.bias is not None))
        elif isinstance(layer, nn.ReLU):
            layers.append(Layer("relu", name))
        elif isinstance(layer, MaskedDropout):
            layers.append(Layer("dropout", name))
        elif not (isinstance(layer, nn.Identity) or (isinstance(layer, nn.Flatten) and not layers)):
            raise ValueError(f"layer {name} ({type(layer).__name__}) is not a linear layer, a ReLU or dropout")
    if not any(layer.kind == "linear" for layer in layers):
        raise ValueError("the model has no linear layer")
    return layers


class Clipped(Gradients):
    """Gradients by way of others, each sample's clipped to ``clip``."""

    def __init__(self, inner: Gradients, clip: float) -> None:
        self._inner, self._clip, self.path = inner, clip, inner.path

    def predict(self, parameters: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """The outputs of all models."""
        return self._inner.predict(parameters, buffers, x)


class ClippedMlp(Clipped):
    """Linear layers and ReLUs of K models, without making any sample's gradient.

    The gradient of a linear layer for sample i is the outer product of the slope behind it and the input before it, so
    its squared norm is |slope_i|^2 (|input_i|^2 + 1) (Goodfellow 2015). Products are then those of scaled slopes.
    """

    def __init__(self, inner: MlpGradients, clip: float) -> None:
        super().__init__(inner, clip)
        self._layers, self._loss = inner.layers, inner.loss

    def __call__(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outputs and the clipped, summed and noised gradients of all models."""
        outputs, inputs = forwards(self._layers, parameters, batch)
        slope = self._loss.slope(outputs, batch.y)
        layers = list(backwards(self._layers, parameters, batch, inputs, slope))
        squares = torch.zeros_like(outputs[..., 0])  # (models, samples)
        for layer, behind, before in layers:
            squares += _squares(behind) * (_squares(before) + layer.bias)
        share = _shares(squares, self._clip, batch)[..., None]
        return outputs, _noised(gradients_of((layer, slope * share, x) for layer, slope, x in layers), batch)

    def descend(self, parameters: Tensors, batch: Batch, lr: float) -> Tensor:
        """One step of plain gradient descent in place, as :meth:`MlpGradients.descend`."""
        outputs, gradients = self(parameters, {}, batch)
        for name, gradient in gradients.items():
            parameters[name].sub_(gradient, alpha=lr)
        return outputs


class ClippedOneByOne(Clipped):
    """Any model without BatchNorm, by another path: every sample is a model with a batch of one."""

    def __call__(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outputs and the clipped, summed and noised gradients of all models."""
        outputs, sums = zip(*(self._one(parameters, buffers, batch, row) for row in range(len(batch.x))), strict=True)
        gradients = {name: torch.stack([of_one[name] for of_one in sums]) for name in parameters}
        return torch.stack(outputs), _noised(gradients, batch)

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
            weight = None if batch.weight is None else batch.weight[row, part]
            share = _shares(squares, self._clip, batch._replace(weight=weight))
            for name, gradient in gradients.items():
                total[name] += torch.tensordot(share, gradient, 1)
        return torch.cat(outputs), total


def clipped(inner: Gradients, clip: float) -> Gradients:
    """The way of computing gradients with each sample's clipped to ``clip``, at the least cost."""
    return ClippedMlp(inner, clip) if isinstance(inner, MlpGradients) else ClippedOneByOne(inner, clip)


def _squares(x: Tensor) -> Tensor:
    return torch.linalg.vecdot(x, x)  # type: ignore[no-any-return]


def _shares(squares: Tensor, clip: float, batch: Batch) -> Tensor:
    factor = clip / squares.sqrt().clamp_min(clip)
    return factor / batch.x.shape[1] if batch.weight is None else factor * batch.weight


def _noised(gradients: Tensors, batch: Batch) -> Tensors:
    """On one grid, before anything else is computed of them: the float of a sum would betray it."""
    if batch.grid is None:
        return gradients
    noised = {}
    for name, gradient in gradients.items():
        grid = batch.grid.view(-1, *[1] * (gradient.dim() - 1))
        noised[name] = ((gradient.double() / grid).round() * grid + batch.noise[name]).to(gradient.dtype)
    return noised
