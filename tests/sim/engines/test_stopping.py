"""A run that may end early, on every engine: it ends at the same round, and keeps the same model, wherever it runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import log_loss

from fedsmall.clients.client_app import app
from fedsmall.clients.kept import load_kept
from fedsmall.data.federation import Federation, Samples
from fedsmall.package.record import GLOBAL
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN, SITES
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.evaluation import CentralEvaluator
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.sim.engines.run import RunRecord, run_plan
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.handshake import agree_on_task
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.strategies.server.judging import Judging
from fedsmall.strategies.server.run_loop import Outcome
from fedsmall.strategies.server.site_judges import SiteJudges, evaluator_for
from fedsmall.training.trees import cohort_for
from fedsmall.wire import PLAN
from tests.sim.engines.harness import (
    ByMessages,
    assert_alike,
    assert_equal_bits,
    federation_of,
)
from tests.sim.engines.on_ray import on_ray
from tests.sim.engines.plans import STOPPING as CASES
from tests.sim.engines.plans import WILD, patient
from tests.sim.engines.stations import Stations
from tests.sim.engines.test_routes import initial_model, loop_on


def with_noisy_labels(federation: Federation) -> Federation:
    """A quarter of the training labels is turned, so that who trains long learns what is not so."""
    rng = np.random.default_rng(0)
    train = [replace(own, y=np.where(rng.random(len(own)) < 0.25, 1 - own.y, own.y)) for own in federation.train]
    return replace(federation, train=tuple(train))


def ran(plan: Plan, engine: str, federation: Federation | None = None) -> RunRecord:
    data = federation if federation is not None else with_noisy_labels(build_federation(plan))
    return run_plan(plan, data, engine, own_models=True)


@pytest.mark.parametrize("case", ["averages at every communication round", "each alone", "all pooled"])
def test_it_ends_when_patience_is_over_with_what_a_run_of_the_best_length_would_end_with(case: str) -> None:
    plan = CASES[case]
    federation = with_noisy_labels(build_federation(plan))

    record = ran(plan, "cohort", federation)

    losses = {each.t: each.stop["loss"] for each in record.evaluations if each.stop}
    assert record.rounds == record.chosen + 2 * 3 < plan.rounds
    assert losses[record.chosen] == min(losses.values())
    fixed = ran(plan.model_copy(update={"rounds": record.chosen, "stop": None}), "cohort", federation)
    if record.model is not None:
        assert_equal_bits(record.model, fixed.model)
        assert_equal_bits(record.predictions, fixed.predictions)
    for site, model in fixed.own.items():
        assert_equal_bits(record.own[site], model)
    if case == "all pooled":
        assert_equal_bits(record.predictions, fixed.predictions)
    assert record.thresholds == fixed.thresholds


def test_the_loss_is_scikit_learns_on_what_the_sites_keep_back_and_test_samples_have_no_say() -> None:
    plan = CASES["averages at every communication round"]
    federation = with_noisy_labels(build_federation(plan))
    turned = replace(federation, test=Samples(federation.test.x, 1 - federation.test.y))

    record, other = ran(plan, "cohort", federation), ran(plan, "cohort", turned)

    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    apart = federation.pooled().kept_back[0]
    outputs = trainer.predict_at(0, record.model, apart.x, {})
    shares = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    expected = log_loss(apart.y, shares / shares.sum(axis=1, keepdims=True))
    told = {each.t: each.stop for each in record.evaluations}[record.chosen]
    assert told == pytest.approx({"loss": expected, "samples": 15, "sites": 5}, rel=1e-9)
    assert (record.rounds, record.chosen) == (other.rounds, other.chosen)
    assert_equal_bits(record.model, other.model)


def test_what_sites_keep_back_decides_and_nothing_else_of_it_is_in_the_model() -> None:
    plan = CASES["averages at every communication round"]
    federation = with_noisy_labels(build_federation(plan))
    turned = tuple(replace(part, y=1 - part.y) for part in federation.kept_back)

    one, other = (ran(plan, "cohort", data) for data in (federation, replace(federation, kept_back=turned)))

    assert one.chosen != other.chosen
    to_the_end = plan.model_copy(update={"stop": None})
    models = [ran(to_the_end, "cohort", data).model for data in (federation, replace(federation, kept_back=turned))]
    assert_equal_bits(*models)


@pytest.mark.thorough
def test_a_run_that_is_resumed_ends_at_the_same_round_with_the_same_bits(tmp_path: Path) -> None:
    plan = CASES["FedDC, not evaluated when it averages"]
    federation = federation_of(plan)

    def loop(**more: Any) -> ByMessages:
        grid = InProcessGrid(app, len(federation.names))
        made = loop_on(plan, federation, grid, None, **more)
        trainer = cohort_for(plan, federation.task, federation.names, federation.train)
        judges = SiteJudges(made.roster, grid, plan, federation.task)
        on_test = CentralEvaluator(plan, federation, trainer)
        made.evaluator = Judging(plan, federation.task, judges, made.roster.counts, on_test)
        return made

    whole, parts = loop().run(), 0
    while (part := loop(journal=FileJournal(tmp_path), stop=lambda: True).run()).stopped:
        parts += 1

    assert 3 < parts < plan.rounds
    assert_alike(whole, part, atol=0)
    assert_equal_bits(whole.model, part.model)
    assert 0 < whole.chosen == part.chosen
    assert [e.stop for e in whole.evaluations] == [e.stop for e in part.evaluations]
    again = loop(journal=FileJournal(tmp_path)).run()  # it has run dry, so it does not go on
    assert (again.rounds, again.chosen) == (part.rounds, part.chosen)
    assert_equal_bits(again.model, part.model)


# Real sites.


def real(**changes: Any) -> Plan:
    more = {"task": "digits", "sites": 4, "evaluate_every": 2, "rounds": 16, "recipe": WILD}
    return patient("FedDC", {"permute_every": 1, "aggregate_every": 2}, **(more | changes))


def conduct(plan: Plan, grid: Stations) -> Outcome:
    roster = Roster()
    task = agree_on_task(roster, grid, plan)
    grid.agree_on_scaling(plan)
    evaluator = evaluator_for(roster, grid, plan, task)
    loop = ByMessages(
        plan, grid, lambda site: initial_model(plan, task, site), evaluator, in_pieces=False, roster=roster
    )
    outcome = loop.run()
    SiteJudges(roster, grid, plan).let_keep(outcome.chosen or outcome.rounds, outcome.model)
    return outcome


@pytest.mark.thorough
def test_real_sites_end_with_the_bits_of_a_simulation_and_keep_the_model_themselves(tmp_path, monkeypatch) -> None:
    plan = real()
    federation = federation_of(plan)
    simulated = run_plan(plan, federation, "inprocess")

    outcome = conduct(plan, Stations(tmp_path, federation.names, monkeypatch))

    assert not outcome.events
    assert (outcome.rounds, outcome.chosen) == (simulated.rounds, simulated.chosen)
    assert 0 < outcome.chosen < outcome.rounds < plan.rounds
    assert_equal_bits(outcome.model, simulated.model)
    stops = [{each.t: each.stop for each in ran.evaluations if each.stop} for ran in (outcome, simulated)]
    assert stops[0] == stops[1]
    assert set(stops[0][outcome.chosen]) == {"loss", "samples", "sites"}
    runs = list((tmp_path / federation.names[0] / "runs").iterdir())
    stored = load_kept(runs[0], GLOBAL)
    assert_equal_bits(stored.weights, outcome.model)
    assert (stored.package.rounds, stored.package.contacts) == (outcome.chosen, outcome.chosen)


@pytest.mark.thorough
def test_of_what_it_keeps_back_a_site_tells_a_count_and_a_loss_above_the_floor_of_its_policy(
    tmp_path, monkeypatch
) -> None:
    plan = real(rounds=6)
    grid = Stations(tmp_path, federation_of(plan).names, monkeypatch)

    conduct(plan, grid)
    log = (tmp_path / grid.names[0] / "log.jsonl").read_text()
    told = [line for line in log.splitlines() if '"kind":"validate"' in line.replace(" ", "")]
    policy = "least_samples = 1\ncount_floor = 4\nleast_blur = 0\nmost_read = 1000\nleast_batch = 1\nsealed = false\n"
    (tmp_path / "policy.toml").write_text(policy)  # three are kept back
    silent = conduct(plan, grid)

    assert told
    assert all("out-of-fold/loss" in line and "scores" not in line for line in told)
    assert [each.stop for each in silent.evaluations if each.stop] == []
    assert (silent.rounds, silent.chosen) == (6, 0)


def test_a_site_whose_policy_forbids_it_says_so_at_the_roll_call(tmp_path, monkeypatch) -> None:
    plan = real()
    grid = Stations(tmp_path, federation_of(plan).names, monkeypatch, "judge = false\n")

    config = {PLAN: plan.model_dump_json(), RUN: "r", SITES: list(grid.names)}
    words, _ = grid.station("site-000").answer("roll", config, {})

    said = "site-000: the policy here lets no sums over its patients be told (judge); leave stop out"
    assert words == {"error": said}


@on_ray
@pytest.mark.slow
def test_ray_has_the_bits_of_this_process() -> None:
    plan = CASES["averages at every communication round"]

    one, other = (run_plan(plan, federation_of(plan), engine) for engine in ("inprocess", "ray"))

    assert (one.rounds, one.chosen) == (other.rounds, other.chosen)
    assert_equal_bits(one.model, other.model)
    assert [each.stop for each in one.evaluations] == [each.stop for each in other.evaluations]
