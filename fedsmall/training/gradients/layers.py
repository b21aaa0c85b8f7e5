"""A model made ready for training from handed-in numbers: dropout by masks, small batches, layers in call order."""

import copy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsmall.models.networks import forgive_small_batches, frozen_names, training_mode


class MaskedDropout(nn.Module):
    """Dropout that multiplies by a mask from outside, so that every path sees the same numbers; none in eval mode."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.mask: Tensor
        self.register_buffer("mask", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The input times the mask."""
        return x * self.mask if self.training else x


def prepare_model(model: nn.Module) -> nn.Module:
    """A copy of the model, in training mode but for what is frozen, whose arrays keep their names."""
    model = training_mode(forgive_small_batches(copy.deepcopy(model)))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                setattr(parent, name, MaskedDropout(child.p).train(child.training))
    return model


def dropout_shapes(model: nn.Module, x: Tensor) -> dict[str, tuple[int, ...]]:
    """The shape that each dropout layer of a prepared model sees for one sample, found by passing ``x`` (1, ...)."""
    shapes: dict[str, tuple[int, ...]] = {}
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, MaskedDropout)}
    if not layers:
        return shapes
    handles = [
        layer.register_forward_pre_hook(lambda _, args, name=name: shapes.update({name: tuple(args[0].shape[1:])}))
        for name, layer in layers.items()
    ]
    with torch.no_grad():
        model.eval()(x)
    training_mode(model)
    for handle in handles:
        handle.remove()
    return shapes


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, MaskedDropout | _BatchNorm) or super().is_leaf_module(m, module_qualified_name)


def check_trains(model: nn.Module) -> None:
    """Raise ValueError where a layer is frozen, for ways of computing gradients that take every array of a model."""
    for name in sorted(frozen_names(model)):
        raise ValueError(f"{name} is frozen behind layers that train")


def trace_model(model: nn.Module) -> fx.Graph:
    """The graph of the model's forward pass. Raises ValueError when it depends on the data or is not plain torch."""
    try:
        return _Tracer().trace(model)
    except Exception as reason:  # fx raises errors of many kinds
        raise ValueError(f"the forward pass of {type(model).__name__} cannot be traced: {reason}") from reason


def chain(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers (name, module) of a model that is one chain. Raises ValueError when the model branches."""
    layers: list[tuple[str, nn.Module]] = []
    nodes = list(trace_model(model).nodes)
    for before, node in pairwise(nodes):
        if not node.args or node.args[0] not in (before, (before,)) or len(before.users) != 1:
            raise ValueError(f"the model branches or takes more than one input at {node.name}")
        if node.op == "output":
            return layers
        layers.append((str(node.target), _layer(model, node)))
    raise ValueError("the model has no layers")


_FUNCTIONS: dict[Any, type[nn.Module]] = {torch.relu: nn.ReLU, nn.functional.relu: nn.ReLU, "relu": nn.ReLU}


def _layer(model: nn.Module, node: fx.Node) -> nn.Module:
    if node.op == "call_module":
        return model.get_submodule(str(node.target))
    if node.target in _FUNCTIONS:
        return _FUNCTIONS[node.target]()
    if node.target in (torch.flatten, "flatten") and node.args[1:] == (1,):
        return nn.Flatten()
    raise ValueError(f"the model calls {node.target}, which is no layer")
