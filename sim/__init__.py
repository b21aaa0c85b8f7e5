"""The command line, scenarios, engines and comparisons; :func:`run` is the same from Python."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.api import Result, run

__all__ = ["Result", "run"]


def __getattr__(name: str) -> Any:
    """``run`` and ``Result``, imported when they are first asked for: the command line starts without torch."""
    if name in __all__:
        from sim import api

        return getattr(api, name)
    raise AttributeError(f"module 'sim' has no attribute {name!r}")
