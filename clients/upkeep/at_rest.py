"""What a site keeps of a run, sealed on its disk by a key of its own, where its policy names one (``rest_key``).

AES-256-GCM with a fresh nonce for each file: who has the files and not the key reads nothing, and what was changed is
refused. It protects copies: a backup, a disk that is thrown away or stolen, a folder that is mounted elsewhere, as long
as the key is not among them; so it belongs on another disk, a stick, or in what the system unlocks at the start. It
does not protect from who can act as the station's user, or as root, while the site is up. To destroy the key is to
delete all that it sealed, on every copy.
"""

import contextlib
import secrets
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedsmall.errors import PolicyError
from fedsmall.files import write

SEALED = b"fedsmall sealed 1\n"
NONCE, KEY = 12, 32

_key: ContextVar[bytes | None] = ContextVar("rest_key", default=None)


@contextlib.contextmanager
def keeping(rest_key: str | None) -> Iterator[None]:
    """Within it, what is written is sealed by the key in the file ``rest_key``; None seals nothing.

    The key is made where there is none yet. Raises PolicyError where it cannot be read or made, or is no key.
    """
    before = _key.set(None if rest_key is None else _read(Path(rest_key)))
    try:
        yield
    finally:
        _key.reset(before)


def seal(content: bytes) -> bytes:
    """The content as it may lie on the disk."""
    key = _key.get()
    if key is None:
        return content
    nonce = secrets.token_bytes(NONCE)
    return SEALED + nonce + AESGCM(key).encrypt(nonce, content, SEALED)


def opened(content: bytes) -> bytes:
    """What was sealed; what was written before there was a key is as it is.

    Raises PolicyError where there is no key for it, or another, or it was changed.
    """
    if not content.startswith(SEALED):
        return content
    key, rest = _key.get(), content[len(SEALED) :]
    if key is None:
        raise PolicyError("what this site keeps of the run is sealed; its policy names no rest_key to open it")
    try:
        return AESGCM(key).decrypt(rest[:NONCE], rest[NONCE:], SEALED)
    except (InvalidTag, ValueError):
        raise PolicyError("what this site keeps of the run was sealed with another rest_key, or was changed") from None


def secret(path: Path) -> bytes:
    """The key in a file, which nobody else may read; drawn from the system where there is none yet."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write(path, secrets.token_bytes(32), flush=True, mode=0o600)
    return path.read_bytes()


def _read(path: Path) -> bytes:
    try:
        key = secret(path)
    except OSError:
        raise PolicyError("the policy's rest_key can be neither read nor made; nothing is kept without it") from None
    if len(key) != KEY:
        raise PolicyError(f"the policy's rest_key holds {len(key)} bytes, a key has {KEY}")
    return key
