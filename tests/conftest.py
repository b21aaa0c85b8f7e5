"""What all tests share: a Flower that stays at home, and the data that may lie beside the project."""

import gc
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says how busy the machine is, and nothing about the code. Examples are the same in every run
# of the same code; FEDSMALL_RANDOM_TESTS=1, as in the nightly runs, draws others each time.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="FEDSMALL_RANDOM_TESTS" not in os.environ,
)
settings.load_profile("any machine")

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("_TYPER_FORCE_DISABLE_TERMINAL", "1")  # or help comes in colours where GITHUB_ACTIONS is set


def pytest_runtest_setup(item):
    """A test is skipped, with the reason, where torch sees no GPU or a program is missing that the test needs."""
    if item.get_closest_marker("gpu"):
        import torch  # takes seconds, which tests of pages and words need not wait for

        if not torch.cuda.is_available():
            pytest.skip(f"torch {torch.__version__} sees no GPU here")
    anywhere = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])  # a user's PATH may lack these
    for program in (name for marker in item.iter_markers("needs") for name in marker.args):
        if not shutil.which(program, path=anywhere):
            pytest.skip(f"needs {program}, which is not here")


@pytest.fixture(scope="session", autouse=True)
def flower_home(tmp_path_factory):
    """Flower writes to a home of its own, never to the user's; so do stations."""
    os.environ["FLWR_HOME"] = str(tmp_path_factory.mktemp("flwr"))
    os.environ["FEDSMALL_TABLES"] = str(tmp_path_factory.mktemp("tables"))


@pytest.fixture
def collect_what_ray_left():
    yield
    gc.collect()


@pytest.fixture(scope="session")
def data_root() -> Path:
    """The folder with real data, or the test is skipped."""
    beside = Path(__file__).parents[2] / "shared" / "data"
    root = Path(os.environ.get("FEDSMALL_DATA", beside))
    if not root.exists():
        pytest.skip("no real data here; set FEDSMALL_DATA to a folder that holds them")
    return root


@pytest.fixture
def fedsmall(capfd, monkeypatch, tmp_path):
    """Call the command line in an empty folder: gives its exit code, what it said, and what it said on stderr."""
    from fedsmall.sim.cli.app import main

    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        said, complained = capfd.readouterr()
        return int(ended.value.code or 0), said, complained

    return call
