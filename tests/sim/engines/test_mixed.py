"""Hospitals with models of their own run like any others: from functools import partial
from a scenario, on every engine, and at real sites."""

import html
import json
import re

import numpy as np
import pytest

from fedsmall.clients.client_app import app
from fedsmall.clients.site_data import give_federation
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.models.own_models import SHARED_PART
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_plan, check_run
from fedsmall.sim.api import run
from fedsmall.sim.engines.inprocess import InProcessGrid, LocalGrid
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.scenario import build, load
from fedsmall.sim.tuning.search import search
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.handshake import agree_on_task
from fedsmall.strategies.server.run_loop import Outcome
from fedsmall.strategies.server.site_judges import evaluator_for
from tests import ROOT
from tests.sim.engines.harness import ByMessages
from tests.sim.engines.on_ray import on_ray
from tests.sim.engines.stations import Stations

SMALL, LARGE = {"name": "g1", "widths": [4, 6]}, {"name": "g2", "widths": [4, 6, 8]}
OPTIONS = {"sites": [SMALL, SMALL, LARGE, LARGE], "shared": ["conv1", "norm1", "conv2", "norm2"]}
TASK = {"connectomes": "generated", "regions": [6, 6, 8, 8], "subjects": 32}
WORKING = ["FedAvg", "FedDC", "FedDyn", "FedProx", "RepFL", "RepTreeFL", "Standalone", "FedAdam", "FedMedian"]


def plan_of(name: str = "FedAvg", parts: dict | None = None, **changes) -> Plan:
    settings = {"FedDC": {"aggregate_every": 2}, "RepFL": {"tree": {"fanout": 2}}, "RepTreeFL": {"tree": {"fanout": 2}}}
    defaults = {
        "name": "graphs",
        "task": TASK,
        "model": SHARED_PART,
        "model_options": OPTIONS,
        "rounds": 3,
        "dtype": "float64",
        "recipe": Recipe(lr=0.1, momentum=0.5, batch=5, local_epochs=1),
        "method": method(name, **(parts if parts is not None else settings.get(name, {}))),
    }
    return Plan(**(defaults | changes))


@pytest.fixture(scope="module")
def federation():
    return build_federation(plan_of())


def conduct(plan: Plan, grid: LocalGrid) -> Outcome:
    """As over real sites: task and shapes come from the handshake, and the sites judge."""
    roster = Roster()
    task = agree_on_task(roster, grid, plan)
    check_plan(plan, task, len(roster.sites))
    judges = evaluator_for(roster, grid, plan)
    return ByMessages(
        plan, grid, lambda site: initial_model(plan, task, site), judges, in_pieces=False, roster=roster
    ).run()


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def judged(record) -> list[tuple]:
    return [(e.t, e.common, e.sites["names"], e.sites["per_site"], e.extra) for e in record.evaluations]


def test_every_subject_is_at_one_hospital_and_wants_its_resolution(federation):
    assert [samples.y.shape[1] for samples in federation.train] == [15, 15, 28, 28]
    rows = np.concatenate([samples.x for samples in (*federation.train, *federation.held_out)])
    assert len(np.unique(rows[:, 0])) == len(rows) == 32
    assert len(federation.test) == 0
    assert federation.test_samples == 8


@pytest.mark.thorough
@pytest.mark.parametrize("name", WORKING)
def test_the_cohort_engine_is_the_client_called_site_by_site(federation, name):
    plan = plan_of(name, evaluate_every=1)

    batched, by_messages = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))

    assert (batched.model is None) == (by_messages.model is None) == (name == "Standalone")
    for key, array in (batched.model or {}).items():
        np.testing.assert_allclose(array, by_messages.model[key], rtol=0, atol=1e-10)
    assert (batched.bytes_sent, batched.comm_rounds) == (by_messages.bytes_sent, by_messages.comm_rounds)
    assert [e.t for e in batched.evaluations] == [e.t for e in by_messages.evaluations] == [1, 2, 3]
    for mine, theirs in zip(batched.evaluations, by_messages.evaluations, strict=True):
        assert mine.sites["per_site"]["mae"] == pytest.approx(theirs.sites["per_site"]["mae"], abs=1e-10)
        assert mine.extra.keys() == theirs.extra.keys()
        for site, metrics in mine.extra.get("held_out", {}).items():
            assert metrics == pytest.approx(theirs.extra["held_out"][site], abs=1e-10)


@pytest.mark.slow
@on_ray
def test_ray_gives_the_bits_of_the_engine_in_this_process(federation):
    plan = plan_of("FedDC", evaluate_every=1)

    here, there = run_plan(plan, federation, "inprocess"), run_plan(plan, federation, "ray", options={"cpus": 2})

    assert same(here.model, there.model)
    assert judged(here) == judged(there)


def test_an_evaluation_names_the_sites_own_models_and_no_common_one(federation):
    last = run_plan(plan_of(), federation, "cohort").evaluations[-1]

    assert last.common is None
    assert last.sites["names"] == list(federation.names)
    assert len(last.sites["per_site"]["mae"]) == 4
    assert set(last.extra["held_out"]) == set(federation.names)


class Listening(InProcessGrid):
    """Remembers the names of all arrays that went either way."""

    heard: set[str]

    def send_and_receive(self, messages, *, timeout=None):
        orders = list(messages)
        replies = super().send_and_receive(orders, timeout=timeout)
        for message in (*orders, *replies):
            for record in message.content.array_records.values():
                self.heard |= {name.removeprefix("momentum/") for name in record}
        return replies


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["FedDC", "RepTreeFL", "FedDyn"])
def test_private_layers_are_in_the_sites_memory_and_never_on_the_wire(federation, name):
    plan = plan_of(name)
    give_federation(plan, federation)
    grid = Listening(app, 4)
    grid.heard = set()

    outcome = conduct(plan, grid)

    assert not grid.tracebacks
    assert grid.heard == set(outcome.model)
    assert {key.split(".")[0] for key in grid.heard} == set(OPTIONS["shared"])
    kept = [key for context in grid._contexts.values() for key in context.state.array_records["fedsmall-memory"]]
    assert any("conv3" in key for key in kept)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["FedDC", "FedDyn", "RepTreeFL"])
