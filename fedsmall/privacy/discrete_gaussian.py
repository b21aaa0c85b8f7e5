"""Noise on a grid, by which no rounding of floats can betray what it was added to.

A float product ``deviation * normal`` reaches only some floats, so what it was added to shows in the last digits
(Mironov 2012, "On significance of the least significant bits"). Here the numbers are first rounded to whole multiples
of a power of two, the *grid*, and whole multiples of it are added, drawn from the discrete Gaussian (Canonne, Kamath &
Steinke 2020, algorithm 3): every multiple can come of every number. What follows (casts, learning rates) is
post-processing. A deviation is 2**24 steps of the grid or more; there the discrete Gaussian is a rounded Gaussian to
one in 10**14, and that is post-processing of the Gaussian, so the accountant of the Gaussian holds. Chances are
compared as 64-bit integers with float64 exponentials, which is exact to about 2**-50 a number.
"""

import math
import os
from collections.abc import Callable
from hashlib import blake2b

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

FINENESS = 24  # the deviation is 2**24 to 2**25 steps of the grid

Words = Callable[[int], np.ndarray]
"""Gives so many independent uniform 64-bit words, (count,), uint64."""


Noise = Words | np.random.Generator
"""Where noise comes from: words that nobody else has, at a real site; a named stream in a simulation."""


def system_words(count: int) -> np.ndarray:
    """So many words of the operating system's cryptographic generator."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def keyed_words(key: bytes) -> Words:
    """Words that depend on the key alone, and that only who has it can draw: ChaCha20's stream."""
    stream = Cipher(ChaCha20(blake2b(key, digest_size=32).digest(), bytes(16)), mode=None).encryptor()
    return lambda count: np.frombuffer(stream.update(bytes(8 * count)), np.uint64)


def grid_for(deviation: float) -> float:
    """The power of two to whose multiples numbers are rounded before noise of that deviation is added."""
    return 2.0 ** (math.floor(math.log2(deviation)) - FINENESS)


def widened(sensitivity: float, multiplier: float, numbers: int) -> float:
    """The deviation that ``multiplier`` asks for, for sums of that L2 ``sensitivity`` rounded to the grid.

    Rounding moves each of the ``numbers`` by up to half a step on either side, so by one step between neighbours.
    """
    return multiplier * (sensitivity + grid_for(multiplier * sensitivity) * math.sqrt(numbers))


def add_noise(values: np.ndarray, deviation: float, noise: Noise) -> np.ndarray:
    """The values, rounded to the grid, plus discrete Gaussian noise of that deviation; float64, the same shape."""
    if deviation == 0:
        return values.astype(np.float64)
    if not math.isfinite(deviation):  # of models that have diverged
        return np.full(values.shape, np.nan)
    return add_multiples(values, deviation, lambda count, ratio: draw_multiples(count, ratio, noise))


def add_multiples(values: np.ndarray, deviation: float, draw: Callable[[int, float], np.ndarray]) -> np.ndarray:
    """As :func:`add_noise`, of whole numbers that ``draw(count, ratio)`` gives."""
    grid = grid_for(deviation)
    multiples = draw(values.size, deviation / grid).reshape(values.shape)
    return np.asarray((np.rint(values.astype(np.float64) / grid) + multiples) * grid)


def draw_multiples(count: int, ratio: float, noise: Noise) -> np.ndarray:
    """Whole numbers of standard deviation ``ratio``, which is large, (count,)."""
    if isinstance(noise, np.random.Generator):
        return np.rint(noise.standard_normal(count) * ratio)
    return discrete_gaussian(count, ratio, noise)


def discrete_gaussian(count: int, ratio: float, words: Words) -> np.ndarray:
    """Whole numbers drawn with chances in proportion to exp(-x**2 / (2 ratio**2)), (count,), int64.

    Rejection from a discrete Laplace distribution whose scale is the next power of two.
    """
    out = np.empty(0, dtype=np.int64)
    bits = max(0, math.ceil(math.log2(ratio)))
    while len(out) < count:
        drawn = _discrete_laplace(2 * (count - len(out)) + 8, bits, words)
        off = np.abs(drawn) - ratio**2 / 2**bits
        out = np.concatenate([out, drawn[_happens(off**2 / (2 * ratio**2), words)]])
    return out[:count]


def _discrete_laplace(count: int, bits: int, words: Words) -> np.ndarray:
    """Some of ``count`` draws with chances in proportion to exp(-|x| / 2**bits): those that were accepted."""
    drawn = words(count)
    below = (drawn >> np.uint64(1)).astype(np.int64) & (2**bits - 1)
    negative = (drawn & np.uint64(1)).astype(bool)
    whole = np.floor(-np.log((words(count).astype(np.float64) + 0.5) * 2.0**-64)).astype(np.int64)  # exp(-whole) of all
    size = below + (np.maximum(whole, 0) << bits)
    accepted = _happens(below / 2**bits, words) & ~(negative & (size == 0))
    return np.asarray(np.where(negative, -size, size)[accepted])


def _happens(exponent: np.ndarray, words: Words) -> np.ndarray:
    """True with chance exp(-exponent), number by number."""
    chance = np.exp(-exponent) * 2.0**64
    certain = chance >= 2.0**64
    return np.asarray(certain | (words(len(chance)) < np.where(certain, 0, chance).astype(np.uint64)))
