"""Under secure sums nobody is told what one site says of its samples, or of a model: all are told together."""

import html
import json

import numpy as np
import pytest

from fedsmall.clients.runs import scaling_of
from fedsmall.errors import PlanError
from fedsmall.evaluation.site_sums import metrics_of_sums, sums_from_json
from fedsmall.sealing.tallies import TOGETHER, evaluation_tally, flat, judged_shapes, metrics_of_tally
from fedsmall.sealing.terms import BEFORE, OF
from fedsmall.sim.consortium.finished import write_run
from fedsmall.sim.report.html import page
from fedsmall.sim.report.real_sites import real_runs
from fedsmall.sim.runs.folder import read as read_run
from fedsmall.strategies.server.deployment import write_outcome
from fedsmall.wire import CONFIG, VALIDATE, split_vector
from tests.sim.engines.harness import assert_equal_bits, federation_of
from tests.sim.sealing.federation import (
    BOTH,
    TABLES,
    Federation,
    conducted,
    drawn,
    plan_of,
    run,
    simulated,
    with_tables,
)

pytestmark = pytest.mark.slow

SECURE = {"secure": True}
CLEAR = {"blur": 0}
AVERAGE = {"aggregate_every": 2}
BALANCED = {"recipe": {"lr": 0.1, "batch": 4, "class_weights": "balanced"}}
STOP = {"stop": {"patience": 2, "hold_out": 0.3}, "rounds": 12, "evaluate_every": 2}
PATIENCE = {"round_deadline_s": 10.0}


def evaluated(folder, monkeypatch, sites, privacy, **more):
    folder.mkdir(exist_ok=True)
    federation = with_tables(Federation(folder, sites, monkeypatch))
    plan = plan_of("FedAvg", None, privacy, method=AVERAGE, **TABLES, **more)
    return federation, run(federation, plan)


@pytest.mark.parametrize("sites", [3, 5])
def test_all_are_told_together_what_each_tells_in_the_clear(tmp_path, monkeypatch, sites):
    _, hidden = evaluated(tmp_path / "hidden", monkeypatch, sites, SECURE, evaluate_every=2)
    _, clear = evaluated(tmp_path / "clear", monkeypatch, sites, CLEAR, evaluate_every=2)

    assert [each.t for each in hidden.evaluations] == [each.t for each in clear.evaluations] == [2, 4, 6]
    # exact sums of models in place of float32's: the two runs' models differ by rounding
    for mine, theirs in zip(hidden.evaluations, clear.evaluations, strict=True):
        assert mine.common.keys() == theirs.common.keys()
        assert mine.common == pytest.approx(theirs.common, abs=1e-4)
        assert set(mine.told) == {TOGETHER}
        assert mine.extra == {}
        assert mine.sites == {}
    last, every = hidden.evaluations[-1].told[TOGETHER], clear.evaluations[-1].told
    assert last["sites"] == len(every) == sites
    assert last["samples"] == sum(each["samples"] for each in every.values())
    mine = metrics_of_sums(sums_from_json(last["sums"]), _task(hidden))
    both = {
        name: np.sum([sums_from_json(each["sums"])[name] for each in every.values()], axis=0) for name in last["sums"]
    }
    assert mine == pytest.approx(metrics_of_sums(both, _task(clear)), abs=1e-4)
    assert all(TOGETHER not in each.told or "sums" not in each.told[TOGETHER] for each in hidden.evaluations[:-1])


def _task(outcome):
    return federation_of(plan_of()).task


def test_what_no_answer_of_a_secure_run_holds(tmp_path, monkeypatch):
    federation, outcome = evaluated(tmp_path, monkeypatch, 3, SECURE, **BALANCED)

    told = [(order, reply) for _, order, reply in federation.passed if not reply.has_error()]
    judged_by = [reply for order, reply in told if order.metadata.message_type == "evaluate"]
    assert len(judged_by) == 3
    for _, reply in told:
        assert not {"sums", "classes", "held-out"} & set(reply.content)
    for reply in judged_by:
        assert dict(reply.content.metric_records.get("metrics", {})) == {}
        assert set(reply.content.array_records) == {"tally", "seeds"}
    assert outcome.evaluations[-1].common


