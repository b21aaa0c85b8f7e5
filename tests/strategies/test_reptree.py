"""Replica trees and drift corrections on an engine, from the plan to the global model."""

import numpy as np
import pytest

from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.data.federation import Federation
from fedsmall.errors import PlanError, ReplyError
from fedsmall.methods import method
from fedsmall.parts import Recipe, Tree
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import RunRecord, run_plan
from fedsmall.strategies import SCAFFOLD, RepTreeFL

SITES = 3


def plan_of(name: str, *, recipe: Recipe | None = None, rounds: int = 4, **settings) -> Plan:
    return Plan(
        name="trees",
        task="breast_cancer",
        sites=SITES,
        samples_per_site=16,
        rounds=rounds,
        dtype="float64",
        recipe=recipe or Recipe(lr=0.1, batch=4, local_epochs=1),
        method=method(name, **settings),
    )


@pytest.fixture(scope="module")
def federation() -> Federation:
    return build_federation(plan_of("FedAvg"))


def run(plan: Plan, federation: Federation, engine: str = "inprocess") -> RunRecord:
    record = run_plan(plan, federation, engine)
    assert not record.events
    return record


def assert_same(left: RunRecord, right: RunRecord, rtol: float = 0.0) -> None:
    assert left.model is not None
    assert right.model is not None
    for name in left.model:
        np.testing.assert_allclose(left.model[name], right.model[name], rtol=rtol, atol=rtol)


def test_a_tree_of_depth_zero_is_fedavg(federation):
    assert_same(run(plan_of("RepTreeFL", tree={"depth": 0}), federation), run(plan_of("FedAvg"), federation))


@pytest.mark.thorough
@pytest.mark.parametrize("fold", ["diversity", "simple"])
@pytest.mark.parametrize("depth", [1, 2])
def test_folding_at_the_server_and_at_the_site_give_the_same_common_model(federation, fold, depth):
    tree = {"fanout": 2, "depth": depth, "fold": fold}

    site, server = (run(plan_of("RepTreeFL", tree=tree | {"fold_at": at}), federation) for at in ("site", "server"))

    assert_same(site, server)
    models = 1 + sum(2**k for k in range(1, depth + 1))
    assert server.bytes_sent == site.bytes_sent * (1 + models) // 2  # every replica's model leaves the site


def test_the_server_fold_goes_with_another_aggregator(federation):
    site, server = (
        run(plan_of("RepTreeFL", tree={"fold_at": at}, aggregator="median"), federation) for at in ("site", "server")
    )

    assert_same(site, server)


def test_repfl_is_reptreefl_of_depth_one_folded_simply(federation):
    simple = plan_of("RepTreeFL", tree={"depth": 1, "fold": "simple"})

    assert_same(run(plan_of("RepFL"), federation), run(simple, federation))


@pytest.mark.parametrize(
    "name",
    ["RepTreeFL", "RepTreeFL+FedProx", "RepTreeFL+GeometricMedian", "FedDC+RepTreeFL", "FedDC+Trees"],
)
def test_every_combination_runs_and_learns(federation, name):
    record = run(plan_of(name, rounds=12), federation, "cohort")

    assert record.evaluations[-1].common["accuracy"] > 0.85


def test_sites_with_trees_of_their_own_run(federation):
    tree = {"fanout": (1, 2, 3), "depth": (0, 1, 2), "drop": (0.1, 0.2, 0.3)}

    record = run(plan_of("RepTreeFL", tree=tree), federation)

    assert record.model is not None


@pytest.mark.thorough
def test_whole_trees_that_travel_cost_what_they_hold(federation):
    anchors, trees = (
        run(plan_of(name, permute_every=1, aggregate_every=4), federation)
        for name in ("FedDC+RepTreeFL", "FedDC+Trees")
    )

    # eight phases: the first goes out bare, the other seven carry the trees of one anchor and three replicas
    assert trees.bytes_sent == anchors.bytes_sent // 8 * (1 + 7 * 4)


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedNova", "FedDyn"])
def test_drift_corrections_run_and_learn(federation, name):
    record = run(plan_of(name, rounds=12), federation, "cohort")

    assert record.evaluations[-1].common["accuracy"] > 0.85


