"""The site's log is known by its state: what was cut off, written anew or another's shows, and gives nothing back."""

import json
import shutil

import pytest

from fedsmall.audit_log import AuditLog
from fedsmall.clients.site_log import SiteLog
from fedsmall.errors import PolicyError


@pytest.fixture
def log(tmp_path):
    log = SiteLog(tmp_path / "essen", "essen")
    for t in range(1, 6):
        log.write("sent", run="r", t=t)
    return log


def lines(log):
    return log.path.read_bytes().splitlines(keepends=True)


def again(log):
    """As the next process sees it."""
    return SiteLog(log.path.parent, log.name)


def test_every_line_names_site_and_run_and_an_untouched_log_holds(log):
    again(log).write("refused", run="r", reason="no")

    assert {(entry["site"], entry["run"]) for entry in log.entries()} == {("essen", "r")}
    assert again(log).verify()[::2] == (6, None)


@pytest.mark.parametrize("left", [0, 1, 4])
def test_an_end_that_was_cut_off_shows_though_more_is_written_later(log, left):
    log.path.write_bytes(b"".join(lines(log)[:left]))

    assert f"its end was cut off: it had 5 lines and has {left}" in log.verify().fault
    for _ in range(6):
        again(log).write("sent", run="r")
    assert f"after the 5 lines written here came line {left + 1}" in log.verify().fault


def test_a_log_that_was_written_anew_shows(log):
    log.path.unlink()
    forged = AuditLog(log.path)
    for t in range(1, 6):
        forged.write("sent", run="r", t=10 * t, site="essen")

    assert "rewritten" in log.verify().fault
    again(log).write("sent", run="r")
    assert "after the 5 lines written here came line 6" in log.verify().fault


@pytest.mark.parametrize("with_state", [True, False])
def test_another_sites_log_shows(log, tmp_path, with_state):
    other = SiteLog(tmp_path / "bonn", "bonn")
    for t in range(1, 6):
        other.write("sent", run="r", t=t)
    shutil.copy(other.path, log.path)
    if with_state:
        shutil.copy(other.path.with_name("log.state.json"), log.path.with_name("log.state.json"))

    assert "line 1 is another site's" in again(log).verify().fault
    if with_state:
        with pytest.raises(PolicyError, match="another site's"):
            again(log).write("sent", run="r")


def test_a_log_or_a_state_that_is_gone_shows(log):
    log.path.rename(log.path.with_name("kept"))
    assert "the log is gone" in log.verify().fault
    log.path.with_name("kept").rename(log.path)

    log.path.with_name("log.state.json").unlink()

    assert "the state beside the log is gone" in log.verify().fault
    again(log).write("sent", run="r")
    assert [entry["event"] for entry in log.entries()][-2:] == ["adopted", "sent"]


def test_a_crash_between_a_line_and_its_state_is_no_fault(log):
    state = log.path.with_name("log.state.json")
    before = state.read_bytes()
    log.write("sent", run="r", t=6)
    state.write_bytes(before)

    assert again(log).verify().fault is None
    again(log).write("sent", run="r", t=7)
    assert again(log).verify()[::2] == (7, None)


def test_more_lines_than_one_crash_explains_are_anothers(log):
    for _ in range(2):
        AuditLog(log.path).write("sent", run="r", site="essen")

    assert "2 lines were added by another program" in log.verify().fault


@pytest.mark.parametrize("lost", ["log.jsonl", "log.state.json"])
def test_neither_a_cut_log_nor_a_lost_state_gives_the_budget_back(log, lost):
    log.spend(2.0, run="r", t=1)
    log.spend(1.5, run="s", t=1)
    assert log.spent() == (2, 1.5)

    log.path.with_name(lost).unlink()

    assert again(log).spent() == (2, 1.5)
    again(log).spend(3.0, run="s", t=2)
    assert again(log).spent() == (3, 1.5)


def test_a_state_that_nobody_can_read_is_refused(log):
    log.path.with_name("log.state.json").write_text(json.dumps({"site": 3}))

    with pytest.raises(PolicyError, match="state beside this site's log is damaged"):
        again(log).write("sent", run="r")
