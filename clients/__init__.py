"""The Flower client that speaks for a hospital: ``HospitalClient``, and ``app``, the ClientApp around it."""

from importlib import import_module
from typing import Any

__all__ = ["HospitalClient", "app"]

LATE = {"HospitalClient": "hospital", "app": "client_app"}


def __getattr__(name: str) -> Any:
    """Imported when first asked for: what carries messages between a site and its server needs no torch."""
    if name in LATE:
        return getattr(import_module(f"fedsmall.clients.{LATE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
