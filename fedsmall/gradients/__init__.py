"""Loss and gradient of K models at once: one interface, several ways, chosen by layer types and size."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

from torch import nn

from fedsmall.errors import PlanError
from fedsmall.gradients.batch import Batch, Gradients, mean_loss
from fedsmall.gradients.loop import LoopGradients
from fedsmall.gradients.losses import LOSSES, Loss
from fedsmall.gradients.mlp import MlpGradients

__all__ = ["LOSSES", "PATHS", "Batch", "Choice", "Gradients", "choose", "mean_loss"]

PATHS: dict[str, Callable[[nn.Module, Loss], Gradients]] = {"mlp": MlpGradients, "loop": LoopGradients}


class Choice(NamedTuple):
    """A way of computing gradients, and in one line why this one."""

    gradients: Gradients
    reason: str


def choose(model: nn.Module, loss: Loss, path: str = "auto") -> Choice:
    """The way for a prepared model: the fastest that fits, or the one named by ``path``.

    A model that no batched path fits takes the loop, with one warning that names what stood in the way.
    Raises PlanError when ``path`` is named and does not fit, or is no path.
    """
    if path == "auto":
        return _automatic(model, loss)
    if path not in PATHS:
        raise PlanError(f'path is one of {", ".join(["auto", *PATHS])}; got "{path}"')
    try:
        return Choice(PATHS[path](model, loss), f"{path}: as asked")
    except ValueError as reason:
        raise PlanError(f'path = "{path}" does not fit this model: {reason}; use path = "auto"') from reason


def _automatic(model: nn.Module, loss: Loss) -> Choice:
    try:
        return Choice(MlpGradients(model, loss), "mlp: linear layers and ReLUs, stacked matrix products")
    except ValueError as reason:
        warnings.warn(f"this model trains one site at a time: {reason}", stacklevel=2)
        return Choice(LoopGradients(model, loss), f"loop: {reason}")
