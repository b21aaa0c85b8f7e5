"""The hospital's own say in runs that go on: a pause, and its approval of each new run.

Both are files in the site's home. A coordinator who is told to wait asks again, until its own deadline.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedsmall.clients.policy import Policy
from fedsmall.clients.shelf import write_private
from fedsmall.clients.site_log import SiteLog
from fedsmall.data.raw_site import RawSite
from fedsmall.ends import STARTED, Command, fingerprint
from fedsmall.entry_points import HANDLERS, extensions
from fedsmall.errors import PolicyError
from fedsmall.files import one_line
from fedsmall.methods import nearest
from fedsmall.parts import Frozen
from fedsmall.plan import Plan
from fedsmall.planning.check import leaves
from fedsmall.planning.run_sheet import RUN, RUN_ID, SITES, key_of, text_of
from fedsmall.wire import BALANCE

FOLDER, PAUSED = "consent", "paused"
IS_PAUSED = "paused by the hospital"
WAITING, YES, NO = "waiting", "approved", "refused"
VERDICTS = (YES, NO)
WAIT_FOR_PAUSE = ("train", BALANCE)  # with those of extensions: orders that are not answered while a site is paused
MOST_WAITING = 100  # a coordinator cannot fill the hospital's disk with questions


class WaitsError(PolicyError):
    """The hospital has not said yes, or not now; ask again."""


class Request(Frozen):
    """A run that asks to train here: ``lines`` say what it is and what would leave."""

    key: str
    run: str
    asked: str
    lines: tuple[str, ...]
    verdict: str = WAITING


class Consent:
    """The data process's questions to the hospital, in ``home``; verdicts go into ``log`` when they are first met."""

    def __init__(self, home: Path, log: SiteLog) -> None:
        self.home, self.log = home, log
        self._reasons: dict[str, str] = {}

    def check(self, kind: str, policy: Policy, plan: Plan, raw: RawSite, config: Mapping[str, Any]) -> None:
        """Raise WaitsError where an order is not to be answered yet, and PolicyError where its run was refused."""
        self.check_lines(policy, text_of(plan), lambda: describe(plan, raw, config, policy.count_floor), config)
        self.check_paused(kind)
        self._reasons.pop(_run_of(config), None)

    def check_paused(self, kind: str) -> None:
        """Raise WaitsError where the site is paused and this kind of order waits for that."""
        if kind in (*WAIT_FOR_PAUSE, *extensions(HANDLERS)) and is_paused(self.home):
            raise WaitsError(IS_PAUSED)

    def is_new(self, run: str, reason: str) -> bool:
        """Whether this reason is new for the run: repeated questions need one line in the log."""
        before, self._reasons[run] = self._reasons.get(run), reason
        return before != reason

    def check_lines(self, policy: Policy, plan: str, lines: Callable[[], list[str]], config: Mapping[str, Any]) -> None:
        """As :meth:`check`, for a plan's text and the ``lines`` that say what would leave; no pause."""
        if not (policy.approve or policy.coordinators):
            return
        run = _run_of(config)
        key = key_of(run, str(config.get(RUN_ID, "")), plan, map(str, config.get(SITES, ())))
        if policy.coordinators:
            self._check_started(policy, run, key, config)
        if not policy.approve:
            return
        asked, verdict = self.home / FOLDER / f"{key}.json", verdict_of(self.home, key)
        if not asked.exists():
            if sum(request.verdict == WAITING for request in requests(self.home)) >= MOST_WAITING:
                raise PolicyError("too many runs wait for the hospital's approval already")
            now = datetime.now(UTC).isoformat(timespec="seconds")
            request = Request(key=key, run=run, asked=now, lines=tuple(lines()))
            write_private(asked, request.model_dump_json().encode())
        if verdict == WAITING:
            raise WaitsError(f"waits for the hospital's approval (there: fedsmall site approve {run})")
        if not (noted := self.home / FOLDER / f"{key}.{verdict}.logged").exists():
            self.log.write(verdict, run=run, reason="by the hospital")
            write_private(noted, b"")
        if verdict == NO:
            raise PolicyError("the hospital has refused this run")

    def _check_started(self, policy: Policy, run: str, key: str, config: Mapping[str, Any]) -> None:
        """Raise PolicyError unless one of the policy's ``coordinators`` has signed that this very run is started."""
        try:
            command = Command.model_validate_json(str(config.get(STARTED, "")))
            known = fingerprint(command.key.encode()) in policy.coordinators and command.is_signed
        except (ValueError, IndexError):
            known = False
        if not known or (command.command, command.words.get("key")) != ("start", key):
            raise PolicyError(
                "no coordinator whose key the policy here names has signed that this run, with this plan and these "
                "sites, is started (coordinators)"
            )
        if not (noted := self.home / FOLDER / f"{key}.signed").exists():
            self.log.write("signed", run=run, reason=f"started by {one_line(command.by, 63)}")
            write_private(noted, b"")


