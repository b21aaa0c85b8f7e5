"""``flwr run .``: as many sites as SuperNodes, a line for each round, a table, a folder; errors in one line."""

import logging
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict

from fedsmall.clients.client_app import app as client_app
from fedsmall.errors import PlanError
from fedsmall.sim import flower_app
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import read
from fedsmall.sim.runs.scenario import load
from fedsmall.strategies.roster import await_all
from tests import ROOT
from tests.flower import local_superlink

FLOWER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
DEFAULTS = flatten_dict(FLOWER["config"])


def run_app(sites: int, **config):
    grid = InProcessGrid(client_app, sites)
    context = Context(1, 1, {}, RecordDict(), {**DEFAULTS, **{key.replace("_", "-"): v for key, v in config.items()}})
    flower_app.app(grid, context)
    assert not grid.tracebacks


@pytest.fixture
def no_report(monkeypatch):
    """A report is made by a program of its own, whose start costs seconds; one test here looks at it."""
    monkeypatch.setattr(flower_app, "report_of", lambda run: "not made here")


@pytest.fixture
def bundle(tmp_path):
    """A folder with what Flower packs of the checkout."""
    for pattern in FLOWER["fab-include"]:
        for path in ROOT.glob(pattern.removeprefix("/")):
            place = tmp_path / path.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
    return tmp_path


def print_in(folder, program):
    """What a program prints that runs in a folder, with nothing of the checkout on its path."""
    environment = {**os.environ, "PYTHONPATH": ""}
    told = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_flowers_bundle_has_all_that_both_apps_import(bundle):
    program = "from fedsmall.sim import flower_app; from fedsmall.clients import client_app; print(flower_app.__file__)"

    assert print_in(bundle, program) == f"{bundle / 'sim' / 'flower_app.py'}\n"


@pytest.mark.thorough
def test_flower_finds_the_client_app_while_another_thread_begins_to_import_fedsmall(bundle):
    """Flower's simulation looks for the ClientApp while a thread imports the ServerApp, and the two share modules."""
    reference = FLOWER["components"]["clientapp"]
    program = f"""
import sys, types
begun = sys.modules["fedsmall"] = types.ModuleType("fedsmall")
begun.__path__ = ["fedsmall"]
from flwr.supercore.object_ref import load_app, validate
print(validate({reference!r}, project_dir="."))
del sys.modules["fedsmall"]
loaded = load_app({reference!r}, ImportError, ".")
from fedsmall.clients.client_app import app
print(loaded is app)
"""

    assert print_in(bundle, program) == "(True, None)\nTrue\n"


@pytest.mark.thorough
def test_every_comm_round_has_a_line_and_the_end_a_table_a_report_and_a_model(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    run_app(5, rounds=6, aggregate_every=3)

    said = capsys.readouterr().out
    line = r"^FedDC, seed 0: round (\d) of 6, (handed over|averaged);.*accuracy \d+\.\d%"
    lines = re.findall(line, said, re.MULTILINE)
    assert lines == [(str(t), "averaged" if t % 3 == 0 else "handed over") for t in range(1, 7)]
    assert re.search(r"^FedDC +\d+\.\d%", said, re.MULTILINE)
    run = read(tmp_path / "runs" / "flwr-run")
    assert f"Report: {run.folder / 'report.html'}" in said
    assert (run.folder / "report.html").is_file()
    assert run.about["sites"] == 5
    assert [len(one.evaluations) for one in run.done] == [6]
    assert run.done[0].row["common"]["accuracy"] > 0.7
    (model,) = re.findall(r"^Model: (.+)$", said, re.MULTILINE)
    assert Path(model).is_file()


def test_a_scenario_runs_all_its_methods_those_that_pool_among_them(no_report, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\ntask = "breast_cancer"\nsites = 9\nsamples_per_site = 6\nrounds = 4\n'
        '[[method]]\nname = "FedDC"\naggregate_every = 2\n'
        '[[method]]\nname = "Standalone"\n[[method]]\nname = "Central"\n'
    )

    run_app(3, scenario=str(tmp_path / "mine.toml"), out=str(tmp_path / "run"))

    run = read(tmp_path / "run")
    assert [one.label for one in run.done] == ["FedDC", "Standalone", "Central"]
    assert run.scenario.sites == 3
    assert "Standalone, seed 0: round 4 of 4, trained; local models accuracy" in capsys.readouterr().out


def test_it_recalibrates_and_finds_thresholds_as_a_simulation_does(no_report, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\ntask = "breast_cancer"\nsites = 3\nsamples_per_site = 40\nrounds = 4\n'
        'threshold = "youden"\nrecalibrate = true\n[[method]]\nname = "FedAvg"\n'
    )

    run_app(3, scenario=str(tmp_path / "mine.toml"), out=str(tmp_path / "run"))

    (here,) = read(tmp_path / "run").done
    (there,) = execute(load(tmp_path / "mine.toml")).done
    assert here.row["recalibration"]["slope"] == pytest.approx(there.row["recalibration"]["slope"])
    assert here.row["thresholds"] == pytest.approx(there.row["thresholds"])


def test_what_a_grid_in_this_process_learns_flowers_clients_learn_to_the_bit(no_report, tmp_path):
    from fedsmall.sim.runs.execute import execute

    run_app(2, rounds=4, out=str(tmp_path / "flower"))

    assert read(tmp_path / "flower").about["sites"] == 2
    again = execute(read(tmp_path / "flower").scenario, tmp_path / "again", engine="inprocess")
    names = [next((tmp_path / run / "packages").glob("*/model.safetensors")) for run in ("flower", "again")]
    assert names[0].read_bytes() == names[1].read_bytes()
    assert again.done[0].row["common"] == read(tmp_path / "flower").done[0].row["common"]


def logged(run, caplog, *given, **named) -> logging.LogRecord:
    """What Flower logs of the error with which a run ends."""
    with pytest.raises((ValueError, OSError)) as raised:
        run(*given, **named)
    with caplog.at_level("ERROR", logger="flwr"):
        logging.getLogger("flwr").error("%s raised an exception", "Simulation", exc_info=raised.value)
    (line,) = [record for record in caplog.records if record.levelname == "ERROR"]
    return line


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"method": "FedCD"}, "There is no method 'FedCD'. Did you mean 'FedDC'"),
        ({"task": "breast_cancr"}, "breast_cancer"),
        ({"rounds": 0}, "rounds"),
        ({"lr": -1.0}, "lr"),
        ({"scenario": "nowhere"}, "There is no scenario nowhere"),
    ],
)
def test_what_cannot_be_run_is_said_in_one_line_before_a_folder_is_made(config, words, tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)

    line = logged(run_app, caplog, 2, **config)

    assert line.exc_info is None
    assert line.getMessage().startswith("fedsmall: ")
    assert words in line.getMessage()
    assert "\n" not in line.getMessage()
    assert not (tmp_path / "runs").exists()


