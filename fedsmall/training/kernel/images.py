"""Convolutional networks in compiled C: a 3 x 3 convolution and what follows it are one step, forth and back.

A chain of such layers of :class:`PackedGradients` becomes one; what C does not know of a network stays with torch, as
the loss, the optimizer and predictions do. The numbers are torch's to a few units of the last place.
"""

import ctypes
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsmall.models.networks import has_spread
from fedsmall.plan import Plan
from fedsmall.training.gradients.packed import ForwardPass, Layer, PackedGradients, module_of
from fedsmall.training.kernel import BUILT, FLOAT32, LANES, library, share_out, unmet_need

MODELS, NUMBERS = 32, 2**20  # side by side at most, and what goes into their step: C works at one after the other
_WHOLE = ("models", "samples", "height", "width", "inputs", "outputs", "group", "together", "pool", "relu")
_ARRAYS = ("x", "weight", "bias", "scale", "shift", "z", "mean", "var", "y", "slope")
_SLOPES = ("dx", "dweight", "dbias", "dscale", "dshift")
# what may follow a convolution, in this order
_BEHIND: tuple[Any, ...] = (_BatchNorm | nn.GroupNorm, nn.MaxPool2d, nn.ReLU)


class _Struct(ctypes.Structure):
    """``struct block`` of images.c."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in _WHOLE),
        ("epsilon", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in (*_ARRAYS, *_SLOPES)),
    )

    def give(self, **tensors: Tensor | None) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, None if tensor is None else tensor.data_ptr())


class _Part(NamedTuple):
    name: str
    layer: Any
    function: Layer


class Block:
    """The layers of one chain, which begins with a convolution; ``number`` is that of a set of instructions."""

    def __init__(self, parts: list[_Part], number: int, threads: int) -> None:
        self._parts, self._set, self._threads = parts, number, threads
        self._room = torch.empty(0)
        norm, pools, relu = (next((part for part in parts if isinstance(part.layer, kind)), None) for kind in _BEHIND)
        self._norm, self._batch = norm, norm is not None and isinstance(norm.layer, _BatchNorm)
        group = 0 if norm is None else 1 if self._batch else norm.layer.num_channels // norm.layer.num_groups
        self._settings = {
            "group": group, "together": self._batch, "pool": pools is not None,
            "relu": relu is not None, "epsilon": norm.layer.eps if norm else 0.0,
        }  # fmt: skip

    def __call__(self, run: ForwardPass, name: str, layer: nn.Module, x: Tensor) -> Tensor:
        """What the last layer gives; by torch where nothing is learnt."""
        if not run.training or (self._batch and not has_spread(x.shape)):
            for part in self._parts:
                x = part.function(run, part.name, part.layer, x)
            return x
        names = [f"{part.name}.{kind}" for part in (self._parts[0], self._norm) if part for kind in ("weight", "bias")]
        arrays = [run.arrays.get(name) for name in names]
        made: tuple[Tensor, Tensor] = _Fused.apply(self, x, *arrays, *[None] * (4 - len(arrays)))  # type: ignore[no-untyped-call]
        if self._batch and self._norm:
            name, values = self._norm.name, x.shape[0] * x.shape[2] * x.shape[3]
            mean, var = made[1][:, :, 0]
            run.arrays[f"{name}.num_batches_tracked"].add_(1)
            run.arrays[f"{name}.running_mean"].lerp_(mean, self._norm.layer.momentum)
            run.arrays[f"{name}.running_var"].lerp_(var * values / (values - 1), self._norm.layer.momentum)
        return made[0]

    def struct(self, x: Tensor, weight: Tensor) -> _Struct:
        """What C is told of images (samples, models * channels, height, width) beside where they are."""
        (samples, _, height, width), (models, outputs, inputs, *_) = x.shape, weight.shape
        return _Struct(models, samples, height, width, inputs, outputs, **self._settings)

    def room(self, *shape: int) -> Tensor:
        """An array for what is needed until the way back, the same memory each time: new pages cost as much as sums."""
        size = prod(shape)
        if self._room.numel() < size:
            self._room = torch.empty(size)
        return self._room[:size].view(shape)

    def run(self, name: str, struct: _Struct) -> None:
        """Let C go forth or back, the models shared by the threads."""
        share_out(f"{name}_{self._set}", struct, struct.models, self._threads)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: Block, x: Tensor, weight: Tensor, *rest: Tensor | None) -> tuple[Tensor, Tensor]:
        x, weight = x.contiguous(memory_format=torch.channels_last), weight.contiguous()
        bias, scale, shift = (None if array is None else array.contiguous() for array in rest)
        of = block.struct(x, weight)
        height, width = of.height >> of.pool, of.width >> of.pool
        y = x.new_empty(of.samples, height, width, of.models * of.outputs).permute(0, 3, 1, 2)
        z = block.room(of.models, of.samples, of.height, of.width, of.outputs)
        statistics = x.new_empty(2, of.models, 1 if of.together else of.samples, of.outputs)
        mean, var = statistics
        of.give(x=x, weight=weight, bias=bias, scale=scale, shift=shift, y=y, z=z, mean=mean, var=var)
        block.run("forwards", of)
        ctx.block, ctx.struct = block, of
        ctx.save_for_backward(x, weight, bias, scale, shift, z, statistics)
        ctx.mark_non_differentiable(statistics)
        return y, statistics

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, scale, shift, *_ = ctx.saved_tensors
        slope = slope.contiguous(memory_format=torch.channels_last)
        dx = torch.empty_like(x) if ctx.needs_input_grad[1] else None
        of_weight = torch.empty_like(weight)
        of_bias, of_scale, of_shift = (None if a is None else torch.zeros_like(a) for a in (bias, scale, shift))
        ctx.struct.give(slope=slope, dx=dx, dweight=of_weight, dbias=of_bias, dscale=of_scale, dshift=of_shift)
        ctx.block.run("backwards", ctx.struct)
        return None, dx, of_weight, of_bias, of_scale, of_shift


def fuse(plan: Plan, gradients: PackedGradients, threads: int, numbers: int = 1) -> str | None:
    """Let C do what it knows of a network, on so many threads; None, or what is missing where torch does it all.

    ``numbers`` are those of a batch of images: maps are some hundred times as many.
    """
    built, need = library(), unmet_need(plan, gradients, (FLOAT32, BUILT))
    if need or built is None:
        return need
    models, found = max(gradients.chunk or 1, min(MODELS, NUMBERS // max(numbers, 1))), False
    for node in gradients.nodes:
        if (number := _set_for(gradients.model, node, built)) is not None:
            chain = _chain(gradients.model, node)
            block = Block([_Part(str(one.target), *gradients.layers[one]) for one in chain], number, threads)
            gradients.layers |= {one: (nn.Identity(), lambda run, name, layer, x: x) for one in chain}
            gradients.layers[node], gradients.chunk, found = (nn.Identity(), block), models, True
    return None if found else "3 x 3 convolutions, to channels in fours"


def _set_for(model: nn.Module, node: fx.Node, built: ctypes.CDLL) -> int | None:
    """The last set of instructions whose vectors channels fill; None for a convolution that C does not know."""
    layer, settings = module_of(model, node), ("kernel_size", "stride", "padding", "dilation", "groups")
    if [getattr(layer, name, 0) for name in settings] != [(3, 3), (1, 1), (1, 1), (1, 1), 1]:
        return None
    assert isinstance(layer, nn.Conv2d)
    assert isinstance(node.args[0], fx.Node)
    counts = (layer.out_channels, 0 if node.args[0].op == "placeholder" else layer.in_channels)  # which wants no slopes
    fills = [number for number, lanes in enumerate(LANES) if built.has(number) and not any(n % lanes for n in counts)]
    return max(fills, default=None)


def _chain(model: nn.Module, node: fx.Node) -> list[fx.Node]:
    chain = [node]
    for kind in _BEHIND:
        behind = next(iter(chain[-1].users))
        layer = module_of(model, behind)
        is_odd = kind is nn.MaxPool2d and str(layer) != str(nn.MaxPool2d(2))
        if len(chain[-1].users) == 1 and isinstance(layer, kind) and not is_odd:
            chain.append(behind)
    return chain
