"""The scenario for real sites that comes along, as a simulation of its sites: nobody is read, or named above chance."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binom

from fedsmall.aggregation.sums import with_sealed_handovers
from fedsmall.clients.incoming import sign_of_craft
from fedsmall.clients.policy import Policy
from fedsmall.data.federation import Federation
from fedsmall.extensions.audit.by_likelihood import explain
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.research.attacks.crafted import with_ladders
from fedsmall.sim.consortium.sample_data import write
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.scenario import find, load

SCENARIO = "consortium_demo"
SURE = 0.001  # a chance of naming so many is no chance


@pytest.fixture
def tables(tmp_path) -> Path:
    folder = tmp_path / "hospitals"
    write([folder / f"{name}.csv" for name in ("bonn", "essen", "ulm")])
    return folder


def plan_over(tables: Path, *settings: str, methods: Sequence[dict] = ()) -> tuple[Plan, Federation]:
    scenario = load(find(Path(SCENARIO)), [f"task.csv={tables}", *settings])
    plan = (scenario.model_copy(update={"method": methods}) if methods else scenario).plans()[0]
    return plan, build_federation(plan)


def test_its_plan_is_what_the_policy_that_comes_along_takes(tables):
    plan, federation = plan_over(tables)
    samples = min(map(len, federation.train))

    Policy().check_plan(
        with_sealed_handovers(plan, 3), federation.task.name, samples=samples, sites=3, has_identity=True
    )

    assert plan.privacy.exposure == 1


@pytest.mark.slow
def test_nobody_is_read_or_named_above_chance_by_who_sees_all_its_models(tables):
    plan, federation = plan_over(tables)
    patients = [len(samples) for samples in federation.train[:2]]

    found = explain(plan, sites=2)

    assert found.patients == sum(patients)
    assert found.close == 0
    assert binom.sf(found.named - 1, found.patients, 1 / min(patients)) > SURE
    read = run_plan(plan, federation, "cohort", exposed=True).read
    assert read["looked"] == 8
    assert not any(read[party] for party in ("server", "neighbours", "averages"))


@pytest.mark.slow
def test_the_same_attacks_read_it_where_nothing_defends(tables):
    bare = {"name": "FedAvg", "aggregate_every": 1}
    plan, federation = plan_over(tables, "recipe.batch=8", "model_options.hidden=[64]", methods=[bare])
    patients = [len(samples) for samples in federation.train[:2]]

    read = run_plan(plan, federation, "cohort", exposed=True).read
    found = explain(plan, sites=2)

    assert read["server"] > 100
    assert binom.sf(found.named - 1, found.patients, 1 / min(patients)) < SURE


def test_its_sites_refuse_a_ladder(tables):
    plan, federation = plan_over(tables, "model_options.hidden=[64]")
    first = initial_model(plan, federation.task)

    ladder = with_ladders(first, 8, np.random.default_rng(0))

    assert sign_of_craft(ladder, first, plan, federation.task, federation.train[0].x)
    assert not sign_of_craft(first, first, plan, federation.task, federation.train[0].x)
