"""The one way in which fedsmall writes a file, and the one line that another's words become.

A path has one writer at a time: what a killed writer left beside it is taken over by the next.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
BESIDE = ".new"  # the ending of a file that is not whole yet


class DiskFullError(OSError):
    """The disk, or the user's share of it, is full."""

    def __str__(self) -> str:
        return str(self.strerror)


def write(path: Path, content: bytes, *, flush: bool = False, mode: int | None = None) -> None:
    """Write a file whole or not at all: beside its place first, then moved there.

    With ``flush`` it is on the disk before the old content goes, though the machine lose its power. A file that is
    there keeps its mode; a new one gets ``mode``, or what the system gives new files. Raises DiskFullError where there
    is no room; what was there is there still.
    """
    beside = path.with_name(path.name + BESIDE)
    try:
        with told_when_full(path.name):
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
def told_when_full(name: str) -> Iterator[None]:
    """Tell a full disk as one, by the name of the file that was to be written."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, DiskFullError):
            raise
        raise DiskFullError(error.errno, f"the disk is full: there is no room to write {name}") from None


def one_line(text: object, most: int | None = None) -> str:
    """Another's words as one line of at most ``most`` characters; every stretch of blanks becomes one blank."""
    return plain(" ".join(str(text).split()))[:most]


def plain(text: str) -> str:
    """A text that does nothing to a terminal: what cannot be seen is replaced by a question mark in a black diamond.

    That is control and escape characters, line ends too, and those of no width or that turn the direction of writing.
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
