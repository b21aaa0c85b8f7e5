"""The hospital's own say in runs that go on: a pause, and its approval of each new run.

Both are files in the site's home. A coordinator who is told to wait asks again, until its own deadline.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedsmall.clients.policy import Policy
from fedsmall.clients.site_log import SiteLog
from fedsmall.data.raw_site import RawSite
from fedsmall.entry_points import HANDLERS, extensions
from fedsmall.errors import PolicyError
from fedsmall.files import one_line, write
from fedsmall.methods import nearest
from fedsmall.parts import Frozen
from fedsmall.plan import Plan
from fedsmall.planning.check import leaves
from fedsmall.planning.run_sheet import RUN, RUN_ID, SITES
from fedsmall.planning.validation import leaving_contacts
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
    """The station's questions to the hospital, in ``home``; verdicts go into ``log`` when they are first met."""

    def __init__(self, home: Path, log: SiteLog) -> None:
        self.home, self.log = home, log
        self._told: dict[str, str] = {}

    def check(self, kind: str, policy: Policy, plan: Plan, raw: RawSite, config: Mapping[str, Any]) -> None:
        """Raise WaitsError where an order is not to be answered yet, and PolicyError where its run was refused."""
        key = _key(plan, config)
        self._check_approved(policy, key, _run_of(config), lambda: describe(plan, raw, config, policy.count_floor))
        self.check_paused(kind)
        self._told.pop(_run_of(config), None)

    def check_paused(self, kind: str) -> None:
        """Raise WaitsError where the site is paused and this kind of order waits for that."""
        if kind in (*WAIT_FOR_PAUSE, *extensions(HANDLERS)) and is_paused(self.home):
            raise WaitsError(IS_PAUSED)

    def is_new(self, run: str, reason: str) -> bool:
        """Whether this reason is new for the run: repeated questions need one line in the log."""
        before = self._told.get(run)
        self._told[run] = reason
        return before != reason

    def check_lines(self, policy: Policy, plan: str, lines: Callable[[], list[str]], config: Mapping[str, Any]) -> None:
        """As :meth:`check`, for an extension's run: its plan's text, and its ``lines``; no pause."""
        self._check_approved(policy, _digest(plan, config), _run_of(config), lines)

    def _check_approved(self, policy: Policy, key: str, run: str, lines: Callable[[], list[str]]) -> None:
        if not policy.approve:
            return
        asked, verdict = self.home / FOLDER / f"{key}.json", verdict_of(self.home, key)
        if not asked.exists():
            if sum(request.verdict == WAITING for request in requests(self.home)) >= MOST_WAITING:
                raise PolicyError("too many runs wait for the hospital's approval already")
            now = datetime.now(UTC).isoformat(timespec="seconds")
            request = Request(key=key, run=run, asked=now, lines=tuple(lines()))
            _put(asked, request.model_dump_json().encode())
        if verdict == WAITING:
            raise WaitsError(f"waits for the hospital's approval (there: fedsmall site approve {run})")
        if not (noted := self.home / FOLDER / f"{key}.{verdict}.logged").exists():
            self.log.write(verdict, run=run, reason="by the hospital")
            _put(noted, b"")
        if verdict == NO:
            raise PolicyError("the hospital has refused this run")


def pause(home: Path) -> bool:
    """Let the site answer no training order from now on; False where it was paused already."""
    if is_paused(home):
        return False
    _put(home / PAUSED, datetime.now(UTC).isoformat(timespec="seconds").encode())
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
    known = [Request.model_validate_json(path.read_bytes()) for path in (home / FOLDER).glob("*.json")]
    known = [request.model_copy(update={"verdict": verdict_of(home, request.key)}) for request in known]
    return sorted(known, key=lambda request: (request.asked, request.key))


def request_of(home: Path, run: str) -> Request:
    """The last request of a run. Raises PolicyError where none of that name has asked."""
    known = requests(home)
    for request in reversed(known):
        if request.run == run:
            return request
    names = list(dict.fromkeys(request.run for request in known))
    raise PolicyError(f"no run {run!r} has asked here. {nearest(run, names) if names else 'None has asked yet.'}")


def decide(home: Path, request: Request, yes: bool) -> None:
    """Write the hospital's verdict down, in place of an earlier one."""
    _put(home / FOLDER / f"{request.key}.verdict", (YES if yes else NO).encode())
    for verdict in VERDICTS:  # the log is to tell of it again
        (home / FOLDER / f"{request.key}.{verdict}.logged").unlink(missing_ok=True)


def verdict_of(home: Path, key: str) -> str:
    """The hospital's verdict on a request; an unreadable one is no yes."""
    path = home / FOLDER / f"{key}.verdict"
    verdict = path.read_text(errors="replace") if path.exists() else WAITING
    return verdict if verdict in VERDICTS else WAITING


def describe(plan: Plan, raw: RawSite, config: Mapping[str, Any], floor: int) -> list[str]:
    """A run in lines, with what of this site would leave for it."""
    settings = plan.privacy.model_dump(exclude_defaults=True)
    privacy_words = ", ".join(f"{name} = {value}" for name, value in settings.items())
    sites = ", ".join(one_line(site, 63) for site in config.get(SITES, ()))
    regions = plan.method.regions.sites if plan.method.regions is not None else None
    above = [f"the averages of each region ({', '.join(sorted(regions))}) go to a server above them"] if regions else []
    return [
        f"method {plan.method.label}, {plan.rounds} local rounds; models leave at {leaving_contacts(plan)} contacts",
        f"sites: {sites}",
        f"privacy: {privacy_words or 'none; models leave as they are trained'}",
        *above,
        *leaves(plan, raw, floor),
    ]


def _key(plan: Plan, config: Mapping[str, Any]) -> str:
    """A digest of the run, its plan and its sites: anything else under that name asks anew.

    Agreed class weights are left out: they follow from the sites' sums in the run itself.
    """
    recipe = plan.recipe.model_copy(update={"class_weights": None})
    return _digest(plan.model_copy(update={"recipe": recipe}).model_dump_json(), config)


def _digest(plan: str, config: Mapping[str, Any]) -> str:
    words = [_run_of(config), str(config.get(RUN_ID, "")), plan]
    return blake2b(json.dumps([*words, sorted(map(str, config.get(SITES, ())))]).encode(), digest_size=16).hexdigest()


def _put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write(path, content, flush=True, mode=0o600)


def _run_of(config: Mapping[str, Any]) -> str:
    return one_line(config.get(RUN, ""), 100)
