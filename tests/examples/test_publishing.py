"""What Flower itself asks of an app that is published, or bundled to run, without a network and without an account."""

import tomllib
import zipfile
from io import BytesIO

import pytest
from flwr.cli.app_cmd.publish import _collect_file_paths, _validate_app_name, _validate_description, _validate_files
from flwr.cli.build import build_fab_from_disk
from flwr.supercore.fab_format_version import normalize_and_validate_fab_format

from tests import ROOT

APP = ROOT / "examples" / "flower_app"


def test_the_app_of_the_example_could_be_published():
    config = tomllib.loads((APP / "pyproject.toml").read_text(encoding="utf-8"))
    files = _collect_file_paths(APP)

    _validate_app_name(config["project"]["name"], "name")
    _validate_description(config["project"]["description"])
    _validate_files(files)

    assert len(files) <= 200
    assert sum(path.stat().st_size for path in files) <= 2e6
    assert normalize_and_validate_fab_format(config).fab_format_version == 1
    assert {"LICENSE", "README.md", "server_app.py", "client_app.py"} <= {path.name for path in files}


@pytest.mark.slow
def test_the_bundle_of_a_checkout_holds_what_a_run_imports_and_no_tests_or_pages():
    bundle = zipfile.ZipFile(BytesIO(build_fab_from_disk(ROOT)))

    names = set(bundle.namelist())

    rooms = {name.partition("/")[0] for name in names if "/" in name}
    assert rooms == {"fedsmall", "strategies", "clients", "sim", "extensions", ".info"}
    assert {"sim/scenarios/synthetic.toml", "clients/policy.toml", "LICENSE", "pyproject.toml"} <= names
    assert sum(each.file_size for each in bundle.infolist()) < 3e6
