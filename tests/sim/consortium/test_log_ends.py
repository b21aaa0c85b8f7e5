"""Logs that cannot be cut: an end that is cut off, written anew, swapped or put back is found, and named in a line."""

import json
import shutil

import pytest

from fedsmall.audit_log import AuditLog, verify
from fedsmall.clients.site_log import SiteLog
from fedsmall.ends import Statement, signer
from fedsmall.errors import PlanError
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.consortium import log_check
from fedsmall.sim.engines.run import run_plan
from tests.sim.consortium.desk import NAMES, Desk, plan_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A consortium with one finished run, of which every test gets a copy."""
    folder = tmp_path_factory.mktemp("t")
    with pytest.MonkeyPatch.context() as patch:
        Desk(folder, patch).run("first")
    return folder


@pytest.fixture
def desk(finished, tmp_path, monkeypatch):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return Desk(tmp_path, monkeypatch, new=False)


def entries(path):
    return list(AuditLog(path).entries())


def run_log(desk, run="first"):
    return desk.folder / "runs" / run / "log.jsonl"


def found(desk, site="essen", run="first"):
    """What a comparison of both ends finds, made with the site's log as it is now."""
    name, own = log_check.read_site_log(desk.log_of(site))
    key = (desk.folder / "sites" / f"{site}.pub").read_bytes()
    return name, log_check.between(site, own, entries(run_log(desk, run)), key)


def keep_lines(path, count):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:count]))


def forge(path, change, always=()):
    """Write a log anew, whole and with good digests, after ``change`` has had its way with its lines."""
    lines = change(entries(path))
    path.unlink()
    for line in lines:
        told = {key: value for key, value in line.items() if key not in ("n", "time", "event", "before", "digest")}
        AuditLog(path).write(line["event"], **told)


@pytest.mark.thorough
def test_an_undisturbed_run_has_nothing_to_find_and_the_bits_of_a_simulation(desk):
    plan = plan_of()
    here = plan.model_copy(update={"task": {**plan.task, "csv": str(desk.data["essen"].parent)}})
    model = desk.run("second").model
    expected = run_plan(here, build_federation(here), "inprocess").model

    assert log_check.check_run(desk.folder, "first") == log_check.check_run(desk.folder, "second") == []
    assert [found(desk, site, run) for site in NAMES for run in ("first", "second")] == [
        (site, []) for site in NAMES for _ in range(2)
    ]
    assert {name: array.tobytes() for name, array in model.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }
    for site in NAMES:
        assert {(line["site"], line["run"]) for line in entries(desk.log_of(site))} == {
            (site, "first"),
            (site, "second"),
        }
    assert {line["run"] for line in entries(run_log(desk))} == {"first"}


def test_every_order_shows_the_coordinators_line_and_every_answer_is_signed(desk):
    told = entries(run_log(desk))
    key = (desk.folder / "sites" / "essen.pub").read_bytes()
    signed = [Statement(**line["signed"]) for line in told if line["event"] == "answer" and line["site"] == "essen"]

    assert len(signed) >= 4  # handshake, sums, scaling, training
    assert all(each.is_by(key) for each in signed)
    for each in signed:
        mine, theirs = entries(desk.log_of("essen"))[each.line - 1], told[each.seen - 1]
        assert mine["digest"] == each.head
        assert (mine["seen"], mine["seen_head"]) == (each.seen, each.seen_head)
        assert (theirs["event"], theirs["site"], theirs["digest"]) == ("order", "essen", each.seen_head)
    held = json.loads((desk.folder / "sites" / "heads.json").read_text())
    assert held["essen"]["line"] == len(entries(desk.log_of("essen")))


def other_bytes(lines):
    return [line | ({"sha256": "0" * 64} if line["event"] == "sent" else {}) for line in lines]


SITE_ATTACKS = {
    "cut": (lambda desk, path: keep_lines(path, 3), "essen's log was cut off, or is an older one: it signed line"),
    "written anew": (
        lambda desk, path: forge(path, other_bytes),
        "essen's log was rewritten, or is another's: its line 2 is not the one it signed",
    ),
}


@pytest.mark.parametrize("attack", SITE_ATTACKS)
def test_a_site_log_that_was_cut_or_written_anew_is_found_by_the_coordinators(desk, attack):
    do, line = SITE_ATTACKS[attack]

    do(desk, desk.log_of("essen"))

    _, faults = found(desk)
    assert verify(desk.log_of("essen")).fault is None  # the chain alone holds
    assert len(faults) == 1
    assert line in faults[0]


