"""A wheel that works from an empty folder with the checkout gone, and an sdist that is the checkout."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import ROOT
from tests.release import check
from tests.release.check import Stranger, build, check_installed, check_sdist, only

VERSION, PYTHONS = check.stated()
PACKAGES = ("fedsmall", "strategies", "clients", "sim", "extensions")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with the wheel and the sdist of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "sdist", "wheel")
    return folder


@pytest.fixture(scope="module")
def wheel(built) -> Path:
    return only(built, "fedsmall-*.whl")


@pytest.fixture(scope="module")
def stranger(wheel, tmp_path_factory) -> Stranger:
    """Somebody who has the wheel, and this checkout nowhere."""
    return check.stranger_with(wheel, tmp_path_factory.mktemp("stranger"))


def known_to_git(*kinds: str) -> set[str]:
    """The files of this tree that git tracks ("--cached"), or could ("--others"); a tree of no git skips the test."""
    found = subprocess.run(["git", "ls-files", "--exclude-standard", *kinds], cwd=ROOT, capture_output=True, text=True)
    if found.returncode or not (ROOT / ".git").exists():
        pytest.skip("this tree is no checkout of git")
    return {name for name in found.stdout.split("\n") if name and (ROOT / name).exists()}


def assert_holds_the_checkout(held: set[str], of: Callable[[set[str]], set[str]]) -> None:
    """All that git tracks is held, and nothing that it does not know."""
    assert of(known_to_git("--cached")) - held == set()
    assert held - of(known_to_git("--cached", "--others")) == set()


def in_wheel(names: set[str]) -> set[str]:
    names = {name.replace("docker/systemd/", "fedsmall/systemd/") for name in names}
    ours = {name for name in names if name.split("/")[0] in PACKAGES}
    return {name if name.startswith("fedsmall/") else f"fedsmall/{name}" for name in ours}


@pytest.mark.slow
def test_a_wheel_works_from_an_empty_folder_with_the_checkout_gone(stranger):
    check_installed(stranger, VERSION)


@pytest.mark.thorough
def test_a_stranger_finds_the_checkout_nowhere(stranger, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))

    paths = stranger.python("import sys; print(*sys.path, sep='\\n')").split()

    assert not [path for path in paths if Path(path).resolve() == ROOT]
    with pytest.raises(SystemExit, match="No module named 'tests'"):
        stranger.python("import tests")


@pytest.mark.thorough
def test_what_is_checked_is_the_wheel_and_not_what_lies_elsewhere(stranger):
    elsewhere = Stranger(stranger.environment.parent / "empty", stranger.folder)
    elsewhere.python = stranger.python  # type: ignore[method-assign]

    with pytest.raises(SystemExit, match="these are not the installed packages"):
        check_installed(elsewhere, VERSION)


@pytest.mark.thorough
def test_another_version_than_the_stated_one_is_named(stranger):
    with pytest.raises(SystemExit, match=f"says 'fedsmall {VERSION}'; pyproject.toml says 9.9"):
        check_installed(stranger, "9.9")


@pytest.mark.thorough
def test_a_command_that_comes_with_the_repository_says_so_in_one_line_and_no_help_names_it(stranger):
    for words in (("bench",), ("reproduce", "list")):
        with pytest.raises(
            SystemExit, match=rf"ended with 2:\nfedsmall: `fedsmall {words[0]}` comes with the reposit.*\n$"
        ):
            stranger.fedsmall(*words)

    assert not re.search(r"\b(bench|reproduce)\b", stranger.fedsmall("--help"))


@pytest.mark.thorough
def test_a_search_in_a_wheel_knows_scenarios_and_no_items_of_the_papers(stranger):
    with pytest.raises(SystemExit, match="ended with 2:\nfedsmall: There is no scenario fig4"):
        stranger.fedsmall("tune", "fig4")


@pytest.mark.slow
def test_every_command_of_the_wheel_has_a_help(stranger):
    words = [line.split() for line in stranger.python(check.COMMANDS).splitlines()]

    assert {("run",), ("site", "up"), ("consortium", "init"), ("list", "tasks")} <= {tuple(w) for w in words}
    assert "Usage: fedsmall site check" in stranger.fedsmall("site", "check", "--help")


@pytest.mark.needs("git")
def test_the_wheel_holds_every_file_of_our_packages_and_of_the_scenarios_and_nothing_else(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}

    assert_holds_the_checkout(held, in_wheel)


@pytest.mark.needs("git")
def test_the_sdist_is_the_checkout(built):
    with tarfile.open(only(built, "fedsmall-*.tar.gz")) as sdist:
        held = {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}

    assert_holds_the_checkout(held - {"PKG-INFO"}, set)


def test_the_sdist_gives_the_same_wheel_to_the_byte(built, wheel):
    check_sdist(only(built, "fedsmall-*.tar.gz"), wheel)


def test_an_sdist_that_gives_another_wheel_is_refused(built, wheel, tmp_path):
    other = tmp_path / wheel.name
    other.write_bytes(wheel.read_bytes() + b" ")

    with pytest.raises(SystemExit, match=r"gives another fedsmall-.*\.whl than the checkout"):
        check_sdist(only(built, "fedsmall-*.tar.gz"), other)


@pytest.mark.slow
def test_the_wheel_of_one_platform_brings_the_kernel(built, tmp_path, monkeypatch):
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc) here")
    with tarfile.open(only(built, "fedsmall-*.tar.gz")) as sdist:
        sdist.extractall(tmp_path, filter="data")
    monkeypatch.setenv("FEDSMALL_KERNEL", "1")

    build(only(tmp_path, "fedsmall-*"), tmp_path / "dist", "wheel")

    made = only(tmp_path / "dist", "*.whl")
    assert made.name.startswith(f"fedsmall-{VERSION}-py3-none-")
    assert "any" not in made.name
    assert "fedsmall/training/kernel/kernel.so" in zipfile.ZipFile(made).namelist()


def test_nothing_that_is_built_names_a_place_on_this_machine(built, wheel):
    texts = [zipfile.ZipFile(wheel).read(name) for name in zipfile.ZipFile(wheel).namelist()]
    with tarfile.open(only(built, "fedsmall-*.tar.gz")) as sdist:
        texts += [sdist.extractfile(member).read() for member in sdist.getmembers() if member.isfile()]  # type: ignore[union-attr]

    here = [os.fsencode(place) for place in {str(ROOT), str(Path.home()), str(ROOT.parent)} if len(place) > 6]
    assert not [place for place in here if any(place in text for text in texts)]


def test_the_pythons_that_are_checked_are_those_of_the_classifiers():
    assert PYTHONS == ["3.11", "3.12", "3.13"]


def test_a_python_that_is_not_at_hand_is_a_line(capsys, wheel, tmp_path):
    assert list(check.environments(["3.99"], wheel, tmp_path)) == []
    assert capsys.readouterr().out == "Python 3.99: not at hand here, so not checked\n"


def test_a_wheel_that_a_python_cannot_compile_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "odd.whl", "w") as odd:
        odd.writestr("fedsmall/odd.py", "match = = 1")

    with pytest.raises(SystemExit, match=r"Python 3\.11 does not compile all of the wheel(.|\n)*odd\.py"):
        check.check_compiles("3.11", Path(sys.executable), tmp_path / "odd.whl")


def test_two_wheels_in_a_folder_are_refused(tmp_path):
    for name in ("fedsmall-1.whl", "fedsmall-2.whl"):
        (tmp_path / name).touch()

    with pytest.raises(SystemExit, match=r"is to hold one fedsmall-\*.whl, and holds 2; `make clean` first"):
        only(tmp_path, "fedsmall-*.whl")
