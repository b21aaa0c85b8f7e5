"""The training core: every path is the per-site loop, and the loop is what a module with a torch optimizer does."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.models.registry import build_model, initial_model
from fedsmall.plan import Method
from fedsmall.randomness import rng_for
from fedsmall.training.cohort import Cohort
from fedsmall.training.stack import Stack
from fedsmall.wire import ModelState
from tests import only_quick
from tests.fedsmall.training.cohorts import IMAGES, TABLE, plan_for, samples_for, trained, trained_by_torch

RECIPES: list[dict[str, Any]] = [
    {"lr": 0.1},
    {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    {"lr": 0.1, "batch": 2, "local_epochs": 2},
    {"lr": 0.1, "batch": 3, "local_steps": 4, "momentum": 0.5},
    {"lr": 0.1, "batch": 4, "local_epochs": 1, "even_batches": True},
]
SIZES = [10, 1, 3, 2, 10]


def largest_difference(one: Stack, other: Stack) -> float:
    floats = [name for name, tensor in one.state.items() if tensor.is_floating_point()]
    return max(float((one.state[name] - other.state[name]).abs().max()) for name in floats)


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "hinge"])
def test_the_loop_is_a_module_with_a_torch_optimizer(recipe: dict[str, Any], loss: str) -> None:
    task = TABLE if loss == "cross_entropy" else Task("table", (6,), 2, loss)
    plan = plan_for(**recipe)

    stack, _ = trained(plan, task, SIZES, "loop")
    models = trained_by_torch(plan, task, SIZES)

    for row, model in enumerate(models):
        for name, tensor in model.state_dict().items():
            assert torch.allclose(stack.state[name][row], tensor, rtol=0, atol=1e-10)


@pytest.mark.parametrize("recipe", RECIPES[:3])
def test_the_loop_is_a_module_with_a_torch_optimizer_on_images(recipe: dict[str, Any]) -> None:
    plan = plan_for("cnn", rounds=2, **recipe)

    stack, _ = trained(plan, IMAGES, [3, 1, 2], "loop")
    models = trained_by_torch(plan, IMAGES, [3, 1, 2])

    for row, model in enumerate(models):
        for name, tensor in model.state_dict().items():
            assert torch.allclose(stack.state[name][row], tensor, rtol=0, atol=1e-9)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("rule", only_quick(["scaffold"], ["none", "proximal", "scaffold", "feddyn"]))
def test_the_stacked_products_are_the_loop(recipe: dict[str, Any], rule: str) -> None:
    method = Method(name=rule, rule=rule, proximal_mu=0.3, feddyn_alpha=0.2, aggregate_every=4)
    plan = plan_for(method=method, options={"hidden": [5, 4], "dropout": 0.2}, **recipe)

    loop, by_loop = trained(plan, TABLE, SIZES, "loop")
    mlp, by_mlp = trained(plan, TABLE, SIZES, "mlp")

    assert largest_difference(loop, mlp) < 1e-10
    np.testing.assert_allclose(by_mlp.loss, by_loop.loss, atol=1e-10)
    np.testing.assert_array_equal(by_mlp.steps, by_loop.steps)
    for name, array in by_loop.rule.items():
        np.testing.assert_allclose(by_mlp.rule[name], array, atol=1e-9)


OUTCOMES = {
    "mlp": ("mlp", {"hidden": [5], "dropout": 0.2}, (6,)),
    "vmap": ("mlp", {"hidden": [5]}, (6,)),
    "conv": ("cnn", {"norm": "batch"}, (1, 8, 8)),
}


@pytest.mark.parametrize("loss", ["ordinal", "binary_cross_entropy"])
@pytest.mark.parametrize("path", OUTCOMES)
def test_grades_and_labels_train_alike_on_every_path(path: str, loss: str) -> None:
    name, options, shape = OUTCOMES[path]
    task = Task("t", shape, 4, loss)
    plan = plan_for(name, options=options, rounds=3, lr=0.1, batch=3)

    loop, by_loop = trained(plan, task, SIZES, "loop")
    fast, by_fast = trained(plan, task, SIZES, path)

    assert largest_difference(loop, fast) < 1e-9
    np.testing.assert_allclose(by_fast.loss, by_loop.loss, atol=1e-9)


def test_proportional_odds_train_alike_on_both_their_paths() -> None:
    plan, task = plan_for("proportional", options={"hidden": [5]}, rounds=3, lr=0.1), Task("t", (6,), 4, "ordinal")

    loop, _ = trained(plan, task, SIZES, "loop")
    fast, _ = trained(plan, task, SIZES, "vmap")

    assert largest_difference(loop, fast) < 1e-9


def test_a_site_gets_the_same_numbers_in_any_company() -> None:
    plan = plan_for(batch=2, local_epochs=1)
    names, samples = samples_for(TABLE, SIZES)
    start = ModelState(initial_model(plan, TABLE))

    together, _ = trained(plan, TABLE, SIZES, "loop", independent=False)
    for site, name in enumerate(names):
        alone = Cohort(plan, TABLE, [name], [samples[site]], path="loop")
        stack = alone.stack([start])
        alone.train(stack, [0], 4, 4)

        for key, tensor in stack.state.items():
            assert torch.equal(tensor[0], together.state[key][site])


def test_a_permutation_is_another_list_of_sites() -> None:
    plan = plan_for(method=Method(name="FedDC", permute_every=4, aggregate_every=8), batch=2)
    sites = [3, 0, 4, 1, 2]
    names, samples = samples_for(TABLE, SIZES)
    cohort = Cohort(plan, TABLE, names, samples)
    start = cohort.stack([ModelState(initial_model(plan, TABLE))] * 5)
    moved = start.clone()

    cohort.train(start, range(5), 4, 4)
    cohort.train(moved, sites, 4, 4)

    for name, tensor in moved.state.items():
        assert torch.allclose(tensor, start.state[name][sites], rtol=0, atol=1e-12)


def test_training_in_two_stretches_is_training_in_one() -> None:
    plan = plan_for(optimizer="adam", lr=0.01, batch=2, method=Method(name="FedDC", aggregate_every=4))
    once, _ = trained(plan, TABLE, SIZES, "mlp", independent=False)
    names, samples = samples_for(TABLE, SIZES)
    cohort = Cohort(plan, TABLE, names, samples, path="mlp")

    first = cohort.stack([ModelState(initial_model(plan, TABLE))] * 5)
    cohort.train(first, range(5), 1, 1)
    second = cohort.stack([first.model_state(row) for row in range(5)])
    cohort.train(second, range(5), 4, 3)

    for name, tensor in second.state.items():
        assert torch.equal(tensor, once.state[name])


def test_a_traveller_cannot_be_used_to_write_into_the_stack() -> None:
    plan = plan_for()
    names, samples = samples_for(TABLE, [2])
    stack = Cohort(plan, TABLE, names, samples).stack([ModelState(initial_model(plan, TABLE))])

    with pytest.raises(ValueError, match="read-only"):
        stack.model_state(0).model["0.weight"][0] = 1.0


def test_an_unknown_path_is_refused_with_the_known_ones() -> None:
    names, samples = samples_for(TABLE, [2])

    with pytest.raises(PlanError, match="path is one of auto, mlp"):
        Cohort(plan_for(), TABLE, names, samples, path="fast")


def test_a_path_that_does_not_fit_says_which_layer_is_in_the_way() -> None:
    names, samples = samples_for(IMAGES, [2])

    with pytest.raises(PlanError, match="Conv2d"):
        Cohort(plan_for("cnn"), IMAGES, names, samples, path="mlp")


@pytest.mark.parametrize("recipe", [RECIPES[1], RECIPES[3]])
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("cnn", {"norm": "batch"}),
        ("cnn", {"norm": "group", "dropout": 0.3}),
        ("resnet_small", {"norm": "batch", "blocks": 1}),
        ("resnet_small", {"norm": "group", "blocks": 1}),
    ],
)
def test_models_packed_side_by_side_are_the_loop(recipe: dict[str, Any], model: str, options: dict[str, Any]) -> None:
    plan = plan_for(model, options, rounds=1, **{**recipe, "lr": 0.01})

    loop, by_loop = trained(plan, IMAGES, [3, 1, 2, 3, 1], "loop")
    conv, by_conv = trained(plan, IMAGES, [3, 1, 2, 3, 1], "conv")

    assert largest_difference(loop, conv) < 1e-9
    np.testing.assert_allclose(by_conv.loss, by_loop.loss, atol=1e-10)


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("path", ["vmap", "conv"])
def test_models_mapped_over_are_the_loop(recipe: dict[str, Any], path: str) -> None:
    plan = plan_for(options={"hidden": [5], "dropout": 0.2}, **recipe)

    loop, _ = trained(plan, TABLE, SIZES, "loop")
    other, _ = trained(plan, TABLE, SIZES, path)

    assert largest_difference(loop, other) < 1e-10


class Odd(nn.Module):
    """A model that only vmap can batch: it multiplies its features with each other."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * x.roll(1, -1))