def test_another_sites_log_in_place_of_the_own_is_found(desk):
    shutil.copy(desk.log_of("bonn"), desk.log_of("essen"))

    name, faults = found(desk)

    assert name == "bonn"
    assert "essen's log was rewritten, or is another's" in faults[0]
    assert "is another site's" in SiteLog(desk.site("essen").home, "essen").verify().fault


@pytest.mark.thorough
@pytest.mark.parametrize("lost", [("log.jsonl",), ("log.jsonl", "log.state.json")])
@pytest.mark.parametrize("older", ["none", "half"])
def test_a_site_whose_log_is_behind_what_it_signed_answers_nothing_and_the_coordinator_sees_it(desk, older, lost):
    home = desk.site("essen").home
    path = home / "log.jsonl"
    whole = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    if older == "none":
        for name in lost:
            (home / name).unlink()
    else:
        keep_lines(path, 3)
        if "log.state.json" in lost:  # as it was then, to the letter
            state = json.loads((home / "log.state.json").read_text())
            state |= {"lines": 3, "head": entries(path)[-1]["digest"]}
            state["guards"] = next(line["guards"] for line in entries(path)[::-1] if "guards" in line)
            (home / "told_held_out.json").unlink()  # told later
            (home / "log.state.json").write_text(json.dumps(state))
            assert SiteLog(home, "essen").verify().fault is None  # nothing at the site can tell
    desk.restart()

    with pytest.raises(PlanError, match=r"essen: this site's log was cut off.* nothing was sent"):
        desk.run("second")

    (fault,) = log_check.check_run(desk.folder, "second")
    assert fault.startswith("essen: this site's log was cut off")
    assert not any(line["run"] == "second" for line in entries(path))
    for name, content in whole.items():
        (home / name).write_bytes(content)
    desk.restart()
    desk.run("third")
    assert log_check.check_run(desk.folder, "third") == []


def test_a_log_that_is_cut_while_the_station_runs_stops_the_site_at_once(desk):
    keep_lines(desk.log_of("essen"), 3)

    with pytest.raises(PlanError, match="essen: this site's log was cut off or replaced: it had"):
        desk.run("second")


def test_a_program_that_does_not_refuse_is_found_by_its_own_signature(desk, monkeypatch):
    """As a hospital might that wants its log shorter: its station has no check, its key signs what it is told."""
    home = desk.site("essen").home
    keep_lines(home / "log.jsonl", 3)
    (home / "log.state.json").unlink()
    desk.restart()
    monkeypatch.setattr("fedsmall.clients.site_request.LoggedAnswers._check_held", lambda *_: None)
    monkeypatch.setattr(SiteLog, "_check_guards", lambda *_: None)

    with pytest.raises(PlanError, match="essen: its log was cut off or put back to an older state: it signed line"):
        desk.run("second")

    (fault,) = log_check.check_run(desk.folder, "second")
    assert fault.startswith("essen: its log was cut off or put back to an older state")


def test_a_log_that_was_grown_again_under_the_same_numbers_is_found_by_what_was_signed_before(desk, monkeypatch):
    shutil.rmtree(desk.site("essen").home)
    (desk.folder / "sites" / "heads.json").unlink()  # and the coordinator has lost what it held
    desk.restart()

    desk.run("second")

    for run in ("first", "second"):
        assert "essen's log was rewritten: it signed another line" in log_check.check_run(desk.folder, run)[0]


COORDINATOR_ATTACKS = {
    "cut": (lambda path: keep_lines(path, 20), "the coordinator's log was cut off: bonn"),
    "its end cut": (
        lambda path: keep_lines(path, max(n for n, e in enumerate(entries(path)) if e["event"] == "answer")),
        "the coordinator's log was cut off: ",
    ),
    "written anew": (lambda path: forge(path, other_bytes_here), "the coordinator's log was rewritten: its line"),
    "without an answer": (
        lambda path: forge(path, lambda lines: [e for e in lines if e["event"] != "answer" or e.get("t") is None]),
        "the coordinator's log was rewritten",
    ),
}


def other_bytes_here(lines):
    return [line | ({"sha256": "0" * 64} if line["event"] == "answer" else {}) for line in lines]


