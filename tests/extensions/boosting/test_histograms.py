"""Boosting from summed histograms: it is xgboost's algorithm, and sums over sites are those of pooled data."""

import json

import numpy as np
import pytest
import torch

from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.data.federation import Samples, Task
from fedsmall.errors import PlanError, ReplyError
from fedsmall.extensions.boosting.forest import forest, margins_of
from fedsmall.extensions.boosting.trainer import Boosters, GrowTrees, count_at_site, empty, objective_of, slots_of
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.planning.validation import check_plan
from fedsmall.randomness import rng_for
from fedsmall.training.stack import tensors_of
from fedsmall.training.trainer import Indices, Phase, TrainInput
from fedsmall.wire import Arrays, stack_of_one

xgboost = pytest.importorskip("xgboost")

TASKS = {
    "two": Task("table", (5,), 2),
    "three": Task("table", (5,), 3),
    "number": Task("table", (5,), 1, loss="mse", metrics=("mae", "loss")),
}


def data(task: Task, samples: int = 240) -> tuple[np.ndarray, np.ndarray]:
    rng = rng_for(3, "table")
    x = rng.normal(size=(samples, 5)).astype(np.float32)
    x[:, 4] = rng.integers(0, 2, samples)  # a category
    score = x[:, 0] + x[:, 1] * x[:, 4] + 0.3 * rng.normal(size=samples)
    if task.kind == "numbers":
        return x, score.astype(np.float32)[:, None]
    return x, np.digitize(score, [0.0] if task.classes == 2 else [-0.7, 0.7])


def plan_of(name: str = "FedHistogramXGB", rounds: int = 13, **settings: object) -> Plan:
    boosting = {"depth": 3, "bins": 16, **settings.pop("boosting", {})}  # type: ignore[dict-item]
    return Plan(name="test", task="breast_cancer", rounds=rounds, method=method(name, boosting=boosting, **settings))


def run(plan: Plan, task: Task, sites: list[Samples]) -> Arrays:
    """The global forest at the end, by the trainer and the combiner alone."""
    plan = plan.with_model_of(len(sites))
    names = [f"site-{k}" for k in range(len(sites))]
    trainer, combiner = Boosters(plan, task, names, sites, Indices.of_all(len(sites))), GrowTrees(plan)
    global_model = initial_model(plan, task)
    for t in range(1, plan.rounds + 1):
        stack = trainer.stack_of(tensors_of({n: np.stack([a] * len(sites)) for n, a in global_model.items()}))
        trainer.walk(stack, [Phase(np.arange(len(sites)), t, 1)], TrainInput(losses=False))
        rows = {name: tensor.numpy() for name, tensor in stack.state.items()}
        global_model = combiner.combine(global_model, Updates(tuple(names), rows, None, np.ones(len(sites))), t)
    return global_model


def dealt(x: np.ndarray, y: np.ndarray) -> list[Samples]:
    return [Samples(x[at], y[at]) for at in np.array_split(rng_for(0, "deal").permutation(len(x)), [20, 70, 150])]


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_sums_over_sites_grow_the_trees_of_pooled_data_to_the_bit(task):
    x, y = data(task)

    over_sites, pooled = run(plan_of(), task, dealt(x, y)), run(plan_of(), task, [Samples(x, y)])

    assert all(np.array_equal(over_sites[name], pooled[name]) for name in pooled)
    assert (pooled["feature"] >= 0).sum() > 8


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_trees_are_those_of_xgboost_on_the_same_bins(task):
    x, y = data(task)
    count = margins_of(task)

    ours = run(plan_of(), task, dealt(x, y))

    bins = np.stack([np.searchsorted(ours["edges"][k], x[:, k], side="right") for k in range(5)], axis=1)
    told = {"objective": objective_of(task), "max_depth": 3, "learning_rate": 0.3, "max_bin": 64, "tree_method": "hist"}
    told |= {"num_class": count} if count > 1 else {}
    held = xgboost.DMatrix(bins, y.reshape(-1))
    held.set_base_margin(np.zeros((len(x), count) if count > 1 else len(x)))
    theirs = slots_of(xgboost.train(told | {"base_score": 0.5, "nthread": 1}, held, 4), 4 * count, 3)
    asks = theirs.feature >= 0
    cuts = np.zeros_like(theirs.cut)
    of_feature, below = theirs.feature[asks].astype(int), np.ceil(theirs.cut[asks]).astype(int) - 1
    cuts[asks] = ours["edges"][of_feature, below]  # bin < cut and value < edges[cut - 1] say the same
    assert np.array_equal(ours["feature"], theirs.feature)
    assert np.array_equal(_side(ours, x, asks), _side({"feature": theirs.feature, "cut": cuts}, x, asks))
    assert np.allclose(ours["weight"][~asks], theirs.weight[~asks], atol=2e-6)  # theirs are sums in float32


