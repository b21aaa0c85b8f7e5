"""A run over real sites from the coordinator's desk: prepare its folder, hand it to Flower, watch it, resume it.

And what its log (:class:`RunLog`) says of sites and rounds: bytes each way, who answered, when, what failed.
"""

import contextlib
import fcntl
import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedsmall.aggregation.sums import hidden_where_open
from fedsmall.audit_log import AuditLog
from fedsmall.entry_points import SCENARIOS, extensions, kind_of_run
from fedsmall.errors import PlanError
from fedsmall.features import check_features
from fedsmall.files import one_line, write
from fedsmall.methods import nearest
from fedsmall.models.own_models import check_own_models
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RunSheet, Sheet, key_of, text_of
from fedsmall.sim.consortium import coordinators, flower_cli, members, server
from fedsmall.sim.runs.scenario import FILES
from fedsmall.travel.journey import check_apart

Say = Callable[[str], None]
EARLY = "ended early; resume it"
SHEETS = ("sheet.json", *(f"{kind}.json" for kind in extensions(SCENARIOS)))  # of which a run's folder holds one
LOOK_S = 0.5
LOOK_ONLINE_S = 3.0  # each look starts a program of Flower's
WAITS_FILE = "waits.json"  # as strategies.server.deployment writes it
LAUNCHED, STOPPED, DIED = "launched", "stopped", "died"  # events in a run's log; the last of its ServerApp
UNKNOWN = "unknown"  # Flower's state of a run that a SuperLink, killed and started again, has forgotten
BACK_S = 300.0  # how long the server's keeper may take to resume such a run, or one whose ServerApp has died
ASK_FLOWER_S = 20.0  # how often Flower is asked whether the ServerApp still lives: each time starts a program


def site_names(folder: Path, chosen: Sequence[str], plan: Plan) -> tuple[str, ...]:
    """The sites of a run: those chosen, else all that are admitted. PlanError where the plan asks for others."""
    admitted = admitted_sites(folder, chosen)
    names = tuple(name for name in sorted(chosen) or admitted if name not in plan.without)
    if not names:
        raise PlanError("No site is admitted yet; `fedsmall consortium add-site` admits one.")
    if plan.sites is not None and plan.sites > len(names):
        n, listed = len(names), ", ".join(names)
        raise PlanError(f"The scenario asks for {plan.sites} sites; {n} are admitted: {listed} (--set sites={n}).")
    check_own_models(plan, len(names))
    return names


def admitted_sites(folder: Path, chosen: Sequence[str]) -> list[str]:
    """All sites that are admitted now; PlanError where one of those chosen is not."""
    record = members.load(folder)
    admitted = members.admitted(record)
    for name in chosen:
        if name not in admitted:
            known = record.members.get(name)
            why = f"{name} is {known.standing(members.today())}" if known else f"There is no admitted site {name!r}"
            raise PlanError(f"{why}. {nearest(name, admitted)}")
    return admitted


def sites_apart(folder: Path, plan: Plan, region: str = "") -> tuple[str, ...]:
    """The sites of a run of several servers: of one ``region``, or the regions; PlanError where one is not admitted."""
    check_apart(plan, region)
    regions = plan.method.regions
    assert regions is not None
    assert regions.sites is not None
    names = tuple(sorted(regions.sites[region] if region else regions.sites))
    admitted_sites(folder, names)
    return names


def check_new(folder: Path, run: str, plan: Plan, *, apart: bool = False) -> None:
    """PlanError where a run of that name exists, or the plan, its servers perhaps ``apart``, is none for sites."""
    from fedsmall.planning.validation import check_real_sites  # brings torch, which takes its time

    check_real_sites(plan, apart=apart)
    _check_free(folder, run)


def _check_free(folder: Path, run: str) -> None:
    if (folder / "runs" / run).exists():
        raise PlanError(f"There is a run {run!r} already. `fedsmall resume {run}` goes on with it; or choose --name.")


def hidden_where_possible(folder: Path, plan: Plan, sites: tuple[str, ...]) -> Plan:
    """As :func:`hidden_where_open`, where all sites have identities."""
    return hidden_where_open(plan, len(sites)) if set(sites) <= set(members.roll_of(members.load(folder))) else plan


def roll_for(folder: Path, sites: Iterable[str], without: str) -> dict[str, str]:
    """The identities of the consortium's sites; PlanError where of ``sites`` one has none; it may run ``without``."""
    roll = members.roll_of(members.load(folder))
    if missing := sorted(set(sites) - set(roll)):
        cure = f"`fedsmall consortium add-site NAME --key site.key.pub`; or run without {without}"
        who = f"{', '.join(missing)} has sent no identity for encrypted messages"
        raise PlanError(f"{who}: `fedsmall site keygen` there, then {cure}.")
    return roll


