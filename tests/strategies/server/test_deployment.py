"""The end of a run on the disk."""

import errno
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedsmall.audit_log import AuditLog
from fedsmall.files import DiskFullError
from fedsmall.plan import Method, Plan
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.sim.consortium.runs import waits
from fedsmall.strategies.server import deployment
from fedsmall.strategies.server.run_loop import Outcome

PLAN = Plan(name="p", task="t", method=Method(name="FedDC"))


def outcome():
    model = {"w": np.array([1.0, 2.0])}
    return Outcome(model, [], comm_rounds=1, rounds=1, bytes_sent=16, client_updates=1, seconds=0.0, events=[])


def test_a_run_that_ends_leaves_its_model_and_its_outcome_and_nothing_half_written(tmp_path):
    deployment.write_outcome(tmp_path, PLAN, outcome())

    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "outcome.json"]
    assert load_file(tmp_path / "model.safetensors")["w"].tolist() == [1.0, 2.0]
    assert json.loads((tmp_path / "outcome.json").read_text())["comm_rounds"] == 1


@pytest.mark.parametrize("killed_at", [1, 2])
def test_a_run_killed_while_it_ends_is_not_finished_without_its_model(tmp_path, monkeypatch, killed_at):
    writes, put = [], deployment.put

    def put_until_killed(path, content):
        writes.append(path.name)
        if len(writes) == killed_at:
            raise KeyboardInterrupt
        put(path, content)

    monkeypatch.setattr(deployment, "put", put_until_killed)

    with pytest.raises(KeyboardInterrupt):
        deployment.write_outcome(tmp_path, PLAN, outcome())

    assert not (tmp_path / "outcome.json").exists()


@pytest.mark.parametrize("full", [False, True])
def test_what_ended_a_run_is_told_though_the_log_has_no_room_for_it(tmp_path, monkeypatch, full):
    log = AuditLog(tmp_path / "log.jsonl", run="r")
    log.write("launched")

    def fsync(handle):
        if full and os.readlink(f"/proc/self/fd/{handle}").endswith("log.jsonl"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)

    deployment.tell_failure(tmp_path, log, DiskFullError(errno.ENOSPC, "the disk is full: there is no room to write 7"))

    told = json.loads((tmp_path / "failure.json").read_text())
    assert told["reason"] == "the disk is full: there is no room to write 7"


def test_who_is_waited_for_is_told_in_the_runs_folder_as_long_as_that_is_so(tmp_path):
    deployment.tell_waits(tmp_path, {"essen": "essen: paused by the hospital", "bonn": "waits"})
    assert waits(tmp_path) == "bonn: waits; essen: paused by the hospital"

    deployment.tell_waits(tmp_path, {})

    assert waits(tmp_path) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_full_ends_no_run_for_good_and_is_told_until_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv(deployment.RUNS, str(tmp_path))
    home, full = tmp_path / "r", [True]
    home.mkdir()
    sheet = RunSheet(run="r", plan=PLAN, sites=("a", "b", "c"))
    (home / "sheet.json").write_text(sheet.model_dump_json(exclude_defaults=True))

    def conduct(*_):
        if full:
            raise DiskFullError(errno.ENOSPC, "the disk is full: there is no room to write 7")
        return outcome(), {}

    monkeypatch.setattr(deployment, "conduct", conduct)
    context = SimpleNamespace(run_config={"run": "r"})
    with pytest.raises(DiskFullError):
        deployment.serve(None, context, lambda *_: None)
    assert waits(home) == "server: the disk is full: there is no room to write 7"
    assert not (home / "failure.json").exists()

    full.clear()
    deployment.serve(None, context, lambda *_: None)

    assert waits(home) == ""
    assert (home / "outcome.json").exists()
