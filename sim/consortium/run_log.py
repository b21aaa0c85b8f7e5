"""What the coordinator's log of a run says of sites and contacts: bytes each way, who answered, when, what failed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

LAUNCHED = "launched"
OF_SITES = {"lost": "its order or answer was lost, and was sent again", "away": "it was not connected, and waited for"}
OF_SITES |= {"waits": "its hospital had not agreed, or had paused, and was waited for"}
COUNTED = {"order": "orders", "answer": "answers", "failed": "refused", "log fault": "refused", "silent": "silent"}
OF_RUN = {"taken back": "the run was taken back to an earlier contact", "stopped": "the run was stopped"}


@dataclass
class RunLog:
    """The log, read: ``sites`` holds counts by name, ``contacts`` [t, seconds, answers] of every contact.

    A site has "orders", "answers", "refused" and "silent" messages, and bytes "sent" to it and that "came" from it.
    ``events`` are those of others than the strategy. Times are ISO 8601, UTC.
    """

    sites: dict[str, dict[str, int]] = field(default_factory=dict)
    contacts: dict[int, list[Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    started: str = ""
    ended: str = ""
    launches: int = 0
    _now: int | None = None
    _since: str = ""

    def take(self, entry: Mapping[str, Any]) -> None:
        """Go on by one line."""
        self.started, self.ended = self.started or entry["time"], entry["time"]
        event = entry["event"]
        if event == LAUNCHED:
            self.launches += 1
            self._now = None  # a contact that was cut off is begun anew
            if self.launches > 1:
                self._note("resumed", "", "the run was resumed")
        elif event in COUNTED and "site" in entry:
            self._count(event, entry)
        elif event in OF_SITES:
            self._note(event, str(entry.get("site", "")), str(entry.get("reason") or OF_SITES[event]), entry.get("t"))
        elif event in OF_RUN:
            self._note(event, "", OF_RUN[event], entry.get("contact"))

    def _count(self, event: str, entry: Mapping[str, Any]) -> None:
        none = dict.fromkeys(("orders", "answers", "refused", "silent", "sent", "came"), 0)
        counts = self.sites.setdefault(str(entry["site"]), none)
        counts[COUNTED[event]] += 1
        size = int(entry.get("bytes", 0))
        counts["sent"] += size if event == "order" else 0
        counts["came"] += size if event == "answer" else 0
        if entry.get("kind") == "train" and entry.get("t") is not None:
            self._contact(event, int(entry["t"]), str(entry["time"]))

    def _contact(self, event: str, t: int, time: str) -> None:
        if event == "order" and t != self._now:
            self._now, self._since = t, time
            self.contacts[t] = [t, 0.0, 0]
        elif event == "answer" and t == self._now:
            seconds = (datetime.fromisoformat(time) - datetime.fromisoformat(self._since)).total_seconds()
            self.contacts[t] = [t, round(seconds, 3), self.contacts[t][2] + 1]

    def _note(self, kind: str, site: str, reason: str, t: int | None = None) -> None:
        last = max(self.contacts, default=0)
        self.events.append({"t": last if t is None else t, "site": site, "kind": kind, "reason": reason})


def run_log(entries: Iterable[Mapping[str, Any]]) -> RunLog:
    """The log of these lines, oldest first."""
    read = RunLog()
    for entry in entries:
        read.take(entry)
    return read
