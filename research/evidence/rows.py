"""Rows from runs: each method's final values by seed, its curves, and its hospitals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.statistics import interval
from fedsmall.planning.tasks import build_federation
from fedsmall.privacy.site_level import epsilon
from fedsmall.research.evidence.items import Item
from fedsmall.research.evidence.judge import judge_rows
from fedsmall.research.evidence.result import EvidenceRow
from fedsmall.sim.report.style import in_order
from fedsmall.sim.report.tables import trivials_of
from fedsmall.sim.runs.folder import PlanRun, Run
from fedsmall.training.cohort import Cohort
from fedsmall.wire import ModelState


def rows_of(item: Item, runs: dict[str, Run]) -> list[EvidenceRow]:
    """The rows of all variants, with what follows from their values (:mod:`fedsmall.research.evidence.judge`)."""
    return judge_rows(item, [row for variant, run in runs.items() for row in _of_variant(item, variant, run)])


def curves_of(item: Item, run: Run) -> dict[str, dict[str, list[list[float]]]]:
    """For each method and for "sites" and "common": rounds, mean, low and high end of the metric over seeds.

    Sites' own models and the global model never share a curve. A point needs the metric of every seed.
    """
    curves: dict[str, dict[str, list[list[float]]]] = {}
    for label, done in _by_label(run).items():
        whose = {"common": item.metric, "sites": f"{item.metric}_mean"}
        for owner, name in whose.items():
            points = []
            for evaluations in zip(*(done_run.evaluations for done_run in done), strict=False):
                values = [evaluation[owner][name] for evaluation in evaluations if name in (evaluation[owner] or {})]
                if len(values) == len(evaluations):
                    mean = interval(values)
                    points.append([float(evaluations[0]["t"]), mean.mean, mean.low, mean.high])
            if points:
                curves.setdefault(label, {})[owner] = [list(column) for column in zip(*points, strict=True)]
    return curves


def hospitals_of(run: Run, data_root: Path | None = None) -> dict[str, dict[str, dict[str, list[float]]]]:
    """For each method and site: every metric of the global model on the site's own held-out samples, by seed.

    Where the evaluations lack them (central training), the kept model is evaluated.
    """
    table: dict[str, dict[str, dict[str, list[float]]]] = {}
    trivials = {done_run.row["label"]: trivials_of(run.done) for done_run in trivials_of(run.done)}
    for label, done in (trivials | _by_label(run)).items():
        for done_run in done:
            held_out = (done_run.row if label in trivials else done_run.evaluations[-1])["extra"].get("held_out")
            held_out = held_out or _judged_at_home(run, done_run, data_root)
            for site, metrics in held_out.items():
                for name, value in metrics.items():
                    table.setdefault(label, {}).setdefault(site, {}).setdefault(name, []).append(value)
    return table


def own_models_of(run: Run) -> dict[str, dict[str, dict[str, list[float]]]]:
    """For each method and hospital, H1, H2, ...: every metric of its own model on the common test set, by seed."""
    table: dict[str, dict[str, dict[str, list[float]]]] = {}
    for label, done in _by_label(run).items():
        for name, values in ((name, value) for done_run in done for name, value in _per_site(done_run).items()):
            for place, value in enumerate(values, start=1):
                table.setdefault(label, {}).setdefault(f"H{place}", {}).setdefault(name, []).append(value)
    return table


def _per_site(done_run: PlanRun) -> dict[str, list[float]]:
    per_site: dict[str, list[float]] = done_run.evaluations[-1]["sites"].get("per_site", {})
    return per_site


def _judged_at_home(run: Run, done_run: PlanRun, data_root: Path | None) -> dict[str, dict[str, float]]:
    model = run.model_of(done_run)
    if model is None:
        return {}
    federation = build_federation(done_run.plan, data_root)
    cohort = Cohort(done_run.plan, federation.task, federation.names, federation.train)
    stack = cohort.stack([ModelState(model)])
    return {
        name: evaluate(cohort.predict(stack, held_out.x)[0], held_out.y, federation.task)
        for name, held_out in zip(federation.names, federation.held_out, strict=True)
        if held_out is not None and len(held_out)
    }


def _of_variant(item: Item, variant: str, run: Run) -> list[EvidenceRow]:
    methods = [_row(item, variant, label, done) for label, done in _by_label(run).items()]
    return trivial_rows(item, variant, run.done) + methods


def trivial_rows(item: Item, variant: str, done: Sequence[PlanRun]) -> list[EvidenceRow]:
    """The row of the trivial predictor, where the runs hold it."""
    trivials = trivials_of(done)
    if not trivials:
        return []
    finals = [_metric(item, done_run.row) for done_run in trivials]
    values, seeds = [value for value, _ in finals], [_seed(done_run) for done_run in trivials]
    return [EvidenceRow(variant, trivials[0].row["label"], finals[0][1], seeds, values, interval(values), trivial=True)]


def _seed(done_run: PlanRun) -> str:
    return f"{done_run.plan.seed}.{done_run.plan.fold}" if done_run.plan.folds else str(done_run.plan.seed)


def _row(item: Item, variant: str, label: str, done: Sequence[PlanRun]) -> EvidenceRow:
    finals = [_metric(item, done_run.evaluations[-1]) for done_run in done]
    values = [value for value, _ in finals]
    seeds = [_seed(done_run) for done_run in done]
    row = EvidenceRow(variant, label, finals[0][1], seeds, values, interval(values))
    row.bytes_sent = int(np.mean([done_run.row["bytes_sent"] for done_run in done]))
    row.seconds = float(np.mean([done_run.row["seconds"] for done_run in done]))
    row.epsilon = _epsilon(done[0])
    return row


def _epsilon(done_run: PlanRun) -> float | None:
    """The run's epsilon against the server, who knows which sites took part; None without privacy.

    Patient-level: that of the site where it is largest.
    """
    privacy = done_run.plan.method.privacy
    if privacy is None or not privacy.counted:
        return None
    if privacy.level == "patient":
        return float(done_run.row["privacy"]["epsilon"])
    return epsilon(privacy.noise, privacy.delta, done_run.row["contacts"])


def _by_label(run: Run) -> dict[str, list[PlanRun]]:
    order = in_order([done_run.plan.method for done_run in run.done])
    groups: dict[str, list[PlanRun]] = {method.label: [] for method in order}
    for done_run in run.done:
        if not done_run.row["stopped"]:
            groups[done_run.label].append(done_run)
    return {label: done for label, done in groups.items() if done}


def _metric(item: Item, evaluation: dict[str, Any]) -> tuple[float, str]:
    """The metric of the global model, or its mean over the sites where that is asked for or none is common."""
    sites = evaluation["sites"].get(f"{item.metric}_mean")
    if evaluation["common"] is None or (item.of == "sites" and sites is not None):
        return float(sites), "sites"
    return float(evaluation["common"][item.metric]), "common"
