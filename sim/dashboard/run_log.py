"""What a run's log says so far: its contacts and how long they took, what every site did last, what went wrong.

A log is long and only grows, so it is read forward: what was read before is never read again.
"""

import json
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from flwr.app import MessageType

from fedsmall.audit_log import FIRST

TOLD = 60  # happenings that a page shows
QUIET = ("order", "answer")  # what happens at every contact
Entry = dict[str, Any]


@dataclass
class ContactTimes:
    """One contact: when its first order went out and its last answer came, in seconds since 1970, and how many."""

    t: int
    began: float
    ended: float = 0.0
    orders: int = 0
    answers: int = 0

    @property
    def seconds(self) -> float | None:
        """From the first order to the last answer; None before there is any."""
        return max(0.0, self.ended - self.began) if self.answers else None


@dataclass
class SiteTimes:
    """What a site did in a run: when it was heard last, its answers and their bytes, its refusals and silences."""

    heard: str = ""
    answers: int = 0
    bytes: int = 0
    refusals: int = 0
    silences: int = 0
    head: str = ""  # of its own log, as it told it last


@dataclass
class RunLog:
    """The log at ``path``, as far as :meth:`read` has come. ``head`` is the digest of the last of ``lines`` lines."""

    path: Path
    contacts: dict[int, ContactTimes] = field(default_factory=dict)
    sites: dict[str, SiteTimes] = field(default_factory=dict)
    happened: deque[Entry] = field(default_factory=lambda: deque(maxlen=TOLD))
    lines: int = 0
    head: str = FIRST
    _place: int = 0
    _over: set[int] = field(default_factory=set)  # contacts of before the last launch: they may come again

    def read(self) -> "RunLog":
        """Take in what was added since; a log that has become shorter is another one, and is read from its start."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._place:
            return RunLog(self.path).read()
        if size > self._place:
            with self.path.open("rb") as file:
                file.seek(self._place)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._place += len(line)
                    self._take(line)
        return self

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            event, when = str(entry["event"]), str(entry["time"])
        except (ValueError, LookupError, TypeError):
            return  # not a line of ours: who verifies the log is told
        self.lines, self.head = self.lines + 1, str(entry.get("digest", ""))
        if event not in QUIET:
            self.happened.append(entry)
        if event == "launched":
            self._over = set(self.contacts)
        if "site" in entry:
            self._note_site(self.sites.setdefault(str(entry["site"]), SiteTimes()), event, when, entry)
        if str(entry.get("kind", "")).startswith(MessageType.TRAIN) and entry.get("t"):
            self._note_contact(int(entry["t"]), event, datetime.fromisoformat(when).timestamp())

    def _note_contact(self, t: int, event: str, when: float) -> None:
        if event == "order":
            if t not in self.contacts or t in self._over:
                self.contacts[t] = ContactTimes(t, when)
                self._over.discard(t)
            self.contacts[t].orders += 1
        elif event == "answer" and t in self.contacts:
            self.contacts[t].answers += 1
            self.contacts[t].ended = when

    @staticmethod
    def _note_site(site: SiteTimes, event: str, when: str, entry: Entry) -> None:
        if event in ("answer", "failed"):
            site.heard, site.head = when, str(entry.get("head") or site.head)
        site.answers += event == "answer"
        site.bytes += int(entry.get("bytes", 0)) if event == "answer" else 0
        site.refusals += event == "failed"
        site.silences += event in ("silent", "away")

    def between(self) -> dict[int, float]:
        """Seconds from each contact to the next, by the round of the earlier one."""
        times = [self.contacts[t] for t in sorted(self.contacts)]
        return {one.t: after.began - one.began for one, after in pairwise(times)}
