"""The folder of a finished run over real sites, completed with the files of a simulation's (:mod:`sim.runs.folder`)."""

import json
import platform
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError
from safetensors.numpy import load, save

from fedsmall.audit_log import AuditLog
from fedsmall.data.federation import Task, task_from
from fedsmall.data.preparation import Preparation, Scaling
from fedsmall.errors import PlanError
from fedsmall.evaluation.baselines import trivial_for
from fedsmall.evaluation.metrics import default_metric, known_metric
from fedsmall.evaluation.site_sums import CALLED, add_sums, judged_at_home, metrics_of_sums, sums_from_json
from fedsmall.evaluation.stopping import TELLING
from fedsmall.models.registry import completed
from fedsmall.package.record import GLOBAL, TrainedOn
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.sealing.tallies import TOGETHER
from fedsmall.sim.consortium.runs import RunLog, run_log
from fedsmall.sim.engines.run import RunRecord, versions
from fedsmall.sim.runs.files import write, write_json
from fedsmall.sim.runs.folder import REAL_SITES, Run, cores
from fedsmall.sim.runs.scenario import as_toml, of_plan
from fedsmall.strategies.server.run_loop import Evaluation

Told = Mapping[str, Any]
MODEL_FILE = "model.safetensors"
OTHER_ROWS = "The hospitals do not all read their rows alike, so no model was packaged."


def write_run(folder: Path, outcome: Told) -> Run:
    """Write the files of a run into ``folder``, with its sheet, log and model; ``outcome`` is outcome.json."""
    sheet = RunSheet.from_file(folder / "sheet.json")
    log = run_log(AuditLog(folder / "log.jsonl").entries())
    task = task_from(outcome["task"]) if outcome.get("task") else None  # outcomes of earlier releases hold none
    evaluations = [_pool_sums(Evaluation(**evaluation), task) for evaluation in outcome["evaluations"]]
    evaluations = [evaluation for evaluation in evaluations if evaluation.common or evaluation.sites]
    last = _last_evaluation(outcome).get("told", {})
    sums = {site: sums_from_json(reply["sums"]) for site, reply in sorted(last.items()) if "sums" in reply}
    called = add_sums(sums.values()).get(CALLED, np.zeros((0, 0)))  # (classes, classes); none for regression
    y = np.repeat(np.arange(len(called)), called.sum(axis=1).astype(np.int64))
    plan = sheet.plan.model_copy(update={"route_seed": outcome["plan"].get("route_seed")})
    scenario = of_plan(plan, sheet.about)
    if task is not None:  # the metric is chosen as in a simulation, but by the held-out patients' classes
        metric = default_metric([y], task) if plan.metric is None else known_metric(plan.metric, task.loss)
        scenario = scenario.model_copy(update={"metric": metric})
    plan = plan.model_copy(update={"metric": scenario.metric})
    run = Run(scenario, [plan], folder, about=_about(sheet, outcome, log, last))
    write(folder / "scenario.toml", as_toml(scenario))
    write_json(folder / "plans.json", [planned.model_dump(mode="json") for planned in run.plans])
    trained, untold = plan.with_model_of(len(sheet.sites)), [replace(each, told={}) for each in evaluations]
    record = _record(folder, trained, outcome, task, untold, log)
    if record.model is not None and record.preparation is None and task is not None and not plan.has_own_models:
        run.about["notes"].append(OTHER_ROWS)
    plan_run = run.add(0, record, trivial_for(y, task) if task is not None and len(y) else None)
    plan_run.row["real"] = _real(sheet, outcome, log, last)
    path = folder / MODEL_FILE
    if record.model is not None and record.model.keys() != load(path.read_bytes()).keys():
        write(path, save(record.model))  # with its frozen part, which no site has sent
    if task is not None and sums:
        judged = judged_at_home(sums, task)
        if TOGETHER in last:  # single sites' are hidden: the totals and the number of sites
            judged = {"sites": {}, "together": {**judged["together"], "sites": last[TOGETHER][TELLING]}, "hidden": True}
        plan_run.row["real"]["judged"] = judged
    run.save()
    return run


def _last_evaluation(outcome: Told) -> Told:
    every = outcome["evaluations"] or [{}]
    chosen = outcome.get("chosen")
    return next((evaluation for evaluation in every if chosen and evaluation["t"] == chosen), every[-1])


