"""A simulation that was killed goes on where it was: what is done stays, the rest is run, to the bits of one go."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

from fedsmall.plan import Plan
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import Run, read
from fedsmall.sim.runs.progress import Watcher
from fedsmall.sim.runs.scenario import load
from tests import only_quick

SCENARIO = """
name = "mine"
task = {csv = "table.csv", label = "ill"}
sites = 3
rounds = 4
seeds = [0, 1]
model = "linear"
threshold = "youden"
[[method]]
name = "FedAvg"
[[method]]
name = "FedDC"
[[method]]
name = "Standalone"
"""
VARIES = {"seconds", "client_updates_per_second", "started", "ended"}


def write_table(path: Path, rows: int = 90) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(rows) % 2
    cells = rng.normal(size=(rows, 4)) + y[:, None]
    lines = [",".join([*(f"{value:.4f}" for value in row), str(label)]) for row, label in zip(cells, y, strict=True)]
    path.write_text("\n".join(["a,b,c,d,ill", *lines]))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_table(tmp_path / "table.csv")
    (tmp_path / "mine.toml").write_text(SCENARIO)
    return tmp_path


def rows_of(folder: Path) -> list[dict]:
    rows = json.loads((folder / "summary.json").read_text())
    return [{key: value for key, value in row.items() if key not in VARIES} for row in rows]


def cut(folder: Path, done: int) -> None:
    """A run's folder as it was after ``done`` plans, one more of which is in one of two files alone."""
    for name, count in (("summary.json", done), ("rounds.json", done + 1)):
        (folder / name).write_text(json.dumps(json.loads((folder / name).read_text())[:count]))


@pytest.mark.parametrize("done", only_quick([1], [0, 1, 4]))
def test_it_goes_on_to_the_same_bits(folder, done):
    scenario = load(folder / "mine.toml")
    execute(scenario, folder / "whole")
    execute(scenario, folder / "cut")
    cut(folder / "cut", done)
    begun = read(folder / "cut")
    assert len(begun.not_run) == 6 - done

    execute(begun.scenario, folder / "cut", begun=begun)

    assert rows_of(folder / "cut") == rows_of(folder / "whole")
    with np.load(folder / "cut" / "predictions.npz") as one, np.load(folder / "whole" / "predictions.npz") as other:
        assert set(one) == set(other)
        assert all(np.array_equal(one[name], other[name]) for name in one)
    for package in (folder / "whole" / "packages").glob("*/*.safetensors"):
        assert (folder / "cut" / package.relative_to(folder / "whole")).read_bytes() == package.read_bytes()


def test_other_data_and_what_is_no_run_are_refused_in_one_line(fedsmall, folder):
    execute(load(folder / "mine.toml", ["seeds=[0]"]), folder / "mine")
    cut(folder / "mine", 1)
    before = (folder / "mine" / "summary.json").read_bytes()
    write_table(folder / "table.csv", 80)

    code, _, error = fedsmall("resume", "mine")

    assert code == 2
    assert "the data are not those of the run in mine: training_samples differs. Run its scenario again." in error
    assert (folder / "mine" / "summary.json").read_bytes() == before
    assert fedsmall("resume", "nothing")[0] == 2


def test_a_run_of_which_no_plan_has_ended_gives_no_model_and_says_what_goes_on_with_it(fedsmall, folder):
    execute(load(folder / "mine.toml", ["seeds=[0]"]), folder / "mine")
    cut(folder / "mine", 0)

    code, _, error = fedsmall("export", "mine", "--format", "zip")

    assert (code, error) == (
        2,
        "fedsmall: none of this run's plans has ended: `fedsmall resume RUN` goes on with it\n",
    )


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(folder):
    command = [str(Path(sys.executable).with_name("fedsmall"))]
    long = ["--set", "rounds=3000", "--set", "threshold=0.5", "--set", "evaluate_every=10"]
    run = subprocess.Popen([*command, "run", "mine.toml", "--out", "mine", *long], cwd=folder)
    for _ in range(600):
        time.sleep(0.1)
        summary = folder / "mine" / "summary.json"
        if summary.is_file() and len(json.loads(summary.read_text())) >= 2:
            break
    run.send_signal(signal.SIGKILL)
    run.wait()
    before = rows_of(folder / "mine")
    assert 2 <= len(before) < 6

    subprocess.run([*command, "resume", "mine"], cwd=folder, check=True, env=os.environ)

    after = rows_of(folder / "mine")
    assert len(after) == 6
    assert all(row in after for row in before)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by their parent")
@pytest.mark.parametrize("begins", ["", "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()"])
def test_a_run_that_is_killed_leaves_no_process_behind(folder, begins):
    lines = (
        "import threading, time",
        "if __name__ == '__main__':",
        f"    {begins}",  # with a thread processes come from a fork server
        "    from fedsmall.sim.cli.app import main",
        "    main(['run', 'mine.toml', '--processes', '2', '--set', 'rounds=100000', '--out', 'killed'])",
    )
    (folder / "program.py").write_text("\n".join(lines))
    run = psutil.Popen([sys.executable, "program.py"], cwd=folder, stdout=subprocess.DEVNULL, env=os.environ)
    until = time.monotonic() + 60
    while sum(child.cpu_times().user > 0.05 for child in run.children(recursive=True)) < 2:
        assert time.monotonic() < until
        time.sleep(0.2)
    time.sleep(1)
    children = run.children(recursive=True)

    run.kill()

    assert run.wait() == -signal.SIGKILL
    assert psutil.wait_procs(children, timeout=20)[1] == []


def test_a_folder_is_written_when_that_is_a_thirtieth_of_the_time_and_once_more_at_the_end(folder, monkeypatch):
    clock, written = [0.0], []
    monkeypatch.setattr("fedsmall.sim.runs.folder.time", SimpleNamespace(monotonic=lambda: clock[0]))
    save = Run.save

    def slow(run: Run) -> None:
        written.append(len(run.done))
        monkeypatch.setattr(
            "fedsmall.sim.runs.folder.files.write_csv", lambda *given: clock.__setitem__(0, clock[0] + 1)
        )
        save(run)

    class Minutes(Watcher):
        def end(self, plan: Plan) -> None:
            clock[0] += 11

    monkeypatch.setattr(Run, "save", slow)
    execute(load(folder / "mine.toml"), folder / "whole", watcher=Minutes())

    assert written == [0, 4, 6]  # after a second, thirty must pass
    assert len(rows_of(folder / "whole")) == 6


def test_what_is_done_is_written_where_a_run_ends_badly(folder, monkeypatch):
    class Stops(Watcher):
        def end(self, plan: Plan) -> None:
            if plan.method.name == "FedDC":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(load(folder / "mine.toml"), folder / "cut", watcher=Stops())

    done = read(folder / "cut")
    assert 0 < len(done.done) < 6
    assert len(rows_of(folder / "cut")) == len(done.done)
