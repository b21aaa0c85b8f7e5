"""The ServerApp of real sites: a run from its sheet, through a journal, to its outcome.

A run's folder holds ``sheet.json``, ``journal/``, ``log.jsonl`` (every order and answer, chained), ``progress.json``,
and at the end ``outcome.json`` and ``model.safetensors``, or ``failure.json`` with one line.
"""

import contextlib
import fcntl
import json
import math
import os
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid
from flwr.supercore.run import RunNotRunningException
from safetensors.numpy import save

from fedsmall.audit_log import AuditLog
from fedsmall.entry_points import SCENARIOS, kind_of_run, load_extension
from fedsmall.errors import PlanError
from fedsmall.files import DiskFullError, one_line
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN_NAME, RunSheet, Sheet
from fedsmall.planning.validation import among, check_plan, parameter_count
from fedsmall.privacy.reading import noise_borne
from fedsmall.strategies.grid_trainer import GridTrainer
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.grid import FrameMail, RetryingGrid
from fedsmall.strategies.server.handshake import meet, reported_at_handshake
from fedsmall.strategies.server.heads import Heads
from fedsmall.strategies.server.journal import FileJournal, put
from fedsmall.strategies.server.regions import HandDown, Line
from fedsmall.strategies.server.run_loop import Outcome, run_rounds
from fedsmall.strategies.server.site_judges import SiteJudges, evaluator_for
from fedsmall.travel.handover import FOLDER, Handover

RUNS = "FEDSMALL_RUNS"  # the folder of all runs; set by `fedsmall server up`
WAITS_FILE = "waits.json"
SITES = "FEDSMALL_SITES"  # and that of the sites' public keys, where also what they sign of their logs is kept

Told = dict[str, Any]  # what outcome.json holds
Finish = Callable[[Path, Told], object]


