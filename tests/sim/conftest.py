from pathlib import Path

import pytest

from sim.report.html import write_report
from sim.runs.execute import execute
from sim.runs.folder import Run
from sim.runs.scenario import load
from tests.sim.runs.scenarios import write


@pytest.fixture(scope="session")
def small_run(tmp_path_factory) -> Run:
    """A real run of five methods with two seeds, in a folder, with its report. No test may change it."""
    folder = tmp_path_factory.mktemp("small")
    run = execute(load(write(folder)), folder / "run", engine="inprocess")
    write_report(folder / "run", [run], "small")
    return run


@pytest.fixture
def fedsmall(capfd, monkeypatch, tmp_path):
    """Call the command line in an empty folder: gives its exit code, what it said, and what it said on stderr."""
    from sim.cli.app import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said, complained = capfd.readouterr()
        return int(ended.value.code or 0), said, complained

    return call
