"""The log of one site, and beside it what a shorter log cannot take back: number of lines, last digest, budget.

A chain of digests cannot show that its end was cut off, that it was rewritten, or that it is another site's;
``log.state.json`` can, and the privacy budget is counted from whichever of both has spent more. Who can write both can
put both back; the site's signed statements, which the coordinator sends with every order, show that. Nothing is
appended to a log that contradicts either. So too the site's guards, the files ``told_*.json`` that remember of whom
sums were told: a line has each one's digest before it is in place, and none is taken that was deleted or put back.

One table has one budget, under whatever names: the data processes of one user note in a folder of theirs which home
holds which table, as a sketch under a key that lies there too (:mod:`fedsmall.sealing.tables`), and each counts what
the logs of other homes with such a table say was spent. A home that was deleted counts no more, and two data processes
that charge at the same moment may both be let through once.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fedsmall.audit_log import FIRST, AuditLog, LogCheck, verify
from fedsmall.clients.shelf import secret, write_private
from fedsmall.data.raw_site import RawSite
from fedsmall.errors import PlanError, PolicyError
from fedsmall.files import write
from fedsmall.methods import nearest
from fedsmall.parts import Frozen
from fedsmall.privacy.patient_level import Charge
from fedsmall.sealing.tables import Rows, are_alike, rows_of, sketch

Charges = tuple[tuple[str, Charge], ...]  # by run
DIGEST_BYTES, STATE = 32, "log.state.json"
GUARDS, NEXT = "told_*.json", ".next"  # in the site's home; the ending of one whose line is not written yet
PUT_BACK = (
    "Put log.jsonl and log.state.json back from a copy and start the site again, or have it admitted under a new name"
)
PUT_GUARD_BACK = (
    "Put it back from a copy of log.jsonl's time and start the site again; without one it can tell no more of these "
    "patients, for sums that differ by one patient give that one away"
)


class LogState(Frozen):
    """The state of a site's log: ``releases`` at ``noise`` or more, patients' ``charges``, where it is ``broken``.

    ``exposure`` bounds what has been told of any record, in all runs.
    ``guards`` are the digests of what guards patients, by file; None in a log of an older fedsmall.
    """

    site: str
    lines: int = 0
    head: str = FIRST
    releases: int = 0
    noise: float | None = None
    charges: Charges = ()
    exposure: float = 0.0
    guards: dict[str, str] | None = None
    broken: str | None = None


class BrokenLogError(PolicyError):
    """The site's log is not the one that was written here; nothing may leave."""


