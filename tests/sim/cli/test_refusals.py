"""What ended in a traceback once is one line and code 2: a table of cases, each with the line that is expected."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedsmall.sim.runs.scenario import read

MINE = """
import numpy as np
from torch import nn
from fedsmall.data.sources.pool import NOWHERE, Part, Pool


class Fails(nn.Linear):
    def forward(self, x):
        raise KeyError("inside")


def raises(*given):
    raise RuntimeError("boom")


def nothing(*given):
    return None


def wants_99(task):
    return nn.Linear(99, task.outputs)


def gives_1000(task):
    return nn.Linear(2, 1000)


def fails(task):
    return Fails(2, 2)


def empty(task):
    return nn.Identity()


def odd_lengths(root, seed):
    return Pool({NOWHERE: Part(np.zeros((20, 2)), np.zeros(19, int))}, ("a", "b"))


def odd_labels(root, seed):
    return Pool({NOWHERE: Part(np.zeros((20, 2)), np.arange(20))}, ("a", "b"))


def no_sites(root, seed):
    return Pool({}, ("a", "b"))
"""
Run = Callable[[str], tuple[int, str, str]]
ROWS = "x,y,ill\n" + "".join(f"{k},{k * k % 7},{k % 2}\n" for k in range(20))
TABLE = 'task = {csv = "t.csv", label = "ill"}\nsites = 2\nsamples_per_site = 4\n'


def own_model(name: str) -> str:
    return f'{TABLE}model = "refused:{name}"\n'


def own_source(name: str) -> str:
    return f'task = {{source = "refused:{name}"}}\nsites = 2\nsamples_per_site = 3\n'


def hospitals(folder: str) -> str:
    return f'task = {{csv = "{folder}", label = "ill"}}\npartition = {{natural = "file"}}\n'


def of(kind: str, path: str, more: str = "") -> str:
    return f'task = {{{kind} = "{path}"{more}}}\nsites = 2\nsamples_per_site = 3\n'


CASES: dict[str, tuple[str, str]] = {
    "a size of nothing": (of("images", "scans", ", size = [0, 0]"), r"size is a side \(150\) .* got \[0, 0\]"),
    "an npz cut short": (of("npz", "cut.npz"), r"cut\.npz: the file is not an \.npz of plain arrays, or is damaged"),
    "an npz with other bytes": (
        of("npz", "torn.npz"),
        r"torn\.npz: the file is not an \.npz of plain arrays, or is da",
    ),
    "a site with a header only": (hospitals("h"), r"site 'd': there is no row under the header; a site needs at least"),
    "a link to itself": (hospitals("loop"), r"there is no file or folder 'loop' here"),
    "a link to itself among the sites": (
        hospitals("links"),
        r"d\.csv: it is no file that can be read, but a folder, a pipe or",
    ),
    "a path of 400 letters": (of("npz", "n" * 400), r"there is no file or folder 'n{60}\.\.\.n{50}' here"),
    "a path with a zero": (of("npz", "a\\u0000b"), r"there is no file or folder 'a\\x00b' here"),
    "a name of 400 letters": (
        f'{TABLE}name = "{"n" * 400}"\n',
        r"s\.toml: name: 400 letters, and a run's folder has this",
    ),
    "a pipe as a table": (of("csv", "pipe.csv", ', label = "ill"'), r"pipe\.csv: it is a pipe, a socket or a device"),
    "a pipe as arrays": (of("npz", "pipe.npz"), r"pipe\.npz: it is a pipe, a socket or a device"),
    "a pipe among images": (of("images", "pipes"), r"p\.png: it is a pipe, a socket or a device"),
    "a path of Windows": (of("csv", "C:\\data\\t.csv"), r"s\.toml is not TOML: .* write a path with / in place of \\"),
    "a path that begins as a letter by its number does": (of("csv", "C:\\Users\\t.csv"), r"write a path with / in"),
    "the quotes of a word processor": (
        "model = \u201clinear\u201d\n",
        r"s\.toml is not TOML: .*; it has the quotes \u201c \u201d of a word processor: write straight ones, \" or '$",
    ),
    "a model that raises": (
        own_model("raises"),
        r"model 'refused:raises' raised RuntimeError: boom \(refused\.py, line \d+\)$",
    ),
    "a model that is none": (
        own_model("nothing"),
        r"model 'refused:nothing' returned NoneType; it must return a torch mod",
    ),
    "a model of another shape": (
        own_model("wants_99"),
        r"model 'refused:wants_99', given samples of shape \(2,\), raised Ru",
    ),
    "a model of other outputs": (
        own_model("gives_1000"),
        r"gives outputs of shape \(2, 1000\) for 2 samples; this task wants \(2, 2\)$",
    ),
    "a model that fails when it is used": (own_model("fails"), r"raised KeyError: 'inside' \(refused\.py, line \d+\)$"),
    "a model without parameters": (
        own_model("empty"),
        r"model 'refused:empty' has no parameter, so there is nothing to",
    ),
    "a source that raises": (
        own_source("raises"),
        r"source 'refused:raises' raised RuntimeError: boom \(refused\.py, lin",
    ),
    "a source that returns nothing": (
        own_source("nothing"),
        r"source 'refused:nothing' returned NoneType; it must return",
    ),
    "a source of unequal lengths": (
        own_source("odd_lengths"),
        r"gives 20 samples and 19 labels; there must be one for ea",
    ),
    "a source with other labels": (
        own_source("odd_labels"),
        r"gives labels that are not 0 to 1, the classes it names$",
    ),
    "a source without sites": (
        own_source("no_sites"),
        r"source 'refused:no_sites' returned a Pool without samples to tr",
    ),
}
GOOD: dict[str, str] = {
    "a size as one number": of("images", "scans", ", size = 28") + 'model = "linear"\n',
    "two samples at one site": hospitals("two"),
    "one sample at one site": hospitals("one"),
}


@pytest.fixture
def world(fedsmall: Any, tmp_path: Path, monkeypatch: Any) -> Run:
    """A folder with everything that the cases name; runs a scenario of this text."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "refused", raising=False)
    (tmp_path / "refused.py").write_text(MINE)
    (tmp_path / "t.csv").write_text(ROWS)
    for folder, last in {"h": "", "two": "1,2,0\n2,3,1\n", "one": "1,2,0\n", "links": None}.items():
        (tmp_path / folder).mkdir()
        for site in "abc":
            (tmp_path / folder / f"{site}.csv").write_text(ROWS)
        if last is None:
            os.symlink("d.csv", tmp_path / folder / "d.csv")
        else:
            (tmp_path / folder / "d.csv").write_text("x,y,ill\n" + last)
    os.symlink("loop", tmp_path / "loop")
    for pipe in ("pipe.csv", "pipe.npz", "pipes/ill/p.png"):
        (tmp_path / pipe).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / pipe)
    for name in ("ill", "well"):
        (tmp_path / "scans" / name).mkdir(parents=True)
        for index in range(8):
            Image.fromarray(np.full((30, 30), 9 * index, np.uint8)).save(tmp_path / "scans" / name / f"{index}.png")
    shutil.copytree(tmp_path / "scans" / "well", tmp_path / "pipes" / "well")
    np.savez(tmp_path / "whole.npz", x=np.zeros((40, 3)), y=np.arange(40) % 2)
    whole = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "torn.npz").write_bytes(whole[:200] + b"\xff" * 60 + whole[260:])

    def run(text: str) -> tuple[int, str, str]:
        named = "" if "\nname = " in text else 'name = "case"\n'
        (tmp_path / "s.toml").write_text(f'{named}{text}rounds = 2\nseeds = [0]\n[[method]]\nname = "FedAvg"\n')
        return fedsmall("run", "s.toml", "--processes", "1")

    return run


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_run_is_one_line(case: str, world: Run, tmp_path: Path) -> None:
    text, line = CASES[case]

    code, _, complained = world(text)

    assert code == 2
    assert len(complained.strip().splitlines()) == 1, complained
    assert re.search(line, complained.strip()), complained
    assert str(tmp_path) not in complained
    assert not (tmp_path / "runs").exists()