class Recurrent(nn.Module):
    """A model whose forward pass depends on its input, which no batched path follows."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(features, outputs), nn.BatchNorm1d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear(x if float(x.sum()) > 0 else -x))


def odd(task: Task) -> nn.Module:
    return Odd(task.input_shape[0], task.outputs)


def recurrent(task: Task) -> nn.Module:
    return Recurrent(task.input_shape[0], task.outputs)


@pytest.mark.parametrize(
    ("model", "task", "path"),
    [
        ("linear", TABLE, "mlp"),
        ("mlp", TABLE, "mlp"),
        ("cnn", IMAGES, "conv"),
        ("resnet_small", IMAGES, "conv"),
        (f"{__name__}:odd", TABLE, "vmap"),
    ],
)
def test_the_path_follows_from_the_layers(model: str, task: Task, path: str) -> None:
    names, samples = samples_for(task, [2, 3])

    cohort = Cohort(plan_for(model), task, names, samples)

    assert cohort.path == path


def test_a_model_that_cannot_be_batched_says_so_once_and_trains() -> None:
    names, samples = samples_for(TABLE, [2, 3])
    plan = plan_for(f"{__name__}:recurrent")

    with pytest.warns(UserWarning, match=r"one site at a time.*cannot be traced.*layer norm") as warned:
        cohort = Cohort(plan, TABLE, names, samples)
    stack = cohort.stack([ModelState(initial_model(plan, TABLE))] * 2)
    cohort.train(stack, [0, 1], 4, 4)

    assert len(warned) == 1
    assert cohort.path == "loop"


@pytest.mark.parametrize(("model", "task"), [("mlp", TABLE), ("cnn", IMAGES), (f"{__name__}:odd", TABLE)])
def test_all_paths_predict_alike(model: str, task: Task) -> None:
    plan = plan_for(model).model_copy(update={"initial_models": "independent"})
    names, samples = samples_for(task, [4, 3])
    travellers = [ModelState(initial_model(plan, task, name)) for name in names]
    fast, slow = Cohort(plan, task, names, samples), Cohort(plan, task, names, samples, path="loop")

    outputs = fast.predict(fast.stack(travellers), samples[0].x)

    assert outputs.shape == (2, 4, task.outputs)
    np.testing.assert_allclose(outputs, slow.predict(slow.stack(travellers), samples[0].x), atol=1e-12)


@pytest.mark.parametrize("path", ["loop", "mlp", "vmap"])
def test_option_one_of_scaffold_remembers_the_gradient_at_the_common_model(path: str) -> None:
    plan = plan_for(lr=0.1, local_steps=3)
    method = plan.method.model_copy(update={"rule": "scaffold", "scaffold_option": 1})
    plan = plan.model_copy(update={"method": method, "rounds": 4})
    names, samples = samples_for(TABLE, [5, 2, 5])
    start = initial_model(plan, TABLE)
    cohort = Cohort(plan, TABLE, names, samples, path=path)
    stack = cohort.stack([ModelState(start)] * 3)

    first = cohort.train(stack, range(3), 2, 2, is_global=[True] * 3)  # no aggregation yet: the gradient waits
    told = cohort.train(stack, range(3), 4, 2, memory=first.memory)

    module = build_model(plan.model, TABLE, plan.model_options, rng_for(0, "x"))
    module.double().load_state_dict({name: torch.from_numpy(array) for name, array in start.items()})
    for row, mine in enumerate(samples):
        module.zero_grad()
        nn.functional.cross_entropy(module(torch.from_numpy(mine.x).double()), torch.from_numpy(mine.y)).backward()
        for name, parameter in module.named_parameters():
            np.testing.assert_allclose(told.rule[f"control/{name}"][row], parameter.grad.numpy(), rtol=0, atol=1e-12)