@pytest.mark.parametrize("more", [{}, BALANCED, STOP, {**BALANCED, **STOP}], ids=["scaled", "weights", "stop", "both"])
@pytest.mark.parametrize("sites", [3, 5])
def test_sums_under_masks_change_no_bit(tmp_path, monkeypatch, sites, more):
    federation = Federation(tmp_path, sites, monkeypatch)
    outcome = run(federation, plan_of("FedDC", sites, BOTH, method={"permute_every": 1, "aggregate_every": 2}, **more))

    other = simulated(federation)
    assert outcome.events == []
    assert_equal_bits(outcome.model, other.model)
    assert (outcome.chosen, outcome.rounds) == (other.chosen, other.rounds)
    assert [each.stop for each in outcome.evaluations if each.stop] == [e.stop for e in other.evaluations if e.stop]


def test_weights_that_were_agreed_on_are_in_the_plan_of_every_order(tmp_path, monkeypatch):
    federation, _ = evaluated(tmp_path, monkeypatch, 3, SECURE, **BALANCED)

    weights = drawn(federation).recipe.class_weights
    told = json.loads((tmp_path / "server" / "trial" / "class_weights.json").read_text())
    assert weights == pytest.approx(told)
    assert weights != "balanced"


def test_sites_scale_by_the_sum_that_nobody_saw(tmp_path, monkeypatch):
    federation, _ = evaluated(tmp_path, monkeypatch, 3, SECURE)

    kept = [scaling_of(next((tmp_path / name / "runs").iterdir())) for name in federation.names]
    agreed = json.loads((tmp_path / "server" / "trial" / "scaling.json").read_text())
    assert all(each.mean.tolist() == agreed["mean"] and each.scale.tolist() == agreed["scale"] for each in kept)


def lost(kind, *sites, of=""):
    """A network that loses a kind of question to these sites."""

    def change(at, order):
        named = order.content.config_records[CONFIG].get(OF, "") == of
        return None if at in sites and named and order.metadata.message_type == kind else order

    return change


def test_a_silent_site_is_left_out_of_what_all_say(tmp_path, monkeypatch):
    federation = with_tables(Federation(tmp_path, 5, monkeypatch, change=lost("evaluate", "site-001")))
    outcome = run(federation, plan_of("FedAvg", None, SECURE, method=AVERAGE, **TABLES), **PATIENCE)

    assert outcome.evaluations[-1].told[TOGETHER]["sites"] == 4
    assert [(event["site"], event["kind"]) for event in outcome.events] == [("site-001", "set aside")]


def test_decryptors_that_are_silent_cost_the_evaluation_and_nothing_else(tmp_path, monkeypatch):
    change = lost("query.help", "site-001", "site-002", of="evaluate")
    federation = Federation(tmp_path, 3, monkeypatch, change=change)
    outcome = run(federation, plan_of("FedAvg", 3, SECURE, method=AVERAGE), **PATIENCE)

    assert outcome.evaluations == []
    assert [e["reason"] for e in outcome.events] == [
        "what sites tell (evaluate) stays closed: the sum of round 6 stays closed, for 1 of 3 decryptors answer, and "
        "it takes 2; site-001 does not help: no answer before the deadline. `fedsmall resume` goes on when it does"
    ]
    assert_equal_bits(outcome.model, simulated(federation).model)


def test_two_sites_that_tell_are_too_few(tmp_path, monkeypatch):
    federation = Federation(tmp_path, 3, monkeypatch, change=lost("evaluate", "site-001"))
    outcome = run(federation, plan_of("FedAvg", 3, SECURE, method=AVERAGE), **PATIENCE)

    assert outcome.evaluations == []
    assert outcome.events[-1]["reason"] == (
        "what sites tell (evaluate) stays closed: 2 sites tell, and a sum of fewer than 3 is opened by nobody"
    )


def test_a_run_does_not_begin_without_the_sums_of_a_site(tmp_path, monkeypatch):
    federation = Federation(tmp_path, 5, monkeypatch, change=lost(f"query.{BEFORE}", "site-003"))

    with pytest.raises(PlanError, match=r"Not every site takes part\. site-003 told no sums\. .*no answer before"):
        run(federation, plan_of("FedAvg", 5, SECURE, method=AVERAGE), start_deadline_s=10.0, **PATIENCE)


