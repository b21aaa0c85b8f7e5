"""The example of a Flower app of one's own: numbers in every round, no traceback, and a model that has learnt."""

import re
import shutil
import tomllib

import pytest
from flwr.app import Context, RecordDict
from flwr.common.config import flatten_dict

from examples.flower_app import client_app, server_app
from sim.engines.inprocess import InProcessGrid
from tests import ROOT
from tests.flower import local_superlink

APP = ROOT / "examples" / "flower_app"
PROJECT = tomllib.loads((APP / "pyproject.toml").read_text())
ROUNDS = PROJECT["tool"]["flwr"]["app"]["config"]["num-server-rounds"]


def test_the_client_knows_nothing_of_us():
    text = (APP / "client_app.py").read_text()

    assert not re.search(r"fedsmall|strategies|clients\.|sim\.", text)


def test_its_project_names_what_it_imports_and_the_flower_that_we_run():
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[^\w-]", one)[0]: one for one in PROJECT["project"]["dependencies"]}

    assert set(named) == {"flwr", "fedsmall", "torch", "scikit-learn", "numpy"}
    assert {one for name, one in named.items() if name != "fedsmall"} <= set(ours["dependencies"])


def test_it_learns_and_says_so(capsys, caplog):
    grid = InProcessGrid(client_app.app, 2)
    config = flatten_dict(PROJECT["tool"]["flwr"]["app"]["config"])

    with caplog.at_level("INFO", logger="flwr"):
        server_app.app(grid, Context(1, 1, {}, RecordDict(), config))

    assert not grid.tracebacks
    check("\n".join([*caplog.messages, capsys.readouterr().out]))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_flwr_run_with_two_supernodes_says_the_same(tmp_path):
    shutil.copytree(APP, tmp_path / "app")

    with local_superlink(tmp_path) as flwr:
        said, status = flwr("run", "app")

    assert status == "finished:completed", said
    assert "2 simulated SuperNodes" in said
    check(said)


def check(said: str) -> None:
    assert not re.search(r"Traceback|\bnan\b|ERROR", said)
    rounds = re.split(r"\[ROUND \d+/\d+\]", said)[1:]
    assert len(rounds) == ROUNDS
    for told in rounds:
        assert re.search(r"MetricRecord: \{'train_loss': \d\.\d+", told)
    assert float(re.findall(r"Accuracy on what the hospitals held out: (0\.\d+)", said)[0]) > 0.9
