"""Who a run waits for: sites that are to be connected first, a hospital that has to say yes, one that has paused."""

import json
import re

import pytest

from fedsmall.clients import consent
from fedsmall.errors import PlanError
from fedsmall.sim.consortium import members, runs
from tests.sim.consortium.desk import NAMES, POLICY, Desk


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def test_a_start_waits_for_its_sites_and_says_how_far_that_is():
    clock, lines = Clock(), []
    since = {"bonn": 0, "essen": 7, "ulm": 20, "kiel": 0}
    online = lambda: {name for name, at in since.items() if clock.now >= at}  # noqa: E731

    runs.wait_for(["ulm", "bonn", "essen"], 60, online, lines.append, clock, clock.sleep)

    assert 20 <= clock.now < 30
    assert lines == [
        "waiting for essen, ulm: 1 of 3 sites are connected",
        "waiting for ulm: 2 of 3 sites are connected",
    ]


def test_a_site_that_does_not_come_is_named_and_nothing_is_started():
    clock = Clock()

    with pytest.raises(PlanError, match=r"essen, ulm did not connect within 5 minutes; nothing was started"):
        runs.wait_for(NAMES, 300, lambda: {"bonn"}, lambda _: None, clock, clock.sleep)

    assert 300 <= clock.now < 310


@pytest.fixture
def desk(tmp_path, monkeypatch):
    return Desk(tmp_path, monkeypatch)


def test_a_run_waits_for_a_yes_and_then_goes_on_to_the_end(desk, monkeypatch):
    (desk.site("essen").kit / "policy.toml").write_text(POLICY + "approve = true\n")
    home, seen = desk.site("essen").home, []

    def somebody_comes(folder, reasons):
        seen.append(dict(reasons))
        if reasons:
            (folder / "waits.json").write_text(json.dumps(reasons))
            assert runs.states(desk.folder)[0][2].endswith(
                "waits for essen: waits for the hospital's approval (there: fedsmall site approve r)"
            )
            consent.decide(home, consent.request_of(home, "r"), yes=True)

    monkeypatch.setattr("tests.sim.consortium.desk.tell_waits", somebody_comes)

    outcome = desk.run("r")

    assert outcome.comm_rounds == 2
    assert seen[0] == {"essen": "essen: waits for the hospital's approval (there: fedsmall site approve r)"}
    assert seen[-1] == {}


def test_a_run_that_a_hospital_refuses_ends_with_its_name(desk, monkeypatch):
    (desk.site("essen").kit / "policy.toml").write_text(POLICY + "approve = true\n")
    home = desk.site("essen").home
    no = lambda folder, reasons: reasons and consent.decide(home, consent.request_of(home, "r"), yes=False)  # noqa: E731
    monkeypatch.setattr("tests.sim.consortium.desk.tell_waits", no)

    with pytest.raises(PlanError, match="essen: the hospital has refused this run"):
        desk.run("r")


def test_a_run_that_failed_without_a_revoked_site_says_that_it_is_revoked(desk):
    home = desk.folder / "runs" / "r"
    home.mkdir(parents=True)
    (home / "sheet.json").write_text(json.dumps({"sites": ["bonn", "ulm"]}))
    (home / "failure.json").write_text(json.dumps({"reason": "bonn, ulm did not connect within 300 s."}))
    members.revoke(desk.folder, "essen")  # takes no part in this run

    assert runs.states(desk.folder)[0][2] == "bonn, ulm did not connect within 300 s."

    members.revoke(desk.folder, "ulm")
    told = "bonn, ulm did not connect within 300 s. (ulm is revoked)"
    assert runs.states(desk.folder)[0][2] == told
    with pytest.raises(RuntimeError, match=f"^{re.escape(told)}$"):
        runs.watch(desk.folder, "r", print)


def test_a_revoked_site_is_chosen_for_no_run_and_the_reason_is_that_it_is_revoked(desk):
    members.revoke(desk.folder, "ulm")

    with pytest.raises(PlanError, match=r"^ulm is revoked\."):
        runs.admitted_sites(desk.folder, ["bonn", "ulm"])
    with pytest.raises(PlanError, match=r"^There is no admitted site 'ulmm'\."):
        runs.admitted_sites(desk.folder, ["ulmm"])


@pytest.mark.thorough
def test_a_paused_hospital_is_silent_in_the_runs_events_with_that_reason(desk):
    consent.pause(desk.site("essen").home)

    outcome = desk.run("r")

    told = [(event["site"], event["reason"]) for event in outcome.events if event["site"] == "essen"]
    assert told
    assert all("paused by the hospital" in reason for _, reason in told)
    assert outcome.model is not None
