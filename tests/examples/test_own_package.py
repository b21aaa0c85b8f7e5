"""A package of one's own, installed beside fedsmall: its method, its aggregator and its task are known by name."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

from fedsmall import entry_points, parts, run
from fedsmall.entry_points import Registry
from fedsmall.errors import PlanError
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
    assert "along a hypercube" in ran.stdout


@pytest.mark.slow
def test_without_it_the_name_is_unknown_in_one_line(tmp_path):
    ran = fedsmall(os.environ, tmp_path, "run", PACKAGE / "moons.toml")

    assert ran.returncode == 2
    assert "There is no method 'FedWinsor'" in ran.stderr


def brings(monkeypatch, **entries):
    """As if a package with these topologies were installed."""
    monkeypatch.syspath_prepend(str(PACKAGE))
    found = {name: EntryPoint(name, value, "fedsmall.topologies") for name, value in entries.items()}
    real = entry_points.extensions

    def extensions(group):
        return found if group == "fedsmall.topologies" else real(group)

    monkeypatch.setattr(entry_points, "extensions", extensions)
    monkeypatch.setattr(parts, "extensions", extensions)


@pytest.mark.parametrize("sites", [2, 4, 8])
def test_its_topology_gives_every_site_the_mean_that_a_server_would_have_made(monkeypatch, sites):
    brings(monkeypatch, hypercube="fedsmall_example:Hypercube")
    hypercube = {"by": "hypercube", "exchanges": max(1, (sites - 1).bit_length())}
    shared = {"task": "breast_cancer", "model": "linear", "sites": sites, "samples_per_site": 8, "rounds": 3}
    methods = [{"name": "FedAvg"}, {"name": "FedAvg", "label": "cube", "topology": hypercube}]

    result = run(methods=methods, dtype="float64", progress=False, **shared)

    server, cube = (result.models[label, 0] for label in ("FedAvg", "cube"))
    assert max(np.abs(server[name] - cube[name]).max() for name in server) < 1e-12


def test_an_unknown_topology_is_refused_with_the_names_of_those_that_there_are(monkeypatch):
    brings(monkeypatch, hypercube="fedsmall_example:Hypercube")
    with pytest.raises(PlanError, match='one of "gossip", "ring", "hypercube"'):
        run(task="breast_cancer", sites=4, methods=[{"name": "FedAvg", "topology": "star"}], progress=False)


def test_ours_stays_ours_and_an_unknown_name_is_a_key_error():
    known = Registry("fedsmall.commands", {"audit": 1})

    assert known["audit"] == 1
    assert next(iter(known)) == "audit"
    assert len(known) == len(set(known)) > 1
    assert "columns" in known
    with pytest.raises(KeyError, match="nothing"):
        known["nothing"]