def test_feddyn_without_a_pull_is_fedavg(federation):
    assert_same(run(plan_of("FedDyn", feddyn_alpha=0.0), federation), run(plan_of("FedAvg"), federation), rtol=1e-12)


def test_fednova_with_equal_steps_is_fedavg(federation):
    assert_same(run(plan_of("FedNova"), federation), run(plan_of("FedAvg", weighted=True), federation), rtol=1e-12)


def test_scaffold_sends_twice_as_much_as_fedavg(federation):
    plain, scaffold = (run(plan_of(name, rounds=10), federation).bytes_sent for name in ("FedAvg", "SCAFFOLD"))

    assert scaffold / plain == pytest.approx(2 - 1 / 20)  # the first orders carry no control: it is zero


def test_scaffold_with_one_site_is_gradient_descent():
    recipe = Recipe(lr=0.1, batch=4, local_epochs=1)
    alone = [plan_of(name, recipe=recipe).model_copy(update={"sites": 1}) for name in ("SCAFFOLD", "FedAvg")]
    federation = build_federation(alone[0])

    # c_i = c with one site, so the correction is nothing
    assert_same(*(run(plan, federation) for plan in alone), rtol=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"diversity": "kl"}, "which only the site has"), ({"depth": (1, 2, 1)}, "one fanout")],
)
def test_a_tree_that_the_server_cannot_fold_is_refused(settings, message):
    with pytest.raises(PlanError, match=message):
        plan_of("RepTreeFL", tree={"fold_at": "server", **settings})


def test_a_setting_that_a_server_does_not_have_is_refused(federation):
    with pytest.raises(PlanError, match="no setting 'beta'; it has alpha"):
        run(plan_of("FedDyn", server_options={"beta": 1.0}), federation)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", ["RepTreeFL", "FedDC+RepTreeFL", "FedDC+Trees", "RepTreeFL+FedProx", "SCAFFOLD", "FedDyn"]
)
def test_the_batched_engine_gives_the_numbers_of_the_sites_one_by_one(federation, name):
    plan = plan_of(name, rounds=5)

    batched = run(plan, federation, "cohort")

    alone = run(plan, federation)
    assert_same(batched, alone, rtol=1e-9)
    assert batched.bytes_sent == alone.bytes_sent


def test_a_replica_that_does_not_come_with_its_anchor_is_missed():
    models = {"w": np.zeros((2, 3))}
    updates = Updates(("a", "b"), models, None, np.ones(2), {"0/w": np.zeros((2, 3))})
    strategy = RepTreeFL(Tree(fanout=2, fold_at="server"))

    with pytest.raises(ReplyError, match="trees of 3 models, and array 'w' of replica 1 did not come"):
        strategy.combiner.combine({"w": np.zeros(3)}, updates, 1)


def test_controls_that_do_not_come_with_scaffolds_models_are_missed():
    updates = Updates(("a", "b"), {"w": np.zeros((2, 3))}, None, np.ones(2), {})

    with pytest.raises(ReplyError, match="SCAFFOLD expects 'control/w'"):
        SCAFFOLD().combiner.combine({"w": np.zeros(3)}, updates, 1)


def test_a_server_that_restarts_goes_on_with_what_it_remembers():
    rng = np.random.default_rng(0)
    global_model = {"w": np.zeros(3)}
    comm_rounds = [
        Updates(("a", "b"), {"w": rng.normal(size=(2, 3))}, None, np.ones(2), {"control/w": rng.normal(size=(2, 3))}, 2)
        for _ in range(3)
    ]
    whole, again = SCAFFOLD().combiner, SCAFFOLD().combiner

    for t, updates in enumerate(comm_rounds[:2], 1):
        global_model = whole.combine(global_model, updates, t)
    again.restore(*whole.state())

    expected, came = whole.combine(global_model, comm_rounds[2], 3), again.combine(global_model, comm_rounds[2], 3)
    assert (expected["w"] == came["w"]).all()
    assert (whole.order_rule()["server/w"] == again.order_rule()["server/w"]).all()
