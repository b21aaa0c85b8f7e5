"""Write a file, read one of TOML, and make one plain line of another's words. A path has one writer at a time."""

import codecs
import contextlib
import errno
import os
import re
import stat
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedsmall.errors import DataError

FULL = (errno.ENOSPC, errno.EDQUOT)
BESIDE = ".new"  # the ending of a file that is not whole yet
CURLY = "\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb"  # the quotes that word processors put in place of " and '
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class DiskFullError(OSError):
    """The disk, or the user's share of it, is full."""

    def __str__(self) -> str:
        return str(self.strerror)


def write(path: Path, content: bytes, *, flush: bool = False, mode: int | None = None) -> None:
    """Write a file whole or not at all: beside its place first, then moved there.

    With ``flush`` it is on the disk before the old content goes. An existing file keeps its mode; a new one gets
    ``mode``, or the system's default. Raises DiskFullError where there is no room; the old content stays.
    """
    beside = path.with_name(path.name + BESIDE)
    try:
        with raise_when_full(path.name):
            _write(beside, content, flush, stat.S_IMODE(path.stat().st_mode) if path.exists() else mode)
            os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)  # on a full disk the reason itself needs the room
        raise


def _write(beside: Path, content: bytes, flush: bool, mode: int | None) -> None:
    beside.unlink(missing_ok=True)  # a killed writer's; its mode may be another
    with os.fdopen(
        os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode), "wb"
    ) as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)  # whatever the umask says
        file.write(content)
        file.flush()
        if flush:
            os.fsync(file.fileno())


@contextlib.contextmanager
def raise_when_full(name: str) -> Iterator[None]:
    """Tell a full disk as one, by the name of the file that was to be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, DiskFullError):
            raise
        raise DiskFullError(error.errno, f"the disk is full: there is no room to write {name}") from None


def check_is_regular(path: Path) -> None:
    """Raise DataError for a pipe, a socket or a device, on which a reader could wait without end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise DataError("it is a pipe, a socket or a device, and no regular file; save it as a file", file=path.name)


@contextlib.contextmanager
def in_file(path: Path, name: str = "") -> Iterator[None]:
    """Make a DataError within name the file, by its ``name`` and not its path; and one for what is no regular file."""
    check_is_regular(path)
    try:
        yield
    except DataError as wrong:
        raise DataError(wrong.words, file=", ".join(filter(None, [name or path.name, wrong.file]))) from wrong


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file, which may begin with a byte order mark.

    OSError where it cannot be read, DataError where it is no regular file, ValueError, with the remedy, for no TOML.
    """
    check_is_regular(path)
    raw = path.read_bytes()
    if raw.startswith(UTF_16) or b"\0" in raw:
        raise ValueError("it is in UTF-16, as PowerShell and old editors write it; save it in UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line} holds a character that is not in UTF-8; save the file in UTF-8") from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{error}{_remedy(text, str(error))}") from None


def _remedy(text: str, reason: str) -> str:
    if reason.startswith(("Cannot overwrite", "Cannot declare")):  # tomllib's words
        return "; what stands there is given twice: keep one"
    place = re.search(r"at line (\d+)", reason)
    lines = text.split("\n")
    line = lines[int(place[1]) - 1] if place and int(place[1]) <= len(lines) else ""
    if found := sorted(set(CURLY) & set(line)):
        return f"; it has the quotes {' '.join(found)} of a word processor: write straight ones, \" or '"
    if "\\" in line:
        return "; write a path with / in place of \\, or in single quotes: 'C:\\data\\patients.csv'"
    return ""


def one_line(text: object, most: int | None = None) -> str:
    """Another's words as one line of at most ``most`` characters; every stretch of blanks becomes one blank."""
    return plain(" ".join(str(text).split()))[:most]


def list_some(names: Sequence[object], most: int = 8) -> str:
    """Names in one line, the first ``most`` of them, and how many more there are."""
    more = len(names) - most
    return ", ".join(map(str, names[:most])) + (f" and {more} more" if more > 0 else "")


def plain(text: str) -> str:
    """A text that does nothing to a terminal: control, escape, zero-width and direction characters become U+FFFD."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
