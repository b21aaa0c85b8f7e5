"""`--json` and `--quiet`: every command that prints results has both, and keeps its exit code."""

import json

import click
import pytest
import tomli_w

from fedsmall.sim.cli.app import LazyCommand
from fedsmall.sim.cli.commands import COMMANDS, LIVE
from fedsmall.sim.cli.output import as_text

SCENARIO = {
    "name": "j",
    "task": "breast_cancer",
    "sites": 4,
    "rounds": 2,
    "model": "linear",
    "method": [{"name": "FedAvg"}],
}
PRINT = [name for name, entry in COMMANDS.items() if entry.panel != LIVE and entry.is_here() and name != "schema"]


def leaves(command: click.Command) -> list[click.Command]:
    if not isinstance(command, click.Group):
        return [command]
    return [leaf for inner in command.commands.values() for leaf in leaves(inner)]


@pytest.mark.parametrize("name", PRINT)
def test_a_command_that_prints_results_has_both_options(name):
    for leaf in leaves(LazyCommand(name, COMMANDS[name]).real()):
        options = {option for parameter in leaf.params for option in parameter.opts}
        assert {"--json", "--quiet"} <= options, leaf.name


@pytest.fixture
def scenario(fedsmall, tmp_path):
    (tmp_path / "j.toml").write_text(tomli_w.dumps(SCENARIO))
    return tmp_path


def test_results_are_one_object_and_words_go_to_the_other_stream(fedsmall, scenario):
    code, said, heard = fedsmall("run", "j.toml", "--json")

    results = json.loads(said)
    assert code == 0
    assert results["runs"][0]["plans"][0]["common"]["accuracy"] > 0.5
    assert results["report"] == "runs/j/report.html"
    assert "FedAvg" in heard
    assert json.loads(fedsmall("compare", "runs/j", "--json")[1])["runs"][0]["plans"] == results["runs"][0]["plans"]


def test_what_has_no_results_of_its_own_gives_its_lines(fedsmall, scenario):
    lines = json.loads(fedsmall("list", "tasks", "--json")[1])["lines"]

    assert any("breast_cancer" in line for line in lines)


def test_quiet_is_quiet_and_writes_what_it_writes(fedsmall, scenario):
    assert fedsmall("run", "j.toml", "--quiet")[:2] == (0, "")
    assert (scenario / "runs" / "j" / "report.html").is_file()


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_an_error_is_one_line_and_nothing_else(option, fedsmall, scenario):
    assert fedsmall("run", "nowhere.toml", option)[:2] == (2, "")


def test_a_plan_that_fails_is_in_the_object_and_in_the_exit_code(fedsmall, scenario):
    code, said, _ = fedsmall("run", "j.toml", "--set", "recipe.lr=1e308", "--set", "rounds=20", "--json")

    assert code == 1
    assert json.loads(said)["runs"][0]["failed"][0]["label"] == "FedAvg"


def test_a_number_that_is_none_is_null():
    assert json.loads(as_text({"loss": float("nan"), "of": [float("inf"), 1.0]})) == {"loss": None, "of": [None, 1.0]}