def serve(grid: Grid, context: Context, finish: Finish) -> None:
    """Conduct the run that the config names; ``finish(folder, told)`` writes more before ``outcome.json``.

    An extension's run is conducted and written by the extension.
    """
    name = str(context.run_config.get("run", ""))
    if not RUN_NAME.fullmatch(name):
        raise PlanError("this bundle runs what `fedsmall start` has prepared; use that")
    folder = Path(os.environ[RUNS]) / name
    kind = kind_of_run(folder)
    extension = load_extension(SCENARIOS, kind) if kind else None
    model = RunSheet if extension is None else extension.Sheet
    sheet: Sheet = model.from_file(folder / f"{kind or 'sheet'}.json")
    log = AuditLog(folder / "log.jsonl", run=sheet.run, id=sheet.id)
    lock = (folder / "lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the death of this process lets it go
    except OSError:
        raise PlanError("another ServerApp conducts this run") from None
    (folder / "failure.json").unlink(missing_ok=True)
    waits: dict[str, str] = {}
    tell_waits(folder, waits)
    try:
        heads = Heads(Path(os.environ[SITES]) if SITES in os.environ else None, sheet)
        patient = RetryingGrid(FrameMail(grid), sheet, log, heads=heads, tell_waits=partial(tell_waits, folder))
        if extension is None:
            assert isinstance(sheet, RunSheet)
            outcome, met = conduct(sheet, folder, patient, log)
            write_outcome(folder, sheet.plan, outcome, met, partial(_finish_noting_faults, finish, log))
            done = {"comm_rounds": outcome.comm_rounds, "rounds": outcome.rounds}
        else:
            record, done = extension.conduct(sheet, folder, patient)
            _finish_noting_faults(extension.write_run, log, folder, record)
            put(folder / "outcome.json", json.dumps(record, indent=1).encode())
            shutil.rmtree(folder / "journal", ignore_errors=True)  # what sites said to each other was of this run alone
    except RunNotRunningException:
        raise  # stopped, or forgotten with the SuperLink's memory: nothing is wrong with the run
    except DiskFullError as error:  # it goes on by itself once there is room
        waits = {"server": one_line(error, 300)}
        raise
    except Exception as error:
        tell_failure(folder, log, error)
        raise
    finally:
        lock.close()
        tell_waits(folder, waits)
    log.write("finished", **done)


def tell_failure(folder: Path, log: AuditLog, error: Exception) -> None:
    """Write in one line what ended a run early, for the coordinator and, where the disk has room, into the log."""
    line = " ".join(str(error).split())[:2000] or type(error).__name__
    put(folder / "failure.json", json.dumps({"reason": line, "time": time.time()}).encode())
    with contextlib.suppress(DiskFullError):
        log.write("failed", reason=line)


def tell_waits(folder: Path, reasons: dict[str, str]) -> None:
    """Write down which sites' hospitals are waited for, and why."""
    if reasons:
        put(folder / WAITS_FILE, json.dumps(reasons).encode())
    else:
        (folder / WAITS_FILE).unlink(missing_ok=True)


def _finish_noting_faults(finish: Finish, log: AuditLog, folder: Path, record: Told) -> None:
    """Call ``finish``; its fault is logged and ends no run: the model is worth more than its page."""
    try:
        finish(folder, record)
    except Exception as error:
        traceback.print_exc()
        log.write("unwritten", reason=one_line(error, 300) or type(error).__name__)


def conduct(sheet: RunSheet, folder: Path, grid: RetryingGrid, log: AuditLog) -> tuple[Outcome, Told]:
    """Meet the sites, and run what the journal does not hold; the outcome, and what sites said of themselves."""
    sheet = sheet.model_copy(update={"plan": among(sheet.plan, len(sheet.sites))})
    line = Line(Handover(folder / FOLDER), grid.get_nodes, partial(tell_waits, folder)) if sheet.region else None
    roster, journal = Roster(), FileJournal(folder / "journal")
    sheet, task, sealed = meet(roster, sheet, grid, folder, line)
    plan = sheet.plan
    check_plan(plan, task, len(sheet.hospitals))
    begun, outcome = time.time(), Outcome()
    fewest, features = min(reported_at_handshake(roster.answers)["samples"].values()), math.prod(task.input_shape)
    borne = noise_borne(sheet.led, parameter_count(plan, task), max(1, fewest), features, len(sheet.hospitals))

    def note(t: int, rounds: int) -> None:
        now = {"t": t, "rounds": rounds, "seconds": time.time() - begun, "events": outcome.events[-20:], "note": borne}
        put(folder / "progress.json", json.dumps(now).encode())

    run_rounds(
        sheet.led,
        GridTrainer(sheet.led, grid, sent=plan, roster=roster, form=sealed, timeout_s=sheet.round_deadline_s),
        lambda site: initial_model(plan, task, site),
        evaluator=HandDown(roster, grid, plan) if sheet.is_above else evaluator_for(roster, grid, plan, task, sealed),
        progress=note,
        journal=journal,
        in_pieces=False,
        outcome=outcome,
        united=line.united if line is not None else None,
    )
    if plan.may_end_early and outcome.model is not None:
        SiteJudges(roster, grid, plan).let_keep(outcome.chosen or outcome.rounds, outcome.model)
    for fault in journal.faults:
        log.write("journal", fault=fault)
    as_run = json.loads(plan.model_dump_json())  # with the seed of its routes, which the sites have drawn
    return outcome, {"plan": as_run, "task": asdict(task), **reported_at_handshake(roster.answers)}


def write_outcome(
    folder: Path, plan: Plan, outcome: Outcome, met: Mapping[str, Any] | None = None, finish: Finish | None = None
) -> None:
    """Write the global model (safetensors) and the results (JSON), each whole or not at all; ``finish`` writes more.

    ``met`` is what the sites said of themselves. The outcome comes last: it marks the run as finished.
    """
    folder.mkdir(parents=True, exist_ok=True)
    record = {"plan": json.loads(plan.model_dump_json()), **outcome.words(), **(met or {})}
    if outcome.model is not None:
        put(folder / "model.safetensors", save(outcome.model))
    if finish is not None:
        finish(folder, record)
    put(folder / "outcome.json", json.dumps(record, indent=1).encode())