def prepare(
    folder: Path, run: str, plan: Plan, sites: tuple[str, ...], *, apart: bool = False, **patience: Any
) -> Path:
    """Make the folder of a new run with its sheet. PlanError as :func:`check_new`."""
    from fedsmall.planning.validation import among  # brings torch

    check_new(folder, run, plan, apart=apart)
    check_features(among(plan, len(sites)))
    roll = roll_for(folder, sites, "sealed and secure") if plan.privacy.hidden else {}
    if isinstance(plan.task, dict):  # sites do not see the coordinator's paths
        task = {k: Path(v).name if k in FILES and isinstance(v, str) else v for k, v in plan.task.items()}
        plan = plan.model_copy(update={"task": task})
    sheet = RunSheet(run=run, id=secrets.token_hex(8), plan=plan, sites=sites, roll=roll, **patience)
    where, words = folder / "runs" / run / "sheet.json", {"method": plan.method.label, "seed": plan.seed}
    return write_sheet(where, sheet, text_of(plan), **words)


def write_sheet(path: Path, sheet: Sheet, plan: str, **words: Any) -> Path:
    """Make the folder of a run with its sheet at ``path`` and a log that begins with ``words``; returns the folder.

    PlanError for a name that is taken, or where there are coordinators and none who may start a run signs its ``plan``.
    """
    _check_free(path.parents[2], sheet.run)
    key = key_of(sheet.run, sheet.id, plan, sheet.everyone)
    started = coordinators.sign(path.parents[2], "start", run=sheet.run, key=key)
    sheet = sheet.model_copy(update={"started": started})
    path.parent.mkdir(parents=True, mode=0o700)
    write(path, sheet.model_dump_json(exclude_defaults=True, indent=1).encode(), flush=True)
    log_of(path.parent).write("prepared", sites=list(sheet.sites), **words)
    return path.parent


def launch(folder: Path, run: str, say: Say) -> int:
    """Hand a run to Flower, which starts the ServerApp that goes on from the run's journal; returns Flower's number."""
    server.check_up(folder)
    command = ("run", str(flower_cli.BUNDLE), flower_cli.CONNECTION, "--run-config", f'run="{run}"')
    number = int(flower_cli.call(folder / "flwr", *command, say=say)["run-id"])
    home = folder / "runs" / run
    write(home / "flower.json", json.dumps({"runs": [*numbers(home), number]}).encode(), flush=True)
    log_of(home).write(LAUNCHED, flower=number)
    return number


def resume(folder: Path, run: str, say: Say, comm_round: int | None = None) -> int:
    """Resume a run that ended early, from its last state or an earlier one's; PlanError where that cannot be."""
    home = run_home(folder, run)
    if (home / "outcome.json").exists():
        raise PlanError(f"{run!r} is finished; its model is in {home.name}/model.safetensors")
    if is_running(home):
        raise PlanError(f"{run!r} still runs; `fedsmall stop {run}` stops it")
    if comm_round is not None:
        _go_back(home, comm_round)
    (home / "failure.json").unlink(missing_ok=True)
    for number in numbers(home)[-1:]:
        if not _state(folder, number).startswith(("finished", UNKNOWN)):
            with contextlib.suppress(RuntimeError):  # nobody conducts it any more: the lock is free
                flower_cli.call(folder / "flwr", "stop", str(number), flower_cli.CONNECTION, say=say)
    return launch(folder, run, say)


def _go_back(home: Path, comm_round: int) -> None:
    if kind := kind_of_run(home):
        raise PlanError(f"{home.name!r} is over split {kind}, where nothing is sent twice. Resume it without --from.")
    if RunSheet.from_file(home / "sheet.json").plan.privacy.counted:
        gone = f"{home.name!r} runs under a privacy ledger, which cannot be taken back: what left the sites has left"
        raise PlanError(f"{gone}. Resume it without --from, or start a new run.")
    from fedsmall.strategies.server.journal import FileJournal  # brings torch

    FileJournal(home / "journal").go_back(comm_round)
    log_of(home).write("taken back", t=comm_round)


def stop(folder: Path, run: str, say: Say) -> None:
    """Stop a run after what it is doing; its journal stays. One that would go on with the server goes on no more."""
    home = run_home(folder, run)
    if under_way_since(home) is None:
        raise PlanError(f"{run!r} does not run now")
    if is_running(home):
        flower_cli.call(folder / "flwr", "stop", str(numbers(home)[-1]), flower_cli.CONNECTION, say=say)
    log_of(home).write(STOPPED)


