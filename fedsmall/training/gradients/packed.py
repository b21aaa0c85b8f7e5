"""Convolutional networks of K models as one network: convolution -> groups * K, BatchNorm -> K * channels.

Images of K models lie side by side in the channels, (samples, models * channels, height, width), channels-last;
features lie in rows, (models, samples, features). The forward pass follows the model's own graph, with any branching of
:data:`LAYERS` and :data:`FUNCTIONS`; the backward pass is autograd's.
"""

import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsmall.models.networks import has_spread
from fedsmall.training.gradients.layers import MaskedDropout, check_trains, trace_model
from fedsmall.training.gradients.losses import Batch, Gradients, Loss, mean_loss
from fedsmall.training.stack import Tensors


class ForwardPass(NamedTuple):
    """What a layer finds in one pass: the K models' arrays, dropout masks, and whether this is training."""

    models: int
    arrays: Tensors
    masks: Tensors
    training: bool

    def side_by_side(self, name: str) -> Tensor | None:
        """An array of the layer, (models, channels, ...) -> (models * channels, ...); None where there is none."""
        array = self.arrays.get(name)
        return None if array is None else array.flatten(0, 1)


def _models_first(run: ForwardPass, x: Tensor) -> Tensor:
    return x.view(x.shape[0], run.models, -1, *x.shape[2:]).transpose(0, 1)  # (models, samples, channels, ...)


Layer = Callable[[ForwardPass, str, Any, Tensor], Tensor]


def _convolution(run: ForwardPass, name: str, layer: nn.Conv2d, x: Tensor) -> Tensor:
    weight = run.side_by_side(f"{name}.weight")
    assert weight is not None
    assert not isinstance(layer.padding, str)
    weight = weight.contiguous(memory_format=torch.channels_last)
    bias = run.side_by_side(f"{name}.bias")
    return F.conv2d(x, weight, bias, layer.stride, layer.padding, layer.dilation, layer.groups * run.models)


def _linear(run: ForwardPass, name: str, layer: nn.Linear, x: Tensor) -> Tensor:
    weight, bias = run.arrays[f"{name}.weight"].mT, run.arrays.get(f"{name}.bias")
    return torch.bmm(x, weight) if bias is None else torch.baddbmm(bias[:, None], x, weight)


def _batch_norm(run: ForwardPass, name: str, layer: _BatchNorm, x: Tensor) -> Tensor:
    images = x if x.dim() == 4 else x.transpose(0, 1).flatten(1)  # (samples, models * channels, ...)
    mean, var = run.side_by_side(f"{name}.running_mean"), run.side_by_side(f"{name}.running_var")
    learns = run.training and has_spread(images.shape)
    if learns and f"{name}.num_batches_tracked" in run.arrays:
        run.arrays[f"{name}.num_batches_tracked"].add_(1)
    weight, bias = run.side_by_side(f"{name}.weight"), run.side_by_side(f"{name}.bias")
    y = F.batch_norm(images, mean, var, weight, bias, learns, layer.momentum or 0.0, layer.eps)
    return y if x.dim() == 4 else _models_first(run, y)


def _group_norm(run: ForwardPass, name: str, layer: nn.GroupNorm, x: Tensor) -> Tensor:
    weight, bias = run.side_by_side(f"{name}.weight"), run.side_by_side(f"{name}.bias")
    return F.group_norm(x, layer.num_groups * run.models, weight, bias, layer.eps)


def _dropout(run: ForwardPass, name: str, layer: MaskedDropout, x: Tensor) -> Tensor:
    if not run.training:
        return x
    mask = run.masks[name]
    return x * (mask.transpose(0, 1).flatten(1, 2) if x.dim() == 4 else mask)


def _flatten(run: ForwardPass, name: str, layer: nn.Module | None, x: Tensor) -> Tensor:
    return _models_first(run, x).flatten(2) if x.dim() == 4 else x.flatten(2)


def _apart(run: ForwardPass, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = layer(x)  # acts on every channel, or every number, by itself
    return result


def _write_over(run: ForwardPass, name: str, layer: nn.Module, x: Tensor) -> Tensor:
    return torch.relu_(x)


LAYERS: dict[type[nn.Module], Layer] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    _BatchNorm: _batch_norm,
    nn.GroupNorm: _group_norm,
    MaskedDropout: _dropout,
    nn.Flatten: _flatten,
    **dict.fromkeys((nn.Identity, nn.ReLU, nn.LeakyReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid), _apart),
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d), _apart),
}
FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add"), torch.add),
    **dict.fromkeys((torch.relu, F.relu, "relu"), torch.relu),
    **{of: of for of in (torch.tanh, torch.sigmoid, F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d)},
}
FLATTENS = (torch.flatten, "flatten")


