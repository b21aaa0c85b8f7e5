"""Messages to a data process: read, and checked against the run as it began; and which words of an error may leave.

The first message that policy and people let in, the handshake, fixes the run's plan and sites. They lie in the run's
folder with the orders that were trained, so a restarted data process holds the server to the same.
"""

import json
import os
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from fedsmall.audit_log import digest_of, manifest
from fedsmall.clients.consent import WaitsError
from fedsmall.clients.policy import Policy
from fedsmall.clients.runs import AGREED
from fedsmall.clients.shelf import write_private
from fedsmall.clients.site_log import PUT_BACK, BrokenLogError, SiteLog
from fedsmall.data.raw_site import BALANCED, RawSite
from fedsmall.ends import ENDS, OrderEnds, Statement
from fedsmall.errors import DataError, PlanError, PolicyError
from fedsmall.files import DiskFullError, one_line, raise_when_full
from fedsmall.frames import Header
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN, RUN_ID, SITES
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sealing.terms import remove_seal
from fedsmall.travel.schedule import comm_rounds_of
from fedsmall.wire import BROKEN, IS_GLOBAL, LEAVES, NAMES, PLAN, ROUND, ROUNDS, WAITS, Arrays

Answer = tuple[Header, Arrays]
Handle = Callable[[str, Mapping[str, Any], Arrays], Answer]
FAILED = "its program failed; the traceback is in the data process's log at the site"
TOLD = (PlanError, DataError, PolicyError)  # errors whose words were written to leave the site
COUNTED = re.compile(r"\d[\d,]* of (the )?\d[\d,]* ")
TRAINED = "trained.txt"  # in the folder of a run: the orders that were trained
TWICE = 2  # how often a plan's rounds may be trained in all, where the server takes a run back and others answer then


class Agreed(NamedTuple):
    """The run in which a site takes part: its name and id, the plan, and the names of all its sites."""

    run: str
    ident: str
    plan: Plan
    sites: tuple[str, ...]


class SiteRequest(NamedTuple):
    """One message, read: the plan, the current policy, the site's samples, and the message itself."""

    plan: Plan
    policy: Policy
    raw: RawSite
    config: Mapping[str, Any]
    arrays: Arrays


def plan_of(config: Mapping[str, Any]) -> Plan:
    """The plan in a message. Raises PlanError where there is none that this version knows, or one that names paths."""
    try:
        plan = Plan.model_validate_json(str(config[PLAN]))
    except (KeyError, ValidationError):
        raise PlanError("the order holds no plan that this version of fedsmall knows") from None
    task = plan.task if isinstance(plan.task, dict) else {}
    named = [task.get("connectomes", ""), task.get("medmnist", ""), plan.model_options.get("weights") or ""]
    if any(Path(str(name)).name != str(name) or name == ".." for name in named):
        raise PlanError("at real sites a plan names a file by its name alone, without its folder")
    return plan


def with_names(order: SiteRequest) -> dict[str, Any]:
    """The message's config with the names of its arrays, and LEAVES: an order cannot switch the noise off."""
    return {**order.config, NAMES: list(order.arrays), LEAVES: True}


def reason_of(error: Exception) -> str:
    """The words of an error that may leave the site."""
    if isinstance(error, DataError):
        return COUNTED.sub("some of the ", error.words)  # a count of a value that a plan names may be of one patient
    if isinstance(error, TOLD):
        return str(error)
    return "its disk is full" if isinstance(error, DiskFullError) else "its log cannot be written"


def check_order(kind: str, order: SiteRequest, folder: Path) -> None:
    """Raise PlanError where an order's plan or sites are not those of the handshake in ``folder``, or it is not due.

    And as :func:`check_comm_round`, and where the plan has another site train then.
    """
    _check_agreed(kind, order, folder)
    check_comm_round(kind, order.plan, order.config)
    if kind == "train" and IS_GLOBAL not in order.config:
        raise PlanError("the order does not say whether its model is the global one")
    sites = tuple(sorted({str(site) for site in order.config[SITES]}))
    if kind == "train" and has_places(order.plan, len(sites)):
        _routes(order.plan.model_dump_json(), sites).model_at(int(order.config[ROUND]), order.raw.name)


