"""Federated learning from small data: the mathematics, models, data and training. No network in here."""

import tomllib
from importlib.metadata import version
from pathlib import Path


def _version(beside: Path) -> str:
    """The version that pyproject.toml states, which Flower must find there: read beside the package, else as installed.

    A checkout and Flower's bundle hold the file and may not be installed, or long ago; a wheel has it as metadata.
    """
    if beside.is_file():
        project = tomllib.loads(beside.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "fedsmall":
            return str(project["version"])
    return version("fedsmall")


__version__ = _version(Path(__file__).parents[1] / "pyproject.toml")
