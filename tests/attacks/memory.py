"""All that a server holds, as bytes; and whether a site's model stands in it anywhere."""

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from fedsmall.aggregation.sums import SCALE
from fedsmall.wire import Arrays

WINDOW = 64  # bytes: sixteen numbers
CLOSED = (type, ModuleType, CodeType, FrameType)  # through which one would come to everything in the process


def at_work(grid: Any) -> Iterator[bytes]:
    """What can be reached from what of the server's is at work; not through the ``grid``, behind which sites are."""
    frame: FrameType | None = sys._getframe(1)
    roots: list[Any] = []
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith(("strategies.", "fedsmall.")):
            roots += frame.f_locals.values()
        frame = frame.f_back
    return reachable(roots, frozenset({id(grid)}))


def reachable(roots: Iterable[Any], without: frozenset[int] = frozenset()) -> Iterator[bytes]:
    """The bytes, arrays, texts and rows of numbers that can be reached from these objects."""
    waiting, seen = list(roots), {}
    while waiting:
        one = waiting.pop()
        if id(one) in seen or id(one) in without or isinstance(one, CLOSED):
            continue
        seen[id(one)] = one  # kept, so that its number is no other's
        yield from as_bytes(one)
        if isinstance(one, FunctionType):  # not its module's globals
            waiting += [one.__closure__, one.__defaults__, one.__kwdefaults__]
        else:
            waiting += gc.get_referents(one)
            waiting += [one.base] if isinstance(one, np.ndarray) else []


def as_bytes(one: Any) -> Iterator[bytes]:
    """One object's own bytes, where it has any; numbers as float32, as models have them."""
    if isinstance(one, bytes | bytearray | memoryview):
        yield bytes(one)
    elif isinstance(one, str):
        yield one.encode("utf-8", "surrogatepass")
    elif isinstance(one, np.ndarray) and one.dtype != object:
        yield one.tobytes()
    elif isinstance(one, torch.Tensor):
        yield one.detach().numpy().tobytes()
    elif isinstance(one, list | tuple) and one and all(type(number) is float for number in one):
        yield np.array(one, np.float32).tobytes()


def files_of(folder: Path) -> Iterator[bytes]:
    """What lies in a folder."""
    return (path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def windows(arrays: Iterable[np.ndarray]) -> set[bytes]:
    """Every array's bytes, cut into windows; without those in which nothing stands."""
    cut = (array.tobytes() for array in arrays)
    pieces = {each[at : at + WINDOW] for each in cut for at in range(0, len(each) - WINDOW + 1, WINDOW)}
    return {piece for piece in pieces if any(piece)}


def traces_of(model: Arrays, received: Arrays) -> dict[str, set[bytes]]:
    """What a model that a site trained would leave behind: as it is, as an update, and as a summand."""
    made: dict[str, Callable[[str], np.ndarray]] = {
        "model": lambda name: model[name],
        "update": lambda name: model[name] - received[name],
        "summand": lambda name: np.rint(model[name].astype(np.float64) * SCALE).astype(np.int64),
    }
    return {kind: windows(map(make, model)) for kind, make in made.items()}


def found(searched: set[bytes], blobs: Iterable[bytes]) -> set[bytes]:
    """Which windows stand in any of these bytes, at any place."""
    starts = np.unique(np.frombuffer(b"".join(piece[:8] for piece in searched), "<u8"))
    there: set[bytes] = set()
    for blob, shift in ((blob, shift) for blob in blobs for shift in range(8)):
        whole = (len(blob) - shift) // 8 * 8
        words = np.frombuffer(blob[shift : shift + whole], "<u8")
        places = np.flatnonzero(np.isin(words, starts)).tolist()
        there |= {blob[at : at + WINDOW] for at in (shift + 8 * place for place in places)} & searched
    return there
