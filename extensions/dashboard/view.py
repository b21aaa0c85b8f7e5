"""What the coordinator's page shows, read from the consortium's folder: there is no second state beside it."""

import json
import time
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fedsmall.audit_log import FIRST, LogCheck, verify
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.sim.consortium import members, server
from fedsmall.sim.consortium.runs import LAUNCHED, STOPPED, RunLog, read_words
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.strategies.server.run_loop import ledger_of
from fedsmall.travel.schedule import comm_rounds_of

TOLD = 60  # happenings that a page shows
QUIET = ("order", "answer")  # what happens at every communication round
Entry = dict[str, Any]


@dataclass
class FollowedLog:
    """The log at ``path``, as far as :meth:`read` has come: ``run`` is what it says of sites and communication rounds.

    ``heard`` is when a site was heard last (ISO 8601, UTC), ``heads`` what it signed last of its own log, ``head`` the
    digest of the last of ``lines`` lines, ``happened`` the last that are no order and no answer.
    """

    path: Path
    run: RunLog = field(default_factory=RunLog)
    heard: dict[str, str] = field(default_factory=dict)
    heads: dict[str, str] = field(default_factory=dict)
    began: dict[int, float] = field(default_factory=dict)  # a communication round's first order, in seconds since 1970
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
        """Seconds from first order to last answer of every communication round that was answered, by its round."""
        return {t: float(seconds) for t, seconds, answers in self.run.comm_rounds.values() if answers}

    def between(self) -> dict[int, float]:
        """Seconds from each communication round to the next, by the round of the earlier one."""
        return {t: self.began[after] - self.began[t] for t, after in pairwise(sorted(self.began))}

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            before = self.run.comm_rounds.get(entry.get("t"))
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
        if event == "order" and t and self.run.comm_rounds.get(t) is not before:
            self.began[t] = datetime.fromisoformat(entry["time"]).timestamp()


ASK_S = 20.0  # how often Flower is asked who is connected: each time starts a program
MAPS = 3  # communication rounds of which the journal still says who is where
WATCHED = ("sheet.json", "log.jsonl", "progress.json", "outcome.json", "failure.json", "journal")  # of a run's folder
UNKNOWN = "was not asked yet"


class HeldModel(NamedTuple):
    """A model at a site: its number among different models, and who trained it last (nobody: "")."""

    site: str
    model: int
    by: str
    is_global: bool


class Map(NamedTuple):
    """Who is where after a communication round of round ``t``, which ended in an ``action``."""

    comm_round: int
    t: int
    action: str
    held: tuple[HeldModel, ...]


class RunView(NamedTuple):
    """One run as the page shows it."""

    name: str
    state: str
    line: str
    sheet: RunSheet
    log: FollowedLog
    check: LogCheck | None
    maps: tuple[Map, ...]
    evaluations: list[dict[str, Any]]
    events: list[dict[str, Any]]
    budget: str