@pytest.mark.parametrize("attack", COORDINATOR_ATTACKS)
def test_a_coordinators_log_that_was_cut_or_written_anew_is_found_at_its_own_desk(desk, attack):
    do, line = COORDINATOR_ATTACKS[attack]

    do(run_log(desk))

    assert verify(run_log(desk)).fault is None
    assert line in log_check.check_run(desk.folder, "first")[0]


@pytest.mark.parametrize("attack", ["cut", "written anew"])
def test_with_what_it_held_thrown_away_too_the_sites_find_it(desk, attack):
    do, line = COORDINATOR_ATTACKS[attack]

    do(run_log(desk))
    (desk.folder / "sites" / "heads.json").unlink()

    assert any(line.replace("bonn", "essen") in fault for fault in found(desk)[1])


def test_an_answer_that_the_site_did_not_sign_is_set_aside(desk, monkeypatch, tmp_path):
    other = signer(desk.site("bonn").key)
    monkeypatch.setattr("tests.sim.consortium.desk.signer", lambda path: other)

    with pytest.raises(PlanError, match="essen, ulm: where its log stands is not signed with its key"):
        desk.run("second")

    assert any("is not signed with its key" in fault for fault in log_check.check_run(desk.folder, "second"))


def test_a_statement_that_the_site_never_made_does_not_stop_it_unsaid(desk):
    held = desk.folder / "sites" / "heads.json"
    told = json.loads(held.read_text())
    told["essen"]["line"] += 5
    held.write_text(json.dumps(told))

    with pytest.raises(PlanError, match="essen: the order holds a line of this site's log that this site never signed"):
        desk.run("second")


def test_the_budget_is_not_given_back_by_putting_log_and_ledger_back_together(tmp_path, monkeypatch):
    desk = Desk(tmp_path, monkeypatch)
    for name in NAMES:
        (desk.site(name).kit / "policy.toml").write_text("budget = 9.0\n")
    home = desk.site("essen").home
    plan = plan_of(**{"method.0.privacy": "{clip = 1.0, noise = 2.0}", "task.ranges": [0, 5000]})
    desk.run("first", plan_of(rounds=1, **{"method.0.privacy": "{clip = 1.0, noise = 2.0}", "task.ranges": [0, 5000]}))
    before = {name: (home / name).read_bytes() for name in ("log.jsonl", "log.state.json")}
    desk.run("second", plan)
    for name, content in before.items():
        (home / name).write_bytes(content)
    desk.restart()
    assert SiteLog(home, "essen").spent()[0] == 1  # given back, as far as the site can tell

    with pytest.raises(PlanError, match="put back to an older state: this site has signed line"):
        desk.run("third", plan)


def test_a_guard_that_is_gone_is_seen_at_both_ends(desk):
    (desk.site("essen").home / "told_sums.json").unlink()

    with pytest.raises(
        PlanError, match=r"essen: told_sums.json, by which this site tells no sums twice, is gone\. Put it"
    ):
        desk.run("second")

    (fault,) = log_check.check_run(desk.folder, "second")
    assert fault.startswith("essen: told_sums.json, by which this site tells no sums twice, is gone")
    assert SiteLog(desk.site("essen").home, "essen").verify().fault in fault


def test_a_whole_home_that_was_put_back_is_older_than_what_others_hold(desk, tmp_path):
    """Guards, log, ledger and keys are as they were then to the letter; nothing at the site can tell."""
    home = desk.site("essen").home
    shutil.copytree(home, tmp_path / "copy")
    desk.run("second")
    shutil.rmtree(home)
    shutil.copytree(tmp_path / "copy", home)
    desk.restart()
    assert SiteLog(home, "essen").verify().fault is None

    with pytest.raises(PlanError, match="essen: this site's log was cut off, replaced or put back to an older state"):
        desk.run("third")

    (fault,) = log_check.check_run(desk.folder, "third")
    assert fault.startswith("essen: this site's log was cut off, replaced or put back to an older state")
    assert not any(entry["run"] == "third" for entry in entries(desk.log_of("essen")))


def test_a_home_that_is_gone_begins_no_second_log(desk):
    shutil.rmtree(desk.site("essen").home)
    desk.restart()

    with pytest.raises(PlanError, match="put back to an older state: this site has signed line"):
        desk.run("second")
