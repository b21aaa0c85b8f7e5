"""What is pinned can be installed, and the page of licences tells of it and of nothing else."""

import tomllib
from email.message import Message
from types import SimpleNamespace

import pytest
from packaging.specifiers import SpecifierSet

from tests import ROOT
from tests.release import licences

PINS = licences.pinned((ROOT / "constraints.txt").read_text())
PAGE = licences.PAGE.read_text()
ROWS = licences.rows_of(PAGE)


def package(*classifiers: str, **fields: str):
    """A package that says these things of itself."""
    about = Message()
    for name, value in fields.items():
        about[name.replace("_", "-")] = value
    for classifier in classifiers:
        about["Classifier"] = classifier
    return SimpleNamespace(metadata=about, version="1.0")


def test_the_page_holds_every_pinned_package_at_its_version():
    assert {name: version for name, (version, _, _) in ROWS.items()} == PINS, "`make licences` makes the page anew"


def test_the_first_release_of_every_supported_python_takes_what_is_pinned():
    """Debian 12's own Python is 3.11.2: a package that wants 3.11.5 cannot be installed there."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = [
        f"{text.rpartition(' ')[2]}.0" for text in about if text.startswith("Programming Language :: Python :: 3.")
    ]
    wanted = {
        name: SpecifierSet(one.metadata.get("Requires-Python") or "")
        for name, one in licences.installed(PINS).items()
        if one.version.partition("+")[0] == PINS[name]
    }

    assert "3.11.0" in pythons
    assert len(wanted) > 100
    assert {name for name, spec in wanted.items() if not all(spec.contains(python) for python in pythons)} == set()


@pytest.mark.thorough
def test_the_page_says_what_the_installed_packages_say():
    here = {name: one for name, one in licences.installed(PINS).items() if one.version.partition("+")[0] == PINS[name]}

    assert {"torch", "numpy", "flwr"} <= here.keys()
    assert {name: ROWS[name][1] for name in here} == {name: licences.licence_of(one) for name, one in here.items()}


def test_the_page_is_what_its_rows_make():
    assert licences.page(ROWS) == PAGE


def test_only_the_extra_survival_brings_packages_under_the_gpl():
    strong = licences.strong(ROWS)

    assert "scikit-survival" in strong
    assert {ROWS[name][2] for name in strong} == {"`survival`"}
    assert f"**{' and '.join(strong)}** are under the GNU General Public License" in PAGE


def test_every_licence_is_known():
    assert [name for name, (_, licence, _) in ROWS.items() if licence == "not said"] == []


@pytest.mark.parametrize(
    ("licence", "strong"),
    [
        ("GPL-3.0-or-later", True),
        ("AGPL-3.0", True),
        ("GPL-2.0 AND MIT", True),
        ("MIT OR GPL-3.0", False),
        ("LGPL-3.0", False),
        ("GNU Affero General Public License v3", True),
        ("Apache-2.0", False),
    ],
)
def test_who_may_choose_a_weaker_licence_is_not_bound_by_the_gpl(licence, strong):
    assert licences.is_strong(licence) is strong


@pytest.mark.parametrize(
    ("said", "licence"),
    [
        (package(License_Expression="MIT", License="other"), "MIT"),
        (package("License :: OSI Approved :: MIT License"), "MIT"),
        (package("License :: OSI Approved :: BSD License", License="BSD-3-Clause"), "BSD-3-Clause"),
        (package("License :: OSI Approved"), "not said"),
        (package(License="Permission is hereby granted\nfree of charge"), "not said"),
        (package("Topic :: Software", License="Apache 2.0"), "Apache-2.0"),
    ],
)
def test_a_licence_is_the_expression_else_the_classifiers_else_the_field(said, licence):
    assert licences.licence_of(said) == licence


@pytest.mark.thorough
def test_who_brings_a_package_along_is_told():
    brought = licences.users()

    assert brought["numpy"] == {"fedsmall"}
    assert brought["pydicom"] == {"dicom"}
    assert "pytest" not in brought


def test_another_version_than_the_pinned_one_is_refused(monkeypatch):
    monkeypatch.setattr(licences, "pinned", lambda text: {"numpy": "0.1"})

    with pytest.raises(SystemExit, match=r"constraints\.txt pins another version than is installed of: numpy"):
        licences.main()
