import pytest

from fedsmall.sim.report.html import write_report
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.folder import Run
from fedsmall.sim.runs.scenario import load
from tests.sim.runs.scenarios import write


@pytest.fixture(scope="session")
def small_run(tmp_path_factory) -> Run:
    """A real run of five methods with two seeds, in a folder, with its report. No test may change it."""
    folder = tmp_path_factory.mktemp("small")
    run = execute(load(write(folder)), folder / "run", engine="inprocess")
    write_report(folder / "run", [run], "small")
    return run
