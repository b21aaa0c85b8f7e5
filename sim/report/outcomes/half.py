"""The half of a report on one model where it predicts no classes: what it says of the test samples, and how far off.

The model is that of the run's main method with its first seed, as in the clinical half of classes; under
cross-validation the folds' models together, each on the samples that it has not seen.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from fedsmall.evaluation.clinical import NUMBER_STATISTICS, Estimate, mean_absolute_error, mean_error, resampled
from fedsmall.evaluation.statistics import Interval, Scale, interval
from fedsmall.evaluation.survival import concordance, integrated_brier
from fedsmall.sim.report.outcomes import figures as drawing
from fedsmall.sim.report.outcomes import labels as labelled
from fedsmall.sim.report.tables import by_label, table
from fedsmall.sim.runs.folder import PlanRun, Run
from fedsmall.wire import Arrays

MOST_SITES = 40
LEAST = 5  # samples of a site on which a statistic is shown


class Worth(NamedTuple):
    """A statistic of the model shown, with its interval by the test samples, and over seeds where there are several."""

    name: str
    of_samples: Estimate
    of_seeds: Interval | None


class Drawn(NamedTuple):
    """A figure with its title and caption, and the numbers behind it as CSV, with the name of that file."""

    figure: Figure
    title: str
    caption: str
    data: str
    file: str


class AtSite(NamedTuple):
    """The model shown on what one site has held out: how many samples, and its statistics."""

    site: str
    samples: int
    values: tuple[Estimate, ...]


@dataclass(frozen=True)
class Shown:
    """All that this half of a page shows; ``asks`` says what is predicted."""

    label: str
    seed: int
    folds: int
    samples: int
    seeds: int
    asks: str
    worth: list[Worth]
    figures: list[Drawn]
    heads: tuple[str, ...] = ()
    sites: list[AtSite] = field(default_factory=list)
    notes: tuple[str, ...] = ()


def outcome_half(run: Run) -> Shown | None:
    """What a page shows of a model that predicts no classes; None where it does, or where nothing was kept of it."""
    task = run.about.get("task") or {}
    if not task.get("target"):
        return None
    kept = {label: _by_seed(run, group) for label, group in by_label(run.done).items()}
    kept = {label: by_seed for label, by_seed in kept.items() if by_seed}
    if not kept:
        return None
    main = table(run).reference
    label = main if main in kept else next(iter(kept))
    half = _of_times if task.get("cuts") else _of_labels if task.get("labels") else _of_numbers
    return half(run, label, kept[label])


def asked(run: Run) -> str:
    """What a run asks of a new sample, where its scenario does not say."""
    target = (run.about.get("task") or {}).get("target")
    if target is None:
        return "What is the class of a new sample?"
    if labels := run.about["task"].get("labels"):
        return f"Which of {', '.join(labels)} are there in a new sample?"
    times = (run.about.get("task") or {}).get("cuts")
    return f"When does the event come to a new sample, in {target}?" if times else f"What is its {target}?"


def _by_seed(run: Run, group: Sequence[PlanRun]) -> dict[int, Arrays]:
    """What the models of a method say, by seed; the folds of a seed one after the other."""
    parts: dict[int, list[Arrays]] = {}
    for one in group:
        told = run.predictions_of(one)
        if {"predictions", "survival", "label_probabilities"} & set(told) and len(told["labels"]):
            parts.setdefault(one.plan.seed, []).append(told)
    return {
        seed: {name: np.concatenate([each[name] for each in mine]) for name in mine[0]} for seed, mine in parts.items()
    }


def _of_numbers(run: Run, label: str, by_seed: dict[int, Arrays]) -> Shown:
    name = run.about["task"]["target"]
    said = next(iter(by_seed.values()))
    pairs = [(each["predictions"][:, 0], each["labels"][:, 0]) for each in by_seed.values()]
    drawn = drawing.of_numbers(name, *pairs[0])
    return Shown(
        *_whose(run, label, by_seed),
        f"A number is predicted: {name}",
        [worth(statistic, of, pairs) for statistic, of in NUMBER_STATISTICS.items()],
        [Drawn(*each) for each in drawn],
        ("mean absolute error", "mean error"),
        sites_of(said.get("sites"), pairs[0], (mean_absolute_error, mean_error)),
    )


def _of_labels(run: Run, label: str, by_seed: dict[int, Arrays]) -> Shown:
    names = run.about["task"]["labels"]
    said = next(iter(by_seed.values()))
    arrays = [(each["label_probabilities"], each["labels"]) for each in by_seed.values()]
    shares = ", ".join(f"{name} in {int(there)}" for name, there in zip(names, said["labels"].sum(axis=0), strict=True))
    statistics = labelled.statistics(names)
    heads = list(statistics)[:1] + list(statistics)[2:3]
    return Shown(
        *_whose(run, label, by_seed),
        f"Labels are predicted, each by itself; of the test samples they are there so often: {shares}",
        [worth(name, of, arrays, scale) for name, (of, scale) in statistics.items()],
        [Drawn(*each) for each in labelled.figures(names, *arrays[0])],
        tuple(heads),
        sites_of(said.get("sites"), arrays[0], [statistics[head][0] for head in heads]),
        ("A label is called where its probability is above one half. F1 of a label that is nowhere is left out.",),
    )


def _of_times(run: Run, label: str, by_seed: dict[int, Arrays]) -> Shown:
    name = run.about["task"]["target"]
    said = next(iter(by_seed.values()))
    arrays = [(each["survival"], each["cuts"], each["labels"]) for each in by_seed.values()]
    statistics = {"concordance index (Harrell)": _concordance, "integrated Brier score": _integrated_brier}
    events = int(said["labels"][:, 1].sum())
    return Shown(
        *_whose(run, label, by_seed),
        f"The time until an event is predicted, {name}; it happened in {events} of the test samples, and the others "
        "were seen without it until their time",
        [worth(statistic, of, arrays) for statistic, of in statistics.items()],
        [Drawn(*each) for each in drawing.of_times(name, *arrays[0])],
        tuple(statistics)[:1],
        sites_of(said.get("sites"), arrays[0], (_concordance,)),
        (
            "Concordance: of pairs of which it is known who had the event first, the share that the model has in that "
            "order (0.5 is chance). Brier score: 0 is perfect; those lost from sight are made up for by others like "
            "them, which holds where they were lost for reasons that have nothing to do with the event.",
        ),
    )


def _concordance(survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> float:
    return float(concordance(survival[None], cuts[0], *labels.T)[0])


def _integrated_brier(survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> float:
    return float(integrated_brier(survival[None], cuts[0], *labels.T)[0])


def _whose(run: Run, label: str, by_seed: dict[int, Arrays]) -> tuple[str, int, int, int, int]:
    """Whose model is shown, as the first fields of :class:`Shown` have it."""
    seed, said = next(iter(by_seed.items()))
    folds = next(one.plan.folds or 0 for one in run.done if one.label == label)
    return label, seed, folds, len(said["labels"]), len(by_seed)


def worth(
    name: str,
    statistic: Callable[..., float],
    of_seeds: Sequence[tuple[np.ndarray, ...]],
    scale: Scale = "plain",
) -> Worth:
    """A statistic of the first seed's predictions, and over the seeds; ``scale`` says what it cannot leave."""
    values = [statistic(*arrays) for arrays in of_seeds]
    known = [value for value in values if np.isfinite(value)]
    return Worth(name, resampled(statistic, *of_seeds[0]), interval(known, scale=scale) if len(known) > 1 else None)


def sites_of(
    sites: np.ndarray | None, arrays: tuple[np.ndarray, ...], statistics: Sequence[Callable[..., float]]
) -> list[AtSite]:
    """The statistics at each site that held out enough samples, by name; none where the test set is nobody's own."""
    names = sorted(set(sites.tolist())) if sites is not None else []
    found = []
    for site in names[:MOST_SITES]:
        mine = sites == site
        if mine.sum() >= LEAST:
            own = tuple(array[mine] for array in arrays)
            found.append(AtSite(site, int(mine.sum()), tuple(resampled(each, *own) for each in statistics)))
    return found
