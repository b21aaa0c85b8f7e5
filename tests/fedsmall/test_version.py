"""The version is stated once, in pyproject.toml, and everything else reads it."""

import re
import tomllib
from importlib.metadata import version

import yaml

import fedsmall as package
from tests import ROOT

STATED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_a_checkout_and_a_bundle_have_the_version_of_their_pyproject():
    assert package.__version__ == STATED


def test_a_wheel_has_the_version_it_was_installed_with(tmp_path):
    assert package._version(tmp_path / "pyproject.toml") == version("fedsmall")


def test_another_projects_pyproject_is_not_ours(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "theirs"\nversion = "9.9"\n')

    assert package._version(tmp_path / "pyproject.toml") == version("fedsmall")


def headings() -> list[str]:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    return [line.removeprefix("## ") for line in lines if line.startswith("## ")]


def test_the_changelog_has_the_version_at_its_top_and_every_version_once():
    versions = [heading.partition(" ")[0] for heading in headings()]

    assert versions[0] == STATED
    assert len(set(versions)) == len(versions)


def test_a_heading_of_the_changelog_has_a_date_or_says_that_there_is_none():
    assert [
        one for one in headings() if not re.fullmatch(r"\S+ \((\d{4}-\d\d-\d\d|(never|not yet) released.*)\)", one)
    ] == []


def test_the_citation_has_the_version_and_its_date():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())

    assert citation["version"] == STATED
    assert headings()[0] == f"{STATED} ({citation['date-released']})"


def test_no_page_and_no_recipe_states_another_version():
    """What a reader would copy: "fedsmall 0.2.0", "fedsmall==0.2.0", "fedsmall-0.2.0", "fedsmall:0.2.0"."""
    rooms = ("*.md", "docs/**/*.md", "docker/**/*", "examples/**/*", ".github/**/*", "Makefile")
    pages = {
        path for room in rooms for path in ROOT.glob(room) if path.is_file() and path.suffix not in (".png", ".whl")
    }
    pages -= {ROOT / "CHANGELOG.md"}
    stated = {
        (path.name, found)
        for path in pages
        for found in re.findall(r"fedsmall[ :=-]{1,2}v?(\d+\.\d+\.\d+)", path.read_text(errors="ignore"))
    }

    assert {found for _, found in stated} <= {STATED}, sorted(stated)
