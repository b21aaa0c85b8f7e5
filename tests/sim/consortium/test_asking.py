"""What a run asks its sites before it begins: the roll, with the sums, and at most one question more."""

import json
import shutil

import numpy as np
import pytest

from fedsmall.audit_log import AuditLog
from fedsmall.clients.site_log import SiteLog
from fedsmall.errors import PlanError
from fedsmall.planning.run_sheet import CLASSES, RUN, SITES, SUMS, TELL
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.consortium import log_check
from fedsmall.sim.engines.run import run_plan
from fedsmall.wire import PLAN
from tests.sim.consortium.desk import NAMES, Desk, plan_of

BALANCED = {"recipe.class_weights": "balanced"}
UNSCALED = {"task.ranges": "[0, 5000]"}  # public ones, which nobody has to agree on
CASES = {
    "scaled": ({}, ["query", "query.scaling"], ["sums"]),
    "scaled and balanced": (BALANCED, ["query", "query.scaling"], ["classes", "sums"]),
    "balanced alone": (BALANCED | UNSCALED, ["query", "query.scaling"], ["classes"]),
    "neither": (UNSCALED, ["query", "query.scaling"], []),
}


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return Desk(tmp_path, monkeypatch)


def questions(desk, run):
    """What every site was asked in a run before it was sent a model, in order; the same of all."""
    entries = AuditLog(desk.folder / "runs" / run / "log.jsonl").entries()
    asked = [(e["site"], e["kind"]) for e in entries if e["event"] == "order" and e["kind"].startswith("query")]
    each = [[kind for who, kind in asked if who == site] for site in NAMES]
    assert each[0] == each[1] == each[2]
    return each[0]


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_a_run_asks_for_all_in_the_roll_call_and_once_more_for_scaling_and_sketches(desk, case):
    settings, asked, told = CASES[case]
    plan = plan_of(**settings)
    here = plan.model_copy(update={"task": {**plan.task, "csv": str(desk.data["essen"].parent)}})

    model = desk.run("r", plan).model

    assert questions(desk, "r") == asked
    (roll,) = [e for e in SiteLog(desk.site("essen").home, "essen").entries() if e.get("kind") == "roll"]
    assert sorted(roll["arrays"]) == [f"{kind}/{name}" for kind in told for name in ("count", "squares", "total")]
    assert roll["bytes"] == 8 * sum(np.prod(shape, dtype=int) for shape in roll["arrays"].values())
    assert log_check.check_run(desk.folder, "r") == []
    expected = run_plan(here, build_federation(here), "inprocess").model
    assert {name: array.tobytes() for name, array in model.items()} == {n: a.tobytes() for n, a in expected.items()}


def test_a_run_that_is_resumed_asks_for_no_sums_again(desk, monkeypatch):
    desk.run("r", plan_of(**BALANCED))
    before = {name: (desk.folder / "runs" / "r" / f"{name}.json").read_text() for name in ("scaling", "class_weights")}
    shutil.rmtree(desk.folder / "runs" / "r" / "journal")
    asked = []
    answer = Desk.answer

    def listening(self, name, kind, config, arrays):
        asked.append((kind, config.get(TELL)))
        return answer(self, name, kind, config, arrays)

    monkeypatch.setattr(Desk, "answer", listening)
    desk.go_on("r")

    assert [each for each in asked if each[0] in ("roll", "scaling")] == [("roll", None)] * 3 + [("scaling", None)] * 3
    after = {name: (desk.folder / "runs" / "r" / f"{name}.json").read_text() for name in before}
    assert after == before


def config(plan, **more):
    return {PLAN: plan.model_dump_json(), RUN: "r", SITES: list(NAMES), **more}


def test_a_handshake_that_asks_for_no_sums_is_told_none(desk):
    words, arrays = desk.station("essen").answer("roll", config(plan_of()), {})

    assert words["config"]["scaled"] is True
    assert arrays == {}


@pytest.mark.parametrize(
    ("tell", "line"),
    [
        ([CLASSES], "this plan balances no classes; the site tells no counts of them"),
        ([SUMS, CLASSES], "this plan balances no classes"),
        ([SUMS, "medians"], "this site was asked for sums that it does not know"),
        (SUMS, "this site was asked for sums that it does not know"),
    ],
)
def test_sums_that_a_plan_has_no_use_for_are_refused_and_nothing_is_told_or_remembered(desk, tell, line):
    words, arrays = desk.station("essen").answer("roll", config(plan_of(), **{TELL: tell}), {})

    assert line in words["error"]
    assert arrays == {}
    assert not (desk.site("essen").home / "told_sums.json").exists()
    assert [e["event"] for e in SiteLog(desk.site("essen").home, "essen").entries()] == ["refused"]


@pytest.mark.parametrize("odd", ["bonn", "essen"])
def test_the_site_that_lacks_a_column_of_the_others_is_named_with_the_column(desk, odd):
    rows = [line.split(",") for line in desk.data[odd].read_text().splitlines()]
    lacking = rows[0][0]
    desk.data[odd].write_text("\n".join(",".join(row[1:]) for row in rows) + "\n")
    others = "essen" if odd == "bonn" else "bonn"

    with pytest.raises(PlanError) as refused:
        desk.run("r", plan_of())

    assert str(refused.value).startswith(
        f'Sites differ in their task: \'{others}\' has {{"feature_names": ["{lacking}"], '
    )
    assert f"'{odd}' has {{\"feature_names\": [], " in str(refused.value)


def test_a_site_of_another_protocol_that_tells_no_sums_ends_the_run_in_a_line(desk, monkeypatch):
    answer = Desk.answer

    def older(self, name, asked, config, arrays):
        words, told = answer(self, name, asked, config, arrays)
        if asked == "roll" and name == "essen":
            words["config"] |= {"version": "0.1.0", "protocol": 1}
            told = {}
        return words, told

    monkeypatch.setattr(Desk, "answer", older)

    with pytest.raises(PlanError, match=r"Site 'essen' cannot take part: its fedsmall 0\.1\.0 speaks protocol 1"):
        desk.run("r", plan_of(**BALANCED))

    assert not (desk.folder / "runs" / "r" / "scaling.json").exists()


def test_a_site_that_upgrades_before_the_others_takes_part_while_the_protocol_is_the_same(desk, monkeypatch):
    answer = Desk.answer

    def newer(self, name, asked, config, arrays):
        words, told = answer(self, name, asked, config, arrays)
        if asked == "roll" and name == "essen":
            words["config"]["version"] = "0.3.9"
        return words, told

    plain = desk.run("r", plan_of())
    monkeypatch.setattr(Desk, "answer", newer)
    mixed = desk.run("s", plan_of())

    assert all(np.array_equal(mixed.model[name], array) for name, array in plain.model.items())


def test_agreed_weights_are_those_of_all_sites_patients(desk):
    desk.run("r", plan_of(**BALANCED))

    counts = [desk.station(name)._read_samples(plan_of())[0].class_sums().total for name in NAMES]
    shares = np.sum(counts, axis=0) / np.sum(counts)
    told = json.loads((desk.folder / "runs" / "r" / "class_weights.json").read_text())
    assert told == pytest.approx(1 / (2 * shares))
