"""Whether two names speak for one table: sketches of tables, which say how much two of them share and nothing of a row.

A budget belongs to patients, and a hospital under two names would have it twice. So every two sites of a run make a
secret of theirs (X25519, keys of this run), each sketches its table under it, and the server compares the two sketches.
A sketch has, for each of :data:`BITS` keyed hash functions, the lowest bit of the least hash of any row (b-bit minwise
hashing with b = 1, Li and Konig 2010): two agree in (1 + J) / 2 of their bits, J the share of rows that both have.

*What it tells.* The server: of every two sites J, to within .09. Who has not the two sites' secret can try no guess on
a sketch. One of the two could on the other's, which goes to the server: both together may learn whether a guessed row
is likely there, and so may a server that puts keys of its own between sites, which it cannot where keys are signed.
*What it finds.* Nearly always (99.9%) two copies, one and half of it, and two tables of one size that share two thirds
of their rows; of those that share half, a quarter. *What it does not find.* Tables of which every row was changed
(rounded, other columns), a part of less than a third, names that never meet in one run, a site whose program was
changed; tables that say too little to tell patients apart (:func:`tells_patients_apart`) are never compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import combinations
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedsmall.errors import PlanError
from fedsmall.sealing.envelopes import canon

MEETING, TABLES = "meeting", "tables"  # wire: a site's key of the run, those of all by site; its sketches by site
BITS, MOST_ALIKE = 512, 0.68  # unrelated tables agree in .5, deviation .022; one and a half of it in .75
LEAST_ROWS, LEAST_BITS, LEAST_UNLIKE = 8, 24.0, 0.95
FEW, LEAST_OF_A_COLUMN = 20, 3.0  # of so few rows, columns that have fewer bits (yes or no) do not count
STEP, CHUNK = np.uint64(0x9E3779B97F4A7C15), 1024


class Rows(NamedTuple):
    """A table, in no order: its rows' bytes, and whether these tell patients apart."""

    rows: frozenset[bytes]
    is_telling: bool
    whole: bytes  # a digest of the table, each row as often as it is there


def rows_of(parts: Iterable[tuple[np.ndarray, np.ndarray]]) -> Rows:
    """The rows of a table in parts, each its (samples, ...) inputs and targets."""
    arrays = list(parts)
    rows = [
        np.ascontiguousarray(a).tobytes() + np.asarray(b).tobytes()
        for x, y in arrays
        for a, b in zip(x, y, strict=True)
    ]
    whole = blake2b(b"".join(sorted(blake2b(row, digest_size=32).digest() for row in rows))).digest()
    values = np.concatenate([np.asarray(x).reshape(len(x), -1) for x, _ in arrays])
    return Rows(frozenset(rows), tells_patients_apart(values), whole)


def tells_patients_apart(values: np.ndarray) -> bool:
    """Whether rows of a table, (rows, columns), are so different that another hospital has hardly any of them.

    Of twenty, nineteen are unlike all others, and two agree by chance with probability below 2**-24, were its columns
    independent: from how many pairs of rows agree in each, as far as so many rows can show that. Both were set by a
    simulation of hospitals whose columns depend on each other (``tests/fedsmall/sealing/test_tables.py``).
    """
    count = len(values)
    if count < LEAST_ROWS or len(np.unique(values, axis=0)) < LEAST_UNLIKE * count:
        return False
    pairs, bits = count * (count - 1) / 2, 0.0
    for column in values.T:
        _, counts = np.unique(column, return_counts=True)
        of_column = np.log2((pairs + 1) / ((counts * (counts - 1) / 2).sum() + 1))
        bits += of_column if count >= FEW or of_column >= LEAST_OF_A_COLUMN else 0.0
        if bits >= LEAST_BITS:
            return True
    return False


def sketch(rows: Iterable[bytes], key: bytes) -> bytes:
    """The sketch of a set of rows under a key of 32 bytes; of no rows, that of none."""
    digests = b"".join(blake2b(row, digest_size=8, key=key).digest() for row in set(rows) or {b""})
    seeds, least = np.frombuffer(digests, "<u8").astype(np.uint64), np.full(BITS, np.iinfo(np.uint64).max)
    steps = np.arange(1, BITS + 1, dtype=np.uint64)[:, None] * STEP
    for start in range(0, len(seeds), CHUNK):
        least = np.minimum(least, _mixed(seeds[start : start + CHUNK] + steps).min(axis=1))  # (BITS, rows) -> (BITS,)
    return np.packbits((least & np.uint64(1)).astype(np.uint8)).tobytes()


def _mixed(numbers: np.ndarray) -> np.ndarray:
    """SplitMix64's output for these states (Steele, Lea and Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = (numbers ^ (numbers >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(numbers ^ (numbers >> np.uint64(31)))


def are_alike(one: bytes, other: bytes) -> bool:
    """Whether two sketches under one key are of tables that share more than about half of their rows."""
    bits = np.unpackbits(np.frombuffer(one, np.uint8)) == np.unpackbits(np.frombuffer(other, np.uint8))
    return bool(bits.mean() > MOST_ALIKE)


def sketches(table: Rows, own: X25519PrivateKey, site: str, run: str, keys: Mapping[str, str]) -> dict[str, str]:
    """A site's sketches for each other site of a run, by the ``keys`` of all; ``own`` is the secret half of its own.

    Of a table whose rows tell too little they are of nothing. Raises PlanError for keys that are none.
    """
    rows: Iterable[bytes] = table.rows if table.is_telling else [b"nothing" + own.private_bytes_raw()]
    sketched = {}
    for name in sorted(set(keys) - {site}):
        try:
            secret = own.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(keys[name])))
        except ValueError:
            raise PlanError("the keys by which sites compare their tables cannot be read") from None
        bound = canon("tables", run, sorted([site, name]))
        sketched[name] = sketch(rows, blake2b(bound, digest_size=32, key=secret).digest()).hex()
    return sketched


def check_tables(sketched: Mapping[str, Mapping[str, str]]) -> None:
    """Raise PlanError where two sites told sketches of tables that are alike, or a site told none that can be read."""
    for one, other in combinations(sorted(sketched), 2):
        try:
            pair: Sequence[bytes] = [bytes.fromhex(sketched[a][b]) for a, b in ((one, other), (other, one))]
            alike = are_alike(*pair) if {len(each) for each in pair} == {BITS // 8} else None
        except (KeyError, ValueError, TypeError):
            alike = None
        if alike is None:
            raise PlanError(f"{one} and {other}: what they tell to compare their tables cannot be read")
        if alike:
            raise PlanError(
                f"{one} and {other} hold the same patients: their tables share more than about half of their rows. One "
                "hospital under two names has its privacy budget twice; start a run without one of the two"
            )
