"""A bundle installs fedsmall in an empty environment without a network, and says what is wrong where it cannot."""

import hashlib
import os
import subprocess
import tarfile
from importlib.metadata import distribution

import pytest

from fedsmall import __version__
from tests import ROOT

ALONE = ("--pip", "--no-deps --no-build-isolation")  # fedsmall's own wheel: the others are gigabytes


@pytest.fixture
def bundled(fedsmall, tmp_path):
    """A bundle as it arrives at a hospital."""
    code, said, _ = fedsmall("site", "bundle", "--out", "at-hospital", *ALONE)
    assert code == 0, said
    with tarfile.open(tmp_path / "at-hospital.tar") as packed:
        packed.extractall(tmp_path / "there", filter="data")
    return said, tmp_path / "there" / "at-hospital"


def install(folder, into):
    """As at a hospital whose PYTHONPATH has this fedsmall already, which is none of the environment's."""
    words, known = ["sh", str(folder / "install.sh"), str(into)], str(distribution("fedsmall").locate_file(""))
    settings = {**os.environ, "PIP_NO_DEPS": "1", "PYTHONPATH": known}
    return subprocess.run(words, capture_output=True, text=True, env=settings)


@pytest.mark.slow
def test_a_bundle_installs_without_an_index_and_a_changed_one_does_not(bundled, tmp_path):
    said, folder = bundled

    assert hashlib.sha256((folder / "SHA256SUMS").read_bytes()).hexdigest() in said
    done = install(folder, tmp_path / "venv")  # the command itself wants the other wheels
    found = [path.name for path in tmp_path.glob("venv/lib/*/site-packages/fedsmall-*")]
    assert found == [f"fedsmall-{__version__}.dist-info"], done.stdout + done.stderr
    units = {path.name for path in (folder / "systemd").iterdir()}
    assert units == {path.name for path in (ROOT / "docker" / "systemd").iterdir()}
    (folder / "systemd" / "fedsmall-station.service").write_text("[Service]\nExecStart=/bin/evil\n")
    done = install(folder, tmp_path / "other")
    assert done.returncode != 0
    assert "fedsmall-station.service: FAILED" in done.stdout
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--wheel", "nothing.whl"), "there is no file nothing.whl"),
        (("--pip", "--no-index --no-build-isolation --find-links ."), "pip could not gather the wheels: "),
    ],
)
def test_what_cannot_be_bundled_is_said_in_one_line_and_nothing_is_left(fedsmall, tmp_path, words, reason):
    code, _, complained = fedsmall("site", "bundle", "--out", "bundle", *words)

    assert code == 2
    assert reason in complained
    assert complained.strip().count("\n") == 0
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_is_not_written_over(fedsmall, tmp_path):
    (tmp_path / "bundle.tar").touch()

    code, _, complained = fedsmall("site", "bundle", "--out", "bundle")

    assert (code, "it is not written over" in complained) == (2, True)
