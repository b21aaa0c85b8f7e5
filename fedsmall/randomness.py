"""Named streams of random numbers: one seed, and a generator of its own for every purpose.

Any round, at any site, can be replayed alone, and a change in one place shifts no numbers elsewhere.
"""

from hashlib import blake2b

import numpy as np
from numpy.random.bit_generator import ISeedSequence

_LITTLE_ENDIAN = np.dtype("<u8")


def rng_for(seed: int, purpose: str, *words: str | int) -> np.random.Generator:
    """The generator of the stream that ``seed``, ``purpose`` and ``words`` name, at its start.

    Equal names give equal streams in every process, on every platform and Python version; unequal names (``1`` differs
    from ``"1"``, and ``"a", "b"`` from ``"ab"``) give unrelated ones. The 256 bits of the name's hash start a PCG64, at
    a tenth of SeedSequence's cost. ValueError (or TypeError) for a word neither text nor number.

    >>> rng_for(0, "permute", 17).permutation(4)
    array([0, 2, 1, 3])
    """
    hashed = _Hashed(_digest(seed, purpose, words))
    return np.random.Generator(np.random.PCG64(hashed))  # type: ignore[arg-type]  # numpy's stub forgets ISeedSequence


def _digest(seed: int, purpose: str, words: tuple[str | int, ...]) -> bytes:
    # ascii() escapes alike in every Python, repr() follows its Unicode tables; "d" takes numpy's integers as well
    named = [ascii(str(word)) if isinstance(word, str) else f"{word:d}" for word in words]
    return blake2b(f"{seed:d},{purpose!a},{','.join(named)}".encode(), digest_size=32).digest()


class _Hashed(ISeedSequence):
    """Bits that are already spread, in the form in which numpy takes them."""

    __slots__ = ("digest",)

    def __init__(self, digest: bytes) -> None:
        self.digest = digest

    def generate_state(self, n_words: int, dtype: object = np.uint64) -> np.ndarray:
        """The digest as the four 64-bit words that PCG64 asks for, the same on a machine of either byte order."""
        return np.frombuffer(self.digest, _LITTLE_ENDIAN).astype(np.uint64, copy=False)
