"""A second device for machines that have none: its tensors hold real numbers, and refuse to meet those of the CPU.

Within :func:`second_device`, whatever is made on torch's device "meta" (or moved there) is a :class:`There`: a tensor
that says it is elsewhere and computes on the CPU behind that. So a run gives the numbers of the CPU to the bit, while
an operation that mixes the two places, or reads numbers without bringing them back, fails as it would on a GPU. It is
stricter than CUDA: an index on the CPU is refused too, for every such index is a copy for which the device waits.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

PLACE = torch.device("meta")
COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


class There(torch.Tensor):
    """A tensor on the second device; ``held`` are its numbers."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "There":
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=PLACE
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, kwargs or {})

    def __repr__(self) -> str:  # type: ignore[override]
        return f"There({self.held})"


class _Makers(TorchDispatchMode):
    """What is asked for on the second device is made there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, kwargs or {})


@contextmanager
def second_device() -> Iterator[torch.device]:
    """The second device, for as long as this lasts."""
    with _Makers():
        yield PLACE


def _done(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    there = [isinstance(tensor, There) for tensor in tensors]
    if func not in COPIES and any(there):
        strangers = [t for t, away in zip(tensors, there, strict=True) if not away and t.dim() > 0]
        if strangers:
            raise RuntimeError(f"{func} was given tensors on the second device and on the CPU")
    asked = kwargs.get("device")
    away = torch.device(asked) == PLACE if asked is not None else any(there)
    if func is torch.ops.aten.copy_.default:
        away = there[0]
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    inner = {id(tensor.held): tensor for tensor in tensors if isinstance(tensor, There)}

    def outer(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or isinstance(value, There):
            return value
        if id(value) in inner:  # written in place
            return inner[id(value)]
        return There(value) if away else value

    return tree_map(outer, result)


def _inner(value: Any) -> Any:
    return value.held if isinstance(value, There) else value