def test_a_run_goes_on_from_where_its_sums_were_agreed_on(tmp_path, monkeypatch):
    federation = Federation(tmp_path, 3, monkeypatch, change=lost("query.help", "site-001", "site-002", of="sums"))
    plan = plan_of("FedAvg", 3, SECURE, method=AVERAGE, **BALANCED)
    with pytest.raises(
        RuntimeError, match="round 0 stays closed, for 1 of 3 decryptors answer, and it takes 2; site-001 does not help"
    ):
        run(federation, plan, start_deadline_s=10.0, **PATIENCE)
    federation.change = None

    outcome = run(federation, plan)
    assert_equal_bits(outcome.model, simulated(federation).model)
    assert run(federation, plan).evaluations == outcome.evaluations  # from its journal
    asked = [order.metadata.message_type for _, order, _ in federation.passed]
    assert asked.count(f"query.{BEFORE}") == 6


@pytest.mark.parametrize("held_out", [True, False])
def test_a_tally_keeps_what_a_site_says(held_out):
    task, rng = federation_of(plan_of()).task, np.random.default_rng(0)
    said = {"num-examples": 4, "accuracy": 0.5, "loss": float("nan")} if held_out else {"num-examples": 0}
    shapes = judged_shapes(task)

    vector = flat(evaluation_tally(task, said, {}), shapes)
    metrics, sums = metrics_of_tally(task, split_vector(vector, shapes))

    assert metrics == ({"accuracy": 0.5} if held_out else {})
    assert sums == {}
    values = rng.normal(size=vector.shape)
    assert flat(split_vector(values, shapes), shapes).tolist() == values.tolist()


def test_flat_refuses_another_shape():
    with pytest.raises(ValueError, match="'a' is of shape"):
        flat({"a": np.zeros(2)}, {"a": (3,)})


def test_samples_that_models_never_saw_are_told_together(tmp_path, monkeypatch):
    federation, outcome = evaluated(tmp_path, monkeypatch, 3, SECURE, **STOP)

    kinds = [reply for _, order, reply in federation.passed if order.metadata.message_type == f"evaluate.{VALIDATE}"]
    assert kinds
    assert all(set(reply.content.array_records) == {"tally", "seeds"} for reply in kinds)
    assert all(each.stop["sites"] == 3 for each in outcome.evaluations if each.stop)


@pytest.mark.parametrize("privacy", [SECURE, CLEAR], ids=["secure", "clear"])
def test_the_page_of_a_secure_run_knows_all_hospitals_and_no_single_one(tmp_path, monkeypatch, privacy):
    federation = with_tables(Federation(tmp_path, 3, monkeypatch))
    plan = plan_of("FedAvg", None, privacy, method=AVERAGE, **TABLES)
    home, outcome, met = conducted(federation, plan)
    write_outcome(home, plan, outcome, met, write_run)

    shown = read_run(home)
    text, (one,), (here,) = html.unescape(page([shown], "t")), shown.done, real_runs(shown)

    hidden = privacy is SECURE
    assert bool(here.judged.get("hidden")) is hidden
    assert [at.site for at in here.homes] == ([] if hidden else list(federation.names))
    assert here.silent == []
    assert shown.about["test_samples"] == here.together["count"] == 143
    assert one.row["common"]["accuracy"] == pytest.approx(np.trace(np.array(here.together["called"])) / 143)
    assert "143 samples of 3 hospitals" in text
    assert ("nobody outside it knows its share" in text) is hidden
    assert ("No interval over hospitals: it takes each one's own sums." in text) is hidden
    assert ("Hospital by hospital" in text) is not hidden
    assert {site["held_out"] for site in one.row["real"]["sites"].values()} == ({None} if hidden else {47, 48})


def test_what_all_sites_refuse_is_said_once_with_their_names(tmp_path, monkeypatch):
    federation = Federation(tmp_path, 3, monkeypatch, policy="most_rounds = 2\n")
    federation.change = lambda site, order: None if site == "site-001" else order

    with pytest.raises(PlanError) as refused:
        run(federation, plan_of(), round_deadline_s=1)

    assert str(refused.value) == (
        "Not every site takes part. site-000, site-002: the plan has 6 rounds; the policy here allows 2 (most_rounds); "
        "site-001: no answer within 1 s"
    )
