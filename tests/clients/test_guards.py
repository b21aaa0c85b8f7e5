"""What a site has told of whom is guarded by its signed log: a guard that is gone, older or changed stops the site."""

import json
import shutil

import numpy as np
import pytest

from fedsmall.audit_log import AuditLog
from fedsmall.clients import site_log
from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.site_log import SiteLog
from fedsmall.clients.telling import TOLD_HELD_OUT, TOLD_PATIENTS, TOLD_SUMS, Guard, rows_to_tell
from fedsmall.data.federation import Samples
from fedsmall.planning.run_sheet import SUMS, TELL
from fedsmall.wire import BROKEN
from tests import only_quick
from tests.clients.test_data_process import config, files, plan, station

__all__ = ["files", "station"]
FILES = (TOLD_HELD_OUT, TOLD_PATIENTS, TOLD_SUMS)
GROWTH = 40  # rows that come between two states of a table: enough that new sums are told


def tell(station):
    """Let all three guards remember the table as it is, the sums through the station's own door."""
    words, sums = station.answer("roll", config(plan(), f"r{len(station.log.entries())}", **{TELL: [SUMS]}), {})
    x = np.loadtxt(station.data, delimiter=",", skiprows=1, usecols=range(3))
    for file in (TOLD_HELD_OUT, TOLD_PATIENTS):
        rows_to_tell(Guard(station.home / file, station.log, "r"), Samples(x, x[:, 0] > 0), 8)
    return words, sums


def add_rows(station, count):
    """As many patients more, whose values nobody else has."""
    head, *rows = station.data.read_text().splitlines()
    *_, label = head.split(",")
    assert label == "diagnosis"
    new = [",".join([*(f"{len(rows) + k + j / 64:.6f}" for j in range(30)), "benign"]) for k in range(count)]
    station.data.write_text("\n".join([head, *rows, *new]) + "\n")


def started_again(station):
    return DataProcess(station.name, station.data, station.home, station.policy_file)


@pytest.fixture
def guarded(station):
    """A station that has told of two states of its table, and copies of its guards after the first."""
    tell(station)
    copies = {file: (station.home / file).read_bytes() for file in FILES}
    add_rows(station, GROWTH)
    tell(station)
    station.copies = copies
    return station


def is_refused(station, file, what):
    """Whether the next order is refused in a line, with nothing written, and a check of the log finds the same."""
    lines = station.log.path.read_bytes()
    words, sums = station.answer("roll", config(plan(), "next", **{TELL: [SUMS]}), {})
    line = f"{file}, by which this site tells no sums twice, {what}"
    assert words["error"].startswith(f"essen: {line}. Put it back from a copy"), words
    assert (words["code"], sums, len(words["error"]) < 300) == (BROKEN, {}, True)
    return station.log.path.read_bytes() == lines and SiteLog(station.home, "essen").verify().fault == line


def change_key(path):
    known = json.loads(path.read_text())
    path.write_text(json.dumps(known | {"key": "0" * 32}))


def forget_all_but_the_key(path):
    known = json.loads(path.read_text())
    path.write_text(json.dumps({"key": known["key"], "features": {}, "patients": None}))


ATTACKS = {
    "deleted": (lambda station, path: path.unlink(), "is gone"),
    "put back": (
        lambda station, path: path.write_bytes(station.copies[path.name]),
        "is not the one that the log tells",
    ),
    "swapped": (
        lambda station, path: shutil.copy(station.home / FILES[FILES.index(path.name) - 1], path),
        "is not the one that the log tells",
    ),
    "emptied": (lambda station, path: path.write_bytes(b""), "is not the one that the log tells"),
    "with another key": (lambda station, path: change_key(path), "is not the one that the log tells"),
    "forgetful": (lambda station, path: forget_all_but_the_key(path), "is not the one that the log tells"),
}


@pytest.mark.parametrize("again", [False, True], ids=["running", "started again"])
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("attack", only_quick(["emptied", "forgetful"], ATTACKS))
def test_a_guard_that_is_not_the_last_one_stops_the_site_until_it_is_back(guarded, attack, file, again):
    do, what = ATTACKS[attack]
    path = guarded.home / file
    whole = path.read_bytes()

    do(guarded, path)
    station = started_again(guarded) if again else guarded

    assert is_refused(station, file, f"{what} of" if "log tells" in what else what)
    path.write_bytes(whole)
    words, _ = station.answer("roll", config(plan(), "after"), {})
    assert "error" not in words
    assert SiteLog(station.home, "essen").verify().fault is None


def test_no_earlier_state_of_a_guard_is_taken_however_old(station):
    states = []
    for _ in range(4):
        tell(station)
        states.append((station.home / TOLD_SUMS).read_bytes())
        add_rows(station, GROWTH)

    assert len(set(states)) == 4
    for state in states[:-1]:
        (station.home / TOLD_SUMS).write_bytes(state)
        assert is_refused(started_again(station), TOLD_SUMS, "is not the one that the log tells of")


