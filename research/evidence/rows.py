"""From runs to rows: each method's final values by seed, its curves, and its hospitals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.statistics import interval
from fedsmall.planning.tasks import build_federation
from fedsmall.privacy.site_level import epsilon
from fedsmall.research.evidence.items import Item
from fedsmall.research.evidence.judge import judged
from fedsmall.research.evidence.result import EvidenceRow
from fedsmall.sim.report.style import in_order
from fedsmall.sim.report.tables import trivials_of
from fedsmall.sim.runs.folder import PlanRun, Run
from fedsmall.training.cohort import Cohort
from fedsmall.wire import Traveller


def rows_of(item: Item, runs: dict[str, Run]) -> list[EvidenceRow]:
    """The rows of all variants, with what follows from their values (:mod:`fedsmall.research.evidence.judge`)."""
    return judged(item, [row for variant, run in runs.items() for row in _of_variant(item, variant, run)])


def curves_of(item: Item, run: Run) -> dict[str, dict[str, list[list[float]]]]:
    """For each method and for "sites" and "common": rounds, mean, low and high end of the metric over seeds.

    The mean over the sites' own models and the common model are two things, and never share a curve. A point is there
    where every seed's evaluation has the metric.
    """
    curves: dict[str, dict[str, list[list[float]]]] = {}
    for label, done in _by_label(run).items():
        whose = {"common": item.metric, "sites": f"{item.metric}_mean"}
        for owner, name in whose.items():
            points = []
            for evaluations in zip(*(one.evaluations for one in done), strict=False):
                values = [evaluation[owner][name] for evaluation in evaluations if name in (evaluation[owner] or {})]
                if len(values) == len(evaluations):
                    mean = interval(values)
                    points.append([float(evaluations[0]["t"]), mean.mean, mean.low, mean.high])
            if points:
                curves.setdefault(label, {})[owner] = [list(column) for column in zip(*points, strict=True)]
    return curves


def hospitals_of(run: Run, data_root: Path | None = None) -> dict[str, dict[str, dict[str, list[float]]]]:
    """For each method and site: every metric of the common model on the site's own held-out samples, by seed.

    Where the evaluations do not hold them (central training), the model that was kept is judged anew.
    """
    table: dict[str, dict[str, dict[str, list[float]]]] = {}
    trivials = {one.row["label"]: trivials_of(run.done) for one in trivials_of(run.done)}
    for label, done in (trivials | _by_label(run)).items():
        for one in done:
            held_out = (one.row if label in trivials else one.evaluations[-1])["extra"].get("held_out")
            held_out = held_out or _judged_at_home(run, one, data_root)
            for site, metrics in held_out.items():
                for name, value in metrics.items():
                    table.setdefault(label, {}).setdefault(site, {}).setdefault(name, []).append(value)
    return table


def own_models_of(run: Run) -> dict[str, dict[str, dict[str, list[float]]]]:
    """For each method and hospital, H1, H2, ...: every metric of its own model on the common test set, by seed."""
    table: dict[str, dict[str, dict[str, list[float]]]] = {}
    for label, done in _by_label(run).items():
        for name, values in ((name, value) for one in done for name, value in _per_site(one).items()):
            for place, value in enumerate(values, start=1):
                table.setdefault(label, {}).setdefault(f"H{place}", {}).setdefault(name, []).append(value)
    return table


def _per_site(one: PlanRun) -> dict[str, list[float]]:
    found: dict[str, list[float]] = one.evaluations[-1]["sites"].get("per_site", {})
    return found


def _judged_at_home(run: Run, one: PlanRun, data_root: Path | None) -> dict[str, dict[str, float]]:
    model = run.model_of(one)
    if model is None:
        return {}
    federation = build_federation(one.plan, data_root)
    cohort = Cohort(one.plan, federation.task, federation.names, federation.train)
    stack = cohort.stack([Traveller(model)])
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
    finals = [_metric(item, one.row) for one in trivials]
    values, seeds = [value for value, _ in finals], [_seed(one) for one in trivials]
    return [EvidenceRow(variant, trivials[0].row["label"], finals[0][1], seeds, values, interval(values), trivial=True)]


def _seed(one: PlanRun) -> str:
    return f"{one.plan.seed}.{one.plan.fold}" if one.plan.folds else str(one.plan.seed)


def _row(item: Item, variant: str, label: str, done: Sequence[PlanRun]) -> EvidenceRow:
    finals = [_metric(item, one.evaluations[-1]) for one in done]
    values = [value for value, _ in finals]
    seeds = [_seed(one) for one in done]
    row = EvidenceRow(variant, label, finals[0][1], seeds, values, interval(values))
    row.bytes_sent = int(np.mean([one.row["bytes_sent"] for one in done]))
    row.seconds = float(np.mean([one.row["seconds"] for one in done]))
    row.epsilon = _epsilon(done[0])
    return row


def _epsilon(one: PlanRun) -> float | None:
    """What the run has spent against the server, who knows which sites took part; None without privacy.

    Of a patient's epsilon, that of the site where it is largest.
    """
    privacy = one.plan.method.privacy
    if privacy is None or not privacy.counted:
        return None
    if privacy.level == "patient":
        return float(one.row["privacy"]["epsilon"])
    return epsilon(privacy.noise, privacy.delta, one.row["contacts"])


def _by_label(run: Run) -> dict[str, list[PlanRun]]:
    """The finished runs by method, in the order of all tables and figures."""
    order = in_order([one.plan.method for one in run.done])
    groups: dict[str, list[PlanRun]] = {method.label: [] for method in order}
    for one in run.done:
        if not one.row["stopped"]:
            groups[one.label].append(one)
    return {label: done for label, done in groups.items() if done}


def _metric(item: Item, evaluation: dict[str, Any]) -> tuple[float, str]:
    """The metric of the common model, or its mean over the sites where that is asked for or none is common."""
    sites = evaluation["sites"].get(f"{item.metric}_mean")
    if evaluation["common"] is None or (item.of == "sites" and sites is not None):
        return float(sites), "sites"
    return float(evaluation["common"][item.metric]), "common"
