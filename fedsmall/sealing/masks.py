"""Masked summands for secure aggregation: with what its helpers send, a server learns the sum and nothing else.

A site masks its 64-bit integers, modulo 2**64, by ChaCha20 streams: its own, and one for each other site of the sum,
which that one takes away (Bonawitz et al. 2017). All seeds go to the helpers as threshold shares
(:mod:`fedsmall.sealing.committee`). These give the server, for one set of sites, their own seeds, and those that they
have with sites that are not in it; what two sites of the set have with each other cancels, and nobody tells it.
``wide`` sums are of numbers of eight words each (:mod:`fedsmall.exact`), and carry from one to the next.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedsmall import exact
from fedsmall.sealing.committee import BYTES, PRIME, recover
from fedsmall.sealing.letters import canon

SEED = BYTES  # of a stream; of one site or pair and one sum, and never used for another
NONCE = bytes(16)  # a seed makes one stream, so there is nothing to tell apart


def seed_from(key: bytes, *words: str | int) -> bytes:
    """The seed that follows from a secret key for what the ``words`` name; below the prime of the shares."""
    number = int.from_bytes(hashlib.blake2b(canon(*words), key=key).digest(), "big") % PRIME
    return number.to_bytes(SEED, "big")


def stream(seed: bytes, length: int) -> np.ndarray:
    """The ``length`` numbers of a seed, (length,) uint64."""
    if len(seed) != SEED:
        raise ValueError(f"a seed has {SEED} bytes, this one {len(seed)}")
    return np.frombuffer(Cipher(ChaCha20(seed, NONCE), None).encryptor().update(bytes(8 * length)), "<u8")


def pair_signs(site: str, seeds: Mapping[str, bytes]) -> list[tuple[int, bytes]]:
    """The seeds that a site has with others, by name, each with the sign of its stream there: +1 before, -1 after."""
    return [(1 if site < other else -1, seeds[other]) for other in sorted(seeds)]


def masked(summand: np.ndarray, own: bytes, pairs: Sequence[tuple[int, bytes]], wide: bool = False) -> np.ndarray:
    """A summand (length,) uint64 under the streams of its ``own`` seed and of those of :func:`pair_signs`."""
    return _combined([summand], [(1, own), *pairs], wide)


def unmasked(
    summands: Mapping[str, np.ndarray], missing: Sequence[str], shares: Mapping[int, bytes], wide: bool = False
) -> np.ndarray:
    """The sum of masked summands by site, (length,) uint64, from what the helpers told of them, by place.

    ``missing`` are the sites of whose pairs with these nothing cancels: they are not in the sum.
    """
    seeds, signed = iter(recover(shares)), list[tuple[int, bytes]]()
    for site in sorted(summands):
        signed += [(1, next(seeds)), *pair_signs(site, {other: next(seeds) for other in sorted(missing)})]
    return _combined(summands.values(), [(-sign, seed) for sign, seed in signed], wide)


def _combined(vectors: Iterable[np.ndarray], seeds: Iterable[tuple[int, bytes]], wide: bool) -> np.ndarray:
    vectors, seeds = list(vectors), list(seeds)
    length = len(vectors[0])
    if wide:
        streams = {sign: [stream(seed, length) for s, seed in seeds if s == sign] for sign in (1, -1)}
        return exact.add_words([*vectors, *streams[1]], streams[-1])
    total = reduce(np.add, vectors, np.zeros(length, dtype=np.uint64))
    for sign, seed in seeds:
        (np.add if sign > 0 else np.subtract)(total, stream(seed, length), out=total)
    return np.asarray(total)
