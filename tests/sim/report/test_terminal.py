"""The table on the terminal: columns that have something to say."""

import io

import pytest
from rich.console import Console

from fedsmall.methods import method
from fedsmall.sim.report.html import write_report
from fedsmall.sim.report.terminal import print_run
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build


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
