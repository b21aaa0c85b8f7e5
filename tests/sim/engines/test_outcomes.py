"""What is more than a class, on every engine: the batched one, messages, and the programs of real sites."""

import numpy as np
import pytest

from fedsmall.data.federation import Federation
from fedsmall.data.outcomes import Amount, Findings, Survival
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.evaluation.metrics import OF_LABELS, metrics_of
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import EarlyStop, Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.handshake import agree_on_task
from fedsmall.strategies.server.site_judges import evaluator_for
from tests.sim.engines.harness import ByMessages
from tests.sim.engines.on_ray import on_ray
from tests.sim.engines.stations import Stations

FEATURES = ("a", "b", "c", "d")
KINDS = {"numbers": "linear", "times": "proportional", "grades": "proportional", "labels": "linear"}
GRADES = ("no", "mild", "severe", "worst")


def numbers(root, seed):
    """120 patients, and an age that their features tell of."""
    rng = np.random.default_rng(3)
    x = rng.normal(loc=2, scale=3, size=(120, 4))
    y = 60 + 5 * x[:, :1] - 3 * x[:, 1:2] + rng.normal(size=(120, 1))
    return Pool({NOWHERE: Part(x, y)}, (), {}, FEATURES, standardise=True, loss="mse", outcome=Amount(name="age"))


def times(root, seed):
    """120 patients, and months until an event whose hazard their features tell of; a third are lost before it."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(120, 4))
    time, lost = rng.exponential(24 * np.exp(-x[:, 0])), rng.exponential(60, size=120)
    y = np.stack([np.minimum(time, lost), time <= lost], axis=1)
    outcome = Survival(name="months", event="died", intervals=4)
    return Pool({NOWHERE: Part(x, y)}, (), {}, FEATURES, standardise=True, loss="hazard", outcome=outcome)


def grades(root, seed):
    """120 patients, and a grade that their features tell of."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(120, 4))
    y = (2 * x[:, 0] - x[:, 1] + rng.logistic(size=120) > np.array([[-2.0], [0.0], [2.0]])).sum(axis=0)
    return Pool({NOWHERE: Part(x, y)}, GRADES, {}, FEATURES, standardise=True, loss="ordinal")


def labels(root, seed):
    """120 patients, and two labels of which their features tell."""
    rng = np.random.default_rng(6)
    x = rng.normal(size=(120, 4))
    y = (2 * x[:, :2] + rng.logistic(size=(120, 2)) > [0.0, 1.0]).astype(float)
    loss, outcome = "binary_cross_entropy", Findings(names=("edema", "effusion"))
    return Pool({NOWHERE: Part(x, y)}, (), {}, FEATURES, standardise=True, loss=loss, outcome=outcome)


def plan_of(kind: str, name: str = "FedDC", settings: dict | None = None, **changes) -> Plan:
    if settings is None:
        settings = {"permute_every": 1, "aggregate_every": 3} if name == "FedDC" else {}
    defaults = {
        "name": "test",
        "task": {"source": f"{__name__}:{kind}"},
        "model": KINDS[kind],
        "sites": 8,
        "samples_per_site": 8,
        "rounds": 6,
        "dtype": "float64",
        "recipe": Recipe(lr=0.1, batch=4),
        "method": method(name, **settings),
    }
    return Plan(**(defaults | changes))


METHODS = {
    "Central": {},
    "Standalone": {},
    "FedAvg": {},
    "FedDC": {"permute_every": 1, "aggregate_every": 3},
    "FedDC+Radon": {"permute_every": 1, "aggregate_every": 3},
    "RepTreeFL": {},
    "TravellingGroups": {"groups": 2, "permute_every": 1, "aggregate_every": 3},
}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_same_on_a_stack_and_with_messages(kind, name):
    plan = plan_of(kind, name, METHODS[name], sites=12, samples_per_site=7)
    federation = build_federation(plan)

    one, other = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))

    if one.model is not None:
        for key, array in one.model.items():
            np.testing.assert_allclose(array, other.model[key], atol=1e-10)
    mine, theirs = (record.evaluations[-1] for record in (one, other))
    for whose in ("common", "sites"):
        told = {key: v for key, v in (getattr(mine, whose) or {}).items() if isinstance(v, float)}
        assert told == pytest.approx({key: getattr(theirs, whose)[key] for key in told}, abs=1e-8, nan_ok=True)


def test_a_number_is_learnt_in_its_own_unit():
    plan = plan_of("numbers", rounds=60)
    federation = build_federation(plan)

    record = run_plan(plan, federation, "cohort")

    metrics, said = record.evaluations[-1].common, record.predictions
    assert metrics["mae"] < 2
    assert metrics["r2"] > 0.95
    assert said["predictions"].mean() == pytest.approx(60, abs=10)
    assert metrics["mae"] == pytest.approx(np.abs(said["predictions"] - said["labels"]).mean())


def test_a_time_is_learnt_better_than_one_curve_for_all():
    plan = plan_of("times", rounds=60)
    federation = build_federation(plan)

    record = run_plan(plan, federation, "cohort")

    assert record.evaluations[-1].common["c_index"] > 0.65
    said = record.predictions
    assert said["survival"].shape == said["cuts"].shape == (len(federation.test), 4)
    assert (np.diff(said["survival"], axis=1) <= 0).all()
    assert set(np.unique(said["labels"][:, 1])) == {0, 1}


