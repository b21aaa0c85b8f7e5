"""The model that a page shows where no classes are predicted: grades, labels, numbers, and times until an event."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fedsmall.data.outcomes import ORDINAL, kind_of
from fedsmall.evaluation.clinical import (
    NUMBER_STATISTICS,
    Estimate,
    Whose,
    bootstrap_intervals,
    mean_absolute_error,
    mean_error,
    share_of,
)
from fedsmall.evaluation.metrics import by_digits, kappa, label_metrics
from fedsmall.evaluation.statistics import Scale
from fedsmall.evaluation.survival import concordance, integrated_brier
from fedsmall.sim.report import curves
from fedsmall.sim.report.model import (
    LEAST,
    NOWHERE,
    Statistic,
    Worth,
    clinical,
    describe_model,
    folds_of,
    interval_over_seeds,
    kept_predictions,
    masks_of_sites,
    note_patients,
    task_of,
)
from fedsmall.sim.report.sections import Cells, Drawing, Section, number, over_seeds
from fedsmall.sim.report.sentences import plural
from fedsmall.sim.runs.folder import Run
from fedsmall.wire import Arrays

_number = partial(number, form=by_digits, missing="not defined here")


@dataclass(frozen=True)
class Outcome:
    """A model of another outcome, or what a page adds on grades; ``sites``: (site, samples, an estimate by head)."""

    label: str
    seed: int
    folds: int
    samples: int
    seeds: int
    asks: str
    worth: Sequence[Worth]
    figures: Sequence[Drawing]
    heads: Sequence[str]
    sites: Sequence[tuple[str, int, Sequence[Estimate]]]
    notes: Sequence[str] = ()


def outcome_sections(shown: Outcome, part: str = "model", title: str = "The model that is shown") -> list[Section]:
    """A model of another outcome on a page: its statistics and figures, and hospitals."""
    how = " (500 bootstrap resamples)"
    words = describe_model(shown.label, shown.seed, shown.folds, shown.samples, shown.seeds, how)
    rows = [[worth.name, _number(worth.of_samples), over_seeds(worth.of_seeds, by_digits)] for worth in shown.worth]
    cells = Cells(["statistic", "over patients", "over random splits"], rows, words=(0,))
    first = Section(title, part, [Markup("{}. {}").format(shown.asks, words)], cells, shown.notes, shown.figures)
    if not shown.sites:
        return [first]
    at_site = [[site, samples, *map(_number, estimates)] for site, samples, estimates in shown.sites]
    caption = "The model shown on what each site has held out. Intervals over patients."
    cells = Cells(["site", "samples", *shown.heads], at_site, caption)
    return [first, Section("Hospital by hospital", f"{part}-hospitals".removeprefix("model-"), table=cells)]


def question(run: Run) -> str:
    """What a run asks of a new sample, where its scenario does not say."""
    task = task_of(run)
    if (target := task.get("target")) is None:
        return "What is the class of a new sample?"
    if labels := task.get("labels"):
        return f"Which of {', '.join(labels)} are there in a new sample?"
    is_time = kind_of(task.get("loss", "l1")) == "times"  # on whose intervals real sites agree later
    return f"When does the event come to a new sample, in {target}?" if is_time else f"What is its {target}?"


class Asked(NamedTuple):
    """What is predicted and shown of it; ``of_seeds`` are the arrays behind statistics, the first seed's first."""

    asks: str
    of_seeds: Sequence[tuple[np.ndarray, ...]]
    statistics: Mapping[str, Statistic]
    of_sites: Mapping[str, Callable[..., float]]
    figures: Sequence[Drawing]
    notes: Sequence[str] = ()


