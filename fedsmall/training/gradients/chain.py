"""A model read as what it computes: its layers in the order in which they are called."""

from itertools import pairwise
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsmall.models.layers import frozen_names
from fedsmall.training.gradients.prepare import MaskedDropout


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, MaskedDropout | _BatchNorm) or super().is_leaf_module(m, module_qualified_name)


def check_trains(model: nn.Module) -> None:
    """Raise ValueError where a layer is frozen, for ways of computing gradients that take every array of a model."""
    for name in sorted(frozen_names(model)):
        raise ValueError(f"{name} is frozen behind layers that train")


def traced(model: nn.Module) -> fx.Graph:
    """The graph of the model's forward pass. Raises ValueError when it depends on the data or is not plain torch."""
    try:
        return _Tracer().trace(model)
    except Exception as reason:  # fx raises errors of many kinds
        raise ValueError(f"the forward pass of {type(model).__name__} cannot be traced: {reason}") from reason


def chain(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The layers (name, module) of a model that is one chain. Raises ValueError when the model branches."""
    layers: list[tuple[str, nn.Module]] = []
    nodes = list(traced(model).nodes)
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