class SiteLog:
    """The log of the site ``name`` in ``home``; the data process is its one writer.

    What other names of the same table have spent is ``beside`` it, and counts here as what was spent here.
    """

    def __init__(self, home: Path, name: str) -> None:
        self.name, self.path, self._state_file = name, home / "log.jsonl", home / STATE
        self.beside: tuple[LogState, ...] = ()
        self._log = AuditLog(self.path)
        self._current: LogState | None = None
        self._digests = bytearray()  # of all lines, DIGEST_BYTES each: a log is long, and read once

    def entries(self) -> list[dict[str, Any]]:
        """All whole lines, oldest first."""
        return list(self._log.entries())

    def of_run(self, run: str) -> list[dict[str, Any]]:
        """The lines of one run, oldest first. Raises PlanError, with the nearest name, for an unknown run."""
        entries = self.entries()
        known = list(dict.fromkeys(str(entry["run"]) for entry in entries if entry.get("run")))
        if run not in known:
            raise PlanError(
                f"this site was in no run {run!r}. {nearest(run, known) if known else 'It was in none yet.'}"
            )
        return [entry for entry in entries if entry.get("run") == run]

    def write(self, event: str, *, run: str, **fields: Any) -> dict[str, Any]:
        """Append a line, and then note it in the state: a crash between leaves one line too many, never too few."""
        return self._append(self._known(), event, run=run, **fields)

    @property
    def lines(self) -> int:
        """The lines in the file when it was read, and those written since."""
        self._known()
        return len(self._digests) // DIGEST_BYTES

    def digest_at(self, line: int) -> str:
        """The digest of a line, counted from 1; :data:`FIRST` where there is none."""
        self._known()
        start = (line - 1) * DIGEST_BYTES
        return (self._digests[start : start + DIGEST_BYTES].hex() if line > 0 else "") or FIRST

    def check_stands(self) -> None:
        """Raise BrokenLogError unless the file's end is what was written here last."""
        state = self._known()
        try:
            last, head = self._log.last()
        except ValueError:
            raise BrokenLogError(f"the last line of this site's log is no line of it. {PUT_BACK}") from None
        most = max(state.lines, self.lines)
        as_written = (last, head) == (self.lines, self.digest_at(self.lines))
        # one more line than in the state, where a crash came between the two
        as_known = self.lines - state.lines in (0, 1) and self.digest_at(state.lines) == state.head
        if as_written and as_known and state.broken is None:
            return self._check_guards(state)
        what = f"it had {most} lines and has {last}" if last != most else f"its line {last} is another"
        raise BrokenLogError(f"this site's log was cut off or replaced: {state.broken or what}. {PUT_BACK}")

    def guard(self, path: Path, content: bytes, *, run: str) -> None:
        """Write a guard's file, where it is another than before; a crash leaves the old one, or both and its line."""
        state, after = self._known(), path.with_name(f"{path.name}{NEXT}")
        guards = {**self._guards_of(state), path.name: hashlib.sha256(content).hexdigest()}
        if guards == state.guards:
            return
        write_private(after, content)
        self._append(state.model_copy(update={"guards": guards}), "told", run=run, reason=path.name, guards=guards)
        after.replace(path)

    def _check_guards(self, state: LogState) -> None:
        """Raise BrokenLogError unless the guards are those of the log; a crash may have left one beside its place."""
        for name, known in (state.guards or {}).items():
            if _digest_of(after := self.path.with_name(f"{name}{NEXT}")) == known:
                after.replace(self.path.with_name(name))
        if fault := self._guard_fault(state):
            raise BrokenLogError(f"{fault}. {PUT_GUARD_BACK}")

    def _guard_fault(self, state: LogState) -> str | None:
        known, found = self._guards_of(state), self._guards()
        for name in sorted({*known, *found}):
            if known.get(name) not in (found.get(name), _digest_of(self.path.with_name(f"{name}{NEXT}"))):
                what = "is not the one that the log tells of" if name in found else "is gone"
                return f"{name}, by which this site tells no sums twice, {what}"
        return None

    def _guards(self) -> dict[str, str]:
        return {path.name: _digest_of(path) for path in sorted(self.path.parent.glob(GUARDS))}

    def _guards_of(self, state: LogState) -> dict[str, str]:
        return self._guards() if state.guards is None else state.guards

    def spent(self) -> tuple[int, float | None]:
        """How often privacy was spent, and the least noise of any time."""
        state = self._known()
        for other in self.beside:
            state = _spent(state, other.releases, [] if other.noise is None else [other.noise])
        return state.releases, state.noise

    def spend(self, noise: float, *, run: str, **fields: Any) -> None:
        """Write down one more release, at this noise."""
        state = _spent(self._known(), 1, [noise])
        self._append(state, "spent", run=run, noise=noise, **fields)

    def charges(self) -> Charges:
        """The patients' charges, (run, charge) for every run, sampling rate and noise."""
        beside = ((f"{run} of {other.site}", charge) for other in self.beside for run, charge in other.charges)
        return (*self._known().charges, *beside)

    def charge(self, charge: Charge, *, run: str, **fields: Any) -> None:
        """Write down a charge of steps to the patients."""
        state = self._known()
        state = state.model_copy(update={"charges": _summed([*state.charges, (run, charge)])})
        reason = f"{charge.steps} steps at sampling rate {charge.rate:.3g}, noise {charge.noise:.3g}"
        self._append(state, "charged", run=run, reason=reason, **charge._asdict(), **fields)

    def exposure(self) -> float:
        """A bound on what has been told of any record so far (:mod:`fedsmall.training.information`)."""
        return self._known().exposure + sum(other.exposure for other in self.beside)

    def expose(self, exposure: float, *, run: str, **fields: Any) -> None:
        """Write down that so much more has been told of some record."""
        state = self._known()
        state = state.model_copy(update={"exposure": state.exposure + exposure})
        self._append(state, "exposed", run=run, exposure=exposure, **fields)

    def verify(self) -> LogCheck:
        """Check the chain, its site, and its length by the state. Raises ValueError where there is no log."""
        if not self.path.exists() and self._state_file.exists():
            return LogCheck(0, FIRST, "the log is gone; its state is still there")
        check = verify(self.path)
        return check if check.fault else check._replace(fault=self._fault(check))

    def _fault(self, check: LogCheck) -> str | None:
        if not self._state_file.exists():
            return "the state beside the log is gone: nobody can say whether the log's end was cut off"
        state, entries = self._state(), self.entries()
        if state.broken:
            return state.broken
        strangers = [entry["n"] for entry in entries if entry.get("site", self.name) != self.name]
        if strangers:
            return f"line {strangers[0]} is another site's"
        if state.site != self.name:
            return "the state beside the log is another site's"
        if check.lines < state.lines:
            return f"its end was cut off: it had {state.lines} lines and has {check.lines}"
        if state.lines and entries[state.lines - 1]["digest"] != state.head:
            return f"it was rewritten: its line {state.lines} is not the one that was written here"
        if check.lines > state.lines + 1:  # one, where a crash came between the line and the state
            return f"{check.lines - state.lines} lines were added by another program"
        if _ledger(state) != _ledger(_with_ledger(LogState(site=self.name), entries[: state.lines])):
            return "the ledger in the state beside it is not the one that its lines add up to"
        return self._guard_fault(self._known())

    def _append(self, state: LogState, event: str, **fields: Any) -> dict[str, Any]:
        if state.guards is None:  # the first line, or the first since an older fedsmall
            fields["guards"] = self._guards()
            state = state.model_copy(update={"guards": fields["guards"]})
        entry = self._log.write(event, site=self.name, **fields)
        broken = state.broken or self._break(state, entry)
        new = state.model_copy(update={"lines": entry["n"], "head": entry["digest"], "broken": broken})
        write(self._state_file, new.model_dump_json().encode(), flush=True, mode=0o600)
        self._current = new
        self._digests += bytes.fromhex(entry["digest"])
        return entry

    def _break(self, state: LogState, entry: dict[str, Any]) -> str | None:
        # two lines after the state, where a crash came between the line before and its state
        before = self.entries()[-2] if entry["n"] == state.lines + 2 else entry
        if (before["before"], before["n"]) == (state.head, state.lines + 1):
            return None
        return f"it was cut off or replaced: after the {state.lines} lines written here came line {entry['n']}"

    def _known(self) -> LogState:
        """The state, with all that the log says was spent; read once."""
        if self._current is None:
            begun, entries = self._state_file.exists(), self.entries()
            self._digests = bytearray(b"".join(bytes.fromhex(entry["digest"]) for entry in entries))
            state = self._state() if begun else LogState(site=self.name)
            if state.site != self.name:
                raise PolicyError("the state beside this site's log is another site's")
            guards = [entry["guards"] for entry in entries if "guards" in entry]
            self._current = _with_ledger(state, entries).model_copy(update={"guards": [state.guards, *guards][-1]})
            if self.path.exists() and not begun:
                self._adopt(self._current)
        return self._current

    def _adopt(self, state: LogState) -> None:
        """Begin a state beside the log of an older fedsmall, and log that."""
        *_, last = self.entries() or [{"n": 0, "digest": FIRST}]
        state = state.model_copy(update={"lines": last["n"], "head": last["digest"]})
        self._append(state, "adopted", run="", reason="there was no state beside this log")

    def _state(self) -> LogState:
        try:
            return LogState.model_validate_json(self._state_file.read_bytes())
        except ValidationError:
            raise PolicyError("the state beside this site's log is damaged") from None