@pytest.mark.parametrize("looks", [True, False], ids=["as it is", "undefended"])
@pytest.mark.parametrize("way", ["deleted", "put back"])
def test_one_patient_more_does_not_follow_by_subtraction(station, way, looks, monkeypatch):
    """The server asks for a table before and after one patient came; that one is the difference, if nobody looks."""
    if not looks:
        monkeypatch.setattr(SiteLog, "_check_guards", lambda *_: None)
    whole = plan().model_copy(update={"test": 0.001})  # so that none is held out
    first = station.home / TOLD_SUMS
    _, before = station.answer("roll", config(whole, "first", **{TELL: [SUMS]}), {})
    add_rows(station, 1)
    _, withheld = station.answer("roll", config(whole, "second", **{TELL: [SUMS]}), {})
    assert all(withheld[name].tobytes() == before[name].tobytes() for name in before)
    first.unlink() if way == "deleted" else first.write_text(json.dumps({"key": "0" * 32, "features": {}}))

    words, after = started_again(station).answer("roll", config(whole, "third", **{TELL: [SUMS]}), {})

    if looks:
        assert "by which this site tells no sums twice" in words["error"]
        assert after == {}
    else:
        patient = [float(value) for value in station.data.read_text().splitlines()[-1].split(",")[:-1]]
        assert (after["sums/total"] - before["sums/total"]).tolist() == pytest.approx(patient, rel=1e-9)


def test_a_guard_that_was_planted_is_none(station):
    station.answer("roll", config(plan()), {})
    (station.home / TOLD_PATIENTS).write_text(json.dumps({"key": "0" * 32, "patients": None}))

    assert is_refused(station, TOLD_PATIENTS, "is not the one that the log tells of")


def test_telling_the_same_again_adds_no_line(station):
    tell(station)
    told = [entry for entry in station.log.entries() if entry["event"] == "told"]
    tell(station)

    assert [entry for entry in station.log.entries() if entry["event"] == "told"] == told
    assert [entry["reason"] for entry in told] == [TOLD_SUMS, TOLD_HELD_OUT, TOLD_PATIENTS]


def test_a_crash_before_the_line_leaves_the_old_guard_and_one_after_it_the_new(guarded, monkeypatch):
    before = (guarded.home / TOLD_SUMS).read_bytes()
    add_rows(guarded, GROWTH)
    with monkeypatch.context() as patch:
        patch.setattr(AuditLog, "write", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tell(guarded)
    assert (guarded.home / TOLD_SUMS).read_bytes() == before
    assert SiteLog(guarded.home, "essen").verify().fault is None

    with monkeypatch.context() as patch:
        patch.setattr(SiteLog, "guard", _without_its_last_step)
        tell(started_again(guarded))
    assert (guarded.home / TOLD_SUMS).read_bytes() == before
    assert SiteLog(guarded.home, "essen").verify().fault is None  # it lies beside its place

    words, _ = tell(started_again(guarded))

    assert "error" not in words
    assert (guarded.home / TOLD_SUMS).read_bytes() != before
    (guarded.home / TOLD_SUMS).write_bytes(before)
    assert is_refused(started_again(guarded), TOLD_SUMS, "is not the one that the log tells of")


def _without_its_last_step(log, path, content, *, run):
    """Everything that guards a file but for its move into place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pathlib.Path.replace", lambda *_: None)
        guard(log, path, content, run=run)


guard = SiteLog.guard


def test_a_home_of_an_older_release_is_guarded_from_its_next_line_on(guarded):
    log, state = guarded.home / "log.jsonl", guarded.home / "log.state.json"
    old = [e for e in guarded.log.entries() if e["event"] != "told"]
    log.unlink()
    for entry in old:
        own = ("n", "time", "event", "before", "digest", "guards")
        last = AuditLog(log).write(entry["event"], **{k: v for k, v in entry.items() if k not in own})
    kept = json.loads(state.read_text()) | {"lines": last["n"], "head": last["digest"]}
    state.write_text(json.dumps({key: value for key, value in kept.items() if key != "guards"}))

    words, _ = started_again(guarded).answer("roll", config(plan(), "new"), {})

    assert "error" not in words
    assert sorted(AuditLog(log).entries().__next__().keys() & {"guards"}) == []
    assert set([*AuditLog(log).entries()][-1]["guards"]) == set(FILES)
    (guarded.home / TOLD_SUMS).unlink()
    assert is_refused(started_again(guarded), TOLD_SUMS, "is gone")


@pytest.mark.parametrize("change", [{"releases": 0}, {"noise": 9.0}, {"charges": []}])
def test_a_ledger_that_its_lines_do_not_add_up_to_is_found(tmp_path, change):
    from fedsmall.privacy.patient_level import Charge

    log = SiteLog(tmp_path, "essen")
    log.spend(2.0, run="r", t=1)
    log.charge(Charge(0.1, 2.0, 5), run="r", t=1)
    assert log.verify().fault is None
    state = tmp_path / "log.state.json"

    state.write_text(json.dumps(json.loads(state.read_text()) | change))

    assert (
        SiteLog(tmp_path, "essen").verify().fault
        == "the ledger in the state beside it is not the one that its lines add up to"
    )
    assert SiteLog(tmp_path, "essen").spent() == (1, 2.0)
    assert SiteLog(tmp_path, "essen").charges() == (("r", Charge(0.1, 2.0, 5)),)


def test_the_names_of_the_guards_are_those_that_the_log_looks_for():
    assert all(site_log.Path(file).match(site_log.GUARDS) for file in FILES)
