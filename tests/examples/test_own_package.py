"""A package of one's own, installed beside fedsmall: its method, its aggregator and its task are known by name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedsmall.entry_points import Registry
from tests import ROOT

PACKAGE = ROOT / "examples" / "own_package"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    place = tmp_path_factory.mktemp("site-packages")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", place, PACKAGE], check=True)
    return os.environ | {"PYTHONPATH": str(place)}


def fedsmall(environment, folder, *words):
    command = [Path(sys.executable).with_name("fedsmall"), *map(str, words)]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_what_a_package_brings_is_run_by_its_name(installed, tmp_path):
    listed = fedsmall(installed, tmp_path, "list", "methods")
    ran = fedsmall(installed, tmp_path, "run", PACKAGE / "moons.toml")

    assert "FedWinsor" in listed.stdout
    assert ran.returncode == 0, ran.stderr
    assert "FedWinsor" in ran.stdout


@pytest.mark.slow
def test_without_it_the_name_is_unknown_in_one_line(tmp_path):
    ran = fedsmall(os.environ, tmp_path, "run", PACKAGE / "moons.toml")

    assert ran.returncode == 2
    assert "There is no method 'FedWinsor'" in ran.stderr


def test_ours_stays_ours_and_an_unknown_name_is_a_key_error():
    known = Registry("fedsmall.commands", {"audit": 1})

    assert known["audit"] == 1
    assert next(iter(known)) == "audit"
    assert len(known) == len(set(known)) > 1
    assert "columns" in known
    with pytest.raises(KeyError, match="nothing"):
        known["nothing"]
