"""The officer's table in docs/checks.md: eighteen rows, with tests and commands that there are, or a no and why."""

import ast
import re

import pytest

from tests import ROOT
from tests.sim.cli.lines import assert_known
from tests.test_pages import targets

CHECKS = (
    *("proxy", "pinned", "keys", "code", "pickle", "caps", "veto", "log of", "class", "budget", "circulating models"),
    *("compared", "hardened", "materials", "membership", "rest", "restart", "replay"),
)
WORD = re.compile(r"`([^`]+)`")


def table() -> list[list[str]]:
    """The rows: number, check, answer, and what shows it."""
    text = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    section = text.split("## Eighteen checks\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| ")
    ]
    return [row for row in rows if row[0].isdigit()]


def names_in(path: str) -> set[str]:
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_text())) if isinstance(node, ast.FunctionDef)}


def assert_there(shown: str) -> None:
    """A test that there is, or a line that can be typed."""
    path, _, name = shown.partition("::")
    if shown.startswith("tests/"):
        assert (ROOT / path).is_file(), shown
        assert not name or name in names_in(path), shown
    elif shown.startswith("make "):
        assert shown.removeprefix("make ") in targets(), shown
    else:
        program, _, line = shown.partition(" ")
        assert program == "fedsmall", shown
        assert_known(line)


def test_every_check_has_its_row():
    rows = table()

    assert [row[0] for row in rows] == [str(number) for number in range(1, 19)]
    assert all(len(row) == 4 for row in rows)
    assert all(word in row[1] for word, row in zip(CHECKS, rows, strict=True))


@pytest.mark.parametrize("row", table(), ids=lambda row: row[0])
def test_what_a_row_names_is_there(row):
    shown = WORD.findall(row[3])

    assert shown
    for one in shown:
        assert_there(one)
    assert not re.search(r"\bno\b,(?! because|[^.]* because)", row[2]), "a no says why"


@pytest.mark.parametrize(
    "shown",
    [
        "tests/test_layers.py::test_that_is_not_there",
        "tests/not_there.py::test_x",
        "make coffee",
        "fedsmall site vanish",
        "fedsmall site log --not-there",
        "rm -rf",
    ],
)
def test_what_is_not_there_is_seen(shown):
    with pytest.raises((AssertionError, KeyError)):
        assert_there(shown)


def test_every_attack_that_was_tried_names_its_tests_and_none_is_left_out():
    text = (ROOT / "docs" / "threats.md").read_text(encoding="utf-8")
    rows = [
        line for line in text.split("## Sealed runs: what was tried\n")[1].split("\n## ")[0].splitlines() if "|" in line
    ]
    named = {path for row in rows[2:] for path in WORD.findall(row.split("|")[3])}

    assert named == {path.name for path in (ROOT / "tests" / "attacks").glob("test_*.py")}
    assert all(row.count("|") == 4 for row in rows)
