"""Who runs no scenario over split columns has nothing of it in memory."""

import subprocess
import sys

import pytest

from tests import ROOT
from tests.sim.runs.scenarios import write

CODE = """
import sys
from fedsmall.sim.cli.app import main
try:
    main(["run", sys.argv[1], "--out", sys.argv[2]])
except SystemExit as end:
    assert not end.code, end.code
print(sorted(name for name in sys.modules if name.startswith("fedsmall.extensions.columns") or name == "gmpy2"))
"""


@pytest.mark.thorough
def test_a_run_of_models_that_travel_imports_no_paillier_and_no_private_set_intersection(tmp_path):
    command = [sys.executable, "-c", CODE, str(write(tmp_path)), str(tmp_path / "out")]

    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
