"""Which runs the server's keeper takes up again, and that an expired site changes what it goes by."""

import fcntl
import os
import time
from contextlib import nullcontext
from datetime import timedelta

import pytest

from fedsmall.audit_log import AuditLog
from fedsmall.errors import PlanError
from fedsmall.sim.consortium import keeper, keys, members, runs, server


@pytest.fixture
def folder(tmp_path):
    members.create(tmp_path / "c", "rhine", "localhost", 8443, listen="127.0.0.1", inner_port=18443, days=90)
    return tmp_path / "c"


def begin(folder):
    """As a supervisor writes down a SuperLink that it has started."""
    server.process_folder(folder).mkdir(parents=True, exist_ok=True)
    (server.process_folder(folder) / "superlink.pid").write_text("7 1.0")


def run_of(folder, name, *events, left=("flower.json",)):
    home = folder / "runs" / name
    home.mkdir()
    for event in events:
        AuditLog(home / "log.jsonl").write(event)
    for file in left:
        (home / file).write_text("{}")


def test_only_runs_that_were_under_way_are_taken_up_again(folder):
    launched, stopped = runs.LAUNCHED, runs.STOPPED
    run_of(folder, "under-way", "prepared", launched, "order", "answer")
    run_of(folder, "resumed", launched, stopped, launched)
    run_of(folder, "stopped", launched, stopped, "answer")
    run_of(folder, "prepared", "prepared", left=())
    run_of(folder, "finished", launched, left=("flower.json", "outcome.json"))
    run_of(folder, "failed", launched, left=("flower.json", "failure.json"))

    begin(folder)

    assert keeper.interrupted(folder) == ["resumed", "under-way"]


def test_a_run_that_was_launched_since_the_server_began_is_not_taken_up(folder):
    """A coordinator may start a run before the keeper has first looked: it would be stopped, and begun anew."""
    begin(folder)
    time.sleep(0.02)  # a log tells milliseconds
    run_of(folder, "new", runs.LAUNCHED)

    assert keeper.interrupted(folder) == []


def test_a_run_that_is_stopped_while_the_server_is_down_goes_on_no_more(folder):
    run_of(folder, "long", "prepared", runs.LAUNCHED, left=("flower.json", "sheet.json"))
    (folder / "runs" / "long" / "sheet.json").write_text('{"run": "long"}')

    runs.stop(folder, "long", print)
    begin(folder)

    assert keeper.interrupted(folder) == []
    with pytest.raises(PlanError, match="'long' does not run now"):
        runs.stop(folder, "long", print)


@pytest.mark.parametrize("durable", [False, True])
def test_a_server_that_was_started_again_takes_up_what_was_under_way_once(folder, monkeypatch, durable):
    """Without a SuperLink, which is stood for: it is there, and knows its sites."""
    run_of(folder, "long", runs.LAUNCHED)
    run_of(folder, "stopped", runs.LAUNCHED, runs.STOPPED)
    run_of(folder, "failed", runs.LAUNCHED, left=("flower.json", "failure.json"))
    monkeypatch.setattr(server, "is_up", lambda _: True)
    monkeypatch.setattr(server, "register", lambda *_: None)
    resumed = []
    monkeypatch.setattr(runs, "resume", lambda _, run, *more: resumed.append(run))
    server.note(folder, server.state(folder) | {server.STARTED: True})  # as `server up` does at its end

    keeper.look(folder, durable)
    keeper.look(folder, durable)

    assert resumed == ["long"]


def test_an_expiry_and_another_superlink_are_seen(folder, tmp_path):
    keys.new_site_key(tmp_path / "essen.key")
    members.add_site(folder, "essen", tmp_path / "essen.key.pub", days=30)
    first = server.state(folder)
    server.note(folder, first)

    record = members.load(folder)
    gone = record.members["essen"].model_copy(update={"expires": members.today() - timedelta(days=1)})
    members.save(folder, record.model_copy(update={"members": {"essen": gone}}))
    (server.process_folder(folder)).mkdir(parents=True)
    (server.process_folder(folder) / "superlink.pid").write_text("7 1.0")

    assert keeper._seen(folder) == first == {"superlink": "", "standing": {"essen": "admitted"}}
    assert server.state(folder) == {"superlink": "7 1.0", "standing": {"essen": "expired"}}


def test_a_server_that_is_still_being_started_is_left_to_whoever_starts_it(folder, monkeypatch):
    monkeypatch.setattr(server, "register", lambda *_: pytest.fail("nothing is to be done yet"))

    keeper.look(folder, durable=False)


def aged(folder, name, seconds):
    log = folder / "runs" / name / "log.jsonl"
    os.utime(log, (time.time() - seconds,) * 2)


@pytest.mark.parametrize(
    ("events", "waits"),
    [
        ([runs.LAUNCHED], 90),  # before anybody has answered
        ([runs.LAUNCHED, "order", "answer"], 90),
        ([runs.LAUNCHED, "answer", runs.DIED, runs.LAUNCHED], 180),
        ([runs.LAUNCHED, "answer", runs.DIED], 180),  # it could not even be launched
        ([runs.LAUNCHED, "answer", *[runs.DIED, runs.LAUNCHED] * 4], 90 * 16),
        ([runs.LAUNCHED, runs.DIED] * 40, 3600),
        ([runs.LAUNCHED, runs.DIED] * 5 + ["order", "answer", "order"], 90),  # it came on
        ([runs.LAUNCHED, "answer", runs.STOPPED], None),
        (["prepared"], None),
    ],
)
def test_a_run_without_a_server_app_is_taken_up_again_after_ever_longer_waits(folder, events, waits):
    run_of(folder, "r", *events)
    for seconds in (0, 80, 91, 170, 181, 1430, 1441, 3590, 3601, 10**6):
        aged(folder, "r", seconds)
        assert keeper.died_runs(folder) == (["r"] if waits is not None and seconds > waits else [])


def test_a_run_that_has_ended_or_is_conducted_is_left_alone(folder):
    for name, left in (("over", "outcome.json"), ("failed", "failure.json"), ("alive", "lock"), ("dead", "lock")):
        run_of(folder, name, runs.LAUNCHED, left=("flower.json", left))
        aged(folder, name, 1000)
    with (folder / "runs" / "alive" / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert keeper.died_runs(folder) == ["dead"]
    assert keeper.died_runs(folder) == ["alive", "dead"]


def test_the_keeper_resumes_it_once_and_not_where_the_server_is_down(folder, monkeypatch):
    run_of(folder, "r", runs.LAUNCHED, left=("flower.json", "sheet.json"))
    (folder / "runs" / "r" / "sheet.json").write_text('{"run": "r"}')
    aged(folder, "r", 1000)
    resumed, up = [], [False, True, True]

    def resume(_, run, *more):
        resumed.append(run)
        raise RuntimeError("Flower does not answer")

    monkeypatch.setattr(server, "is_up", lambda _: up.pop(0))
    monkeypatch.setattr(server, "register", lambda *_: pytest.fail("nothing has changed"))
    monkeypatch.setattr(runs, "resume", resume)
    server.note(folder, server.state(folder))

    for is_tried in (False, True, False, False):  # what fails is tried again after a longer wait
        with pytest.raises(RuntimeError) if is_tried else nullcontext():
            keeper.look(folder, durable=False)

    assert resumed == ["r"]
    assert up == [True]
