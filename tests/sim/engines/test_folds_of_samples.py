"""Routes of fewer sites than folds: no model learns from a sample that it judges, on every engine, and all agree."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from fedsmall.data.federation import Federation
from fedsmall.plan import Plan
from fedsmall.sim.engines.run import run_plan
from fedsmall.training.in_folds import folds_of_samples
from fedsmall.training.trees import cohort_for
from tests.sim.engines.harness import assert_equal_bits, federation_of, plan_of
from tests.sim.engines.plans import BY_FOLDS as CASES
from tests.sim.engines.plans import of_samples
from tests.sim.engines.stations import Stations
from tests.sim.engines.test_routes import (
    all_but_own,
    conduct,
    in_process,
    killed_at_every_comm_round,
    models_of_routes,
    often_silent,
)

# Nothing of a fold's samples is in the models of its route: change them, and not a bit of those models changes.


def with_fold_changed(plan: Plan, federation: Federation, fold: int) -> Federation:
    train = []
    for site, own in zip(federation.names, federation.train, strict=True):
        in_fold = folds_of_samples(plan, site, own) == fold
        train.append(replace(own, x=np.where(in_fold[:, None], -own.x, own.x)))
    return replace(federation, train=tuple(train))


def leaks(plan: Plan, loop: Any = None) -> set[tuple[int, int]]:
    """(route, fold): the route's models depend on the samples of the fold."""
    federation = federation_of(plan)
    whole, found = models_of_routes(plan, federation, loop), set()
    for fold in range(len(whole)):
        changed = models_of_routes(plan, with_fold_changed(plan, federation, fold), loop)
        for route, (one, other) in enumerate(zip(whole, changed, strict=True)):
            if any(array.tobytes() != other[name].tobytes() for name, array in one.items()):
                found.add((route, fold))
    return found


@pytest.mark.parametrize("case", [case for case in CASES if case != "more folds than samples"])
def test_a_route_knows_all_folds_but_its_own(case: str) -> None:
    plan = CASES[case]

    assert leaks(plan) == all_but_own(plan.method.validation.routes)


def test_where_folds_are_empty_it_knows_nothing_of_its_own_either() -> None:
    found = leaks(CASES["more folds than samples"])

    assert not {(route, route) for route in range(11)} & found
    assert len(found) >= 50


@pytest.mark.thorough
@pytest.mark.parametrize("loop", [in_process, often_silent])
@pytest.mark.parametrize("case", ["two sites that hand on", "moments that travel", "some of the sites"])
def test_nor_does_it_where_sites_are_silent(loop: Any, case: str) -> None:
    plan = CASES[case].model_copy(update={"rounds": 18})

    assert leaks(plan, loop) == all_but_own(plan.method.validation.routes)


@pytest.mark.thorough
def test_nor_where_a_run_is_killed_and_goes_on_from_its_journal(tmp_path) -> None:
    plan, runs = CASES["moments that travel"], iter(range(99))

    def loop(*given: Any) -> None:
        killed_at_every_comm_round(*given, tmp_path / str(next(runs)))

    assert leaks(plan, loop) == all_but_own(3)


def test_a_route_that_trained_on_its_fold_would_be_found(monkeypatch) -> None:
    monkeypatch.setattr("fedsmall.algorithm.model_states.route_at", lambda plan, t: 0)  # all leave out the first fold

    assert {(1, 1), (2, 2)} <= leaks(CASES["two sites that hand on"])


# What comes of it.


def test_what_is_expected_is_scikit_learns_on_the_pooled_out_of_fold_predictions() -> None:
    plan = CASES["two groups a route"]
    federation = federation_of(plan)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    of_routes, shares, y = models_of_routes(plan, federation), [], []
    for number, own in enumerate(federation.train):
        folds = folds_of_samples(plan, federation.names[number], own)
        for sample, fold in enumerate(folds):
            members = [{name: array[k] for name, array in of_routes[fold].items()} for k in range(2)]
            each = [trainer.predict_at(number, member, own.x[[sample]], {})[0] for member in members]
            shares.append(softmax(np.stack(each), axis=1).mean(axis=0))
            y.append(own.y[sample])

    found = run_plan(plan, federation, "cohort").evaluations[-1].validation

    values = {name: metric["value"] for name, metric in found["metrics"].items()}
    p = np.stack(shares)
    assert values["loss"] == pytest.approx(log_loss(y, p), rel=1e-9)
    assert values["brier"] == pytest.approx(brier_score_loss(y, p[:, 1]), rel=1e-9)
    assert values["accuracy"] == accuracy_score(y, p.argmax(axis=1))


@pytest.mark.thorough
def test_patients_who_took_no_part_are_judged_as_they_will_be_and_not_as_those_who_did() -> None:
    plan = of_samples(5, 3, rounds=150, samples_per_site=12, recipe=plan_of().recipe.model_copy(update={"lr": 0.5}))
    said, is_so, learnt = [], [], []
    for seed in range(6):
        federation = with_noise(federation_of(plan.model_copy(update={"seed": seed})), seed)
        of_seed = plan.model_copy(update={"seed": seed})
        last = run_plan(of_seed, federation, "cohort").evaluations[-1]
        said.append(last.validation["metrics"]["loss"]["value"])
        trainer = cohort_for(of_seed, federation.task, federation.names, federation.train)
        for route in models_of_routes(of_seed, federation):
            member = {name: array[0] for name, array in route.items()}
            is_so.append(loss_of(trainer, member, federation.test))
            learnt.append(loss_of(trainer, member, federation.train[0]))

    assert np.mean(said) == pytest.approx(np.mean(is_so), rel=0.3)
    assert np.mean(learnt) < np.mean(said) / 2


def with_noise(federation: Federation, seed: int) -> Federation:
    """A fifth of all labels wrong, so that what is learnt by heart is worth nothing elsewhere."""
    rng = np.random.default_rng(seed)
    train = tuple(replace(own, y=np.where(rng.random(len(own)) < 0.2, 1 - own.y, own.y)) for own in federation.train)
    y = federation.test.y
    return replace(
        federation, train=train, test=replace(federation.test, y=np.where(rng.random(len(y)) < 0.2, 1 - y, y))
    )


def loss_of(trainer: Any, model: Any, samples: Any) -> float:
    return float(log_loss(samples.y, softmax(trainer.predict_at(0, model, samples.x, {}), axis=1), labels=[0, 1]))


# Real sites.


@pytest.mark.thorough
@pytest.mark.parametrize("sites", [1, 2, 3])
def test_real_sites_expect_the_bits_of_a_simulation(sites: int, tmp_path, monkeypatch) -> None:
    settings = {"permute_every": 1, "aggregate_every": 2}
    plan = of_samples(5, sites, "FedDC", settings, task="digits", samples_per_site=12, evaluate_every=4)
    federation = federation_of(plan)
    simulated = run_plan(plan, federation, "inprocess")

    outcome = conduct(plan, Stations(tmp_path, federation.names, monkeypatch, "least_sites = 1\n"))

    assert not outcome.events
    assert_equal_bits(outcome.model, simulated.model)
    assert [e.validation for e in outcome.evaluations] == [e.validation for e in simulated.evaluations]
    log = (tmp_path / federation.names[0] / "log.jsonl").read_text().splitlines()
    told = [entry for entry in map(json.loads, log) if entry.get("kind") == "validate"]
    assert [entry["event"] for entry in told] == ["sent"] * 3