def test_a_folder_that_cannot_be_written_is_one_line_too(tmp_path, caplog):
    (tmp_path / "file").touch()

    line = logged(run_app, caplog, 2, out=str(tmp_path / "file" / "run"))

    assert line.exc_info is None
    assert line.getMessage() == f"fedsmall: Not a directory: {tmp_path / 'file' / 'run'}"


def test_a_fault_of_ours_keeps_its_traceback():
    def faulty():
        raise KeyError("x")

    with pytest.raises(KeyError) as raised:
        faulty()
    record = logging.LogRecord("flwr", logging.ERROR, "", 0, "%s failed", ("It",), (KeyError, raised.value, raised.tb))

    assert flower_app.without_traceback(record)
    assert record.exc_info
    assert record.getMessage() == "It failed"


def test_a_task_of_other_sites_than_there_are_supernodes_says_how_many_it_needs(tmp_path):
    scenario = tmp_path / "four.toml"
    scenario.write_text(
        'name = "four"\ntask = {connectomes = "generated", regions = [6, 6, 8, 8], subjects = 32}\nrounds = 2\n'
        'model = "shared_part"\n[[method]]\nname = "FedAvg"\n'
    )

    with pytest.raises(ValueError, match=r"4 sites"):
        run_app(2, scenario=str(scenario), out=str(tmp_path / "run"))


class OneByOne(InProcessGrid):
    """A grid to which another node connects each time it is asked."""

    asked = 0

    def get_node_ids(self):
        self.asked += 1
        return list(super().get_node_ids())[: self.asked // 2]


def test_all_that_connect_one_after_the_other_are_taken(monkeypatch):
    monkeypatch.setattr("fedsmall.strategies.roster.QUIET_S", 0.3)

    assert await_all(OneByOne(client_app, 4)) == 4


def test_nobody_there_is_told():
    with pytest.raises(PlanError, match=r"1 sites were to take part and 0 are connected"):
        await_all(InProcessGrid(client_app, 0), timeout_s=0.1)


@pytest.fixture
def flwr(tmp_path):
    with local_superlink(tmp_path) as call:
        yield call


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_flwr_run_in_a_fresh_home_learns_says_what_and_ends_a_mistake_in_one_line(flwr, tmp_path):
    said, status = flwr("run", str(ROOT))

    assert status == "finished:completed", said
    assert "Traceback" not in said
    assert len(re.findall(r"round \d+ of 20, (?:handed over|averaged)", said)) == 20
    accuracy = float(re.findall(r"round 20 of 20, averaged; global model accuracy (\d+\.\d)%", said)[0])
    assert accuracy > 85
    run = read(tmp_path / "runs" / "flwr-run")
    assert run.about["sites"] == 2
    assert round(100 * run.done[0].row["common"]["accuracy"], 1) == accuracy
    assert f"Report: {run.folder / 'report.html'}" in said

    said, status = flwr("run", str(ROOT), "--federation-config", "num-supernodes=4", "--run-config", 'method="FedCD"')

    assert status == "finished:failed", said
    assert "Traceback" not in said
    assert "fedsmall: There is no method 'FedCD'. Did you mean 'FedDC'?" in said