def pause(home: Path) -> bool:
    """Let the site answer no training order from now on; False where it was paused already."""
    if is_paused(home):
        return False
    write_private(home / PAUSED, datetime.now(UTC).isoformat(timespec="seconds").encode())
    return True


def unpause(home: Path) -> bool:
    """End a pause; False where there was none."""
    before = is_paused(home)
    (home / PAUSED).unlink(missing_ok=True)
    return before


def is_paused(home: Path) -> bool:
    """Whether the hospital has paused its site."""
    return (home / PAUSED).exists()


def requests(home: Path) -> list[Request]:
    """All runs that have asked here, in the order in which they asked."""
    known = [Request.from_file(path) for path in (home / FOLDER).glob("*.json")]
    known = [request.model_copy(update={"verdict": verdict_of(home, request.key)}) for request in known]
    return sorted(known, key=lambda request: (request.asked, request.key))


def request_of(home: Path, run: str) -> Request:
    """The last request of a run. Raises PolicyError where none of that name has asked."""
    known = {request.run: request for request in requests(home)}
    if run not in known:
        hint = nearest(run, list(known)) if known else "None has asked yet."
        raise PolicyError(f"no run {run!r} has asked here. {hint}")
    return known[run]


def decide(home: Path, request: Request, yes: bool) -> None:
    """Write the hospital's verdict down, in place of an earlier one."""
    write_private(home / FOLDER / f"{request.key}.verdict", (YES if yes else NO).encode())
    for verdict in VERDICTS:  # the log is to tell of it again
        (home / FOLDER / f"{request.key}.{verdict}.logged").unlink(missing_ok=True)


def verdict_of(home: Path, key: str) -> str:
    """The hospital's verdict on a request; an unreadable one is no yes."""
    path = home / FOLDER / f"{key}.verdict"
    verdict = path.read_text(errors="replace") if path.exists() else WAITING
    return verdict if verdict in VERDICTS else WAITING


def describe(plan: Plan, raw: RawSite, config: Mapping[str, Any], floor: int) -> list[str]:
    """A run in lines, with what of this site would leave for it."""
    regions, task = plan.method.regions, plan.task if isinstance(plan.task, dict) else {"name": plan.task}
    tables = plan.privacy.model_dump(exclude_defaults=True), task
    privacy, learns = (", ".join(f"{name} = {value}" for name, value in table.items()) for table in tables)
    sites = ", ".join(one_line(site, 63) for site in config.get(SITES, ()))
    names = ", ".join(sorted(regions.sites)) if regions is not None and regions.sites else ""
    above = [f"the averages of each region ({names}) go to a server above them"] if names else []
    from fedsmall.planning.validation import leaving_comm_rounds  # brings torch, which takes its time

    return [
        f"method {plan.method.label}, {plan.rounds} local rounds; models leave in {leaving_comm_rounds(plan)} of them",
        f"sites: {sites}",
        f"task: {one_line(learns, 1000)}",
        f"privacy: {privacy or 'none; models leave as they are trained'}",
        *above,
        *leaves(plan, raw, floor),
    ]


def _run_of(config: Mapping[str, Any]) -> str:
    return one_line(config.get(RUN, ""), 100)