class ConsortiumView:
    """The consortium in ``folder``. It remembers how far it has read each log, and who was connected when."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = members.load(folder)
        self.connected: dict[str, str] = {}  # a site's status, by name
        self.server = UNKNOWN
        self.unread: list[str] = []  # runs that this version cannot read
        self._asked = -ASK_S
        self._logs: dict[str, FollowedLog] = {}
        self._views: dict[str, tuple[tuple[int, ...], RunView]] = {}

    def ask(self) -> None:
        """Ask Flower who is connected, unless it was asked just now."""
        if time.monotonic() - self._asked < ASK_S:
            return
        try:
            up = server.is_up(self.folder)
            self.connected = {name: n.status for name, n in server.registered(self.folder).items()} if up else {}
            self.server = "runs" if up else "does not run"
        except (RuntimeError, OSError):
            self.connected, self.server = {}, "does not answer"
        self._asked = time.monotonic()

    def sites(self) -> list[tuple[str, str, str]]:
        """Name, standing and connection of every member, in the order of names."""
        self.record = members.load(self.folder)
        today = members.today()
        absent, every = "offline" if self.server == "runs" else "", sorted(self.record.members.items())
        return [(name, member.standing(today), self.connected.get(name, absent)) for name, member in every]

    def runs(self) -> list[RunView]:
        """All runs, the one whose log was written last first."""
        homes = [sheet.parent for sheet in (self.folder / "runs").glob("*/sheet.json")]
        written = {home: log.stat().st_mtime for home in homes if (log := home / "log.jsonl").exists()}
        homes.sort(key=lambda home: (-written.get(home, 0.0), home.name))
        views, self.unread = [], []
        for home in homes:
            try:
                views.append(self._view(home))
            except (ValueError, LookupError, OSError):
                self.unread.append(home.name)
        return views

    def _view(self, home: Path) -> RunView:
        stamp = tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in (home / name for name in WATCHED))
        if self._views.get(home.name, ((),))[0] != stamp:
            self._views[home.name] = (stamp, self._read_view(home))
        return self._views[home.name][1]

    def _read_view(self, home: Path) -> RunView:
        sheet = RunSheet.from_file(home / "sheet.json")
        log = self._logs[home.name] = (self._logs.get(home.name) or FollowedLog(home / "log.jsonl")).read()
        cards = FileJournal(home / "journal").cards(MAPS)
        state, line = state_of(home, log)
        outcome = read_words(home / "outcome.json") or (cards[-1][1] if cards else {})
        check = verify(log.path) if state != "under way" and log.path.exists() else None
        maps = tuple(_map(sheet.led, comm_round, notes) for comm_round, notes in cards)
        evaluations, events = list(outcome.get("evaluations", [])), list(outcome.get("events", []))
        budget = budget_of(sheet.led, cards[-1][0] if cards else 0)
        return RunView(home.name, state, line, sheet, log, check, maps, evaluations, events, budget)


def state_of(home: Path, log: FollowedLog) -> tuple[str, str]:
    """A run's state in a word by its log (the run's lock is for its program), and its progress or why it ended."""
    at = read_words(home / "progress.json")
    line = f"round {at['t']} of {at['rounds']}" if at else "nothing has been trained yet"
    if (home / "outcome.json").exists():
        return "finished", line
    if failure := read_words(home / "failure.json"):
        return "failed", str(failure["reason"])
    marks = [e["event"] for e in log.happened if e["event"] in (LAUNCHED, STOPPED)]
    return ("stopped" if marks[-1:] == [STOPPED] else "under way" if marks else "prepared"), line


def budget_of(plan: Plan, comm_rounds: int) -> str:
    """What the plan's privacy has cost after so many communication rounds, in a sentence."""
    privacy, ledger = plan.privacy, ledger_of(plan)
    if privacy.open:
        hidden = "no noise" if privacy.hidden else "no privacy"
        return f"{hidden}: models go as they are, and nothing is counted"
    if ledger is not None:
        ledger.releases = sum(comm_round.travels for comm_round in comm_rounds_of(plan)[:comm_rounds])
        spent = ", ".join(f"{name} {value:.4g}" for name, value in ledger.report().items())
        return f"clip and noise, a site's whole share hidden; spent by now: {spent}"
    if privacy.at_comm_rounds:
        return f"blur {privacy.blur or 0:g}: hides records, and claims no epsilon"
    by = f"noise {privacy.noise:g}" if privacy.epsilon is None else f"epsilon {privacy.epsilon:g}"
    return f"each patient by {by} at delta {privacy.delta:g}; every site keeps its own account, which it tells nobody"


def _map(plan: Plan, comm_round: int, meta: dict[str, Any]) -> Map:
    about = comm_rounds_of(plan)[comm_round - 1]
    held = [HeldModel(site, *words) for site, words in meta.get("places", {}).items()]
    return Map(comm_round, about.t, str(about.action), tuple(sorted(held)))
