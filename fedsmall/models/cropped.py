"""Convolutions on maps that are smaller than their kernels: the same numbers for a fraction of the time.

On maps of 2 x 2 or 1 x 1 most taps of a 3 x 3 kernel meet padding alone: 56% of all parameters of ResNet-10 on 28 x 28
images. ``model = "resnet10_cropped"`` gives the same numbers as "resnet10" (without weight decay); arrays of the two
have different shapes and cannot be mixed.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedsmall.data.federation import Task
from fedsmall.models import networks

FEW = 4  # output positions up to which a product of matrices is faster than a convolution (CPU, torch 2.13)
NARROW = 64  # the same for the numbers under a kernel


class Reach(NamedTuple):
    """Which taps of a kernel meet the map along one side, ``first`` to ``end`` - 1, and the padding they still need."""

    first: int
    end: int
    before: int
    after: int


def reach(size: int, kernel: int, stride: int, padding: int) -> Reach:
    """The taps that ever lie on a side of ``size`` pixels; the others only ever meet padding."""
    starts = [place * stride - padding for place in range((size + 2 * padding - kernel) // stride + 1)]
    met = [tap for tap in range(kernel) if any(0 <= start + tap < size for start in starts)]
    first, end = met[0], met[-1] + 1
    return Reach(first, end, max(0, -(starts[0] + first)), max(0, starts[-1] + end - size))


class MatrixConv2d(nn.Conv2d):
    """``nn.Conv2d`` (square, ungrouped) as one product of matrices, for few positions or narrow kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """(samples, inputs, height, width) -> (samples, outputs, height', width')."""
        kernel, stride, padding = self.kernel_size[0], self.stride[0], int(self.padding[0])
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in input.shape[-2:]]
        if sides == [1, 1] and padding == 0:
            under = input[..., :kernel, :kernel].flatten(1)
            return F.linear(under, self.weight.flatten(1), self.bias)[..., None, None]
        seen = F.unfold(input, kernel, padding=padding, stride=stride)  # (samples, numbers, positions)
        product = F.linear(seen.transpose(1, 2), self.weight.flatten(1), self.bias)  # (samples, positions, outputs)
        return product.transpose(1, 2).reshape(len(input), -1, *sides)


def cropped(model: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """The model without the taps that meet no pixel of (channels, height, width) samples, changed in place."""
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Conv2d and _plain(layer)}
    maps = _maps(model, layers, input_shape)
    for name, layer in layers.items():
        if name in maps:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, _crop_kernel(layer, maps[name]))
    return model


def _crop_kernel(layer: nn.Conv2d, size: int) -> nn.Conv2d:
    kernel, stride, padding = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
    side = reach(size, kernel, stride, padding)
    if side.before != side.after:  # padding on one side alone is no Conv2d
        side = Reach(0, kernel, padding, padding)
    left = side.end - side.first
    positions = ((size + 2 * side.before - left) // stride + 1) ** 2
    few = positions <= FEW or layer.in_channels * left**2 < NARROW
    kind, has_bias = MatrixConv2d if few else nn.Conv2d, layer.bias is not None
    smaller = kind(layer.in_channels, layer.out_channels, left, stride, side.before, bias=has_bias).to(layer.weight)
    with torch.no_grad():
        smaller.weight.copy_(layer.weight[:, :, side.first : side.end, side.first : side.end])
        if layer.bias is not None and smaller.bias is not None:
            smaller.bias.copy_(layer.bias)
    return smaller


def _maps(model: nn.Module, layers: dict[str, nn.Conv2d], input_shape: tuple[int, ...]) -> dict[str, int]:
    sides: dict[str, int] = {}
    names: dict[nn.Module, str] = {layer: name for name, layer in layers.items()}

    def note(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        if inputs[0].shape[-1] == inputs[0].shape[-2]:
            sides[names[layer]] = inputs[0].shape[-1]

    handles = [layer.register_forward_pre_hook(note) for layer in names]
    training = model.training
    with torch.no_grad():
        model.eval()(torch.zeros(1, *input_shape))
    model.train(training)
    for handle in handles:
        handle.remove()
    return sides


def _plain(layer: nn.Conv2d) -> bool:
    square = all(len(set(pair)) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    return square and not isinstance(layer.padding, str) and layer.groups == 1 and layer.dilation == (1, 1)


def resnet10(task: Task, **options: Any) -> nn.Module:
    """The model of that name with the same initial weights, for images of the task's size and no other."""
    return cropped(networks.resnet10(task, **options), task.input_shape)


def resnet18(task: Task, **options: Any) -> nn.Module:
    """The model of that name with the same initial weights, for images of the task's size and no other."""
    return cropped(networks.resnet18(task, **options), task.input_shape)
