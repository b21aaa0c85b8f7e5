"""Federated learning from small data: the mathematics, models, data and training. No network in here.

``fedsmall.strategies``, ``fedsmall.clients`` and ``fedsmall.sim`` know a network. In a wheel these lie within this
folder; in a checkout and in Flower's bundle they lie beside it, and are found there under the same names.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["Result", "__version__", "load", "run"]

LATE = {"load": "fedsmall.package.predictor", "run": "fedsmall.sim.api", "Result": "fedsmall.sim.api"}
HOME = Path(__file__).parent
BESIDE = HOME.parent / "pyproject.toml"
if not (HOME / "sim").is_dir():
    __path__.append(str(HOME.parent))


def _version(beside: Path) -> str:
    """The version that pyproject.toml states, which Flower must find there: read beside the package, else as installed.

    A checkout and Flower's bundle hold the file and may not be installed, or long ago; a wheel has it as metadata.
    """
    import tomllib
    from importlib.metadata import version

    if beside.is_file():
        project = tomllib.loads(beside.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == "fedsmall":
            return str(project["version"])
    return version("fedsmall")


def __getattr__(name: str) -> Any:
    """What is asked for by its name is made or imported then: a command starts without torch, and without a version."""
    if name == "__version__":
        globals()[name] = _version(BESIDE)
        return globals()[name]
    if name in LATE:
        return getattr(import_module(LATE[name]), name)
    raise AttributeError(f"module 'fedsmall' has no attribute {name!r}")
