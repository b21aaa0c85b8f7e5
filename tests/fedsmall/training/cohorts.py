"""Small federations for the tests of the training core, and an oracle that shares no code with it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsmall.data.federation import Samples, Task
from fedsmall.models.registry import build_model, initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Method, Plan
from fedsmall.randomness import rng_for
from fedsmall.training.cohort import Cohort, TrainResult
from fedsmall.training.stack import Stack
from fedsmall.wire import ModelState

TABLE = Task("table", (6,), 3)
IMAGES = Task("images", (1, 8, 8), 3)


def plan_for(
    model: str = "mlp",
    options: dict[str, Any] | None = None,
    method: Method | None = None,
    rounds: int = 4,
    dtype: str = "float64",
    **recipe: Any,
) -> Plan:
    return Plan(
        name="test",
        task="table",
        model=model,
        model_options={"hidden": [5, 4]} if options is None and model == "mlp" else options or {},
        recipe=Recipe(**recipe),
        method=method or Method(name="FedAvg", aggregate_every=rounds),
        rounds=rounds,
        dtype=dtype,
    )


def samples_for(task: Task, sizes: Sequence[int], dtype: str = "float64") -> tuple[list[str], list[Samples]]:
    rng = np.random.default_rng(7)
    names = [f"site-{number}" for number in range(len(sizes))]
    drawn = [Samples(rng.normal(size=(n, *task.input_shape)).astype(dtype), _targets(task, n, rng)) for n in sizes]
    return names, drawn


def _targets(task: Task, n: int, rng: np.random.Generator) -> np.ndarray:
    if task.kind == "labels":
        return rng.integers(0, 2, (n, task.outputs)).astype(np.float64)
    return rng.integers(0, task.classes, n)


def trained(
    plan: Plan,
    task: Task,
    sizes: Sequence[int],
    path: str,
    sites: Sequence[int] | None = None,
    independent: bool = True,
) -> tuple[Stack, TrainResult]:
    """All sites trained for all the plan's rounds at once, each from a model of its own."""
    names, samples = samples_for(task, sizes, plan.dtype)
    cohort = Cohort(plan, task, names, samples, path=path)
    own = plan.model_copy(update={"initial_models": "independent"}) if independent else plan
    stack = cohort.stack([ModelState(initial_model(own, task, name)) for name in names])
    where = list(range(len(sizes))) if sites is None else list(sites)
    return stack, cohort.train(stack, where, plan.rounds, plan.rounds, is_global=[True] * len(sizes))


def trained_by_torch(plan: Plan, task: Task, sizes: Sequence[int]) -> list[nn.Module]:
    """The oracle: a module, a torch optimizer and a plain loop for each site (no dropout, no rule)."""
    return [_one_site(plan, task, name, mine) for name, mine in zip(*samples_for(task, sizes, plan.dtype), strict=True)]


def _one_site(plan: Plan, task: Task, name: str, samples: Samples) -> nn.Module:
    recipe = plan.recipe
    own = plan.model_copy(update={"initial_models": "independent"})
    model = build_model(plan.model, task, plan.model_options, np.random.default_rng(0)).to(getattr(torch, plan.dtype))
    model.load_state_dict(
        {key: torch.from_numpy(array.copy()) for key, array in initial_model(own, task, name).items()}
    )
    optimizer: torch.optim.Optimizer
    if recipe.optimizer == "adam":
        optimizer = torch.optim.Adam(
            model.parameters(), recipe.lr, recipe.betas, recipe.epsilon, weight_decay=recipe.weight_decay
        )
    else:
        optimizer = torch.optim.SGD(model.parameters(), recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay)
    x, y = torch.from_numpy(samples.x), torch.from_numpy(samples.y)
    for t in range(1, plan.rounds + 1):
        for chosen in _batches(plan, name, len(samples), t):
            optimizer.zero_grad()
            _loss(task, model(x[chosen]), y[chosen]).backward()
            optimizer.step()
    return model


def _batches(plan: Plan, name: str, n: int, t: int) -> list[np.ndarray]:
    recipe, rng = plan.recipe, rng_for(plan.seed, "batches", name, t)
    size = min(recipe.batch or n, n)
    taken: list[np.ndarray] = []
    epochs = 0
    while (epochs < recipe.local_epochs) if recipe.local_epochs else (len(taken) < (recipe.local_steps or 1)):
        order = np.arange(n) if size == n else rng.permutation(n)
        cut = [order[first : first + size] for first in range(0, n, size)]
        taken += np.array_split(order, len(cut)) if recipe.even_batches else cut
        epochs += 1
    return taken if recipe.local_epochs else taken[: recipe.local_steps or 1]


def _loss(task: Task, outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    if task.loss == "cross_entropy":
        return nn.functional.cross_entropy(outputs, y)
    if task.loss == "logistic":
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs.dtype))
    return (1 - (2 * y - 1) * outputs[:, 0]).clamp(min=0).mean()
