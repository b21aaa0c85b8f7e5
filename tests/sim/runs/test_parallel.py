import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedsmall.plan import Plan
from fedsmall.sim.runs.execute import execute, processes_for
from fedsmall.sim.runs.folder import cores
from fedsmall.sim.runs.scenario import load
from tests import ROOT
from tests.sim.runs.scenarios import SMALL, write


def alive(group: int) -> list[int]:
    """The processes of a group that still run; one that has ended and waits to be reaped does not."""
    stats = [(int(path.parent.name), _stat(path)) for path in Path("/proc").glob("[0-9]*/stat")]
    return [pid for pid, (state, _, leads) in stats if state not in "ZX" and int(leads) == group]


def _stat(path: Path) -> list[str]:
    """The state, parent and group of a process; of one that is gone, that it is."""
    try:
        return path.read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return ["X", "0", "0"]


class Counting:
    """A watcher that remembers what it was told."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        self.ended: list[str] = []

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True

    def moved(self, rounds: int) -> None:
        self.rounds.append(rounds)

    def end(self, plan: Plan) -> None:
        self.ended.append(plan.method.label)


@pytest.mark.slow
def test_two_processes_give_the_bits_of_one(tmp_path):
    watcher, scenario = Counting(), load(write(tmp_path))
    alone = execute(scenario, tmp_path / "alone")

    run = execute(scenario, tmp_path / "run", processes=2, watcher=watcher)

    assert [one.index for one in run.done] == list(range(10))
    assert sorted(watcher.ended) == sorted(one.label for one in alone.done)
    assert watcher.rounds == sorted(watcher.rounds)
    for mine, theirs in zip(run.done, alone.done, strict=True):
        assert mine.evaluations == theirs.evaluations
        assert mine.row["trivial"] == theirs.row["trivial"]
        model, other = run.model_of(mine), alone.model_of(theirs)
        assert all(np.array_equal(model[name], other[name]) for name in model or {})


@pytest.mark.slow
def test_ctrl_c_stops_all_processes_and_keeps_what_was_done(tmp_path):
    path = write(tmp_path, SMALL.replace("rounds = 6", "rounds = 3000"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "fedsmall.sim.cli.app", "run", str(path), "--engine", "inprocess", "--out", "out"]
    program = subprocess.Popen(
        [*command, "--processes", "2"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    began = time.monotonic()
    while not (tmp_path / "out" / "run.json").exists() and time.monotonic() < began + 300:
        time.sleep(0.1)
    while len(alive(program.pid)) < 3 and time.monotonic() < began + 300:  # the command and its two
        time.sleep(0.1)
    time.sleep(2)

    os.killpg(program.pid, signal.SIGINT)  # a terminal sends it to the whole group
    said, complained = program.communicate(timeout=300)

    assert program.returncode == 130, complained
    assert "This run is partial" in said
    assert "Traceback" not in complained
    about = json.loads((tmp_path / "out" / "run.json").read_text())
    assert about["interrupted"]
    assert len(about["not_run"]) > 0
    ended = time.monotonic()
    while (left := alive(program.pid)) and time.monotonic() < ended + 15:
        time.sleep(0.1)
    assert left == []


@pytest.mark.parametrize(("count", "engine"), [(7, "cohort"), (100, "ray")])
def test_a_short_run_and_ray_have_one_process(count, engine, small_run):
    assert processes_for(small_run.plans[:1] * count, engine) == 1


def test_no_more_processes_than_can_share_a_gpu(small_run, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)

    assert [processes_for(small_run.plans, "cohort", device) for device in ("cpu", "auto", "cuda")] == [16, 4, 4]
    assert [processes_for(small_run.plans, "cohort", f"kernel:{threads}") for threads in (1, 4, 99)] == [16, 4, 1]


def test_a_long_run_has_a_process_for_each_core(small_run):
    assert processes_for(small_run.plans, "cohort") == cores()


def test_no_more_processes_than_cores_that_the_program_was_given(small_run, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1}, raising=False)
    assert processes_for(small_run.plans, "cohort") == 1

    monkeypatch.delattr(os, "sched_getaffinity")  # systems that do not tell
    assert cores() == os.cpu_count()
