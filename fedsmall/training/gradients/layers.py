"""A model made ready for training from handed-in numbers: dropout by masks, small batches, layers in call order.

Of a model with frozen first layers the features of each sample are computed once: the body is all that depends on the
sample and on frozen layers alone, the head what follows, under the same names: a linear head trains as a linear model.
"""

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedsmall.data.federation import Samples, Task
from fedsmall.models.networks import forgive_small_batches, frozen_layers, frozen_names, training_mode
from fedsmall.models.registry import build_network
from fedsmall.plan import Plan


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


KEPT = 2**26  # numbers of features that are kept, all bodies together

_features: OrderedDict[tuple[bytes, bytes], np.ndarray] = OrderedDict()


class Body:
    """The frozen part of a model before everything that trains: samples to features, the same bits in any company."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module.eval()
        digest = blake2b(str(getattr(module, "code", "")).encode(), digest_size=16)
        for name, tensor in module.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.cpu().numpy().tobytes())
        self._key = digest.digest()

    def features(self, x: np.ndarray) -> np.ndarray:
        """What the body makes of ``x`` (samples, *shape): (samples, *features), worked out once for every sample."""
        if not len(x):
            zeros = np.zeros((1, *x.shape[1:]), x.dtype)
            return np.zeros((0, *self._of(zeros).shape), x.dtype)
        return np.stack([self._of(sample[None]) for sample in x])

    def _of(self, sample: np.ndarray) -> np.ndarray:
        """The features of one sample (1, *shape): alone, for a sum's last digit depends on who is summed beside it."""
        key = (self._key, blake2b(np.ascontiguousarray(sample).tobytes(), digest_size=16).digest())
        if key in _features:
            _features.move_to_end(key)
            return _features[key]
        with torch.no_grad():
            of_one: np.ndarray = self._module(torch.from_numpy(np.array(sample)))[0].numpy()
        _features[key] = of_one
        while len(_features) * of_one.size > KEPT and len(_features) > 1:
            _features.popitem(last=False)
        return of_one


class Halves(NamedTuple):
    """A model cut in two: ``body`` is None where nothing is frozen before what trains, and ``head`` then all of it."""

    body: Body | None
    head: nn.Module

    def seen(self, x: np.ndarray) -> np.ndarray:
        """Samples as the head sees them."""
        return x if self.body is None else self.body.features(x)


def halves(plan: Plan, task: Task) -> Halves:
    """The plan's model for ``task``, prepared for training and cut; its frozen arrays are the run's."""
    model = prepare_model(build_network(plan, task)).to(getattr(torch, plan.dtype))
    if not frozen_names(model):
        return Halves(None, model)
    try:
        return _cut(model, trace_model(model))
    except ValueError:  # it depends on its data, and trains as a whole
        return Halves(None, model)


def as_trained(plan: Plan, task: Task, samples: Sequence[Samples]) -> tuple[Samples, ...]:
    """Samples as what trains, and so what leaves a site, sees them."""
    cut = halves(plan, task)
    return tuple(replace(site_samples, x=cut.seen(site_samples.x)) for site_samples in samples)


def _body(model: nn.Module, graph: fx.Graph) -> list[fx.Node]:
    still = {layer for _, block in frozen_layers(model) for layer in block.modules()}
    body: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if node.op == "placeholder" or (_is_still(model, node, still) and all(n in body for n in node.all_input_nodes)):
            body[node] = None
    return list(body)


def _is_still(model: nn.Module, node: fx.Node, still: set[nn.Module]) -> bool:
    """Whether a node always gives the same for the same values."""
    if node.op == "call_module":
        layer = model.get_submodule(str(node.target))
        constant = not list(layer.parameters()) and not list(layer.buffers())  # a dropout has its mask
        return layer in still or constant
    if node.op == "get_attr":
        return str(node.target) in frozen_names(model)
    return node.op in ("call_function", "call_method") and "dropout" not in str(node.target)


def _cut(model: nn.Module, graph: fx.Graph) -> Halves:
    before = _body(model, graph)
    border = [node for node in before if any(user not in before for user in node.users)]
    if len(border) != 1 or border[0].op == "placeholder":
        return Halves(None, model)
    first, second, values = fx.Graph(), fx.Graph(), dict[fx.Node, fx.Node]()
    for node in before:
        values[node] = first.node_copy(node, values.__getitem__)
    first.output(values[border[0]])
    values = {border[0]: second.placeholder("features")}
    for node in graph.nodes:
        if node not in before:
            values[node] = second.node_copy(node, values.__getitem__)
    return Halves(Body(fx.GraphModule(model, first)), training_mode(fx.GraphModule(model, second)))
