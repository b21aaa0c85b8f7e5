"""Apps with folders of their own that are called like ours, and what a program in one says of both."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests import ROOT

LOOK = """
import json, pickle, sys

{theirs}
from fedsmall import run
from fedsmall.clients import HospitalClient
from fedsmall.sim import Result
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build
from fedsmall.strategies import DaisyChain, FedDC
from fedsmall.strategies.daisy_chain import DaisyChain as again
from fedsmall.strategies.roster import Roster

if __name__ == "__main__":
    method = [{{"name": "FedDC"}}]
    asked = {{"name": "a", "task": "breast_cancer", "sites": 4, "samples_per_site": 4, "rounds": 4, "seeds": [0, 1]}}
    plans = execute(build({{**asked, "method": method}}), processes=2).done if "train" in sys.argv else []
    told = {{
        "theirs": [{said}],
        "modules": [one.__module__ for one in (run, HospitalClient, Result, DaisyChain)],
        "same": again is DaisyChain and isinstance(FedDC(), DaisyChain),
        "pickled": pickle.loads(pickle.dumps(Roster())) == Roster(),
        "seeds": [one.plan.seed for one in plans],
    }}
    print(json.dumps(told))
"""


def make_app(folder: Path, files: dict[str, str]) -> Path:
    """An app's folder with these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Python in a folder, with this checkout behind it on the path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


def looked(folder: Path, theirs: str, said: str, *words: str) -> dict:
    """What a program of the app sees that imports its own (``theirs``) and ours; ``said`` are values of its own.

    With the word "train" it trains two plans, in a process each.
    """
    (folder / "look.py").write_text(LOOK.format(theirs=theirs, said=said))
    done = python(folder, "look.py", *words)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