def has_places(plan: Plan, sites: int) -> bool:
    """Whether a plan and the names of its sites alone say which of them train when."""
    method, routes = plan.method, plan.method.routes and not plan.method.by_samples  # folds need all sites' samples
    return method.is_federated and method.has_one_server and not (method.everyone(sites) or routes)


@lru_cache(maxsize=4)
def _routes(plan: str, sites: tuple[str, ...]) -> RoutingTable:
    return RoutingTable(Plan.model_validate_json(plan), sites)


def check_comm_round(kind: str, plan: Plan, config: Mapping[str, Any]) -> None:
    """Raise PlanError where the plan has no communication round then, or another number of local rounds in it."""
    t, rounds = _number(config, ROUND), rounds_before(plan)
    if t and t not in rounds:
        raise PlanError(f"the plan has no communication round after round {t}")
    if kind == "train" and (asked := _number(config, ROUNDS)) != rounds.get(t):
        raise PlanError(f"the order asks for {asked} rounds, where the plan has {rounds.get(t, 0)}")


def count_rounds(order: SiteRequest, folder: Path) -> None:
    """Count an order's local rounds before they are trained, once however often it is asked.

    Raises PolicyError where the run in ``folder`` has trained as much as the policy allows, or twice its plan.
    """
    t, rounds, path = int(order.config[ROUND]), rounds_before(order.plan), folder / TRAINED
    asked = f"{t} {digest_of(order.arrays)}"
    lines = path.read_text().splitlines() if path.exists() else []
    if asked in lines:
        return
    before = sum(rounds.get(int(line.partition(" ")[0]), 0) for line in lines)
    most = min(order.policy.most_rounds, TWICE * order.plan.rounds)
    if before + rounds[t] > most:
        raise PolicyError(
            f"this run has trained {before} local rounds here and asks for {rounds[t]} more, of at most {most}: twice "
            "its plan's, or what the policy here allows (most_rounds); start a new run"
        )
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with raise_when_full(path.name), os.fdopen(handle, "a") as file:
        file.write(f"{asked}\n")
        file.flush()
        os.fsync(file.fileno())


def rounds_before(plan: Plan) -> Mapping[int, int]:
    """The local rounds of each communication round of a plan, by the round of the communication round."""
    return _rounds_before(plan.model_dump_json())


@lru_cache(maxsize=4)
def _rounds_before(plan: str) -> dict[int, int]:
    return {comm_round.t: comm_round.rounds for comm_round in comm_rounds_of(Plan.model_validate_json(plan))}


def read_agreed(folder: Path) -> Agreed | None:
    """What the run in ``folder`` was when it began; None where nothing was kept of it."""
    if not (folder / AGREED).exists():
        return None
    record = json.loads((folder / AGREED).read_text())
    plan = Plan.model_validate_json(json.dumps(record["plan"]))
    return Agreed(record["run"], record["id"], plan, tuple(record["sites"]))


def _check_agreed(kind: str, order: SiteRequest, folder: Path) -> None:
    config, plan, before = order.config, order.plan, read_agreed(folder)
    plan = remove_seal(plan) if plan.privacy.hidden else plan  # its routes are drawn when all have met
    sites = tuple(sorted({str(site) for site in config[SITES]}))
    if before is None and kind != "roll":
        raise PlanError("this site has had no handshake of this run, which fixes its plan and its sites")
    if before is not None and before.sites != sites:
        raise PlanError("the order is for other sites than those with which this run began")
    if before is not None and (before.plan == plan or (kind == "roll" and _begins(plan, before.plan))):
        return
    if before is not None and not _begins(before.plan, plan):
        raise PlanError("the plan is another than that that this run's sites received")
    record: dict[str, Any] = {"run": str(config[RUN]), "id": str(config.get(RUN_ID, "")), "sites": sites}
    write_private(
        folder / AGREED, json.dumps(record | {"plan": plan.model_dump(mode="json", exclude_defaults=True)}).encode()
    )


def _begins(before: Plan, plan: Plan) -> bool:
    balanced = plan.recipe.model_copy(update={"class_weights": BALANCED})
    return plan.recipe.class_weights is not None and plan.model_copy(update={"recipe": balanced}) == before