def test_real_sites_that_restart_at_every_comm_round_give_the_bits_of_a_simulation(
    federation, name, tmp_path, monkeypatch
):
    plan = plan_of(name)
    simulated = run_plan(plan, federation, "inprocess")

    real = conduct(plan, Stations(tmp_path, federation.names, monkeypatch))

    assert not real.events
    assert same(real.model, simulated.model)
    assert judged(real) == judged(simulated)


@pytest.mark.thorough
def test_a_site_that_forgot_its_layers_would_be_judged_otherwise(federation, tmp_path, monkeypatch):
    plan = plan_of()
    grid = Stations(tmp_path, federation.names, monkeypatch)
    whole = conduct(plan, grid).evaluations[-1].sites["per_site"]["mae"]
    monkeypatch.setattr("fedsmall.clients.memory.RoundMemory.read", lambda _: {})

    assert conduct(plan, grid).evaluations[-1].sites["per_site"]["mae"] != whole


def test_sites_that_differ_in_what_they_share_are_found_at_the_roll_call(federation, tmp_path, monkeypatch):
    options = {**OPTIONS, "sites": [SMALL, {**SMALL, "widths": [5, 6]}, LARGE, LARGE]}
    plan = plan_of(model_options=options)

    with pytest.raises(PlanError, match="Sites differ in their signature: 'site-000'"):
        conduct(plan, Stations(tmp_path, federation.names, monkeypatch))


@pytest.mark.thorough
def test_a_tree_of_depth_0_is_plain_averaging_to_the_bit(federation):
    flat = plan_of("RepTreeFL", {"tree": {"depth": 0}})

    records = [run_plan(plan, federation, "inprocess") for plan in (flat, plan_of("FedAvg"))]

    assert same(records[0].model, records[1].model)
    assert judged(records[0]) == judged(records[1])


def test_alone_nothing_is_sent_and_the_numbers_are_others(federation):
    together, alone = (run_plan(plan_of(name), federation, "cohort") for name in ("FedAvg", "Standalone"))

    assert together.bytes_sent > 0 == alone.bytes_sent
    assert together.evaluations[-1].sites["mae_mean"] != alone.evaluations[-1].sites["mae_mean"]


def test_sites_of_one_task_with_heads_of_their_own_are_judged_on_the_common_test_samples():
    heads = [{"name": "mlp", "hidden": [8, width]} for width in (3, 4, 4)]
    options = {"sites": heads, "shared": ["0"]}
    plan = plan_of(task="breast_cancer", sites=3, samples_per_site=8, model_options=options)
    federation = build_federation(plan)

    records = [run_plan(plan, federation, engine) for engine in ("cohort", "inprocess")]

    assert list(records[0].model) == ["0.weight", "0.bias"]
    assert len(records[0].evaluations[-1].sites["per_site"]["accuracy"]) == 3
    for key, array in records[0].model.items():
        np.testing.assert_allclose(array, records[1].model[key], rtol=0, atol=1e-10)


@pytest.mark.thorough
def test_a_run_reports_the_sites_own_models_and_says_so(fedsmall, tmp_path):
    settings = [
        "--set",
        "rounds=2",
        "--set",
        "seeds=[0]",
        "--set",
        "task.subjects=16",
        "--set",
        "task.regions=[6,6,8,8]",
    ]
    sites = json.dumps([SMALL, SMALL, LARGE, LARGE]).replace('":', '"=')

    code, said, complained = fedsmall(
        "run", "mixed_connectomes", *settings, "--set", f"model_options.sites={sites}", "--out", tmp_path / "r"
    )

    assert code == 0, complained
    assert "global model" not in said
    assert "local models, mean absolute error" in said
    assert re.search(
        r"Models trained at a single site reach mean absolute error \S+ on average, the local models of FedDC", said
    )
    page = html.unescape((tmp_path / "r" / "report.html").read_text())
    assert "shared layers, completed with the site's own, on each site's own held-out samples" in page
    assert "The other layers of its model never leave it." in page
    assert "evaluated on 4 test samples" in page


@pytest.mark.thorough
def test_what_needs_one_whole_model_says_so():

    mlp = {"sites": [{"name": "mlp", "hidden": [4, width]} for width in (2, 3)], "shared": ["0"]}
    settings = {"task": "breast_cancer", "sites": 2, "samples_per_site": 4, "rounds": 1, "name": "m"}
    asked = build({**settings, "model": SHARED_PART, "model_options": mlp, "method": [{"name": "FedAvg"}]})

    with pytest.raises(PlanError, match="models of their own here"):
        run(asked, progress=False).model  # noqa: B018
    with pytest.raises(PlanError, match="models of their own; set"):
        search(asked, [0.1])


def test_the_scenario_that_comes_along_can_be_run_as_it_is_written():
    plans = load(ROOT / "sim" / "scenarios" / "mixed_connectomes.toml").plans()

    assert {plan.method.name for plan in plans} >= {"FedAvg", "FedDC", "FedDyn", "RepFL", "RepTreeFL", "Standalone"}
    federation = build_federation(plans[0])
    for plan in plans[:6]:
        check_run(plan, federation)
