"""Models that train in several processes train as in one."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from fedsmall.data.federation import Federation
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Method, Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.engines.workers import (
    Given,
    LocalWorkers,
    ParallelCohort,
    StackPart,
    Walked,
    Worker,
    with_workers,
)
from fedsmall.training.cohort import Cohort
from fedsmall.training.stack import Stack
from fedsmall.training.trainer import Leg, Signals
from fedsmall.wire import Traveller
from tests import ROOT
from tests.fedsmall.training.cohorts import TABLE, plan_for, samples_for

SIZES = [4, 1, 3, 4, 2, 4, 4, 3, 2]


class InTurn:
    """Workers that are no processes: the parts are walked one after the other."""

    def __init__(self, given: Given, count: int) -> None:
        self.count, self._worker = count, Worker(given)
        self.parts: list[int] = []

    def walk(self, parts: list[StackPart]) -> list[Walked]:
        self.parts.append(len(parts))
        return [self._worker.walk(part) for part in parts]

    def close(self) -> None:
        """Nothing to end."""


def given_for(plan: Plan) -> Given:
    names, samples = samples_for(TABLE, SIZES)
    return plan, TABLE, tuple(names), tuple(samples), "auto", "cpu"


def walked(cohort: Cohort | ParallelCohort, plan: Plan) -> tuple[Stack, Any]:
    rng = np.random.default_rng(3)
    legs = [Leg(rng.permutation(len(SIZES)), t, 1) for t in range(1, 5)]
    stack = cohort.stack([Traveller(initial_model(plan, TABLE, name)) for name in cohort.names])
    return stack, cohort.walk(stack, legs, Signals())


def assert_alike(plan: Plan, workers: Any) -> None:
    cohort = Cohort(*given_for(plan)[:4])
    one, told = walked(cohort, plan)
    several, told_in_parts = walked(ParallelCohort(cohort, workers), plan)
    for name, tensor in one.state.items():
        np.testing.assert_allclose(several.state[name], tensor, rtol=0, atol=1e-12)
    assert several.optimizer.keys() == one.optimizer.keys()
    np.testing.assert_allclose(told_in_parts.loss, told.loss, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(told_in_parts.steps, told.steps)


@pytest.mark.parametrize("state", ["travel", "reset"])
def test_parts_of_a_stack_walk_as_the_whole(state: str) -> None:
    method = Method(name="FedDC", permute_every=1, aggregate_every=9)
    plan = plan_for(method=method, optimizer="adam", lr=0.01, batch=2, optimizer_state=state)
    workers = InTurn(given_for(plan), 2)

    assert_alike(plan, workers)
    assert workers.parts == [2]


@pytest.mark.parametrize("rule", ["proximal", "scaffold", "feddyn"])
def test_what_sites_remember_is_not_shared_out(rule: str) -> None:
    plan = plan_for(method=Method(name=rule, rule=rule, proximal_mu=0.1, feddyn_alpha=0.1, aggregate_every=9))
    workers = InTurn(given_for(plan), 2)

    assert_alike(plan, workers)
    assert workers.parts == []


@pytest.mark.slow
def test_processes_on_this_machine_train_as_one() -> None:
    plan = plan_for(lr=0.1)
    workers = LocalWorkers(given_for(plan), 2)
    try:
        assert_alike(plan, workers)
    finally:
        workers.close()


CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
cluster.add_node(num_cpus=1)
from tests.sim.engines.test_workers import assert_alike, given_for, plan_for
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.engines.workers import RayWorkers
plan = plan_for(lr=0.1)
workers = RayWorkers(given_for(plan), 2, cluster.address)
assert_alike(plan, workers)
assert len(workers.nodes()) == 2, workers.nodes()
workers.close()
cluster.shutdown()
print("alike on two nodes")
"""


@pytest.mark.slow
def test_a_ray_cluster_of_two_nodes_trains_as_one_process() -> None:
    pytest.importorskip("ray")
    root = ROOT
    environment = {**os.environ, "PYTHONPATH": str(root), "RAY_USAGE_STATS_ENABLED": "0"}

    done = subprocess.run([sys.executable, "-c", CLUSTER], env=environment, cwd=root, capture_output=True, text=True)

    assert "alike on two nodes" in done.stdout, done.stderr[-2000:]


@pytest.mark.slow
def test_the_cohort_engine_takes_workers_as_an_option() -> None:
    plan = Plan(
        name="test",
        task="breast_cancer",
        sites=8,
        samples_per_site=4,
        rounds=6,
        method=method("FedDC", permute_every=1, aggregate_every=3),
        recipe=Recipe(lr=0.05),
        dtype="float64",
    )
    federation = build_federation(plan)

    alone = run_plan(plan, federation, "cohort")
    together = run_plan(plan, federation, "cohort", options={"workers": 2})

    for name, array in alone.model.items():
        np.testing.assert_allclose(together.model[name], array, rtol=0, atol=1e-12)


def test_workers_of_a_cohort_with_the_kernel_have_it_too(monkeypatch):
    given = given_for(plan_for())
    cohort, asked = Cohort(*given[:4]), []
    cohort.path = "kernel"
    monkeypatch.setattr(
        "fedsmall.sim.engines.workers.LocalWorkers",
        lambda given, count: asked.append(given[-2:]) or InTurn(given_for(plan_for()), count),
    )

    with with_workers(cohort, Federation(TABLE, given[2], given[3], given[3][0]), workers=2):
        pass

    assert asked == [("auto", "kernel")]
