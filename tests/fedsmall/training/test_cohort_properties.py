"""One property over the whole family: whatever the model, recipe, rule and sizes, all paths do what the loop does."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsmall.data.federation import Task
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Method, Plan
from fedsmall.training.cohort import Cohort
from fedsmall.training.stack import Stack
from fedsmall.training.trainer import Phase, TrainInput
from fedsmall.wire import ModelState
from tests.fedsmall.training.cohorts import samples_for
from tests.oracles import permutation

SMALL_IMAGES = Task("images", (1, 6, 6), 3)
TABLES = st.builds(lambda loss: Task("table", (4,), 2, loss), st.sampled_from(["cross_entropy", "logistic", "hinge"]))
SIZES = st.lists(st.sampled_from([1, 2, 3, 10]), min_size=1, max_size=6)

# Adam divides by the root of a running square: where that is near zero, differences of 1e-16 in a gradient become
# differences of the order of lr / epsilon * 1e-16; a larger epsilon keeps the comparison one of the algorithm
RECIPES = st.builds(
    Recipe,
    optimizer=st.sampled_from(["sgd", "adam"]),
    lr=st.sampled_from([0.01, 0.05]),
    momentum=st.sampled_from([0.0, 0.9]),
    weight_decay=st.sampled_from([0.0, 0.1]),
    epsilon=st.just(1e-3),
    batch=st.sampled_from([None, 1, 2, 4]),
    even_batches=st.booleans(),
    local_epochs=st.sampled_from([None, 2]),
    lr_schedule=st.sampled_from(["constant", "cosine"]),
    optimizer_state=st.sampled_from(["travel", "reset"]),
)
RULES = st.sampled_from(["none", "proximal", "scaffold", "feddyn"])


def plan_of(model: str, options: dict[str, Any], recipe: Recipe, rule: str, rounds: int = 4) -> Plan:
    method = Method(name=rule, rule=rule, proximal_mu=0.3, feddyn_alpha=0.2, permute_every=1, aggregate_every=rounds)
    return Plan(
        name="test", task="table", model=model, model_options=options, recipe=recipe, method=method, rounds=rounds,
        dtype="float64", initial_models="independent",
    )  # fmt: skip


def walked(plan: Plan, task: Task, sizes: list[int], path: str) -> tuple[Stack, dict[str, np.ndarray]]:
    """Models that are permuted every round, through two aggregation periods, by the named path."""
    names, samples = samples_for(task, sizes)
    cohort = Cohort(plan, task, names, samples, path=path)
    stack = cohort.stack([ModelState(initial_model(plan, task, name)) for name in names])
    where = np.arange(len(names))
    phases = []
    for t in range(1, plan.rounds + 1):
        phases.append(Phase(where, t, 1))
        route = permutation(plan.seed, t, names)
        where = np.array([names.index(route[name]) for name in names])[where]
    first = cohort.walk(stack, phases, TrainInput([True] * len(names)))
    second = cohort.walk(stack, phases, TrainInput([row % 2 == 0 for row in range(len(names))], memory=first.memory))
    return stack, {"loss": second.loss, **second.rule, **second.memory}


def assert_alike(plan: Plan, task: Task, sizes: list[int], path: str, atol: float) -> None:
    slow, told_slowly = walked(plan, task, sizes, "loop")
    fast, told = walked(plan, task, sizes, path)
    for name, tensor in slow.state.items():
        np.testing.assert_allclose(fast.state[name], tensor, rtol=1e-10, atol=atol, err_msg=name)
    for name, tensor in slow.optimizer.items():
        np.testing.assert_allclose(fast.optimizer[name], tensor, rtol=1e-9, atol=atol, err_msg=name)
    assert told.keys() == told_slowly.keys()
    for name, array in told_slowly.items():
        np.testing.assert_allclose(told[name], array, rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.thorough
@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    task=TABLES,
    model=st.sampled_from([("linear", {}), ("mlp", {"hidden": [5]}), ("mlp", {"hidden": [4, 3], "dropout": 0.3})]),
    recipe=RECIPES,
    rule=RULES,
    sizes=SIZES,
    path=st.sampled_from(["mlp", "mlp", "vmap", "conv"]),
)
def test_every_path_is_the_loop_on_tables(
    task: Task, model: tuple[str, dict[str, Any]], recipe: Recipe, rule: str, sizes: list[int], path: str
) -> None:
    assert_alike(plan_of(*model, recipe, rule), task, sizes, path, 1e-10)


@pytest.mark.thorough
@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    model=st.sampled_from([("cnn", {"norm": "batch"}), ("cnn", {"norm": "group", "dropout": 0.3})]),
    recipe=RECIPES.filter(lambda recipe: recipe.batch in (None, 4)),
    rule=RULES,
    sizes=SIZES.filter(lambda sizes: len(sizes) <= 4),
)
def test_every_path_is_the_loop_on_images(
    model: tuple[str, dict[str, Any]], recipe: Recipe, rule: str, sizes: list[int]
) -> None:
    assert_alike(plan_of(*model, recipe, rule, rounds=2), SMALL_IMAGES, sizes, "conv", 1e-9)


@pytest.mark.parametrize(("model", "task"), [("mlp", Task("table", (4,), 2)), ("cnn", SMALL_IMAGES)])
def test_the_same_seed_gives_the_same_bits(model: str, task: Task) -> None:
    plan = plan_of(model, {}, Recipe(optimizer="adam", lr=0.01, batch=2), "scaffold")

    (first, told), (second, again) = (walked(plan, task, [3, 1, 10, 2], "auto") for _ in range(2))

    for name, tensor in first.state.items():
        assert tensor.numpy().tobytes() == second.state[name].numpy().tobytes()
    for name, array in told.items():
        assert array.tobytes() == again[name].tobytes()


@pytest.mark.slow
def test_the_benchmark_s_model_walks_300_rounds_alike_on_both_paths() -> None:
    recipe = Recipe(lr=0.05)
    plan = plan_of("mlp", {"hidden": [50, 20]}, recipe, "none", rounds=150)

    assert_alike(plan, Task("table", (100,), 2), [10] * 50, "mlp", 1e-10)
