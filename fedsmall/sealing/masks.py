"""Masked summands for secure aggregation: with what its helpers send, a server learns the sum and nothing else.

A site masks its 64-bit integers by one ChaCha20 stream for each helper, modulo 2**64, and sends each helper its seed in
a letter. A helper adds up the streams of all sites of one sum for the server. ``wide`` sums are of numbers of eight
words each (:mod:`fedsmall.exact`), and carry from one to the next.
"""

import secrets
from collections.abc import Iterable, Mapping
from functools import reduce

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedsmall import exact

SEED = 32  # bytes; drawn by the system for one site, helper and sum, and never used for another
NONCE = bytes(16)  # a seed makes one stream, so there is nothing to tell apart


def new_seeds(helpers: Iterable[str]) -> dict[str, bytes]:
    """A fresh seed for each helper."""
    return {helper: secrets.token_bytes(SEED) for helper in helpers}


def stream(seed: bytes, length: int) -> np.ndarray:
    """The ``length`` numbers of a seed, (length,) uint64."""
    if len(seed) != SEED:
        raise ValueError(f"a seed has {SEED} bytes, this one {len(seed)}")
    return np.frombuffer(Cipher(ChaCha20(seed, NONCE), None).encryptor().update(bytes(8 * length)), "<u8")


def total(seeds: Iterable[bytes], length: int, wide: bool = False) -> np.ndarray:
    """The sum of the streams of several seeds modulo 2**64, or of ``wide`` numbers modulo 2**512: (length,) uint64."""
    streams = (stream(seed, length) for seed in seeds)
    return exact.add_words(streams) if wide else reduce(np.add, streams, np.zeros(length, dtype=np.uint64))


def masked(summand: np.ndarray, seeds: Mapping[str, bytes], wide: bool = False) -> np.ndarray:
    """A summand (length,) uint64 under the streams of all helpers' seeds."""
    mask = total(seeds.values(), len(summand), wide)
    return exact.add_words([summand, mask]) if wide else np.asarray(summand + mask)


def unmasked(summands: Iterable[np.ndarray], streams: Iterable[np.ndarray], wide: bool = False) -> np.ndarray:
    """The sum of masked summands, from what the helpers told: (length,) uint64."""
    if wide:
        return exact.add_words(summands, streams)
    return np.asarray(reduce(np.subtract, streams, reduce(np.add, summands)))
