"""What Flower itself asks of an app that is published, or bundled to run, without a network and without an account."""

import importlib
import shutil
import sys
import tomllib
import zipfile
from io import BytesIO

import pytest
from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_app_name, _validate_description, _validate_files
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

from fedsmall import __version__
from tests import ROOT

MOST_FILES, MOST_BYTES = 200, 2 * 1024**2


@pytest.fixture(params=["hub", "flower_app"])
def app(request, tmp_path):
    """A copy of the app, as it is checked out."""
    folder = tmp_path / request.param.replace("_", "-")
    shutil.copytree(ROOT / "examples" / request.param, folder, ignore=shutil.ignore_patterns("__pycache__", "runs"))
    return folder


def test_an_app_passes_what_flower_checks_before_it_publishes(app, capsys):
    config, _ = load_and_validate(app / "pyproject.toml", check_module=False)
    _validate_app_name(app.name, "Flower App directory name")
    _validate_description(config["project"]["description"])

    files = _collect_file_paths(app)
    _validate_files(files)

    assert "Validation passed" in capsys.readouterr().out
    assert {"LICENSE", "README.md", "server_app.py", "client_app.py", "pyproject.toml"} <= {file.name for file in files}
    assert len(files) <= MOST_FILES
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    assert len(config["project"]["description"]) <= 200
    assert normalize_and_validate_fab_format(config).fab_format_version == 1


def test_the_hub_app_is_the_package_s_own_with_all_of_its_settings(monkeypatch):
    hub, ours = (tomllib.loads((folder / "pyproject.toml").read_text()) for folder in (ROOT / "examples" / "hub", ROOT))
    monkeypatch.syspath_prepend(ROOT / "examples" / "hub")

    for name, whole in (("server_app", "fedsmall.sim.flower_app"), ("client_app", "fedsmall.clients.client_app")):
        try:
            assert importlib.import_module(name).app is importlib.import_module(whole).app
        finally:
            sys.modules.pop(name, None)

    assert hub["tool"]["flwr"]["app"]["config"] == ours["tool"]["flwr"]["app"]["config"]
    assert hub["project"]["version"] == __version__
    assert hub["project"]["name"] == ours["project"]["name"]


@pytest.mark.slow
def test_the_bundle_of_a_checkout_holds_what_a_run_imports_and_no_tests_or_pages():
    bundle = zipfile.ZipFile(BytesIO(build_fab_from_disk(ROOT)))

    names = set(bundle.namelist())

    rooms = {name.partition("/")[0] for name in names if "/" in name}
    assert rooms == {"fedsmall", "strategies", "clients", "sim", "extensions", ".info"}
    assert {"sim/scenarios/synthetic.toml", "clients/policy.toml", "LICENSE", "pyproject.toml"} <= names
    assert sum(each.file_size for each in bundle.infolist()) < 3e6