def under_way_since(home: Path) -> float | None:
    """When a run was launched that has not finished, failed or been stopped since, in seconds since 1970; else None.

    Its server may be down.
    """
    if any((home / name).exists() for name in ("outcome.json", "failure.json")) or not (home / "flower.json").exists():
        return None
    marks = [(event, time) for event, time in events_of(home) if event in (LAUNCHED, STOPPED)]
    return datetime.fromisoformat(marks[-1][1]).timestamp() if marks and marks[-1][0] == LAUNCHED else None


def events_of(home: Path) -> Sequence[tuple[str, str]]:
    """The events of a run's log, each with its time, oldest first; read anew where something has been written."""
    about = (home / "log.jsonl").stat()
    return _events_of(home / "log.jsonl", about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=64)
def _events_of(log: Path, _written: int, _size: int) -> Sequence[tuple[str, str]]:
    return [(entry["event"], entry["time"]) for entry in AuditLog(log).entries()]


def watch(
    folder: Path, run: str, progress: Callable[[dict[str, Any]], None], waiting: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Wait for a run's end; its outcome, or RuntimeError with its last line. ``waiting`` hears who is waited for."""
    home, asked = run_home(folder, run), time.monotonic()
    known = asked  # when Flower last knew a ServerApp of the run's
    while True:
        if outcome := read_words(home / "outcome.json"):
            return outcome
        if failure := read_words(home / "failure.json"):
            raise RuntimeError(with_revoked(folder, failure["reason"]))
        if at := read_words(home / "progress.json"):
            progress(at)
        waiting(waits(home))
        if time.monotonic() - asked > ASK_FLOWER_S:
            asked, state = time.monotonic(), _state(folder, numbers(home)[-1])
            gone = state == UNKNOWN or state.startswith("finished")
            known = known if gone else asked
            ended = gone and (under_way_since(home) is None or asked - known > BACK_S)
            if ended and not any((home / f).exists() for f in ("outcome.json", "failure.json")):
                raise RuntimeError(f"the ServerApp ended early ({state}). `fedsmall resume {run}` goes on from here.")
        time.sleep(LOOK_S)


def wait_for(
    names: Iterable[str],
    within_s: float,
    online: Callable[[], set[str]],
    say: Say,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until these sites are all ``online``; ``say`` hears of changes. PlanError for who is missing."""
    wanted, deadline, announced = set(names), clock() + within_s, None
    while missing := sorted(wanted - online()):
        if clock() >= deadline:
            raise PlanError(
                f"{', '.join(missing)} did not connect within {within_s / 60:g} minutes; nothing was started."
            )
        if missing != announced:
            say(f"waiting for {', '.join(missing)}: {len(wanted) - len(missing)} of {len(wanted)} sites are connected")
            announced = missing
        sleep(LOOK_ONLINE_S)


def online(folder: Path) -> set[str]:
    """The sites that are connected now."""
    return {name for name, node in server.registered(folder).items() if node.status == "online"}


def waits(home: Path) -> str:
    """Which hospitals a run waits for, and why, in one line; empty where it waits for none."""
    try:
        reasons = json.loads((home / WAITS_FILE).read_text())
    except (OSError, ValueError):  # none, or one that is being replaced
        return ""
    lines = (f"{site}: {reason.removeprefix(f'{site}: ')}" for site, reason in sorted(reasons.items()))
    return one_line("; ".join(dict.fromkeys(lines)), 1000)


def with_revoked(folder: Path, line: str) -> str:
    """A line, and who of those whom it names is revoked."""
    named = set(re.findall(r"[\w-]+", line))
    revoked = sorted(name for name, member in members.load(folder).members.items() if member.revoked and name in named)
    return line + "".join(f" ({name} is revoked)" for name in revoked)


def states(folder: Path) -> list[tuple[str, str, str]]:
    """Name, state and one line of every run of a consortium."""
    rows = []
    for home in sorted(path.parent for name in SHEETS for path in (folder / "runs").glob(f"*/{name}")):
        at = read_words(home / "progress.json")
        line = f"round {at['t']} of {at['rounds']}" if at else ""
        if (home / "outcome.json").exists():
            state = "finished"
        elif failure := read_words(home / "failure.json"):
            state, line = "failed", with_revoked(folder, failure["reason"])
        else:
            state = "running" if is_running(home) else EARLY
            line = f"{line}; it waits for {waits(home)}" if waits(home) else line
        rows.append((home.name, state, line))
    return rows


def log_of(home: Path) -> AuditLog:
    """The log of a run, whose every line names the run."""
    sheet = json.loads(next(home / name for name in SHEETS if (home / name).is_file()).read_text())
    return AuditLog(home / "log.jsonl", run=sheet["run"], id=sheet.get("id", ""))


def run_home(folder: Path, run: str) -> Path:
    """A run's folder. PlanError names the nearest where there is none."""
    home = folder / "runs" / run
    if not any((home / name).is_file() for name in SHEETS):
        known = sorted(path.parent.name for name in SHEETS for path in (folder / "runs").glob(f"*/{name}"))
        raise PlanError(f"There is no run {run!r}. {nearest(run, known) if known else 'None has been started yet.'}")
    return home


def is_running(home: Path) -> bool:
    """Whether a ServerApp conducts the run now: it holds a lock that its death lets go."""
    if not (home / "lock").exists():
        return False
    with (home / "lock").open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def _state(folder: Path, number: int) -> str:
    try:
        answer = flower_cli.call(folder / "flwr", "ls", flower_cli.CONNECTION, "--run-id", str(number))
        return str(answer["runs"][0]["status"])
    except (RuntimeError, LookupError):
        return UNKNOWN


def numbers(home: Path) -> list[int]:
    """Flower's numbers for a run, in order: one for its start and one for every time that it was resumed."""
    return list(read_words(home / "flower.json").get("runs", []))


def read_words(path: Path) -> dict[str, Any]:
    """The words in a JSON file of a run; none where it is not there."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


OF_SITES = {"lost": "its order or answer was lost, and was sent again", "away": "it was not connected, and waited for"}
OF_SITES |= {"waits": "its hospital had not agreed, or had paused, and was waited for"}
COUNTED = {"order": "orders", "answer": "answers", "failed": "refused", "log fault": "refused", "silent": "silent"}
OF_RUN = {"taken back": "the run was taken back to an earlier communication round", STOPPED: "the run was stopped"}
OF_RUN |= {DIED: "the program that conducts the run had died"}


@dataclass
class RunLog:
    """The log, read: ``sites`` holds counts by name, ``comm_rounds`` [t, seconds, answers] of each.

    A site has "orders", "answers", "refused" and "silent" messages, and bytes "sent" to it and that "came" from it.
    ``events`` are those of others than the strategy. Times are ISO 8601, UTC.
    """

    sites: dict[str, dict[str, int]] = field(default_factory=dict)
    comm_rounds: dict[int, list[Any]] = field(default_factory=dict)
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
            self._now = None  # a communication round that was cut off is begun anew
            if self.launches > 1:
                self._note("resumed", "", "the run was resumed")
        elif event in COUNTED and "site" in entry:
            self._count(event, entry)
        elif event in OF_SITES:
            self._note(event, str(entry.get("site", "")), str(entry.get("reason") or OF_SITES[event]), entry.get("t"))
        elif event in OF_RUN:
            self._note(event, "", OF_RUN[event], entry.get("t"))

    def _count(self, event: str, entry: Mapping[str, Any]) -> None:
        none = dict.fromkeys(("orders", "answers", "refused", "silent", "sent", "came"), 0)
        counts = self.sites.setdefault(str(entry["site"]), none)
        counts[COUNTED[event]] += 1
        size = int(entry.get("bytes", 0))
        counts["sent"] += size if event == "order" else 0
        counts["came"] += size if event == "answer" else 0
        if entry.get("kind") == "train" and entry.get("t") is not None:
            self._comm_round(event, int(entry["t"]), str(entry["time"]))

    def _comm_round(self, event: str, t: int, time: str) -> None:
        if event == "order" and t != self._now:
            self._now, self._since = t, time
            self.comm_rounds[t] = [t, 0.0, 0]
        elif event == "answer" and t == self._now:
            seconds = (datetime.fromisoformat(time) - datetime.fromisoformat(self._since)).total_seconds()
            self.comm_rounds[t] = [t, round(seconds, 3), self.comm_rounds[t][2] + 1]

    def _note(self, kind: str, site: str, reason: str, t: int | None = None) -> None:
        last = max(self.comm_rounds, default=0)
        self.events.append({"t": last if t is None else t, "site": site, "kind": kind, "reason": reason})


def run_log(entries: Iterable[Mapping[str, Any]]) -> RunLog:
    """The log of these lines, oldest first."""
    read = RunLog()
    for entry in entries:
        read.take(entry)
    return read
