"""Masked summands for secure aggregation: with what its decryptors send, a server learns the sum and nothing else.

A site masks its 64-bit integers, modulo 2**64, by ChaCha20 streams: its own, and one for each other site of the sum,
which that one takes away (Bonawitz et al. 2017). All seeds go to the decryptors as threshold shares
(:mod:`fedsmall.sealing.masks`). These give the server, for one set of sites, their own seeds, and those that they have
with sites that are not in it; what two sites of the set have with each other cancels, and nobody tells it. ``wide``
sums are of numbers of eight words each (:mod:`fedsmall.exact`), and carry from one to the next.

The committee of decryptors that opens secure sums: how large it is, and the threshold shares that its decryptors hold.
Any :func:`threshold` of its n decryptors open a sum, so n - t silent ones are survived. A decryptor answers for one set
of sites alone; then fewer than 2 t - n decryptors who collude with the server open nothing but one sum, whatever they
ask the others for (the quorums of Ma et al. 2023, Flamingo). Shares are Shamir's (1979), modulo 2**255 - 19.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import cache, reduce
from math import comb

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedsmall import exact
from fedsmall.aggregation.sums import LEAST
from fedsmall.sealing.envelopes import canon

PRIME = 2**255 - 19
BYTES = 32  # of a secret, and of a share
ALL_DECRYPT = 15  # sites, up to which all are decryptors
COLLUDING, SILENT = 3, 10  # one site in three may collude with the server, one in ten be silent
BAD_DRAW = Fraction(1, 2**40)  # over a whole run: that the former could open, or the latter shut, a committee's sums


def threshold(decryptors: int) -> int:
    """How many of a sum's decryptors open it: two of three, over two thirds of fifteen, over four fifths of a draw."""
    if decryptors == LEAST:
        return LEAST - 1
    return (2 * decryptors // 3 if decryptors <= ALL_DECRYPT else 4 * decryptors // 5) + 1


def least_in_sum(sites: int, noised: bool = False) -> int:
    """How many of so many sites must be in a sum: three, and two more than the third of them that may collude.

    In a ``noised`` one, of which each site adds a share of the noise, all but the tenth that may be silent.
    """
    least = max(LEAST, sites // COLLUDING + 2)
    return max(least, sites - sites // SILENT) if noised else least


def honest_in_sum(sites: int) -> int:
    """How many sites of a noised sum do not collude, at least: so many shares are the whole noise."""
    return least_in_sum(sites, noised=True) - sites // COLLUDING


def chance_of_bad_draw(sites: int, decryptors: int) -> Fraction:
    """The chance that so many decryptors, drawn from the ``sites``, are no good committee (a union bound, both exact).

    Bad are 2 t - n or more of the colluding third, who could open two sums, or more than n - t of the silent tenth.
    """
    least, most_silent = threshold(decryptors), decryptors - threshold(decryptors)
    opening = least if sites == LEAST else least - most_silent  # of three sites there are no two sets
    colluding, silent = sites // COLLUDING, -(-sites // SILENT)
    return _tail(sites, colluding, decryptors, opening) + _tail(sites, silent, decryptors, most_silent + 1)


def _tail(sites: int, marked: int, drawn: int, least: int) -> Fraction:
    """The chance of at least so many marked ones among the drawn: the tail of the hypergeometric distribution."""
    ways = (comb(marked, k) * comb(sites - marked, drawn - k) for k in range(least, min(marked, drawn) + 1))
    return Fraction(sum(ways), comb(sites, drawn))


@cache
def committee_size(sites: int, sums: int) -> int:
    """How many sites help with each of a run's ``sums``: up to fifteen all, else a bad draw is rarer than 2**-40."""
    if sites <= ALL_DECRYPT:
        return sites
    return next((n for n in range(LEAST, sites) if chance_of_bad_draw(sites, n) * max(sums, 1) < BAD_DRAW), sites)


def share(secrets: Sequence[bytes], decryptors: int, key: bytes) -> list[bytes]:
    """Each decryptor's shares of all secrets, of 32 bytes each; :func:`threshold` decryptors have these, fewer nothing.

    Coefficients follow from the ``key`` (32 bytes), so shares repeat. ValueError for a secret above the prime.
    """
    degree, values = threshold(decryptors) - 1, [int.from_bytes(secret, "big") for secret in secrets]
    if any(len(secret) != BYTES for secret in secrets) or any(value >= PRIME for value in values):
        raise ValueError(f"a secret has {BYTES} bytes and is below 2**255 - 19")
    drawn = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(2 * BYTES * degree * len(values)))
    numbers = [int.from_bytes(drawn[k : k + 2 * BYTES], "big") % PRIME for k in range(0, len(drawn), 2 * BYTES)]
    polynomials = [(*numbers[degree * k : degree * (k + 1)], value) for k, value in enumerate(values)]
    return [b"".join(_value(polynomial, at) for polynomial in polynomials) for at in range(1, decryptors + 1)]


def recover(shares: Mapping[int, bytes]) -> list[bytes]:
    """The secrets, from the shares of as many decryptors as it takes, by their places from 1 on."""
    weights = {at: _weight(at, list(shares)) for at in shares}
    length = len(next(iter(shares.values())))
    return [
        (sum(w * int.from_bytes(shares[at][k : k + BYTES], "big") for at, w in weights.items()) % PRIME).to_bytes(
            BYTES, "big"
        )
        for k in range(0, length, BYTES)
    ]


def _value(polynomial: Sequence[int], at: int) -> bytes:
    value = 0
    for coefficient in polynomial:
        value = (value * at + coefficient) % PRIME
    return value.to_bytes(BYTES, "big")


def _weight(at: int, places: Sequence[int]) -> int:
    """Lagrange's weight of one place for the value at 0."""
    above = below = 1
    for other in places:
        if other != at:
            above, below = above * other % PRIME, below * (other - at) % PRIME
    return above * pow(below, -1, PRIME) % PRIME


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
    """The sum of masked summands by site, (length,) uint64, from what the decryptors told of them, by place.

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
