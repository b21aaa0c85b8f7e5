"""What docs/flower.md says of imports, of the server's evaluation and of the examples is so."""

import importlib
import re
import shlex
import tomllib

import pytest

from fedsmall.strategies import FedDC
from tests import ROOT
from tests.strategies.toy import toy_grid, weights

PAGE = (ROOT / "docs" / "flower.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("line", re.findall(r"`(from fedsmall\S* import [^`]+)`", PAGE))
def test_every_import_of_the_page_works(line):
    exec(line, scope := {})

    assert set(scope) > {"__builtins__"}


@pytest.mark.parametrize("name", re.findall(r"^\| ((?:`\w+mod`|`LocalDpMod`)[^|]*) \|", PAGE, re.MULTILINE))
def test_flower_has_the_mods_that_are_named(name):
    mods = importlib.import_module("flwr.clientapp.mod")

    assert all(hasattr(mods, one) for one in re.findall(r"\w+", name))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"DifferentialPrivacy\w+", PAGE))))
def test_flower_has_the_wrappers_that_are_named(name):
    assert hasattr(importlib.import_module("flwr.serverapp.strategy"), name)


def test_the_lines_on_the_servers_evaluation_run(capsys):
    (code,) = blocks("python")

    exec(code, {"strategy": FedDC(1, 3), "grid": toy_grid(2), "initial_arrays": weights(0.0)})

    assert float(capsys.readouterr().out) > 1


def test_the_apps_that_are_run_are_there_and_know_the_settings_that_are_given():
    for line in re.findall(r"^flwr run ([^#\n]+)", blocks("bash")[0], re.MULTILINE):
        app, *rest = shlex.split(line)
        config = tomllib.loads((ROOT / app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]

        given = {word.partition("=")[0] for word in rest if "=" in word}

        assert given <= config.keys()
