"""Few models among many sites, and models in groups: what is new, and what it must be equal to."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsmall.algorithm.global_models import GlobalModels
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_plan
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.server.site_judges import evaluator_for
from fedsmall.training.batches import Batches
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import journey
from tests.sim.engines.harness import (
    ADAM,
    MOMENTUM,
    assert_alike,
    assert_equal_bits,
    batched,
    federation_of,
    loop_of,
    plan_of,
    table,
)
from tests.sim.engines.on_ray import on_ray
from tests.sim.engines.plans import groups_of


@pytest.mark.parametrize("name", ["FedDC", "FedAvg"])
@pytest.mark.parametrize("recipe", [Recipe(lr=0.05), ADAM])
def test_one_group_of_a_model_a_site_is_the_method_without_groups(name: str, recipe: Recipe) -> None:
    plain = plan_of(name, recipe=recipe)
    grouped = plain.model_copy(update={"method": plain.method.model_copy(update={"groups": 1, "models": 5})})

    assert_equal_bits(batched(plain).model, batched(grouped).model)


def test_groups_of_one_that_never_average_are_the_daisy_chain_before_its_average() -> None:
    chain = plan_of("DaisyChain", {"permute_every": 1}, recipe=MOMENTUM)
    ensemble = plan_of("TravellingEnsemble", {"permute_every": 1}, recipe=MOMENTUM)

    one, other = batched(chain), batched(ensemble)

    mean = {name: members.mean(axis=0) for name, members in other.model.items()}
    for name, array in one.model.items():
        np.testing.assert_allclose(array, mean[name], rtol=0, atol=1e-15)


@pytest.mark.parametrize("sites", [1, 2, 3, 7])
def test_one_model_round_the_sites_is_mini_batch_sgd_over_their_batches_one_after_the_other(sites: int) -> None:
    plan = plan_of("TravellingModel", {}, sites=sites, recipe=Recipe(lr=0.05, batch=4, local_epochs=1))
    federation = federation_of(plan)
    outcome = batched(plan, federation)

    weights = {name: np.array(array) for name, array in initial_model(plan, federation.task).items()}
    batches = Batches(plan, federation.names, federation.train, {}, cohort_device(plan))
    for t in range(1, plan.rounds + 1):
        for _, batch in batches.round(np.array([(t - 1) % sites]), t, False):
            weights = sgd_step(weights, batch.x[0].numpy(), batch.y[0].numpy(), 0.05)

    for name, array in outcome.model.items():
        np.testing.assert_allclose(array, weights[name], rtol=0, atol=1e-10)


def cohort_device(plan: Plan) -> Any:
    federation = federation_of(plan)
    return cohort_for(plan, federation.task, federation.names, federation.train).device


def sgd_step(w: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, lr: float) -> dict[str, np.ndarray]:
    """One step on the mean cross-entropy of a network with one hidden layer of rectified units, in plain numpy."""
    (w1, b1), (w2, b2) = [(name, name.replace("weight", "bias")) for name in w if name.endswith("weight")]
    hidden = np.maximum(x @ w[w1].T + w[b1], 0)
    outputs = hidden @ w[w2].T + w[b2]
    shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    slope = (shares / shares.sum(axis=1, keepdims=True) - np.eye(outputs.shape[1])[y]) / len(y)
    back = (slope @ w[w2]) * (hidden > 0)
    steps = {w1: back.T @ x, b1: back.sum(axis=0), w2: slope.T @ hidden, b2: slope.sum(axis=0)}
    return {name: array - lr * steps[name] for name, array in w.items()}


@pytest.mark.parametrize("sites", [2, 5, 12])
@pytest.mark.parametrize("models", [1, 2, 5])
@pytest.mark.parametrize("route", ["random", "cyclic"])
def test_travellers_always_sit_at_different_sites(sites: int, models: int, route: str) -> None:
    if models > sites:
        pytest.skip("more models than sites are refused")
    plan = plan_of("FedDC", {"aggregate_every": 4, "models": models, "route": route}, sites=sites, rounds=120)
    visited = [at for _, at in journey(plan, sites)]

    assert all(len(set(at.tolist())) == models for at in visited)
    assert set(np.concatenate(visited).tolist()) == set(range(sites))
    if route == "cyclic" and models == 1:
        assert [at[0] for at in visited] == [t % sites for t in range(120)]


def test_groups_meet_other_sites_after_an_average() -> None:
    plan = groups_of(rounds=30)
    at = np.array([places for _, places in journey(plan, 10)])  # (communication rounds, travellers)

    first_group = [frozenset(places[::3].tolist()) for places in at]
    assert len(set(first_group)) > 20
    assert all(len(places) == 4 for places in first_group)


def test_a_group_of_which_nothing_counts_keeps_its_model() -> None:
    plan = plan_of("TravellingEnsemble", {"permute_every": 1}, sites=None, samples_per_site=None, rounds=1)
    federation = table(plan, 4, wild=(1,))

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    start = initial_model(plan, federation.task)
    assert_equal_bits(start, {name: np.ascontiguousarray(members[1]) for name, members in one.model.items()})


def test_an_absurd_site_is_set_aside_in_groups_too() -> None:
    plan = groups_of(settings={"groups": 2}, sites=None, samples_per_site=None)
    federation = table(plan, 8, wild=(2,), scale=1e6)

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    assert {(event["site"], event["kind"]) for event in one.events} == {("site-2", "set aside")}


def test_sites_judge_the_members_together_as_the_simulation_does() -> None:
    plan = groups_of(settings={"groups": 3}, rounds=3)
    federation = federation_of(plan)
    held_out = tuple(replace(federation.test) for _ in federation.names)
    loop = loop_of(plan, replace(federation, held_out=held_out))
    loop.evaluator = evaluator_for(loop.roster, loop.grid, plan)

    told = loop.run().evaluations[-1].common
    whole = batched(plan, federation).evaluations[-1].common

    assert told["accuracy"] == pytest.approx(whole["accuracy"], abs=1e-12)
    assert told["loss"] == pytest.approx(whole["loss"], abs=1e-9)


def test_moving_averages_and_snapshots_are_of_the_common_models() -> None:
    start = [{"w": np.zeros(1)}]
    plain = method("FedAvg")
    made = GlobalModels(Shift(), plain.model_copy(update={"ema": 0.5, "snapshots": 2}), start)
    for t in (1, 2, 3):
        made.aggregate(lambda group: Counted(), t, 0.0)

    assert made.models[0]["w"] == 3
    assert made.result()["w"].ravel().tolist() == [1.5, 2.25]  # 1, then .5 + 1, then .75 + 1.5


class Counted:
    sites = ("one",)


class Shift:
    """A combiner that adds one."""

    def combine(self, global_model: dict[str, np.ndarray], updates: Any, t: int) -> dict[str, np.ndarray]:
        return {name: array + 1 for name, array in global_model.items()}

    def checkpoint(self) -> Any:
        return lambda: None


@pytest.mark.parametrize(
    ("name", "settings", "changes", "line"),
    [
        ("FedDC", {"models": 6}, {}, "6 models cannot sit at 5 sites"),
        ("TravellingGroups", {"groups": 6}, {}, "5 models cannot make 6 groups"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(
    name: str, settings: dict[str, Any], changes: dict[str, Any], line: str
) -> None:
    def build_and_check() -> None:
        plan = plan_of(name, settings, **changes)
        check_plan(plan, federation_of(plan).task, 5)

    with pytest.raises(PlanError, match=line) as error:
        build_and_check()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("sites", "groups"), [(6, 2), (6, 3), (6, 6), (7, 3)])
def test_groups_averaged_at_once_are_those_averaged_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, sites: int, groups: int
) -> None:
    plan = plan_of("TravellingGroups", {"groups": groups}, sites=sites)
    at_once = batched(plan)
    monkeypatch.setattr(GlobalModels, "are_means", False)

    one_by_one = batched(plan)

    for name, array in one_by_one.model.items():
        np.testing.assert_allclose(at_once.model[name], array, rtol=0, atol=1e-14)


@on_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("TravellingGroups", {"groups": 2, "ema": 0.5}),
        ("FedDC", {"aggregate_every": 2, "validate": {"routes": 3}}),
        ("FedAvg", {"aggregate_every": 1, "validate": {"routes": 6}}),  # of fewer sites: folds of samples
    ],
)
def test_ray_gives_groups_and_routes_the_bits_of_this_process(name: str, settings: dict[str, Any]) -> None:
    plan = plan_of(name, settings, rounds=6)
    federation = build_federation(plan)

    here, there = (run_plan(plan, federation, engine) for engine in ("inprocess", "ray"))

    assert here.model is not None
    assert there.model is not None
    assert_equal_bits(here.model, there.model)
    assert [each.validation for each in here.evaluations] == [each.validation for each in there.evaluations]
