"""Private set intersection: parties find the patients that all of them have, and are told of no others.

Every identifier becomes a point of Curve25519; each party multiplies all points by a secret number (X25519).
Multiplications commute, so equal identifiers end as equal points, and points that lack one party's number say nothing
to whom has not that number. Source: Meadows 1986; Huberman et al. 1999.

X25519's numbers are multiples of 8, so a point of small order ends as zero and is refused. An x-coordinate is of the
curve or of its twist, which no multiplication changes: hashes are drawn until on the curve, lest they give a bit away.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha512

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from fedsmall.errors import DataError, ReplyError
from fedsmall.extensions.columns.encrypted import gmpy

P, A = 2**255 - 19, 486662
BYTES = 32


def check_matching(word: str) -> None:
    """Raise DataError for a way of matching that this is not, with the reason."""
    if word in ("hash", "hashes", "salted", "salted_hash", "sha256"):
        raise DataError(
            "Identifiers are not matched by salted hashes: whoever has the salt can hash every record number that "
            'there is, and so read them all. match = "ecdh", blinded points of a curve, tells the intersection alone.'
        )
    if word != "ecdh":
        raise DataError(f'match = "{word}" is unknown; identifiers are matched by match = "ecdh".')


def check_distinct(identifiers: Sequence[str], file: str = "") -> None:
    """Raise DataError, by count, where an identifier stands in several rows."""
    if again := len(identifiers) - len(set(identifiers)):
        raise DataError(f"{again} of {len(identifiers)} identifiers stand in several rows; a patient has one row", file)


def hash_to_curve(identifier: str) -> bytes:
    """The point of Curve25519, by its x-coordinate, that an identifier is hashed to (32 bytes)."""
    jacobi = gmpy().jacobi
    for attempt in range(256):
        hashed = sha512(f"fedsmall identifier {attempt} ".encode() + identifier.encode()).digest()[:BYTES]
        u = int.from_bytes(hashed, "little") % 2**255 % P
        if jacobi(u * (u * u + A * u + 1) % P, P) == 1:
            return u.to_bytes(BYTES, "little")
    raise AssertionError("256 hashes in a row off the curve")


class Blinding:
    """One party's part: its identifiers, and its number of this matching, given in hexadecimal digits or drawn."""

    def __init__(self, identifiers: Sequence[str], number: str = "") -> None:
        self._key = X25519PrivateKey.from_private_bytes(bytes.fromhex(number or new_number()))
        check_distinct(identifiers)
        points = [self._multiply(hash_to_curve(identifier)) for identifier in identifiers]
        self.order = sorted(range(len(points)), key=points.__getitem__)  # in which rows are said: no order of theirs
        self._points = [points[row] for row in self.order]

    def points(self) -> np.ndarray:
        """The party's own identifiers, blinded, uint8 (identifiers, 32)."""
        return _as_rows(self._points)

    def blind_again(self, points: np.ndarray) -> np.ndarray:
        """Another's points, blinded once more, in the order in which they came; ReplyError for what are no points."""
        if points.dtype != np.uint8 or points.ndim != 2 or points.shape[1] != BYTES:
            raise ReplyError(f"blinded identifiers are rows of {BYTES} bytes; these have the shape {points.shape}")
        return _as_rows(self._multiply(row.tobytes()) for row in points)

    def rows(self, places: np.ndarray) -> np.ndarray:
        """Which rows of the party's table stand at ``places`` of what :meth:`points` said."""
        return np.asarray(np.array(self.order, np.int64)[places])

    def _multiply(self, point: bytes) -> bytes:
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(point))
        except ValueError:
            raise ReplyError("a blinded identifier is a point of small order, which no identifier gives") from None


def new_number() -> str:
    """A number to multiply by, in hexadecimal digits."""
    return secrets.token_hex(BYTES)


def common_places(points: Mapping[str, np.ndarray | None], rows: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The places of each owner's ``points``, of ``rows`` each, that all have, in their order; else ReplyError."""
    places = {}
    for owner, blinded in points.items():
        if blinded is None or blinded.shape != (rows[owner], BYTES):
            raise ReplyError(f"the identifiers of {owner} came back as another number of identifiers than it was sent")
        places[owner] = {row.tobytes(): k for k, row in enumerate(blinded)}
    common = sorted(set.intersection(*map(set, places.values())))
    return {owner: np.array([at[point] for point in common], np.int64) for owner, at in places.items()}


def _as_rows(points: Iterable[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(points), np.uint8).reshape(-1, BYTES)