class PackedGradients(Gradients):
    """The gradients of a convolutional network, a few models side by side."""

    path = "conv"

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        check_trains(model)
        self.model, self._loss = model, loss
        self.nodes = _pooled_first(model, trace_model(model))
        self.layers = {node: _layer_of(model, node) for node in self.nodes if node.op == "call_module"}
        for node in self.nodes:
            _check_function(node)
        self.pads = not any(isinstance(module, _BatchNorm) for module in model.modules())
        convolutions = sum(isinstance(module, nn.Conv2d) for module in model.modules())
        # a deep network keeps many maps for its backward pass: three models' still fit the cache, five do not
        self.chunk = 5 if convolutions <= 4 else 3

    def __call__(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outputs and gradients of all models."""
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        with torch.enable_grad():
            outputs = self._run(ForwardPass(len(batch.x), leaves | buffers, batch.masks, True), batch.x)
            loss = mean_loss(self._loss, outputs, batch).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return outputs.detach(), dict(zip(leaves, gradients, strict=True))

    def predict(self, parameters: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """The outputs of all models."""
        models = len(next(iter(parameters.values())))
        return self._run(ForwardPass(models, parameters | buffers, {}, False), x.expand(models, *x.shape))

    def _run(self, run: ForwardPass, x: Tensor) -> Tensor:
        if x.dim() == 5:  # images of all models side by side
            x = x.transpose(0, 1).flatten(1, 2).contiguous(memory_format=torch.channels_last)
        values: dict[fx.Node, Tensor] = {}
        taken: Any
        for node in self.nodes:
            taken = fx.node.map_arg(node.args, values.__getitem__)
            if node.op == "placeholder":
                values[node] = x
            elif node.op == "call_module":
                layer, function = self.layers[node]
                values[node] = function(run, str(node.target), layer, *taken)
            elif node.op == "output":
                x = taken[0]
            elif node.target in FLATTENS:
                values[node] = _flatten(run, "", None, taken[0])
            else:
                values[node] = FUNCTIONS[node.target](*taken, **node.kwargs)
        return x


def module_of(model: nn.Module, node: Any) -> nn.Module | None:
    """The layer that a node of the model's graph calls."""
    is_module = isinstance(node, fx.Node) and node.op == "call_module"
    return model.get_submodule(str(node.target)) if is_module else None


def _pooled_first(model: nn.Module, graph: fx.Graph) -> list[fx.Node]:
    """The nodes with every ReLU after the max pooling that follows it: the same numbers, on a quarter of the map."""
    for relu in list(graph.nodes):
        if isinstance(module_of(model, relu), nn.ReLU) and len(relu.users) == 1:
            pool = next(iter(relu.users))
            if isinstance(module_of(model, pool), nn.MaxPool2d):
                pool.replace_all_uses_with(relu)
                pool.args, relu.args = relu.args, (pool,)
                pool.append(relu)
    return list(graph.nodes)


def _may_write_over(model: nn.Module, node: fx.Node) -> bool:
    """Whether a ReLU may be done in place: no other node, and no backward pass, needs what it takes."""
    if not isinstance(module_of(model, node), nn.ReLU):
        return False
    before = node.args[0]
    fresh = isinstance(module_of(model, before), nn.Conv2d | _BatchNorm | nn.MaxPool2d)
    return fresh and isinstance(before, fx.Node) and len(before.users) == 1


def _layer_of(model: nn.Module, node: fx.Node) -> tuple[nn.Module, Layer]:
    layer = model.get_submodule(str(node.target))
    kind = next((kind for kind in LAYERS if isinstance(layer, kind)), None)
    odd = isinstance(layer, nn.Conv2d) and (isinstance(layer.padding, str) or layer.padding_mode != "zeros")
    odd = odd or (isinstance(layer, _BatchNorm) and (layer.momentum is None or layer.running_mean is None))
    odd = odd or (isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) != (1, -1))
    if kind is None or odd:
        raise ValueError(f"layer {node.target} ({type(layer).__name__}, with these settings) cannot be packed")
    return layer, _write_over if _may_write_over(model, node) else LAYERS[kind]


def _check_function(node: fx.Node) -> None:
    if node.op in ("placeholder", "call_module", "output"):
        return
    if node.target in FLATTENS and node.args[1:] != (1,):
        raise ValueError(f"{node.name} flattens other axes than all after the first")
    if node.target not in FUNCTIONS and node.target not in FLATTENS:
        raise ValueError(f"the model calls {getattr(node.target, '__name__', node.target)}, which cannot be packed")
