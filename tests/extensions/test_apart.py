"""The core knows extensions by their entry points, and a scenario that asks for none imports none."""

import subprocess
import sys

import pytest

from fedsmall.entry_points import extensions
from tests import ROOT

GROUPS = ("commands", "trainers", "models", "watchers", "pages", "audits", "tables")
OURS = ("audit", "boosting", "dashboard", "sql", "tracking", "travels")
PLAIN = {"name": "plain", "task": "breast_cancer", "sites": 3, "samples_per_site": 8, "rounds": 2}


@pytest.mark.parametrize("group", GROUPS)
def test_every_entry_of_ours_can_be_loaded(group):
    found = extensions(f"fedsmall.{group}")

    assert found
    assert all(entry.load() is not None for entry in found.values())


@pytest.fixture(scope="module")
def imported_by_a_plain_run(tmp_path_factory):
    """What a run, its report, a hospital's station and the command line have imported of the extensions."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    code = f"""
import sys
import fedsmall.clients.data_process, fedsmall.clients.client_app, fedsmall.sim.cli.app, fedsmall.sim.cli.site
from fedsmall.sim.report.html import write_report
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build
run = execute(build({PLAIN | {"method": [{"name": "FedAvg"}]}!r}), __import__("pathlib").Path({str(folder)!r}))
write_report(run.folder, [run], "plain")
print(*sorted(name for name in sys.modules if name.startswith("fedsmall.extensions.")))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.mark.thorough
@pytest.mark.parametrize("extension", OURS)
def test_a_scenario_without_it_imports_none_of_it(imported_by_a_plain_run, extension):
    assert [name for name in imported_by_a_plain_run if name.split(".")[2] == extension] == []
