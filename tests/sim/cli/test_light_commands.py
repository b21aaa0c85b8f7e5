"""Commands that train nothing start without what takes seconds to import, and so do the programs that only look on."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "scipy.stats", "dp_accounting", "flwr", "sklearn", "pandas", "matplotlib")
COMMAND = """
import contextlib, io, json, sys
from fedsmall.sim.cli.app import main
sys.argv = ["fedsmall", *{words}]
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    with contextlib.suppress(SystemExit):
        main()
print(json.dumps([name for name in {heavy} if name in sys.modules]))
"""
MODULE = "import {name}, json, sys\nprint(json.dumps([name for name in {heavy} if name in sys.modules]))"


def brought(code: str, folder) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        pytest.param(["new", "--help"], marks=pytest.mark.thorough),
        ["site", "log", "--kit", "none"],
        pytest.param(["site", "keygen", "--kit", "none"], marks=pytest.mark.thorough),
        pytest.param(["site", "pause", "--help"], marks=pytest.mark.thorough),
        pytest.param(["consortium", "list"], marks=pytest.mark.thorough),
        ["status"],
        ["list", "tasks"],
        ["list", "methods"],
        pytest.param(["list", "scenarios"], marks=pytest.mark.thorough),
        pytest.param(["schema"], marks=pytest.mark.thorough),
        pytest.param(["logs", "--help"], marks=pytest.mark.thorough),
    ],
    ids=" ".join,
)
def test_a_command_that_trains_nothing_brings_nothing_heavy(tmp_path, words):
    assert brought(COMMAND.format(words=words, heavy=HEAVY), tmp_path) == []


def test_the_keeper_of_a_server_brings_nothing_heavy(tmp_path):
    assert brought(MODULE.format(name="fedsmall.sim.consortium.keeper", heavy=HEAVY), tmp_path) == []


@pytest.mark.thorough
def test_a_command_that_trains_is_seen_to_bring_it(tmp_path):
    assert "torch" in brought(MODULE.format(name="fedsmall.training.cohort", heavy=HEAVY), tmp_path)


def test_a_run_that_sends_no_message_brings_no_flwr(tmp_path):
    scenario = 'name = "tiny"\ntask = "breast_cancer"\nmodel = "linear"\nsites = 3\nrounds = 2\n'
    (tmp_path / "tiny.toml").write_text(scenario + '[[method]]\nname = "FedDC"\n')

    words = ["run", "tiny.toml", "--out", "done", "--json"]

    assert "flwr" not in brought(COMMAND.format(words=words, heavy=HEAVY), tmp_path)
    assert (tmp_path / "done" / "report.html").is_file()
