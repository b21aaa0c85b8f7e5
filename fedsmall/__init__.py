"""Federated learning from small data: the mathematics, models, data and training. No network in here."""

import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["__version__", "load"]


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


def __getattr__(name: str) -> Any:
    """``load``, imported when it is first asked for: most of what needs the version needs no torch."""
    if name == "load":
        return import_module("fedsmall.package.predictor").load
    raise AttributeError(f"module 'fedsmall' has no attribute {name!r}")