def complete(folder: Path) -> None:
    """Write the files of a run of an earlier release, which wrote none. PlanError where it is not finished."""
    try:
        outcome = json.loads((folder / "outcome.json").read_text())
    except FileNotFoundError:
        raise PlanError(
            f"{folder} is a run over real sites that is not finished; `fedsmall status` shows how it goes"
        ) from None
    write_run(folder, outcome)


def _pool_sums(evaluation: Evaluation, task: Task | None) -> Evaluation:
    """The evaluation by the sums of all sites, once all that evaluated have told them; else means of sites' metrics."""
    sums = {site: reply["sums"] for site, reply in evaluation.told.items() if "sums" in reply}
    judged = {TOGETHER} if TOGETHER in sums else set(evaluation.extra.get("held_out", {}))
    if task is None or not sums or set(sums) != judged:
        return evaluation
    metrics = metrics_of_sums(add_sums(sums_from_json(sums[site]) for site in sorted(sums)), task)
    common = evaluation.common or {}
    return replace(evaluation, common=common | {name: metrics[name] for name in metrics if name in common})


def _record(
    folder: Path, plan: Plan, outcome: Told, task: Task | None, evaluations: list[Evaluation], log: RunLog
) -> RunRecord:
    path = folder / MODEL_FILE
    model = load(path.read_bytes()) if path.exists() else None
    if model is not None and task is not None and not plan.has_own_models:
        model = completed(plan, task, model)
    privacy, samples = plan.privacy, outcome.get("samples", {})
    known = bool(samples) and not privacy.is_patient_level  # else what is told is the size of a lot
    promise = dict(outcome.get("privacy", {}))
    if privacy.is_patient_level and privacy.epsilon is not None:  # every site keeps to the epsilon of the plan
        promise = {"epsilon_least": privacy.epsilon, "epsilon": privacy.epsilon, "delta": privacy.delta}
    return RunRecord(
        plan=plan,
        engine=REAL_SITES,
        evaluations=evaluations,
        comm_rounds=outcome.get("comm_rounds", outcome.get("contacts", 0)),
        rounds=outcome.get("rounds", plan.rounds),
        bytes_sent=outcome["bytes_sent"],
        seconds=sum(seconds for _, seconds, _ in log.comm_rounds.values()),
        client_updates=outcome.get("client_updates", 0),
        model=model,
        events=sorted([*outcome["events"], *log.events], key=lambda event: event["t"]),
        versions=versions(),
        privacy=promise,
        task=task,
        preparation=_preparation(folder, outcome),
        trained_on={GLOBAL: TrainedOn(sites=max(1, len(samples)), samples=sum(samples.values()) if known else None)},
        chosen=outcome.get("chosen", 0),
        averaged=[(models, whole) for models, whole in outcome.get("averaged", ())],
        sent_by=list(outcome.get("sent_by", ())),
    )


def _preparation(folder: Path, outcome: Told) -> Preparation | None:
    """The preparation that the sites told; None where they differ, or were never scaled alike."""
    try:
        prepared = Preparation.model_validate(outcome.get("rows"))
    except ValidationError:
        return None
    path = folder / "scaling.json"
    if not prepared.agrees:
        return prepared
    if not path.exists():
        return None
    return prepared.with_scaling(Scaling(**{k: np.array(v) for k, v in json.loads(path.read_text()).items()}))


def _about(sheet: RunSheet, outcome: Told, log: RunLog, last: Told) -> dict[str, Any]:
    samples = list(outcome.get("samples", {}).values()) or [0]
    return {
        "engine": REAL_SITES,
        "started": log.started,
        "ended": log.ended,
        "cores": cores(),
        "machine": f"{platform.system()} {platform.machine()}",
        "task": outcome.get("task") or {},
        "sites": len(sheet.sites),
        "samples_per_site": [min(samples), max(samples)],
        "test_samples": sum(reply.get("samples", 0) for reply in last.values()),
        "notes": [],
    }


def _real(sheet: RunSheet, outcome: Told, log: RunLog, last: Told) -> dict[str, Any]:
    samples = outcome.get("samples", {})
    sites = {
        name: {
            "samples": samples.get(name),
            "held_out": None if TOGETHER in last else last.get(name, {}).get("samples", 0),
            "charged": last.get(name, {}).get("charged", {}),
            **log.sites.get(name, {}),
        }
        for name in sheet.sites
    }
    times = {"started": log.started, "ended": log.ended, "launches": log.launches}
    return {"run": sheet.run, "sites": sites, "contacts": list(log.comm_rounds.values()), **times}
