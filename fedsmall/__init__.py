"""Federated learning from small data: the mathematics, models, data and training. No network in here.

``fedsmall.strategies``, ``fedsmall.clients`` and ``fedsmall.sim`` lie in here in a wheel, else beside this folder.
"""

from importlib import import_module
from pathlib import Path
from typing import Any

ESTIMATORS = ("FederatedClassifier", "FederatedRegressor", "FederatedSurvival")
LATE = {"load": "fedsmall.package.predictor", "run": "fedsmall.sim.api", "Result": "fedsmall.sim.api"}
LATE |= dict.fromkeys(ESTIMATORS, "fedsmall.sim.estimators")
__all__ = [*LATE, "__version__"]
HOME = Path(__file__).parent
BESIDE = HOME.parent / "pyproject.toml"
if not (HOME / "sim").is_dir():
    __path__.append(str(HOME.parent))


def project_in(beside: Path = BESIDE) -> dict[str, Any]:
    """Our [project] of a pyproject.toml beside the package (a checkout, Flower's bundle); empty elsewhere."""
    import tomllib

    project = tomllib.loads(beside.read_text(encoding="utf-8")).get("project", {}) if beside.is_file() else {}
    return project if project.get("name") == "fedsmall" else {}


def _version(beside: Path) -> str:
    from importlib.metadata import version

    return str(project_in(beside).get("version") or version("fedsmall"))


def __getattr__(name: str) -> Any:
    """Import or make what is asked for by name only then: a command starts without torch."""
    if name == "__version__":
        globals()[name] = _version(BESIDE)
        return globals()[name]
    if name in LATE:
        return getattr(import_module(LATE[name]), name)
    raise AttributeError(f"module 'fedsmall' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
