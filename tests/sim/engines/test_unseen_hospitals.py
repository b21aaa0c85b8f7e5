"""What routes say of hospitals that took no part is so, where patients held out at the same hospitals promise too much.

Each hospital shifts its measurements by an offset of its own (another scanner), and has its own share of the ill. A
model learns which offset goes with which share, which helps with further patients of the same hospital, and elsewhere
not at all.
"""

from dataclasses import replace

import numpy as np
import pytest

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.outputs import members_of
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.sim.engines.run import run_plan
from fedsmall.training.trees import cohort_for

FEATURES, SITES, PATIENTS, SEEDS = 20, 15, 24, 12
TASK = Task("made", (FEATURES,), 2, "cross_entropy", ("accuracy", "loss", "auc"))


def hospital(rng: np.random.Generator, patients: int) -> Samples:
    y = (rng.random(patients) < 1 / (1 + np.exp(-rng.normal(0, 2)))).astype(np.int64)
    x = rng.normal(0, 1, (patients, FEATURES)) + rng.normal(0, 1.5, FEATURES)
    x[:, 0] += 1.5 * (y - 0.5)
    return Samples(x.astype(np.float64), y)


def federation(seed: int) -> Federation:
    rng = np.random.default_rng(seed)
    train = tuple(hospital(rng, PATIENTS) for _ in range(SITES))
    return Federation(TASK, tuple(f"h{k:02d}" for k in range(SITES)), train, unseen(seed))


def unseen(seed: int) -> Samples:
    """The patients of 200 hospitals that took no part."""
    rng = np.random.default_rng(1000 + seed)
    drawn = [hospital(rng, 20) for _ in range(200)]
    return Samples(np.concatenate([each.x for each in drawn]), np.concatenate([each.y for each in drawn]))


def plan_of(seed: int, **settings) -> Plan:
    shared = {"name": "p", "task": "made", "model_options": {"hidden": [16]}, "rounds": 120, "dtype": "float64"}
    return Plan(**shared, seed=seed, recipe=Recipe(lr=0.1), method=method("FedAvg", aggregate_every=1, **settings))


def by_routes(seed: int) -> tuple[float, float]:
    """What is expected by routes, and what the models of the routes have at hospitals that took no part: their loss."""
    plan, data = plan_of(seed, validate={"routes": 5}), federation(seed)
    record = run_plan(plan, data, "cohort")
    trainer = cohort_for(plan, TASK, data.names, data.train)
    outputs = [trainer.predict_at(0, member, data.test.x, {}) for member in members_of(record.model, True)]
    truth = np.mean([evaluate(each, data.test.y, TASK)["loss"] for each in outputs])
    return record.evaluations[-1].validation["metrics"]["loss"]["value"], float(truth)


def by_split(seed: int) -> tuple[float, float]:
    """The same by a third of the patients held out at each hospital."""
    data = federation(seed)
    held = [Samples(own.x[::3], own.y[::3]) for own in data.train]
    rest = tuple(Samples(np.delete(own.x, np.s_[::3], 0), np.delete(own.y, np.s_[::3])) for own in data.train)
    x, y = (np.concatenate([getattr(own, name) for own in held]) for name in ("x", "y"))
    known = replace(data, train=rest, extra=(("held", Samples(x, y)),))
    last = run_plan(plan_of(seed), known, "cohort").evaluations[-1]
    return last.extra["held"]["common"]["loss"], last.common["loss"]


@pytest.mark.thorough
@pytest.mark.parametrize("way", [by_routes, by_split])
def test_routes_are_right_about_unseen_hospitals_and_a_split_within_sites_is_not(way) -> None:
    said, is_so = np.array([way(seed) for seed in range(SEEDS)]).T

    bias, error = (said - is_so).mean(), (said - is_so).std(ddof=1) / np.sqrt(SEEDS)

    if way is by_routes:
        assert abs(bias) < 2.5 * error
        assert error < 0.2
    else:
        assert bias < -4 * error
        assert bias < -0.2
