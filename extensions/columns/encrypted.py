"""Numbers under encryption: Paillier's scheme, what goes into a plaintext, and sums by column and bin.

The product of two ciphertexts, numbers modulo n**2, is that of the sum, so who has the public key adds what it cannot
read. Decryption is by the Chinese remainder theorem, arithmetic GMP's (``gmpy2``), randomness the system's; own code,
for the maintained library is under the GPL. Source: Paillier 1999, scheme 1 with g = n + 1, and section 7. Packing and
fewer multiplications: Chen et al. 2021 (SecureBoost+), section 4.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmall.errors import PlanError, ReplyError
from fedsmall.extensions.columns.plan import LEAST_BITS

if TYPE_CHECKING:
    from gmpy2 import mpz

Histogram = list[dict[int, list["mpz"]]]  # by column, of each bin that holds a row its sums: a ciphertext a chunk


def gmpy() -> Any:
    """The module gmpy2; PlanError with the extra to install where it is not there."""
    try:
        import gmpy2
    except ImportError:
        raise PlanError(
            "Columns that are split between parties want Paillier's encryption: pip install 'fedsmall[vertical]'."
        ) from None
    return gmpy2


class PublicKey:
    """What everybody may have: adds under encryption, and makes ciphertexts unlike those they come from."""

    def __init__(self, n: int) -> None:
        self.gmpy = gmpy()
        self.n = self.gmpy.mpz(n)
        self.square = self.n**2
        self.bits = self.n.bit_length()
        self.bytes = (self.square.bit_length() + 7) // 8

    def total(self, ciphertexts: Iterable["mpz"]) -> "mpz":
        """The ciphertext of the sum; of none, one of 0 that hides nothing."""
        product = self.gmpy.mpz(1)
        for ciphertext in ciphertexts:
            product = product * ciphertext % self.square
        return product

    def add(self, a: Sequence["mpz"], b: Sequence["mpz"]) -> list["mpz"]:
        """The ciphertexts of the sums, one by one."""
        return [x * y % self.square for x, y in zip(a, b, strict=True)]

    def shift(self, ciphertext: "mpz", bits: int) -> "mpz":
        """The ciphertext of 2**bits times the number."""
        return self.gmpy.powmod(ciphertext, 1 << bits, self.square)

    def join(self, ciphertexts: Sequence["mpz"], width: int) -> "mpz":
        """One ciphertext of several, the first in the lowest ``width`` bits."""
        total = ciphertexts[-1]
        for ciphertext in reversed(ciphertexts[:-1]):
            total = self.shift(total, width) * ciphertext % self.square
        return total

    def rerandomise(self, ciphertext: "mpz") -> "mpz":
        """Another ciphertext of the number, from which the key's owner cannot read which of its own went in."""
        return ciphertext * self.gmpy.powmod(random_below(self.n), self.n, self.square) % self.square

    def to_bytes(self, ciphertexts: Iterable["mpz"]) -> np.ndarray:
        """Ciphertexts for a message, uint8 (ciphertexts, bytes)."""
        rows = [np.frombuffer(int(number).to_bytes(self.bytes, "little"), np.uint8) for number in ciphertexts]
        return np.stack(rows) if rows else np.zeros((0, self.bytes), np.uint8)

    def from_bytes(self, rows: np.ndarray) -> list["mpz"]:
        """The ciphertexts of a message; ReplyError for what is none."""
        if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != self.bytes:
            raise ReplyError(
                f"ciphertexts under this key are rows of {self.bytes} bytes; these have the shape {rows.shape}"
            )
        numbers = [self.gmpy.mpz(int.from_bytes(row.tobytes(), "little")) for row in rows]
        if any(not 0 < number < self.square for number in numbers):
            raise ReplyError("a number that is no ciphertext under this key")
        return numbers


def check_modulus(n: int, least_bits: int) -> None:
    """Raise ReplyError for a key under which a fresh ciphertext may show what it was made of.

    Sums are hidden by r**n modulo n**2, which is 1 for every r where n is, say, 1806. Refused are keys of fewer than
    ``least_bits``, with a factor below 2**16, prime, or a power. That n has just two primes, neither dividing the other
    less one, only a proof could show (Goldberg et al. 2019); none is asked for.
    """
    gmpy2 = gmpy()
    number = gmpy2.mpz(n)
    if number.bit_length() < least_bits:
        raise ReplyError(f"a key of {number.bit_length()} bits; {least_bits} are the least that hides sums")
    if gmpy2.gcd(number, gmpy2.primorial(2**16)) != 1 or gmpy2.is_prime(number) or gmpy2.is_power(number):
        raise ReplyError("a key that is no product of two large primes would hide nothing")


