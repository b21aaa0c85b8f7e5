"""Whether the logs of a run's two ends are as they were written: each by itself, and each against the others."""

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from fedsmall.audit_log import AuditLog, verify
from fedsmall.ends import Statement, statement_of
from fedsmall.sim.consortium import runs
from fedsmall.strategies.server import heads
from fedsmall.strategies.server.grid import FAULT

Entry = dict[str, Any]


def read_whole(path: Path, whose: str) -> list[Entry]:
    """The lines of a log whose chain holds. Raises ValueError that names the log and its first fault."""
    check = verify(path)
    if check.fault:
        raise ValueError(f"{whose}: {check.fault}")
    return list(AuditLog(path).entries())


def read_site_log(path: Path) -> tuple[str, list[Entry]]:
    """A copy of a site's log: whose it is, and its lines. Raises ValueError where it is none, or does not hold."""
    entries = read_whole(path, path.name)
    sites = list(dict.fromkeys(str(entry.get("site", "")) for entry in entries))
    if len(sites) != 1 or any(entry["event"] == "order" for entry in entries):
        raise ValueError(f"{path.name}: this is no site's log, in which every line names the same site")
    return sites[0], entries


def between(site: str, of_site: Sequence[Entry], of_run: Sequence[Entry], public: bytes | None) -> list[str]:
    """Where the log of ``site`` and the coordinator's log of a run disagree, one line for each end; none if nowhere."""
    shown = (entry for entry in _of_run(of_site, of_run) if "seen" in entry)
    seen = [(int(entry["seen"]), str(entry["seen_head"])) for entry in shown]
    run_faults = (fault for line, head in seen for fault in _seen_fault(f"{site} was shown", line, head, of_run))
    return [*islice(_site_faults(site, of_site, of_run, public), 1), *islice(run_faults, 1)]


def lost(site: str, of_site: Sequence[Entry], of_run: Sequence[Entry]) -> int:
    """How many answers left the site for this run and are not in the coordinator's log: lost, late, or not used."""
    signed_lines = {signed.line for signed in _signed_statements(site, of_run)}
    return sum(entry["event"] == "sent" and entry["n"] not in signed_lines for entry in _of_run(of_site, of_run))


def against_coordinator(site: str, of_site: Sequence[Entry], path: Path, key: Path) -> tuple[list[str], int]:
    """What :func:`between` and :func:`lost` find by a copy of the coordinator's log; ``key`` is the site's."""
    of_run, public = read_whole(path, path.name), key.with_name(f"{key.name}.pub")
    if not any(entry["event"] == "order" and entry.get("site") == site for entry in of_run):
        raise ValueError(f"{path.name} holds no order to {site}; is it the coordinator's log of a run?")
    return between(site, of_site, of_run, public.read_bytes() if public.exists() else None), lost(site, of_site, of_run)


def check_run(folder: Path, run: str) -> list[str]:
    """The faults of all that the coordinator holds of a run, one line for each end; none where all hold."""
    home = runs.run_home(folder, run)
    try:
        entries = read_whole(home / "log.jsonl", "the coordinator's log")
    except ValueError as error:
        return [str(error)]
    sites = sorted({str(entry["site"]) for entry in entries if "site" in entry})
    public, held = heads.public_keys(folder / "sites", tuple(sites)), heads.read(folder / "sites")
    faults = []
    for site in [*sites, *(known for known in sorted(held) if known not in sites)]:
        site_faults = [*_told_faults(site, entries, public.get(site)), *_held_faults(site, entries, held.get(site))]
        site_faults += _other_runs(site, entries, folder / "runs")
        faults += site_faults[:1]
    return faults


def _site_faults(site: str, of_site: Sequence[Entry], of_run: Sequence[Entry], public: bytes | None) -> Iterator[str]:
    for answer, signed in _answers(site, of_run):
        if signed is None or (public is not None and not signed.is_by(public)):
            yield f"the coordinator's log: line {answer['n']} is an answer that {site} has not signed"
        elif signed.line > len(of_site):
            yield f"{site}'s log was cut off, or is an older one: it signed line {signed.line} and has {len(of_site)}"
        elif of_site[signed.line - 1]["digest"] != signed.head:
            yield f"{site}'s log was rewritten, or is another's: its line {signed.line} is not the one it signed"
        elif of_site[signed.line - 1].get("sha256") != answer["sha256"]:
            yield f"what {site} sent with its line {signed.line} is not what the coordinator got"


def _seen_fault(who: str, line: int, head: str, of_run: Sequence[Entry]) -> Iterator[str]:
    if line > len(of_run):
        yield f"the coordinator's log was cut off: {who} its line {line}, and it has {len(of_run)}"
    elif of_run[line - 1]["digest"] != head:
        yield f"the coordinator's log was rewritten: its line {line} is not the one that {who}"


def _told_faults(site: str, entries: Sequence[Entry], public: bytes | None) -> Iterator[str]:
    for answer, signed in _answers(site, entries):
        if signed is None and public is None:
            continue
        if signed is None or (public is not None and not signed.is_by(public)):
            yield f"the coordinator's log: line {answer['n']} is an answer that {site} has not signed"
            continue
        yield from _seen_fault(f"{site} has signed", signed.seen, signed.seen_head, entries)
    for before, after in pairwise(_signed_statements(site, entries)):
        if after.line <= before.line:
            yield f"{site}'s log was cut off, or is an older one: it signed line {before.line}, and then {after.line}"
    for entry in entries:
        if entry["event"] == FAULT and entry.get("site") == site:
            yield f"{site}: {str(entry['reason']).removeprefix(f'{site}: ')}"


def _held_faults(site: str, entries: Sequence[Entry], held: Statement | None) -> Iterator[str]:
    """A log whose end was cut lacks the site's last statement, which is kept apart."""
    if held is None or (held.run, held.id) != _run_of(entries):
        return
    if held.line not in {signed.line for signed in _signed_statements(site, entries)}:
        yield from _seen_fault(f"{site} has signed", held.seen, held.seen_head, entries)
        yield f"the coordinator's log was cut off: {site}'s answer to its line {held.seen} is not in it"


def _other_runs(site: str, entries: Sequence[Entry], folder: Path) -> Iterator[str]:
    """A site's log is of all runs: a line that it signed twice, differently, was rewritten."""
    heads = {signed.line: signed.head for signed in _signed_statements(site, entries)}
    for path in sorted(folder.glob("*/log.jsonl")):
        for signed in _signed_statements(site, list(AuditLog(path).entries())):
            if heads.get(signed.line, signed.head) != signed.head:
                yield f"{site}'s log was rewritten: it signed another line {signed.line} in {path.parent.name}"


def _answers(site: str, entries: Sequence[Entry]) -> list[tuple[Entry, Statement | None]]:
    answers = [entry for entry in entries if entry["event"] == "answer" and entry.get("site") == site]
    return [(answer, statement_of(answer.get("signed"))) for answer in answers]


def _signed_statements(site: str, entries: Sequence[Entry]) -> list[Statement]:
    return [signed for _, signed in _answers(site, entries) if signed is not None]


def _of_run(of_site: Sequence[Entry], of_run: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in of_site if (entry.get("run"), entry.get("id", "")) == _run_of(of_run)]


def _run_of(entries: Sequence[Entry]) -> tuple[str, str]:
    named = next((entry for entry in entries if "run" in entry), {})
    return str(named.get("run", "")), str(named.get("id", ""))