ENCODED: dict[str, tuple[str, str]] = {
    "UTF-16": ("utf-16", r"^fedsmall: s\.toml is not TOML: it is in UTF-16, as PowerShell .*; save it in UTF-8$"),
    "UTF-16 without its mark": ("utf-16-le", "it is in UTF-16"),
    "another": (
        "cp1252",
        r"^fedsmall: s\.toml is not TOML: line 2 holds a character that is not in UTF-8; save the file",
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("encoding", ENCODED)
def test_a_scenario_in_another_encoding_is_one_line(encoding: str, fedsmall: Any, tmp_path: Path) -> None:
    name, line = ENCODED[encoding]
    (tmp_path / "s.toml").write_bytes(f'# a scenario\nname = "K\u00f6ln"\n{TABLE}'.encode(name))

    code, _, complained = fedsmall("run", "s.toml")

    assert (code, complained.count("\n")) == (2, 1)
    assert re.search(line, complained.strip()), complained


def test_a_scenario_that_is_a_pipe_is_one_line(fedsmall: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.toml")

    assert fedsmall("run", "s.toml")[::2] == (
        2,
        "fedsmall: s.toml: it is a pipe, a socket or a device, and no regular file; save it as a file\n",
    )


def test_a_scenario_may_begin_with_the_mark_of_utf_8(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(f'name = "K\u00f6ln"\n{TABLE}', encoding="utf-8-sig")

    assert read(tmp_path / "s.toml")["name"] == "K\u00f6ln"


@pytest.mark.thorough
@pytest.mark.parametrize("case", GOOD)
def test_what_is_small_runs(case: str, world: Run) -> None:
    assert world(GOOD[case])[0] == 0