class PrivateKey:
    """The active party's: encrypts gradients, reads sums. ``primes`` are a kept key's (:func:`two_primes`)."""

    def __init__(self, bits: int = LEAST_BITS, primes: str = "") -> None:
        gmpy2 = gmpy()
        self._p, self._q = (gmpy2.mpz(digits, 16) for digits in (primes or two_primes(bits)).split())
        self.public = PublicKey(self._p * self._q)
        self._inverse = gmpy2.invert(self._p**2, self._q**2)
        self._halves = [(p, gmpy2.invert(-(self.public.n // p), p)) for p in (self._p, self._q)]
        self._join = gmpy2.invert(self._p, self._q)

    def encrypt(self, number: int) -> "mpz":
        """A fresh ciphertext of a whole number, which may be negative."""
        key, powmod = self.public, self.public.gmpy.powmod
        r = random_below(key.n)
        # r**n modulo p**2 depends on r modulo p alone: (r**q mod p)**p
        at_p = powmod(powmod(r, self._q, self._p), self._p, self._p**2)
        at_q = powmod(powmod(r, self._p, self._q), self._q, self._q**2)
        hiding = at_p + self._p**2 * ((at_q - at_p) * self._inverse % self._q**2)
        return (1 + key.n * (number % key.n)) * hiding % key.square

    def decrypt(self, ciphertext: "mpz") -> int:
        """The number, between -n/2 and n/2."""
        powmod, n = self.public.gmpy.powmod, int(self.public.n)
        # c**(p - 1) is 1 - q * p * m modulo p**2, for r**n goes out and n + 1 is 1 modulo p
        at_p, at_q = ((powmod(ciphertext, p - 1, p**2) - 1) // p * factor % p for p, factor in self._halves)
        number = int(at_p + self._p * ((at_q - at_p) * self._join % self._q))
        return number if number <= n // 2 else number - n


def random_below(n: "mpz") -> "mpz":
    """A random number from 1 to n - 1."""
    return gmpy().mpz(secrets.randbelow(int(n) - 1) + 1)


def two_primes(bits: int) -> str:
    """All that a private key of so many bits is made of: two primes, in hexadecimal digits."""
    p, q = random_prime(bits // 2), random_prime(bits // 2)
    while p == q:
        q = random_prime(bits // 2)
    return f"{int(p):x} {int(q):x}"


def random_prime(bits: int) -> "mpz":
    """A random prime of so many bits, its two highest set, so that a product of two has twice as many."""
    gmpy2 = gmpy()
    while True:
        number = gmpy2.mpz(secrets.randbits(bits) | 3 << (bits - 2) | 1)
        if gmpy2.is_prime(number, 40):
            return number


def pack(digits: Sequence[int], width: int) -> int:
    """One plaintext of numbers to the base 2**width, the first the lowest; sums hold below 2**(width - 1) in size."""
    total = 0
    for digit in reversed(digits):
        total = (total << width) + int(digit)
    return total


def unpack(plaintext: int, width: int, count: int) -> list[int]:
    """The ``count`` numbers of a plaintext, or the sums of those of several plaintexts that were added."""
    half, digits = 1 << (width - 1), []
    for _ in range(count):
        digit = ((plaintext + half) & ((1 << width) - 1)) - half
        digits.append(digit)
        plaintext = (plaintext - digit) >> width
    return digits


@dataclass(frozen=True)
class Layout:
    """What of a row goes into which plaintext: ``numbers`` of ``width`` bits, ``together`` in each.

    A row has g and h of each output. Unpacked each is a plaintext of its own, as in SecureBoost; packed a plaintext
    holds as many as fit, and a ciphertext the sums of ``splits`` splits (SecureBoost+).
    """

    numbers: int
    width: int
    together: int
    splits: int

    @staticmethod
    def of(numbers: int, width: int, key_bits: int, packing: bool) -> "Layout":
        """The layout under a key; ReplyError where the key is too short for one number."""
        room = (key_bits - 2) // width
        if room < 1:
            raise ReplyError(f"a key of {key_bits} bits cannot hold sums of {width} bits; take a longer one")
        together = min(numbers, room) if packing else 1
        return Layout(numbers, width, together, room // together if packing else 1)

    @property
    def chunks(self) -> int:
        """Ciphertexts of a row."""
        return ceil(self.numbers / self.together)

    def plaintexts(self, row: Sequence[int]) -> list[int]:
        """A row's numbers as plaintexts, one for each chunk."""
        return [pack(row[k : k + self.together], self.width) for k in range(0, self.numbers, self.together)]

    def sums(self, chunks: Sequence[Sequence[int]], splits: int) -> np.ndarray:
        """The numbers of each split from decrypted plaintexts by chunk, int64 (splits, numbers)."""
        sums = np.zeros((splits, self.numbers), np.int64)
        for k, plaintexts in enumerate(chunks):
            first = k * self.together
            held = min(self.together, self.numbers - first)
            flat = [
                digit
                for j, plaintext in enumerate(plaintexts)
                for digit in unpack(plaintext, self.width, self.together * min(self.splits, splits - j * self.splits))
            ]
            sums[:, first : first + held] = np.array(flat, np.int64).reshape(splits, self.together)[:, :held]
        return sums


class Adder:
    """Adds rows' ciphertexts by bin: ``ciphertexts[row]`` are a row's chunks, ``numbers`` (rows, columns) its bins."""

    def __init__(self, key: PublicKey, ciphertexts: dict[int, list["mpz"]], numbers: np.ndarray) -> None:
        self.key, self.ciphertexts, self.numbers = key, ciphertexts, numbers

    def histogram(self, rows: np.ndarray) -> Histogram:
        """A node's histogram from its rows."""
        histogram = []
        for numbers in self.numbers[rows].T:
            order = np.argsort(numbers, kind="stable")
            bins, starts = np.unique(numbers[order], return_index=True)
            parts = np.split(rows[order], starts[1:])  # of no rows one, of no bin
            histogram.append({number: self._sum(part) for number, part in zip(bins.tolist(), parts, strict=False)})
        return histogram

    def _sum(self, rows: np.ndarray) -> list["mpz"]:
        chosen = [self.ciphertexts[row] for row in rows.tolist()]
        return [self.key.total(chunk) for chunk in zip(*chosen, strict=True)]