def test_a_grade_is_learnt_better_than_by_chance_and_its_probabilities_are_in_order():
    plan = plan_of("grades", rounds=100, recipe=Recipe(lr=0.3, batch=4))
    federation = build_federation(plan)

    record = run_plan(plan, federation, "cohort")

    p, y = record.predictions["probabilities"], record.predictions["labels"]
    assert record.evaluations[-1].common["kappa"] > 0.5
    assert record.evaluations[-1].common["mae"] == pytest.approx(np.abs(p.argmax(axis=1) - y).mean())
    assert p.shape == (len(federation.test), 4)
    np.testing.assert_allclose(p.sum(axis=1), 1)


def test_labels_are_learnt_each_by_itself():
    plan = plan_of("labels", rounds=100, recipe=Recipe(lr=0.5, batch=4))
    federation = build_federation(plan)

    record = run_plan(plan, federation, "cohort")

    p, y = record.predictions["label_probabilities"], record.predictions["labels"]
    assert record.evaluations[-1].common["auc"] > 0.75
    assert record.evaluations[-1].common["subset_accuracy"] == pytest.approx(((p > 0.5) == (y > 0)).all(axis=1).mean())
    assert federation.task.labels == ("edema", "effusion")
    assert p.shape == y.shape == (len(federation.test), 2)


WITH_SUMS = {
    "validate": {"method": method("FedAvg", aggregate_every=1, validate={"routes": 2})},
    "stop": {"stop": EarlyStop(patience=2, hold_out=0.25), "evaluate_every": 2},
}


@pytest.mark.parametrize("kind", ["grades", "labels"])
@pytest.mark.parametrize("key", WITH_SUMS)
def test_what_sites_tell_in_sums_is_the_same_on_a_stack_and_with_messages(kind, key):
    plan = plan_of(kind, "FedAvg", {"aggregate_every": 1}, **WITH_SUMS[key])
    federation = build_federation(plan)

    one, other = (run_plan(plan, federation, engine).evaluations[-1] for engine in ("cohort", "inprocess"))

    told = one.validation if key == "validate" else one.stop
    assert told
    wanted = {"grades": {"accuracy", "auc"}, "labels": {"subset_accuracy", "macro_f1", "auc"}}[kind]
    if key == "validate":
        assert wanted <= set(told["metrics"])
    assert told == close(other.validation if key == "validate" else other.stop)


def close(told):
    """Numbers in records, at any depth, to rounding."""
    if isinstance(told, dict):
        return {name: close(each) for name, each in told.items()}
    return pytest.approx(told, abs=1e-8) if isinstance(told, float) else told


PRIVATE = {"level": "patient", "noise": 1.0, "clip": 1.0}


@pytest.mark.parametrize("kind", ["grades", "labels"])
def test_patients_are_protected_one_by_one(kind):
    plan = plan_of(kind, "FedAvg", {"aggregate_every": 2, "privacy": PRIVATE})
    federation = build_federation(plan)

    one, other = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))

    assert one.privacy["epsilon"] > 0
    for key, array in one.model.items():
        np.testing.assert_allclose(array, other.model[key], atol=1e-8)


def over_real_sites(plan: Plan, federation: Federation, folder, monkeypatch):
    words = (plan.model, *(plan.task.values() if isinstance(plan.task, dict) else ()))
    named = [word for word in words if ":" in str(word)]  # functions that the sites' policies have to list
    grid = Stations(folder, federation.names, monkeypatch, f"functions = {named}\n")
    roster = Roster()
    task = agree_on_task(roster, grid, plan)
    grid.agree_on_scaling(plan)
    judges = evaluator_for(roster, grid, plan)
    return ByMessages(
        plan, grid, lambda site: initial_model(plan, task, site), judges, in_pieces=False, roster=roster
    ).run()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["FedDC", "RepTreeFL"])
def test_real_sites_programs_give_the_bits_of_a_simulation(kind, name, tmp_path, monkeypatch):
    plan = plan_of(kind, name, dtype="float32")
    federation = build_federation(plan)

    simulated = run_plan(plan, federation, "inprocess")
    real = over_real_sites(plan, federation, tmp_path, monkeypatch)

    assert not real.events
    assert {key: array.tobytes() for key, array in real.model.items()} == {
        key: array.tobytes() for key, array in simulated.model.items()
    }


@pytest.mark.slow
@on_ray
@pytest.mark.parametrize("kind", KINDS)
def test_ray_gives_the_bits_of_this_process(kind):
    plan = plan_of(kind)
    federation = build_federation(plan)

    here, there = (run_plan(plan, federation, engine) for engine in ("inprocess", "ray"))

    assert all(here.model[name].tobytes() == there.model[name].tobytes() for name in here.model)


@pytest.mark.parametrize("kind", KINDS)
def test_what_hospitals_judge_has_the_metrics_of_the_outcome(kind):
    """With natural sites each judges by its own patients."""
    plan = plan_of(kind)
    federation = build_federation(plan)

    told = run_plan(plan, federation, "cohort").evaluations[-1].common

    expected = {
        "numbers": {"mae", "rmse", "r2", "loss"},
        "times": {"c_index", "ibs", "loss"},
        "labels": set(OF_LABELS),
        "grades": {name for name in metrics_of("ordinal") if name not in ("average_precision", "brier")},
    }[kind]
    assert set(told) == expected
