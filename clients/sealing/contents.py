"""What letters hold, and which of it no site should train on or send: finite, of the right shapes, of a sane size."""

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedsmall.algorithm.gate import largest, size, too_large
from fedsmall.codec.codes import CodecError
from fedsmall.codec.parcels import unpack
from fedsmall.plan import Plan
from fedsmall.sealing.letters import LetterError
from fedsmall.wire import SQUARES, Arrays, stack_of_one


def bytes_of(arrays: Arrays) -> bytes:
    """Arrays as a letter holds them."""
    return bytes(save({name: np.asarray(array, order="C") for name, array in arrays.items()}))


def arrays_in(content: bytes, who: str) -> Arrays:
    """The arrays in what ``who`` has sealed. Raises LetterError where these are none."""
    try:
        return dict(load(content))
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise LetterError(f"what {who} sealed cannot be read") from None


def in_full(plan: Plan, held: Arrays, like: Arrays, who: str) -> Arrays:
    """What a letter of ``who`` holds, in full. LetterError where codes are not of a model ``like`` the run's."""
    try:
        return unpack(plan, held, like)
    except CodecError as error:
        raise LetterError(f"what {who} sealed is no model of this run: {error}") from None


def check_model(model: Arrays, carried: Arrays, expected: Arrays, last: Arrays | None, who: str) -> None:
    """Raise LetterError, with the sender's name, unless a model may be trained on.

    It must be like the ``expected`` one, finite, and, where ``last`` is a common model, of no absurd size beside it.
    """
    if {k: (a.shape, a.dtype) for k, a in model.items()} != {k: (a.shape, a.dtype) for k, a in expected.items()}:
        raise LetterError(f"what {who} sent is no model of this run")
    check_beside(model, carried, who)
    if not _finite(model):
        raise LetterError(f"the model that {who} sent holds a number that is not finite")
    if last is not None and size(model) > largest(last):
        raise LetterError(f"the model that {who} sent is absurdly large")


def check_beside(model: Arrays, carried: Arrays, who: str) -> None:
    """Raise LetterError, with the sender's name, unless what was sent beside a model fits it."""
    shapes = {name: array.shape for name, array in model.items()}
    if any(array.shape != shapes.get(name.rpartition("/")[2], ()) for name, array in carried.items()):
        raise LetterError(f"what {who} sent beside its model fits no part of it")
    counts = [a for n, a in carried.items() if a.dtype.kind in "iu" or SQUARES in n.split("/")]
    if not _finite(carried) or any((array < 0).any() for array in counts):
        raise LetterError(f"what {who} sent beside its model is not finite, or below zero where nothing can be")


def fault_of(model: Arrays, carried: Arrays, came: Arrays, last: Arrays, gate: float) -> str | None:
    """Why a model that was trained on what ``came`` may not leave, or None where it may; ``last`` is a common model."""
    if not (_finite(model) and _finite(carried)):
        return "it holds a number that is not finite"
    if not gate:
        return None
    return too_large(stack_of_one(model), stack_of_one(came), last, float(gate), alone=True).get(0)


def _finite(arrays: Arrays) -> bool:
    return all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")