def _with_ledger(state: LogState, entries: Iterable[dict[str, Any]]) -> LogState:
    """The state with all that the lines say was spent, where it is more."""
    noises = [float(entry["noise"]) for entry in entries if entry["event"] == "spent"]
    lines = (entry for entry in entries if entry["event"] == "charged")
    charged = _summed((e["run"], Charge(float(e["rate"]), float(e["noise"]), int(e["steps"]))) for e in lines)
    charges = _summed([*state.charges, *charged], max)
    exposures = (float(entry["exposure"]) for entry in entries if entry["event"] == "exposed")
    exposure = max(state.exposure, reduce(add, exposures, 0.0))  # in turn, as the state has added them
    state = state.model_copy(update={"charges": charges, "exposure": exposure})
    return _spent(state, max(0, len(noises) - state.releases), noises)


def _ledger(state: LogState) -> tuple[Any, ...]:
    return state.releases, state.noise, state.charges, state.exposure


def _digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _spent(state: LogState, more: int, noises: list[float]) -> LogState:
    least = min([*noises, *([] if state.noise is None else [state.noise])], default=None)
    return state.model_copy(update={"releases": state.releases + more, "noise": least})


def _summed(charges: Iterable[tuple[str, Charge]], join: Callable[[int, int], int] = add) -> Charges:
    """Charges of one run, rate and noise as one, in the order of their first."""
    steps: dict[tuple[str, float, float], int] = {}
    for run, charge in charges:
        key = (run, charge.rate, charge.noise)
        steps[key] = join(steps.get(key, 0), charge.steps)
    return tuple((run, Charge(rate, noise, count)) for (run, rate, noise), count in steps.items())


def table_of(raw: RawSite) -> Rows:
    """All samples of a site as the rows of one table, however they are split."""
    parts = [part for part in (raw.train, raw.held_out, raw.kept_back) if part is not None]
    return rows_of((part.x, part.y) for part in parts)


def mark_of(folder: Path, raw: RawSite) -> bytes:
    """The sketch of a site's table under the user's key; of one that says too little of its rows, of it as a whole."""
    table = table_of(raw)
    return sketch(table.rows if table.is_telling else [table.whole], secret(folder / "tables.key"))


def note_table(folder: Path, home: Path, mark: bytes) -> list[Path]:
    """Note in ``folder`` that a site which writes in ``home`` holds this table; returns the other homes that do."""
    home, log = home.resolve(), AuditLog(folder / "tables.jsonl")
    noted = {(Path(entry["home"]), bytes.fromhex(entry["table"])) for entry in log.entries()}
    if (home, mark) not in noted:
        log.write("table", home=str(home), table=mark.hex())
    return sorted({other for other, theirs in noted if other != home and are_alike(mark, theirs)})


def spent_beside(homes: list[Path]) -> Iterator[LogState]:
    """What the logs of these homes say was spent, as far as they are there. PolicyError for one that is damaged."""
    for home in homes:
        if (file := home / STATE).exists():
            try:
                yield LogState.model_validate_json(file.read_bytes())
            except ValidationError:
                raise PolicyError(
                    "another site of this user holds the same table, and the state beside its log is damaged"
                ) from None
