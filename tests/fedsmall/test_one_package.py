"""``fedsmall.strategies``, ``fedsmall.clients`` and ``fedsmall.sim`` are ours, whatever an app has in its folder."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import fedsmall
from fedsmall.entry_points import extensions, load_extension, look_in
from fedsmall.errors import PlanError
from tests import ROOT

NAMES = ("strategies", "clients", "sim", "research")
THEIRS = {
    "packages": {f"{name}/__init__.py": f'MINE = "the app\'s {name}"\n' for name in NAMES},
    "modules": {f"{name}.py": f'MINE = "the app\'s {name}"\n' for name in NAMES},
}
LOOK = """
import json
from fedsmall.strategies import DaisyChain as first
import strategies, clients, sim, research
from fedsmall import run
from fedsmall.clients import HospitalClient
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build
from fedsmall.strategies import DaisyChain

if __name__ == "__main__":
    asked = {"name": "a", "task": "breast_cancer", "sites": 4, "samples_per_site": 4, "rounds": 4, "seeds": [0, 1]}
    plans = execute(build({**asked, "method": [{"name": "FedDC"}]}), processes=2).done
    found = {
        "theirs": [package.MINE for package in (strategies, clients, sim, research)],
        "ours": [value.__module__ for value in (run, HospitalClient, DaisyChain)],
        "once": first is DaisyChain,
        "seeds": [result.plan.seed for result in plans],
    }
    print(json.dumps(found))
"""


def make_app(folder: Path, files: dict[str, str]) -> Path:
    """An app's folder with these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def python(folder: Path, *words: str) -> str:
    """What Python prints in a folder, with this checkout behind it on the path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", THEIRS)
def test_an_app_with_packages_of_these_names_has_its_own_and_ours(kind, tmp_path):
    make_app(tmp_path, {**THEIRS[kind], "look.py": LOOK})

    found = json.loads(python(tmp_path, "look.py"))

    assert found["theirs"] == [f"the app's {name}" for name in NAMES]
    assert found["ours"] == ["fedsmall.sim.api", "fedsmall.clients.hospital", "fedsmall.strategies.daisy_chain"]
    assert found["once"]
    assert found["seeds"] == [0, 1]


@pytest.mark.thorough
def test_a_command_may_be_called_as_a_module_in_such_a_folder(tmp_path):
    make_app(tmp_path, THEIRS["packages"])

    assert "heart_disease" in python(tmp_path, "-m", "fedsmall.sim.cli.app", "list", "scenarios")


def test_what_lies_beside_the_checkout_is_not_looked_for_from_a_wheel(tmp_path):
    wheel = tmp_path / "fedsmall"
    (wheel / "sim").mkdir(parents=True)
    (wheel / "__init__.py").write_text((ROOT / "fedsmall" / "__init__.py").read_text())
    (tmp_path / "research").mkdir()

    code = "import fedsmall, importlib.util as u; print(fedsmall.__file__, u.find_spec('fedsmall.research'))"
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert done.stdout.split() == [str(wheel / "__init__.py"), "None"], done.stderr


def test_a_users_folder_comes_first_unless_it_has_a_fedsmall(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["installed"])
    for name in ("a/fedsmall", "b", "c"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "c/fedsmall.py").touch()

    look_in(tmp_path / "a", tmp_path / "b", tmp_path / "c")

    assert sys.path == [str(tmp_path / "b"), "installed", str(tmp_path / "a"), str(tmp_path / "c")]


def test_run_and_result_are_fedsmalls():
    from fedsmall.sim.api import Result, run

    assert (fedsmall.run, fedsmall.Result) == (run, Result)
    assert find_spec("fedsmall.sim.nothing") is None


def test_an_extension_is_found_by_its_entry_point_or_missed_with_those_that_there_are():
    assert "fedsmall" in extensions("console_scripts")

    assert callable(load_extension("console_scripts", "fedsmall"))
    with pytest.raises(PlanError, match=r"no extension of fedsmall\.nothing is called 'mine'; there are: none"):
        load_extension("fedsmall.nothing", "mine")
