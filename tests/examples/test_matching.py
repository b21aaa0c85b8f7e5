"""Matching hidden units: models say the same in another order, and orders that differ are found again."""

import numpy as np
import pytest

from examples.matched_averages import KEPT, measure
from examples.matching import layers_of, matched
from fedsmall.aggregation.aggregate import aggregate
from fedsmall.data.federation import Task
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.sim.runs.files import read_json
from fedsmall.wire import Arrays

TASK = Task("table", (4,), 3)
PLAN = Plan(name="t", task="t", model_options={"hidden": [8, 6]}, method=method("FedAvg"))


def shuffled(model: Arrays, seed: int) -> Arrays:
    """The same network, its hidden units in another order."""
    first, second = rng_for(seed, "one").permutation(8), rng_for(seed, "two").permutation(6)
    return {
        "0.weight": model["0.weight"][first],
        "0.bias": model["0.bias"][first],
        "2.weight": model["2.weight"][second][:, first],
        "2.bias": model["2.bias"][second],
        "4.weight": model["4.weight"][:, second],
        "4.bias": model["4.bias"],
    }


def said(model: Arrays, x: np.ndarray) -> np.ndarray:
    for layer in ("0", "2"):
        x = np.maximum(x @ model[f"{layer}.weight"].T + model[f"{layer}.bias"], 0)
    return x @ model["4.weight"].T + model["4.bias"]


def stack_of(models: list[Arrays]) -> Arrays:
    return {name: np.stack([model[name] for model in models]) for name in models[0]}


def row(stack: Arrays, k: int) -> Arrays:
    return {name: rows[k] for name, rows in stack.items()}


def test_a_model_in_other_orders_is_averaged_with_itself_where_the_mean_spoils_it():
    model, x = initial_model(PLAN, TASK), rng_for(0, "x").normal(size=(20, 4))
    stack = stack_of([model, *(shuffled(model, seed) for seed in range(4))])

    plain, found = aggregate(stack, "mean"), aggregate(matched(stack), "mean")

    assert np.allclose(said(found, x), said(model, x), atol=1e-6)
    assert not np.allclose(said(plain, x), said(model, x), atol=1e-2)


def test_every_model_says_what_it_said():
    models = [initial_model(PLAN.model_copy(update={"seed": seed}), TASK) for seed in range(5)]
    x = rng_for(0, "x").normal(size=(20, 4))

    found = matched(stack_of(models))

    assert any(not np.array_equal(found["0.weight"][k], models[k]["0.weight"]) for k in range(5))
    for k, model in enumerate(models):
        assert np.allclose(said(row(found, k), x), said(model, x), atol=1e-5)


def test_models_are_no_farther_apart_than_before():
    stack = stack_of([initial_model(PLAN.model_copy(update={"seed": seed}), TASK) for seed in range(4)])

    found = matched(stack)

    def spread(some: Arrays) -> float:
        return sum(float(((rows - rows.mean(axis=0)) ** 2).sum()) for rows in some.values())

    assert spread(found) < 0.95 * spread(stack)


def test_models_in_one_order_stay_as_they_are():
    model = initial_model(PLAN, TASK)
    stack = stack_of([model, {name: array * 1.01 for name, array in model.items()}])

    assert all(np.array_equal(matched(stack)[name], stack[name]) for name in stack)


def test_what_is_no_mlp_is_averaged_as_it_is():
    stack = {"0.weight": np.arange(24.0).reshape(2, 3, 4, 1, 1), "0.bias": np.zeros((2, 3))}

    assert layers_of(stack) == []
    assert np.array_equal(matched(stack)["0.weight"], stack["0.weight"])


@pytest.mark.thorough
def test_it_is_the_combiner_of_a_run_which_is_what_was_kept():
    data = "breast cancer, 10 x 30"
    kept = read_json(KEPT)[data]

    again = measure(data, seeds=1)

    for start, label in (("independent", "FedAvg, matched mean"), ("common", "FedDC, mean")):
        now = [values[0] for values in again[start][label].values()]
        assert now == pytest.approx([values[0] for values in kept[start][label].values()], abs=0.03)
