"""An append-only log in which every line holds the digest of the line before: later changes show.

One JSON object a line: ``n``, ``time`` (UTC), ``event``, the event's own fields, ``before`` (the digest of the line
before) and ``digest`` (SHA-256 of the rest). That its end was cut off shows only in the other party's log.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from fedsmall.files import raise_when_full

FIRST = "0" * 64  # what the first line names as the line before
TAIL_BYTES = 16_384
OWN = ("n", "time", "event", "before", "digest")


class LogCheck(NamedTuple):
    """What :func:`verify` found: how many lines hold, the last digest, and the first fault in one line, or None."""

    lines: int
    head: str
    fault: str | None


class AuditLog:
    """A log at ``path`` for its owner alone, safe for several processes; every line has the fields ``always``."""

    def __init__(self, path: Path, **always: Any) -> None:
        self.path = path
        self._always = always

    def write(self, event: str, **fields: Any) -> dict[str, Any]:
        """Append one line, flush it to the disk and return it; a half-written line is cut off first.

        Raises ValueError for a field of one of the log's own names, DiskFullError where there is no room.
        """
        return self.write_each(event, [fields])[0]

    def write_each(self, event: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """As :meth:`write`, a line for each row, all of them flushed together."""
        rows = [{**self._always, **row} for row in rows]
        if taken := {name for row in rows for name in row} & set(OWN):
            raise ValueError(f"the log itself writes {', '.join(sorted(taken))}; choose another name")
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        lines: list[bytes] = []
        with raise_when_full(self.path.name), os.fdopen(handle, "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            last, cut = _last_line(_tail(file))
            if cut:
                rows = [{**row, "cut": cut} for row in rows[:1]] + rows[1:]
                file.truncate(os.fstat(file.fileno()).st_size - cut)
            for row in rows:
                lines.append(_line(lines[-1] if lines else last, event, row))
            file.seek(0, os.SEEK_END)
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
        return [json.loads(line) for line in lines]

    def last(self) -> tuple[int, str]:
        """The last whole line's number and digest, 0 and :data:`FIRST` without; ValueError for another log's line."""
        if not self.path.exists():
            return 0, FIRST
        with self.path.open("rb") as file:
            line, _ = _last_line(_tail(file))
        try:
            entry: dict[str, Any] = json.loads(line) if line else {"n": 0, "digest": FIRST}
            return int(entry["n"]), str(entry["digest"])
        except (ValueError, KeyError, TypeError):
            raise ValueError("the last line is none of this log's") from None

    def entries(self) -> Iterator[dict[str, Any]]:
        """All whole lines, oldest first."""
        lines = self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []
        yield from (json.loads(line) for line in lines if line.endswith(b"\n"))


def verify(path: Path) -> LogCheck:
    """Check every line of a log against the one before. Raises ValueError where there is no log."""
    if not path.is_file():
        raise ValueError("there is no log yet: nothing has been sent or refused here")
    head, lines = FIRST, 0
    for raw in path.read_bytes().splitlines(keepends=True):
        if fault := _fault(raw, head, lines + 1):
            return LogCheck(lines, head, f"line {lines + 1} {fault}")
        head, lines = json.loads(raw)["digest"], lines + 1
    return LogCheck(lines, head, None)


def digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes in the order of names: the same at both ends of a wire."""
    total = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")
        total.update(json.dumps([name, array.dtype.str, list(array.shape)]).encode())
        total.update(array.tobytes())
    return total.hexdigest()


def manifest(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """What a log says of arrays: names and shapes, bytes and digest, and no number in them."""
    return {
        "arrays": {name: list(array.shape) for name, array in sorted(arrays.items())},
        "bytes": sum(array.nbytes for array in arrays.values()),
        "sha256": digest_of(arrays),
    }


def _line(last: bytes | None, event: str, fields: Mapping[str, Any]) -> bytes:
    before: dict[str, Any] = json.loads(last) if last else {"n": 0, "digest": FIRST}
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    entry = {"n": before["n"] + 1, "time": now, "event": event, **fields, "before": before["digest"]}
    entry["digest"] = _digest(entry)
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _digest(entry: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in entry.items() if key != "digest"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _fault(raw: bytes, head: str, number: int) -> str | None:
    if not raw.endswith(b"\n"):
        return "is half-written: the program ended while it wrote"
    try:
        entry = json.loads(raw)
        if entry["digest"] != _digest(entry):
            return "was changed after it was written"
        if entry["before"] != head or entry["n"] != number:
            return "does not follow the line before it: a line was removed or put in"
    except (ValueError, KeyError, TypeError):
        return "is no line of this log"
    return None


def _tail(file: BinaryIO) -> bytes:
    size, step = file.seek(0, os.SEEK_END), TAIL_BYTES
    while True:
        start = max(size - step, 0)
        file.seek(start)
        content = file.read()
        if start == 0 or content.count(b"\n") > 1:
            return content
        step *= 4


def _last_line(content: bytes) -> tuple[bytes | None, int]:
    end = content.rfind(b"\n") + 1
    start = content.rfind(b"\n", 0, max(end - 1, 0)) + 1
    return (content[start:end] or None), len(content) - end
