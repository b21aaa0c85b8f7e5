"""What a Flower developer types, from an empty folder: install, two files of the tutorial, and ``flwr run .``."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests import ROOT
from tests.flower import local_superlink

TUTORIAL = (ROOT / "docs" / "tutorials" / "flower-app.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The tutorial's first block of a language."""
    return re.search(rf"^```{language}\n(.*?)^```", TUTORIAL, re.DOTALL | re.MULTILINE)[1]


@pytest.fixture
def programs(tmp_path) -> Path:
    """The programs of an environment that borrows from this one all but fedsmall: nothing is downloaded."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    # A path file adds the folder, and reads no path file in it: so the checkout, if it is installed, is not seen.
    site = next(environment.glob("lib/python3*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    here = environment / "bin"
    for script in Path(sysconfig.get_path("scripts")).iterdir():
        if re.match(r"flwr|flower|pip$|ray$", script.name):
            (here / script.name).write_text(re.sub(r"^#!.*", f"#!{here}/python", script.read_text(), count=1))
            (here / script.name).chmod(0o755)
    return here


@pytest.fixture
def folder(tmp_path) -> Path:
    """A folder with the wheel and what the tutorial says to save there."""
    made = tmp_path / "app"
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", str(ROOT)]
    subprocess.run([*wheel, "--wheel-dir", str(made)], check=True)
    (made / "server_app.py").write_text(block("python"))
    (made / "pyproject.toml").write_text(block("toml"))
    (made / "client_app.py").write_text((ROOT / "examples" / "flower_app" / "client_app.py").read_text())
    return made


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_three_commands_of_the_tutorial_give_numbers_in_every_round_and_no_traceback(tmp_path, folder, programs):
    offline = {"PYTHONPATH": "", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}  # what it needs is borrowed

    with local_superlink(tmp_path, programs, **offline) as flower:
        said = flower.shell(block("bash"), folder)
        status = flower.ended()
        where = flower.shell("python -c 'import fedsmall.sim as s; print(s.__file__)'", tmp_path)

    assert status == "finished:completed", said
    assert str(programs.parent) in where  # the wheel's, and no checkout's
    assert not re.search(r"Traceback|\bnan\b|\binf\b|ERROR", said)
    rounds = re.split(r"\[ROUND \d+/20\]", said)[1:]
    assert len(rounds) == 20
    for number, told in enumerate(rounds, 1):
        assert re.search(r"MetricRecord: \{'train_loss': \d\.\d+", told)
        if number % 5 == 0:
            assert re.search(r"'eval_acc': (0\.[89]|1\.0)", told)
