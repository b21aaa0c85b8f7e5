"""The run's journal: the whole state on disk after every communication round; a killed run goes on to the same bits.

A state is ``000012.safetensors`` with the arrays, then ``000012.json`` with the rest and the digests of both, each
flushed and put in place by a rename: a state without a fitting JSON was never finished. The last ``keep`` states stay,
and the last ``lasting`` after an aggregation, to which a run can be taken back.
"""

import contextlib
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedsmall.errors import PlanError
from fedsmall.files import one_line, write
from fedsmall.wire import Arrays

KEEP = 3
LASTING = 20
UNREADABLE = (OSError, ValueError, KeyError, SafetensorError)
OWN = re.compile(r"\d{6,}\.(json|safetensors)(\.new)?")


class FileJournal:
    """A journal in a folder of its own. ``faults`` says what :meth:`latest` passed over, and why."""

    def __init__(self, folder: Path, keep: int = KEEP, lasting: int = LASTING) -> None:
        self.folder, self.keep, self.lasting = folder, keep, lasting
        self.faults: list[str] = []
        self._lasting: set[int] | None = None

    def save(self, comm_round: int, arrays: Arrays, meta: dict[str, Any], lasting: bool = False) -> None:
        """Write the state after so many rounds, all or nothing, then delete the oldest. ``meta`` is for JSON."""
        self._lasting = self._lasting_ones() if self._lasting is None else self._lasting
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        content = save({name: np.asarray(array, order="C") for name, array in arrays.items()})
        card = {"contact": comm_round, "sha256": hashlib.sha256(content).hexdigest(), "meta": meta, "lasting": lasting}
        text = json.dumps(card, separators=(",", ":"))
        put(self._path(comm_round, "safetensors"), content)
        put(self._path(comm_round, "json"), f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}".encode())
        _flush_folder(self.folder)
        self._lasting = {known for known in self._lasting if known < comm_round} | ({comm_round} if lasting else set())
        self._forget(comm_round, set(sorted(self._lasting)[-self.lasting :]))

    def comm_rounds(self) -> list[int]:
        """The communication rounds whose state is there, in order."""
        return [_comm_round(path) for path in self._records()]

    def go_back(self, comm_round: int) -> None:
        """Delete the states after ``comm_round``. Raises PlanError, and deletes nothing, if that one is not whole."""
        try:
            _read(self._path(comm_round, "json"))
        except UNREADABLE:
            known = ", ".join(map(str, self.comm_rounds())) or "none"
            raise PlanError(
                f"No whole state of communication round {comm_round} is in the run's journal. There are: {known}."
            ) from None
        for path in sorted(self._ours(), key=lambda path: path.suffix):  # a record goes before its arrays
            if _comm_round(path) > comm_round:
                path.unlink()

    def latest(self) -> tuple[int, Arrays, dict[str, Any]] | None:
        """The last whole state: communication rounds done, arrays, meta; None where the first was never written.

        Raises PlanError where none, or none of the last ``keep``, is whole: a run must not go far back unasked.
        """
        self.faults = []
        for path in reversed(self._records()):
            try:
                state = _read(path)
            except UNREADABLE as error:
                self.faults.append(f"communication round {_comm_round(path)}: {error}")
                continue
            self._check_near(state[0])
            return state
        if self.faults or any(_comm_round(path) > 1 for path in self._ours()):
            faults = one_line("; ".join(self.faults) or "all records are gone")
            cure = "Put a copy of its journal folder back, or start a new run under another name."
            raise PlanError(f"No state in the run's journal is whole ({faults}). {cure}")
        return None

    def _check_near(self, comm_round: int) -> None:
        """Raise PlanError where all newest states are damaged: no crash does that, and sites forget older rounds."""
        if len(self.faults) >= self.keep:
            raise PlanError(
                f"The last {len(self.faults)} states in the run's journal are damaged "
                f"({one_line('; '.join(self.faults), 300)}). Put a copy of its journal folder back, or go on from an "
                f"older one: `fedsmall resume RUN --from {comm_round}`."
            )

    def cards(self, last: int = KEEP) -> list[tuple[int, dict[str, Any]]]:
        """Communication round and meta of the last whole records, oldest first; arrays stay unread."""
        states = []
        for path in self._records()[-last:]:
            with contextlib.suppress(OSError, ValueError, KeyError):  # damaged, or let go while we read
                card = _card(path)
                states.append((int(card["contact"]), dict(card["meta"])))
        return states

    def _path(self, comm_round: int, ending: str) -> Path:
        return self.folder / f"{comm_round:06d}.{ending}"

    def _forget(self, comm_round: int, stay: set[int]) -> None:
        for path in self._ours():
            # a run that was taken back to an older state writes its later communication rounds anew
            if not comm_round - self.keep < _comm_round(path) <= comm_round and _comm_round(path) not in stay:
                path.unlink()

    def _lasting_ones(self) -> set[int]:
        lasting = set()
        for path in self._records():
            with contextlib.suppress(OSError, ValueError):
                if json.loads(path.read_bytes().partition(b"\n")[2]).get("lasting"):
                    lasting.add(_comm_round(path))
        return lasting

    def _records(self) -> list[Path]:
        return sorted((path for path in self._ours() if path.suffix == ".json"), key=_comm_round)

    def _ours(self) -> list[Path]:
        return [path for path in self.folder.glob("*") if OWN.fullmatch(path.name)]


def _comm_round(path: Path) -> int:
    return int(path.name.partition(".")[0])


def _card(path: Path) -> dict[str, Any]:
    digest, _, text = path.read_bytes().partition(b"\n")
    if hashlib.sha256(text).hexdigest().encode() != digest:
        raise ValueError("its record is damaged")
    card: dict[str, Any] = json.loads(text)
    return card


def _read(path: Path) -> tuple[int, Arrays, dict[str, Any]]:
    card = _card(path)
    content = path.with_suffix(".safetensors").read_bytes()
    if hashlib.sha256(content).hexdigest() != card["sha256"]:
        raise ValueError("its arrays are damaged")
    return card["contact"], load(content), card["meta"]


def put(path: Path, content: bytes) -> None:
    """Write a file so that it outlives a power cut."""
    write(path, content, flush=True)


def _flush_folder(folder: Path) -> None:
    # the renames themselves must reach the disk before an older state is let go
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
