"""A run's log as it grows: it is long, so it is read forward, and what was read before is never read again."""

import json
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedsmall.audit_log import FIRST
from fedsmall.sim.consortium.records.run_log import RunLog

TOLD = 60  # happenings that a page shows
QUIET = ("order", "answer")  # what happens at every contact
Entry = dict[str, Any]


@dataclass
class FollowedLog:
    """The log at ``path``, as far as :meth:`read` has come: ``run`` is what it says of sites and contacts.

    ``heard`` is when a site was heard last (ISO 8601, UTC), ``heads`` what it signed last of its own log, ``head`` the
    digest of the last of ``lines`` lines. ``happened`` are the last lines that are no order and no answer.
    """

    path: Path
    run: RunLog = field(default_factory=RunLog)
    heard: dict[str, str] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)  # a contact's first order, in seconds since 1970
    happened: deque[Entry] = field(default_factory=lambda: deque(maxlen=TOLD))
    lines: int = 0
    head: str = FIRST
    _place: int = 0

    def read(self) -> "FollowedLog":
        """Take in what was added since; a log that has become shorter is another one, and is read from its start."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._place:
            return FollowedLog(self.path).read()
        if size > self._place:
            with self.path.open("rb") as file:
                file.seek(self._place)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._place += len(line)
                    self._take(line)
        return self

    def seconds(self) -> dict[int, float]:
        """Seconds from the first order to the last answer of every contact that was answered, by its round."""
        return {t: float(seconds) for t, seconds, answers in self.run.contacts.values() if answers}

    def between(self) -> dict[int, float]:
        """Seconds from each contact to the next, by the round of the earlier one."""
        return {one: self.began[after] - self.began[one] for one, after in pairwise(sorted(self.began))}

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            before = self.run.contacts.get(entry.get("t"))
            self.run.take(entry)
        except (ValueError, LookupError, TypeError, AttributeError):
            return  # not a line of ours: who verifies the log is told
        self.lines, self.head = self.lines + 1, str(entry.get("digest", ""))
        event, site, t = entry["event"], str(entry.get("site", "")), entry.get("t")
        if event not in QUIET:
            self.happened.append(entry)
        if event in ("answer", "failed") and site:
            self.heard[site] = str(entry["time"])
            signed = entry.get("signed")
            self.heads[site] = str(signed["head"]) if isinstance(signed, dict) and "head" in signed else ""
        if event == "order" and t and self.run.contacts.get(t) is not before:
            self.began[t] = datetime.fromisoformat(entry["time"]).timestamp()
