"""Loss and gradient of K models at once: one interface, several ways, chosen by layer types and size."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from fedsmall.errors import PlanError
from fedsmall.training.gradients.general import LARGEST, SLOW, LoopGradients, MappedGradients
from fedsmall.training.gradients.losses import LOSSES, Batch, Gradients, Loss, mean_loss, weighted
from fedsmall.training.gradients.mlp import ClippedMlp, MlpGradients, clipped
from fedsmall.training.gradients.packed import PackedGradients

__all__ = [
    "LOSSES",
    "PATHS",
    "Batch",
    "ClippedMlp",
    "Gradients",
    "MlpGradients",
    "PathChoice",
    "choose",
    "clipped",
    "mean_loss",
    "weighted",
]

PATHS: dict[str, Callable[[nn.Module, Loss], Gradients]] = {
    "mlp": MlpGradients,
    "conv": PackedGradients,
    "vmap": MappedGradients,
    "loop": LoopGradients,
}

WIDEST = 1_000_000  # parameters; above, packed convolutions are slower than the loop (0.6 at 4.9 million)
_WHY = {
    "mlp": "linear layers and ReLUs, as stacked matrix products",
    "conv": "known layers, as one wide network of a few models side by side",
    "vmap": "a small model, mapped over",
}


class PathChoice(NamedTuple):
    """A way of computing gradients, and in one line why this one."""

    gradients: Gradients
    reason: str


def choose(model: nn.Module, loss: Loss, path: str = "auto") -> PathChoice:
    """The way for a prepared model: the fastest that fits, or the one named by ``path``.

    A model that no batched path fits takes the loop, with one warning that says why. Raises PlanError when ``path`` is
    named and does not fit, or is no path.
    """
    if path == "auto":
        return _automatic(model, loss)
    if path not in PATHS:
        raise PlanError(f'path is one of {", ".join(["auto", *PATHS])}; got "{path}"')
    try:
        return PathChoice(PATHS[path](model, loss), f"{path}: as asked")
    except ValueError as reason:
        raise PlanError(f'path = "{path}" does not fit this model: {reason}; use path = "auto"') from reason


def _automatic(model: nn.Module, loss: Loss) -> PathChoice:
    parameters = sum(tensor.numel() for tensor in model.parameters())
    if parameters > WIDEST:
        return PathChoice(LoopGradients(model, loss), f"loop: at {parameters} parameters batching is slower")
    if any(isinstance(layer, nn.Conv3d) for layer in model.modules()):
        return PathChoice(LoopGradients(model, loss), "loop: volumes are trained on one model at a time")
    against: dict[str, str] = {}
    for path, why in _WHY.items():
        try:
            if path == "vmap":
                _check_worth(model, parameters)
            return PathChoice(PATHS[path](model, loss), f"{path}: {why}")
        except ValueError as reason:
            against[path] = str(reason)
    warnings.warn(f"this model trains one site at a time: {against['conv']}; {against['vmap']}", stacklevel=4)
    return PathChoice(LoopGradients(model, loss), f"loop: {against['conv']}")


def _check_worth(model: nn.Module, parameters: int) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, SLOW):
            raise ValueError(f"layer {name} ({type(layer).__name__}) is slower under vmap than one model at a time")
    if parameters > LARGEST:
        raise ValueError(f"vmap is slower than the loop above {LARGEST} parameters; this model has {parameters}")
