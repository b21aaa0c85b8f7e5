"""The how-to pages are followed from top to bottom in an empty folder, as a reader would."""

import io
import re
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from tests import ROOT
from tests.sim.cli.lines import assert_known

LIVE = ("add-hospital",)  # what needs a consortium: its lines are those of a tutorial, which a slow test runs
INSTALLED = ("offline",)  # and what needs a machine to install on (tests/sim/cli/test_bundle.py)
APART = ("two-servers",)  # and what needs three: a slow test follows it (tests/sim/regions)
SAID = {"leaves": ("What never leaves it", "FedDC, exposure 1"), "choose": ("Take mean of three", "FedDC", "Central")}
PAGES = sorted((ROOT / "docs" / "howto").glob("*.md"))
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)


def lines(block: str) -> list[str]:
    return re.findall(r"^fedsmall ([^#\n]+)", block, re.MULTILINE)


@pytest.fixture
def followed(fedsmall, tmp_path, monkeypatch):
    """Follow a page: write the files that blocks are titled by, run the others; gives what was said on the way."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def follow(page: Path) -> str:
        variables: dict[str, object] = {}
        told = io.StringIO()
        for language, title, block in BLOCK.findall(page.read_text(encoding="utf-8")):
            if title:
                (tmp_path / title).write_text(block)
            elif language == "python":
                with redirect_stdout(told):
                    exec(compile(block, page.name, "exec"), variables)
            elif language == "bash":
                told.write("".join(_said(fedsmall, line) for line in lines(block)))
        return told.getvalue()

    yield follow
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def _said(fedsmall, line: str) -> str:
    here = ["--processes", "1"] if line.startswith("run ") else []  # to start processes takes longer than the runs
    code, said, complained = fedsmall(*shlex.split(line), *here)
    assert code == 0, f"fedsmall {line}: {said[-1000:]}{complained}"
    return said


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.stem not in LIVE + APART + INSTALLED], ids=lambda page: page.stem
)
def test_a_how_to_does_what_it_says(page, followed, tmp_path):
    told = followed(page)

    assert [words for words in SAID.get(page.stem, ()) if words not in told] == []
    for line in re.findall(r"print\(.*\)  # (.*)", page.read_text(encoding="utf-8")):
        assert line in told.splitlines()
    for named in re.findall(r"--(?:out|write) (\S+)", "\n".join(lines(page.read_text(encoding="utf-8")))):
        assert (tmp_path / named).exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_line_of_a_how_to_has_words_and_options_that_exist(page):
    for line in lines(page.read_text(encoding="utf-8")):
        assert_known(line)


@pytest.mark.parametrize("page", LIVE)
def test_what_a_how_to_says_of_real_sites_is_what_the_tutorial_says(page):
    tutorial = ROOT / "docs" / "tutorials" / "three-hospitals.md"
    walked = {line.strip() for line in lines(tutorial.read_text(encoding="utf-8"))}

    said = {line.strip() for line in lines((ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8"))}

    assert said
    assert said <= walked
