"""Whatever a page or a message says to install is there: pip resolves each of them from an index of our own wheel.

The index has the wheel of this tree, and of every package that is installed here a wheel without code that needs what
the package needs. So pip finds out what is missing or in conflict, and nothing is downloaded.
"""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path
from urllib.parse import quote

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import ROOT
from tests.release.check import build, only

ROOMS = ("fedsmall", "strategies", "clients", "sim", "extensions", "research", "examples", "docs")
INSTALL = re.compile(r"fedsmall\[([a-z][a-z,-]*)\]")
NAMED = re.compile(r"import_extra\(\s*\"([a-z-]+)\"")


def extras_named() -> list[str]:
    """Every fedsmall[...] of the pages and of the code, with those that an error message fills in."""
    texts = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
    texts += [path for room in ROOMS for kind in ("*.md", "*.py") for path in sorted((ROOT / room).rglob(kind))]
    text = "\n".join(path.read_text(encoding="utf-8") for path in texts)
    return sorted({*INSTALL.findall(text), *NAMED.findall(text)})


def without_code(package: Distribution) -> Iterator[tuple[str, str]]:
    """What a wheel holds that says what a package needs, and no more."""
    stem = f"{package.metadata['Name'].replace('-', '_')}-{package.version}"
    yield f"{stem}.dist-info/METADATA", package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    yield f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    yield f"{stem}.dist-info/RECORD", ""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is an index of packages (PEP 503)."""
    folder = tmp_path_factory.mktemp("index")
    (folder / "fedsmall").mkdir()
    build(ROOT, folder / "fedsmall", "wheel")
    for package in distributions():
        name = package.metadata["Name"]
        if canonicalize_name(name) == "fedsmall":
            continue
        place = folder / canonicalize_name(name)
        place.mkdir(exist_ok=True)
        with zipfile.ZipFile(place / f"{name.replace('-', '_')}-{package.version}-py3-none-any.whl", "w") as wheel:
            for path, text in without_code(package):
                wheel.writestr(path, text)
    for place in folder.iterdir():
        links = "".join(f'<a href="{quote(file.name)}">{file.name}</a>' for file in sorted(place.glob("*.whl")))
        (place / "index.html").write_text(f"<!DOCTYPE html><html><body>{links}</body></html>")
    return folder


def is_here(extras: str, index: Path) -> bool:
    """Whether all that some extras bring is installed here, and so in the index."""
    with zipfile.ZipFile(only(index / "fedsmall", "*.whl")) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        lines = wheel.read(name).decode().splitlines()
    needed = [Requirement(line.removeprefix("Requires-Dist: ")) for line in lines if line.startswith("Requires-Dist:")]
    asked = [
        one for one in needed for extra in extras.split(",") if one.marker and one.marker.evaluate({"extra": extra})
    ]
    return all((index / canonicalize_name(one.name)).is_dir() for one in asked)


def pip(index: Path, *words: str) -> subprocess.CompletedProcess[str]:
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--index-url", index.as_uri()]
    environment = alone | {"PIP_CONFIG_FILE": os.devnull}
    return subprocess.run([*command, *words], env=environment, capture_output=True, text=True, timeout=300)


def test_pages_and_messages_name_extras() -> None:
    named = extras_named()

    assert {"ray", "excel", "survival", "export"} <= set(named)
    assert len(named) > 10


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("extras", ["", *extras_named()])
def test_what_is_named_can_be_installed_from_an_index(index: Path, extras: str) -> None:
    if extras and not is_here(extras, index):
        pytest.skip("what it brings is not installed here, so nobody can say what that needs")

    made = pip(index, f"fedsmall[{extras}]" if extras else "fedsmall")

    assert made.returncode == 0, made.stderr
    assert "does not provide the extra" not in made.stderr
    assert "Would install" in made.stdout


@pytest.mark.slow
def test_an_extra_that_there_is_not_is_noticed(index: Path) -> None:
    made = pip(index, "fedsmall[nothing]")

    assert "does not provide the extra" in made.stderr


@pytest.mark.slow
def test_the_plain_install_brings_no_simulator_no_images_and_no_notebook(index: Path) -> None:
    (line,) = [line for line in pip(index, "fedsmall").stdout.splitlines() if line.startswith("Would install")]

    brought = {word.rpartition("-")[0] for word in line.split()[2:]}
    assert brought.isdisjoint({"ray", "torchvision", "medmnist", "flwr-datasets", "datasets", "ipykernel", "pyarrow"})
    assert {"torch", "flwr", "scikit-learn"} <= brought
