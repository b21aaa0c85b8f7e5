"""The command line, scenarios, engines and comparisons; :func:`run` is the same from Python."""

from importlib import import_module
from typing import Any

__all__ = ["Result", "run"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
