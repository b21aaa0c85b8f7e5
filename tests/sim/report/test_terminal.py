"""The table on the terminal: columns that have something to say."""

import io
import logging
import re

import pytest
from rich.console import Console

from fedsmall.methods import method
from fedsmall.sim.report.html import write_report
from fedsmall.sim.report.terminal import print_run
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build, load
from tests.sim.runs.scenarios import SMALL, write


@pytest.mark.thorough
@pytest.mark.parametrize("names", [("Central",), ("FedDC", "Central")])
def test_the_column_of_differences_is_there_where_there_is_something_to_compare_with(tmp_path, names):
    table = {"name": "t", "task": "breast_cancer", "model": "linear", "sites": 3, "samples_per_site": 8, "rounds": 2}
    run = execute(build({**table, "method": [{"name": name} for name in names]}), tmp_path / "run")

    told = io.StringIO()
    print_run(Console(file=told, width=300), run)
    page = write_report(tmp_path / "run", [run], "t").read_text()

    compared = any(method(name).family == "federated" for name in names)
    assert ("minus this" in told.getvalue()) is ("minus this" in page) is compared
    assert "None minus" not in told.getvalue()


@pytest.mark.parametrize("width", [80, 99])
def test_a_table_fits_a_narrow_terminal_and_breaks_no_interval(width):
    table = {"name": "t", "task": "breast_cancer", "model": "linear", "sites": 3, "samples_per_site": 8, "rounds": 2}
    methods = [{"name": name} for name in ("Standalone", "FedAvg", "FedDC", "Central")]
    run = execute(build({**table, "method": methods, "seeds": [0, 1, 2]}))

    told = io.StringIO()
    print_run(Console(file=told, width=width), run)

    lines = told.getvalue().partition("3 seeds are too few")[0].splitlines()
    assert max(map(len, lines)) <= width
    assert sum(len(re.findall(r"[+-]?[.\d]+ to [+-]?[.\d]+", line)) for line in lines) >= 8
    assert not any(re.search(r"\d to\s*$", line) for line in lines)


def test_a_program_hears_of_every_plan_by_its_log(caplog, capsys, tmp_path):
    wild = '[[method]]\nname = "FedDC"\nlabel = "Wild"\nrecipe = {lr = 1e38}\n'
    scenario = load(write(tmp_path, SMALL + wild), ["seeds=[0]"])
    execute(scenario)
    assert capsys.readouterr() == ("", "")

    caplog.clear()
    with caplog.at_level(logging.INFO, "fedsmall"):
        execute(scenario)
    said = {record.getMessage(): record.levelname for record in caplog.records if record.name == "fedsmall"}
    assert next(iter(said)).endswith("plans on cohort")
    assert any(words.startswith("FedAvg") and "done: {'accuracy'" in words for words in said)
    assert next(level for words, level in said.items() if words.startswith("Wild, seed 0 failed: ")) == "WARNING"