def _number(config: Mapping[str, Any], key: str) -> int:
    number = config.get(key, 0)
    if type(number) is not int:
        raise PlanError(f"the order's {key!r} is not a whole number")
    return number


@dataclass
class LoggedAnswers:
    """A site's answers: what ``handle`` gives is written to ``log`` before it leaves, with a statement of that log.

    The log is checked against the statement in an order, by the key in the file ``public``; without it the
    coordinator's word can do no more than stop this site. ``is_new(run, reason)``: repeated questions need one line.
    """

    log: SiteLog
    public: Path
    is_new: Callable[[str, str], bool]
    handle: Handle

    def answer(self, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        """The answer to one message; a refusal or a failure is an answer of one line."""
        try:
            return self._logged(one_line(kind, 20), one_line(config.get(RUN, ""), 100), config, arrays)
        except BrokenLogError as error:  # nothing is written to it, so that it can be put back
            print(error, flush=True)
            return {"error": f"{self.log.name}: {error}; nothing was sent", "code": BROKEN}, {}
        except (*TOLD, OSError) as error:  # what the log does not hold does not leave
            traceback.print_exc()
            return {"error": f"{self.log.name}: {one_line(reason_of(error), 300)}; nothing was sent"}, {}

    def _logged(self, kind: str, run: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        try:
            ends = self._take_ends(config)
            header, leaving = self.handle(kind, {key: config[key] for key in config if key != ENDS}, arrays)
        except BrokenLogError:
            raise
        except WaitsError as error:
            return self._wait(kind, run, str(error))
        except (*TOLD, DiskFullError) as error:
            return self._refuse(kind, run, one_line(reason_of(error), 300))
        except Exception:
            traceback.print_exc()  # to the data process's own log, which stays here
            return self._refuse(kind, run, FAILED)
        fields = {"metrics": header["metrics"]} if "metrics" in header else {"said": sorted(header.get("config", {}))}
        order: dict[str, Any] = {} if ends is None else {"id": ends.id, "seen": ends.line, "seen_head": ends.head}
        sent = {**fields, **order, **manifest(leaving)}
        entry = self.log.write("sent", run=run, kind=kind, t=config.get(ROUND), **sent)
        if ends is None:
            return header, leaving
        # unsigned, for the data process has no key
        statement = Statement(site=self.log.name, run=entry["run"], line=entry["n"], head=entry["digest"], **order)
        return {**header, ENDS: statement.model_dump()}, leaving

    def _take_ends(self, config: Mapping[str, Any]) -> OrderEnds | None:
        """The log statements in an order, None where there are none.

        BrokenLogError where the log does not go on from what was written or signed, PolicyError for bad statements.
        """
        self.log.check_stands()
        if ENDS not in config:
            return None
        try:
            ends = OrderEnds.model_validate_json(str(config[ENDS]))
        except ValidationError:
            raise PolicyError("what the order says of the logs cannot be read") from None
        if ends.held is not None:
            self._check_held(ends.held)
        return ends.model_copy(update={"id": str(config.get(RUN_ID, ""))[:64]})

    def _check_held(self, held: Statement) -> None:
        if self.public.exists() and not held.is_by(self.public.read_bytes()):
            raise PolicyError("the order holds a line of this site's log that this site never signed")
        if held.site != self.log.name:
            raise PolicyError("the order holds what another site has signed")
        if (digest := self.log.digest_at(held.line)) != held.head:
            lines = self.log.lines
            what = f"the log here has {lines}" if lines < held.line else f"that line is another here ({digest[:16]})"
            raise BrokenLogError(
                f"this site's log was cut off, replaced or put back to an older state: this site has signed line "
                f"{held.line} of it, and {what}. {PUT_BACK}"
            )

    def _wait(self, kind: str, run: str, reason: str) -> Answer:
        if self.is_new(run, reason):
            self.log.write("waits", run=run, kind=kind, reason=reason)
        return {"error": f"{self.log.name}: {reason}", "code": WAITS}, {}

    def _refuse(self, kind: str, run: str, reason: str) -> Answer:
        self.log.write("refused", run=run, kind=kind, reason=reason)
        return {"error": f"{self.log.name}: {reason}"}, {}
