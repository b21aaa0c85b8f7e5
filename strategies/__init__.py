"""Flower strategies: daisy-chaining around any strategy, FedDC and the other methods by their names."""

from importlib import import_module
from typing import Any

__all__ = ["SCAFFOLD", "Averaging", "DaisyChain", "FedDC", "FedDyn", "FedNova", "RadonMachine", "RepTreeFL", "Tree"]


def __getattr__(name: str) -> Any:
    """Imported when first asked for: a batched run needs no flwr."""
    if name in __all__:
        return getattr(import_module(f"{__name__}.daisy_chain"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
