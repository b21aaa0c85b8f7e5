"""Exact sums of float64: the same in whatever order the summands come, seen or masked.

For masked sums each number is a whole multiple of 2**-192 in 512 bits (two's complement, eight words of 64), added
modulo 2**512: masks cancel exactly, and the sum rounds to the same float64.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from fedsmall.errors import ReplyError

WORDS = 8  # of 64 bits for a number
BYTES = 8 * WORDS
POINT = 192  # bits behind the point: what is smaller than 1e-58 counts as nothing
LARGEST = 2.0**290  # so that there is room for the sum of a million sites
MODULUS = 1 << (8 * BYTES)


def exact_sum(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of arrays of one shape, each number rounded once to float64, whatever their order."""
    stacked = np.stack([np.asarray(array, dtype=np.float64) for array in arrays])
    with np.errstate(over="ignore", invalid="ignore"):
        plain = np.asarray(stacked.sum(axis=0))
    if len(arrays) < 3 or not np.isfinite(plain).all():  # two are rounded once as it is
        return plain
    return _rounded_once(stacked)


def _rounded_once(stacked: np.ndarray) -> np.ndarray:
    columns = stacked.reshape(len(stacked), -1).T.tolist()
    return np.array([math.fsum(column) for column in columns], dtype=np.float64).reshape(stacked.shape[1:])


def in_parts(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The exact sum of arrays (n,) as summands (parts, n), the rounded sum first, for a later :func:`exact_sum`."""
    rest, made = list(arrays), [exact_sum(arrays)]
    while np.isfinite(made[-1]).all() and made[-1].any():
        rest.append(-made[-1])
        made.append(_rounded_once(np.stack([np.asarray(array, dtype=np.float64) for array in rest])))
    return np.stack(made[:-1] or made)


def to_words(values: np.ndarray) -> np.ndarray:
    """Numbers (n,) as words that add up exactly, (8 n,) uint64. ReplyError for one that is too large or not finite."""
    values = np.asarray(values, dtype=np.float64)
    if not (np.abs(values) <= LARGEST).all():
        raise ReplyError(f"a number to be summed is not finite, or above {LARGEST:.0e}")
    wholes = (int(math.ldexp(value, POINT)) % MODULUS for value in values.tolist())
    return np.frombuffer(b"".join(whole.to_bytes(BYTES, "little") for whole in wholes), "<u8")


def from_words(words: np.ndarray) -> np.ndarray:
    """What :func:`to_words`, or a sum of such, stands for: (n,) float64, each rounded once."""
    signed = (whole - MODULUS if whole >= MODULUS // 2 else whole for whole in _wholes(words))
    return np.array([whole / (1 << POINT) for whole in signed], dtype=np.float64)


def add_words(vectors: Iterable[np.ndarray], taken_away: Iterable[np.ndarray] = ()) -> np.ndarray:
    """The sum of vectors of words modulo 2**512, without those that are ``taken_away``: (8 n,) uint64 as each is."""
    wholes: list[int] = []
    for sign, several in ((1, vectors), (-1, taken_away)):
        for vector in several:
            numbers = _wholes(vector)
            wholes = [a + sign * b for a, b in zip(wholes or [0] * len(numbers), numbers, strict=True)]
    return np.frombuffer(b"".join((whole % MODULUS).to_bytes(BYTES, "little") for whole in wholes), "<u8")


def _wholes(words: np.ndarray) -> list[int]:
    raw = np.ascontiguousarray(words, dtype="<u8").tobytes()
    return [int.from_bytes(raw[start : start + BYTES], "little") for start in range(0, len(raw), BYTES)]