def _side(trees: Arrays, x: np.ndarray, asks: np.ndarray) -> np.ndarray:
    """Who goes left at every split: an edge in an empty stretch may have another name."""
    return x[:, trees["feature"][asks].astype(int)] < trees["cut"][asks]


def test_bins_hold_about_equal_shares_and_keep_categories_apart():
    x, y = data(TASKS["two"], 1000)

    edges = run(plan_of(rounds=4), TASKS["two"], [Samples(x, y)])["edges"]

    shares = np.bincount(np.searchsorted(edges[0], x[:, 0], side="right"), minlength=16) / len(x)
    assert shares.max() < 1.5 / 16
    assert edges[4, 0] == pytest.approx(0.5, abs=0.05)


def test_a_level_whose_parents_are_leaves_stays_empty():
    task, rng = TASKS["two"], rng_for(1, "noise")
    x, y = rng.normal(size=(30, 5)).astype(np.float32), rng.integers(0, 2, 30)

    grown = run(plan_of(boosting={"least_gain": 1e6}), task, [Samples(x, y)])

    assert (grown["feature"] == -1).all()
    assert np.flatnonzero(grown["weight"][0]).tolist() == [0]


def test_sites_that_count_samples_double_say_twice_as_much():
    task = TASKS["two"]
    x, y = data(task, 40)
    plan = plan_of().with_model_of(1)
    model = initial_model(plan, task)

    once, twice = (count_at_site(plan, task, model, x, y, np.full(40, k), 2) for k in (1.0, 2.0))

    assert once.any()
    assert np.array_equal(2 * once, twice)


def test_a_secure_sum_of_two_sites_is_refused():
    plan = plan_of(privacy={"secure": True}).with_model_of(2)
    model = initial_model(plan, TASKS["two"])
    updates = Updates(("a", "b"), {n: np.stack([a, a]) for n, a in model.items()}, None, np.ones(2))

    with pytest.raises(ReplyError, match="a secure sum has 2 of the 3 sites"):
        GrowTrees(plan).combine(model, updates, 1)


def test_slots_hold_what_xgboost_says():
    x, y = data(TASKS["two"])
    held = xgboost.DMatrix(x, y)
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 3, "base_score": 0.5, "nthread": 1}, held, 5)

    made = slots_of(booster, 5, 3)
    model = forest(TASKS["two"], rounds=5)
    model.load_state_dict(tensors_of(dict(made._asdict())))

    with torch.no_grad():
        said = model(torch.from_numpy(x)).numpy()
    assert np.allclose(said[:, 1] - said[:, 0], booster.predict(held, output_margin=True), atol=1e-5)


def test_an_empty_forest_says_nothing():
    assert not empty(2, 3).weight.any()
    model = initial_model(plan_of("FedXGBBagging").with_model_of(4), TASKS["three"])
    assert model["feature"].shape == (13 * 4 * 3, 15)
    assert json.dumps(sorted(model)) == '["cut", "feature", "weight"]'
    assert stack_of_one(model)["cut"].shape == (1, 156, 15)


REFUSED = {
    "which take tables": (plan_of(), Task("digits", (1, 8, 8), 10)),
    "the loss of this task is hinge": (plan_of(), Task("table", (5,), 2, loss="hinge")),
    "take aggregate_every = 1 and all sites": (plan_of(aggregate_every=5), TASKS["two"]),
    "sites' trees are joined every round": (plan_of("FedXGBBagging", aggregate_every=3), TASKS["two"]),
    "a tree takes 3 rounds and the bins one; there are 3": (plan_of(rounds=3), TASKS["two"]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_trees_do_not_know_is_refused(reason):
    plan, task = REFUSED[reason]

    with pytest.raises(PlanError, match=reason):
        check_plan(plan, task, 4)


def test_without_xgboost_only_sums_are_had(monkeypatch):
    monkeypatch.setattr("fedsmall.extensions.boosting.trainer.find_spec", lambda name: None)

    check_plan(plan_of(), TASKS["two"], 4)
    with pytest.raises(PlanError, match=r"not installed here: pip install 'fedsmall\[boosting\]'"):
        check_plan(plan_of("FedXGBCyclic"), TASKS["two"], 4)
