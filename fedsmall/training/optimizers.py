"""Optimizers as elementwise updates, and learning rates as functions of the round.

Every array has a leading axis of models. An optimizer is a row of :data:`OPTIMIZERS`; its state is named as it travels:
"momentum/<parameter>", "exp_avg/<parameter>", "exp_avg_sq/<parameter>", and "step", the number of updates that each
model has seen.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedsmall.parts import Recipe
from fedsmall.training.device import widest_float
from fedsmall.training.stack import Tensors


class Rate(NamedTuple):
    """The learning rate, and where an optimizer counts them the steps of each model, (models,), this one among them."""

    lr: float
    steps: Tensor | None


Update = Callable[[Tensor, Tensor, Tensors, Recipe, Rate], None]


class Optimizer(NamedTuple):
    """An update in place of (parameter, gradient, moments), and the names of its moments."""

    update: Update
    moments: Callable[[Recipe], tuple[str, ...]]
    counts: bool


def sgd(parameter: Tensor, gradient: Tensor, moments: Tensors, recipe: Recipe, rate: Rate) -> None:
    """Gradient descent with momentum and weight decay, as ``torch.optim.SGD`` (no dampening, no Nesterov)."""
    gradient = _decayed(parameter, gradient, recipe)
    if "momentum" in moments:
        gradient = moments["momentum"].mul_(recipe.momentum).add_(gradient)
    parameter.add_(gradient, alpha=-rate.lr)


def adam(parameter: Tensor, gradient: Tensor, moments: Tensors, recipe: Recipe, rate: Rate) -> None:
    """Adam (Kingma & Ba 2015, algorithm 1) with weight decay in the gradient, as ``torch.optim.Adam``."""
    assert rate.steps is not None
    gradient = _decayed(parameter, gradient, recipe)
    beta1, beta2 = recipe.betas
    mean, square = moments["exp_avg"], moments["exp_avg_sq"]
    mean.lerp_(gradient, 1 - beta1)
    square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    size = _column(rate.lr / (1 - beta1**rate.steps), parameter)
    spread = _column(torch.sqrt(1 - beta2**rate.steps), parameter)
    parameter.sub_(square.sqrt().div_(spread).add_(recipe.epsilon).reciprocal_().mul_(mean).mul_(size))


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": Optimizer(sgd, lambda recipe: ("momentum",) if recipe.momentum else (), counts=False),
    "adam": Optimizer(adam, lambda recipe: ("exp_avg", "exp_avg_sq"), counts=True),
}


def fresh_state(parameters: Tensors, recipe: Recipe) -> Tensors:
    """The optimizer state of models that have not been trained: zeros under the names that travel."""
    optimizer = OPTIMIZERS[recipe.optimizer]
    moments = {
        f"{moment}/{name}": torch.zeros_like(tensor)
        for moment in optimizer.moments(recipe)
        for name, tensor in parameters.items()
    }
    if optimizer.counts:
        some = next(iter(parameters.values()))
        moments["step"] = torch.zeros(len(some), dtype=torch.int64, device=some.device)
    return moments


def step(parameters: Tensors, gradients: Tensors, state: Tensors, recipe: Recipe, lr: float) -> None:
    """One optimizer step of K models in place, with ``state`` as :func:`fresh_state` makes it."""
    optimizer = OPTIMIZERS[recipe.optimizer]
    moments = optimizer.moments(recipe)
    steps = state["step"].add_(1).to(widest_float(state["step"].device)) if optimizer.counts else None
    for name, parameter in parameters.items():
        moments_of_one = {moment: state[f"{moment}/{name}"] for moment in moments}
        optimizer.update(parameter, gradients[name], moments_of_one, recipe, Rate(lr, steps))


def learning_rate(recipe: Recipe, t: int, rounds: int) -> float:
    """The learning rate of round t = 1 .. ``rounds``: constant, half a cosine down to zero, or steps by a factor."""
    if recipe.lr_schedule == "cosine":
        return recipe.lr * (1 + math.cos(math.pi * (t - 1) / rounds)) / 2
    if recipe.lr_schedule == "step":
        return recipe.lr * recipe.lr_decay ** ((t - 1) // recipe.lr_step_rounds)
    return recipe.lr


def _decayed(parameter: Tensor, gradient: Tensor, recipe: Recipe) -> Tensor:
    return gradient.add(parameter, alpha=recipe.weight_decay) if recipe.weight_decay else gradient


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.to(like.dtype).reshape(-1, *[1] * (like.dim() - 1))  # (models, 1, ...)
