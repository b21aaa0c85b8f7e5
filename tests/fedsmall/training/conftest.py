"""The compiled kernel, for all tests of this folder."""

import shutil

import pytest

from fedsmall.training import kernel
from fedsmall.training.kernel.build import build


def pytest_collection_modifyitems(items):
    """What wants a C compiler is thorough: a bare machine has none, and one compilation takes ten seconds."""
    for item in items:
        if "compiled" in getattr(item, "fixturenames", ()):
            item.add_marker("thorough")


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A kernel as it is compiled here."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler (cc) here")
    made = tmp_path_factory.mktemp("kernel") / "kernel.so"
    build(made)
    return made


@pytest.fixture
def compiled(built, monkeypatch):
    monkeypatch.setattr(kernel, "LIBRARY", built)
    kernel.library.cache_clear()
    yield kernel.library()
    kernel.library.cache_clear()