def outcome(run: Run) -> Outcome | None:
    """The model that a page shows of no classes; None where they are classes, or where nothing was kept of it."""
    task = task_of(run)
    if not task.get("target"):
        return None
    label, kept = kept_predictions(run, "predictions", "survival", "label_probabilities")
    if not kept:
        return None
    seeds = list(kept[label].values())
    ask = _ask_times if task.get("cuts") else _ask_labels if task.get("labels") else _ask_numbers
    at = seeds[0].get("sites", NOWHERE), seeds[0].get("patients")
    return _outcome_of((label, next(iter(kept[label])), folds_of(run, label)), ask(task, seeds), at)


def _outcome_of(
    model: tuple[str, int, int], asked: Asked, at: tuple[np.ndarray, Whose], more: Sequence[Worth] = ()
) -> Outcome:
    """What is shown of a ``model`` (method, seed, folds): the first seed's predictions, and statistics over seeds.

    ``at`` are the site and the patient of each sample, as far as they are known.
    """
    first, worth, at_sites, (sites, whose) = asked.of_seeds[0], [], [], at
    estimates = bootstrap_intervals([statistic for statistic, _ in asked.statistics.values()], *first, whose=whose)
    for (name, (statistic, scale)), estimate in zip(asked.statistics.items(), estimates, strict=True):
        over = interval_over_seeds((statistic(*arrays) for arrays in asked.of_seeds), scale)
        worth.append(Worth(name, estimate, over))
    for site, mask in masks_of_sites(sites):
        if mask.sum() >= LEAST:
            of = None if whose is None else whose[mask]
            of_site = bootstrap_intervals(list(asked.of_sites.values()), *(array[mask] for array in first), whose=of)
            at_sites.append((site, int(mask.sum()), of_site))
    counts, worth, notes = (len(first[0]), len(asked.of_seeds)), [*worth, *more], [*asked.notes, *note_patients(whose)]
    return Outcome(*model, *counts, asked.asks, worth, asked.figures, list(asked.of_sites), at_sites, notes)


def _ask_numbers(task: Mapping[str, Any], seeds: Sequence[Arrays]) -> Asked:
    name, of_seeds = task["target"], [(seed["predictions"][:, 0], seed["labels"][:, 0]) for seed in seeds]
    scales: dict[str, Scale] = {"mean absolute error": "positive", "root mean squared error": "positive"}
    shown = {statistic: (of, scales.get(statistic, "plain")) for statistic, of in NUMBER_STATISTICS.items()}
    at_sites = {"mean absolute error": mean_absolute_error, "mean error": mean_error}
    figures = curves.of_numbers(name, *of_seeds[0])
    return Asked(f"A number is predicted: {name}", of_seeds, shown, at_sites, figures)


LABELS = {
    "ROC-AUC, the mean over labels": "auc",
    "F1, the mean over labels": "macro_f1",
    "share of samples of which all labels are right": "subset_accuracy",
    "share of all labels that are right": "label_accuracy",
}
OF_EACH = {"ROC-AUC": "auc", "F1": "macro_f1", "average precision": "average_precision"}
CALLED = "A label is called where its probability is above one half. F1 of a label that is nowhere is left out."


def _ask_labels(task: Mapping[str, Any], seeds: Sequence[Arrays]) -> Asked:
    names, of_seeds = task["labels"], [(seed["label_probabilities"], seed["labels"]) for seed in seeds]
    counts = zip(names, seeds[0]["labels"].sum(axis=0), strict=True)
    often = ", ".join(f"{name} in {int(count)}" for name, count in counts)
    asks = f"Labels are predicted, each by itself; of the test samples they are there so often: {often}"
    shown: dict[str, Statistic] = {name: (partial(_metric, metric), "share") for name, metric in LABELS.items()}
    for label, name in enumerate(names):
        shown |= {f"{name}: {word}": (partial(_metric, m, label=label), "share") for word, m in OF_EACH.items()}
    at_sites = {name: shown[name][0] for name in list(shown)[:3:2]}
    return Asked(asks, of_seeds, shown, at_sites, curves.of_labels(names, *of_seeds[0]), [CALLED])


