"""The version is stated once, in pyproject.toml, and everything else reads it."""

import tomllib
from importlib.metadata import version

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


def test_the_changelog_has_the_version_at_its_top():
    first = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))

    assert first.removeprefix("## ").partition(",")[0] == STATED
