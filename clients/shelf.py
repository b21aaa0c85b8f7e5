"""Named arrays and words in folders on a site's disk, encrypted at rest where the site's policy names a ``rest_key``.

Files are encrypted by AES-256-GCM with a fresh nonce each; changed ones are refused. This protects copies (a backup, a
stolen disk) as long as the key is not among them, so keep the key on another disk. It does not protect from who acts as
the data process's user while the site is up. Destroying the key deletes all that it sealed, on every copy.
"""

import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedsmall.errors import PolicyError
from fedsmall.files import write
from fedsmall.wire import Arrays

SEALED = b"fedsmall sealed 1\n"
NONCE, KEY = 12, 32
ARRAYS, WORDS = ".safetensors", ".json"

_key: ContextVar[bytes | None] = ContextVar("rest_key", default=None)


class Item(NamedTuple):
    """The arrays and JSON words under one name; beside arrays the words are a mapping."""

    arrays: Arrays
    words: Any


class Shelf:
    """The items in one ``folder`` of a site, written whole or not at all and readable by its user alone.

    Arrays lie in NAME.safetensors, with words in its metadata, words alone in NAME.json. A number as a name is a round.
    """

    def __init__(self, folder: Path, is_sealed: bool = True) -> None:
        self.folder, self._is_sealed = folder, is_sealed

    def put(self, name: str | int, arrays: Mapping[str, np.ndarray] | None = None, words: Any = None) -> None:
        """Keep an item; the old one stays until the new one is on the disk."""
        if arrays is None:
            return self.write(f"{_text(name)}{WORDS}", json.dumps(words).encode())
        self.write(f"{_text(name)}{ARRAYS}", bytes_of(arrays, words))

    def get(self, name: str | int) -> Item | None:
        """An item; None where there is none. Raises PolicyError where it cannot be read."""
        arrays, words = self.read(f"{_text(name)}{ARRAYS}"), self.read(f"{_text(name)}{WORDS}")
        if arrays is None and words is None:
            return None
        try:
            held, beside = ({}, None) if arrays is None else (load(arrays), _metadata(arrays))
            return Item(dict(held), beside if words is None else json.loads(words))
        except (SafetensorError, ValueError):
            raise PolicyError(
                f"what this site keeps as {_text(name)} in {self.folder.name} is damaged, or another release's; put it "
                "back from a copy, or start a new run"
            ) from None

    def arrays(self, name: str | int) -> Arrays:
        """The arrays of an item; empty where there is none."""
        item = self.get(name)
        return item.arrays if item else {}

    def words(self, name: str | int) -> Any:
        """The words of an item; None where there is none."""
        item = self.get(name)
        return item.words if item else None

    def rounds(self) -> list[int]:
        """The rounds of which there are items, in order."""
        return sorted({int(path.stem) for path in self.folder.glob("*.*") if path.stem.isdigit()})

    def keep_last(self, count: int) -> None:
        """Delete the items of all but the last ``count`` rounds."""
        self.drop(*self.rounds()[:-count])

    def drop(self, *names: str | int) -> None:
        """Delete items, where they are there."""
        for file in [f"{_text(name)}{ending}" for name in names for ending in (ARRAYS, WORDS)]:
            (self.folder / file).unlink(missing_ok=True)

    def write(self, file: str, content: bytes, flush: bool = True) -> None:
        """Keep bytes in a file of this name."""
        write_private(self.folder / file, seal(content) if self._is_sealed else content, flush)

    def read(self, file: str) -> bytes | None:
        """The bytes in a file; None where there is none."""
        path = self.folder / file
        return unseal(path.read_bytes()) if path.exists() else None


def bytes_of(arrays: Mapping[str, np.ndarray], words: Mapping[str, Any] | None = None) -> bytes:
    """Arrays and words as the bytes of one safetensors file."""
    texts = None if words is None else {name: json.dumps(value) for name, value in words.items()}
    return bytes(save({name: np.asarray(array, order="C") for name, array in arrays.items()}, texts))


def _metadata(content: bytes) -> dict[str, Any]:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return {name: _value(text) for name, text in header.get("__metadata__", {}).items()}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # of a release that wrote plain words


def _text(name: str | int) -> str:
    return name if isinstance(name, str) else f"{name:09d}"


def write_private(path: Path, content: bytes, flush: bool = True) -> None:
    """Write a file readable by the site's user alone, in a folder that is theirs alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write(path, content, flush=flush, mode=0o600)


@contextlib.contextmanager
def sealed_by(rest_key: str | None) -> Iterator[None]:
    """Encrypt what is kept within it by the key in the file ``rest_key``, made where there is none; by none for None.

    Raises PolicyError where it cannot be read or made, or is no key.
    """
    try:
        key = None if rest_key is None else secret(Path(rest_key))
    except OSError:
        raise PolicyError("the policy's rest_key can be neither read nor made; nothing is kept without it") from None
    if key is not None and len(key) != KEY:
        raise PolicyError(f"the policy's rest_key holds {len(key)} bytes, a key has {KEY}")
    before = _key.set(key)
    try:
        yield
    finally:
        _key.reset(before)


def seal(content: bytes) -> bytes:
    """The content as it may lie on the disk: encrypted where there is a key."""
    key = _key.get()
    if key is None:
        return content
    nonce = secrets.token_bytes(NONCE)
    return SEALED + nonce + AESGCM(key).encrypt(nonce, content, SEALED)


def unseal(content: bytes) -> bytes:
    """The content of a sealed or plain file. PolicyError for a missing or other key, or changed content."""
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
    """The key in a private file; drawn from the system's randomness where there is none yet."""
    if not path.exists():
        write_private(path, secrets.token_bytes(KEY))
    return path.read_bytes()