def _metric(name: str, p: np.ndarray, y: np.ndarray, label: int | None = None) -> float:
    if label is not None:
        p, y = p[:, [label]], y[:, [label]]
    odds = np.log(np.clip(p, 1e-300, None)) - np.log1p(-np.clip(p, None, 1 - 1e-16))
    return float(label_metrics(odds[None], y, (name,))[name][0])


def _of_curves(statistic: Callable[..., Any], survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> float:
    return float(statistic(survival[None], cuts[0], *labels.T)[0])


CONCORDANCE = "concordance index (Harrell)"
TIMES: dict[str, Statistic] = {
    CONCORDANCE: (partial(_of_curves, concordance), "share"),
    "integrated Brier score": (partial(_of_curves, integrated_brier), "positive"),
}
CONCORDANT = (
    "Concordance: of pairs of which it is known who had the event first, the share that the model has in that order "
    "(0.5 is chance). Brier score: 0 is perfect; those lost from sight are made up for by others like them, which "
    "holds where they were lost for reasons that have nothing to do with the event."
)


def _ask_times(task: Mapping[str, Any], seeds: Sequence[Arrays]) -> Asked:
    name, of_seeds = task["target"], [(seed["survival"], seed["cuts"], seed["labels"]) for seed in seeds]
    events = int(seeds[0]["labels"][:, 1].sum())
    asks = (
        f"The time until an event is predicted, {name}; it happened in {events} of the test samples, and the others "
        "were seen without it until their time"
    )
    at_sites = {CONCORDANCE: TIMES[CONCORDANCE][0]}
    return Asked(asks, of_seeds, TIMES, at_sites, curves.of_times(name, *of_seeds[0]), [CONCORDANT])


def _kappa(p: np.ndarray, y: np.ndarray) -> float:
    return kappa(p.argmax(axis=1), y)


def _mean_grade_error(p: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(p.argmax(axis=1) - y).mean())


def _share_within(p: np.ndarray, y: np.ndarray, reach: int) -> float:
    return float((np.abs(p.argmax(axis=1) - y) <= reach).mean())


GRADES: dict[str, Statistic] = {
    "quadratic weighted kappa": (_kappa, "gain"),
    "mean absolute error, in grades": (_mean_grade_error, "positive"),
    "share called right": (partial(_share_within, reach=0), "share"),
    "share at most one grade off": (partial(_share_within, reach=1), "share"),
}
LIKELIEST = (
    "The grade that is called is the likeliest one. Quadratic weighted kappa (Cohen 1968): 1 where all are called "
    "right, 0 for what chance or one grade for all would give; two grades off count four times as much as one."
)


def grades(run: Run) -> Outcome | None:
    """What a page adds on grades; None where classes have no order, or nothing was kept of a model."""
    shown = clinical(run)
    if shown is None or task_of(run).get("loss") != ORDINAL:
        return None
    names, of_seeds = shown.classes, [(of_seed.p, of_seed.y) for of_seed in shown.of_seeds]
    asks = f"Grades are predicted, from the lowest to the highest: {', '.join(names)}"
    at_sites = {"kappa": _kappa, "grades off": _mean_grade_error}
    asked = Asked(asks, of_seeds, GRADES, at_sites, curves.of_grades(names, *of_seeds[0]), [LIKELIEST])
    at = shown.predictions.sites, shown.predictions.whose
    recalls = [_recall(label, name, of_seeds, at[1]) for label, name in enumerate(names)]
    return _outcome_of((shown.label, shown.seed, shown.folds), asked, at, recalls)


def _recall(label: int, name: str, of_seeds: Sequence[tuple[np.ndarray, np.ndarray]], whose: Whose) -> Worth:
    """The share of a grade's samples that are called so: the first seed's with Wilson's interval."""
    shares = [share_of(p.argmax(axis=1) == label, y == label, whose) for p, y in of_seeds]
    over = interval_over_seeds((share.value for share in shares if share.of), "share")
    return Worth(f"recall of {name} ({plural(shares[0].of, 'sample')})", shares[0], over)
