"""The clinical half of a report: what one model says of the test samples, from the predictions that a run has kept.

The model is that of the run's main method with its first seed; under cross-validation the folds' models together, each
on the samples that it has not seen. What other seeds change stands beside it, and is named as that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fedsmall.data.subgroups import KEPT_AS
from fedsmall.evaluation.clinical import SENSITIVITY, STATISTICS, VALUES, AtThreshold, Estimate, at_threshold, auc
from fedsmall.evaluation.statistics import Interval, interval
from fedsmall.sim.report.tables import by_label, table
from fedsmall.sim.runs.folder import PlanRun, Run

MOST_CLASSES = 12
MOST_SITES = 40
HALF = 0.5


class Said(NamedTuple):
    """What a model says of samples: ``p`` (samples, classes), ``y`` (samples,) and ``sites`` (samples,) or none.

    ``groups`` names each sample's subgroup, (samples,), by column.
    """

    p: np.ndarray
    y: np.ndarray
    sites: np.ndarray
    groups: Mapping[str, np.ndarray]

    def positive(self, label: int) -> tuple[np.ndarray, np.ndarray]:
        """The probabilities of one class, and who was of it."""
        return self.p[:, label], self.y == label

    def at(self, site: str) -> "Said":
        """What it says of the samples of one site."""
        mine = self.sites == site
        groups = {column: names[mine] for column, names in self.groups.items()}
        return Said(self.p[mine], self.y[mine], self.sites[mine], groups)


@dataclass(frozen=True)
class Participant:
    """A site that took part: how many of each class it trains on and holds out."""

    name: str
    train: Sequence[int]
    held_out: Sequence[int]


@dataclass(frozen=True)
class Worth:
    """A statistic of the model shown, with its interval by the test samples, and over seeds where there are several."""

    name: str
    of_samples: Estimate
    of_seeds: Interval | None


@dataclass(frozen=True)
class AtSite:
    """The model shown on what one site has held out."""

    site: str
    samples: int
    positive: int
    area: Estimate
    errors: AtThreshold


@dataclass(frozen=True)
class Clinical:
    """All that the clinical half of a page shows; ``positive`` is the class in question, the last of two.

    ``chosen`` are the three thresholds with how each was found, the chosen one first.
    """

    run: Run
    label: str
    seed: int
    folds: int
    classes: tuple[str, ...]
    said: Said
    of_seeds: tuple[Said, ...]
    others: dict[str, tuple[Said, ...]]
    chosen: tuple[tuple[str, float], ...]

    @property
    def two(self) -> bool:
        """Whether there are two classes, one of which is the positive one."""
        return len(self.classes) == 2

    @property
    def positive(self) -> int:
        """The number of the class in question, of two."""
        return 1

    @property
    def of_class(self) -> list[tuple[int, str]]:
        """The classes for which curves are drawn: the positive one of two, or each against the rest."""
        return [(1, self.classes[1])] if self.two else list(enumerate(self.classes))[:MOST_CLASSES]

    @property
    def matrix(self) -> np.ndarray:
        """How many of each class (rows) are called what (columns), (classes, classes); at the chosen threshold."""
        called = (self.said.p[:, 1] >= self.chosen[0][1]).astype(int) if self.two else self.said.p.argmax(axis=1)
        cells = np.bincount(self.said.y * len(self.classes) + called, minlength=len(self.classes) ** 2)
        return cells.reshape(len(self.classes), -1)

    @property
    def errors(self) -> list[tuple[str, AtThreshold]]:
        """What happens at each threshold, the chosen one first, with how it was found."""
        p, positive = self.said.positive(1)
        return [(how, at_threshold(p, positive, threshold)) for how, threshold in self.chosen]

    def worth(self, label: int) -> list[Worth]:
        """The statistics of one class against the rest."""
        p, positive = self.said.positive(label)
        found = []
        for name, estimate in STATISTICS.items():
            values = [VALUES[name](*said.positive(label)) for said in self.of_seeds]
            known = [value for value in values if np.isfinite(value)]
            of_seeds = interval(known, scale="share") if len(known) > 1 else None
            found.append(Worth(name, estimate(p, positive), of_seeds))
        return found

    @property
    def sites(self) -> list[AtSite]:
        """The model on each site's own held-out samples, by name; none where the test set is nobody's own."""
        names = sorted(set(self.said.sites.tolist())) if self.two else []
        found = []
        for name in names[:MOST_SITES]:
            p, positive = self.said.at(name).positive(1)
            errors = at_threshold(p, positive, self.chosen[0][1])
            found.append(AtSite(name, len(p), int(positive.sum()), auc(p, positive), errors))
        return found


def clinical(run: Run) -> Clinical | None:
    """The clinical half of a run's page; None where no method has predictions of classes, as in older folders."""
    groups = by_label(run.done)
    kept = {label: _by_seed(run, group) for label, group in groups.items()}
    kept = {label: by_seed for label, by_seed in kept.items() if by_seed}
    if not kept:
        return None
    main = table(run).reference
    label = main if main in kept else next(iter(kept))
    seed, said = next(iter(kept[label].items()))
    group = [one for one in groups[label] if one.plan.seed == seed]
    return Clinical(
        run,
        label,
        seed,
        group[0].plan.folds or 0,
        class_names(run, said.p.shape[1]),
        said,
        tuple(kept[label].values()),
        {other: tuple(by_seed.values()) for other, by_seed in kept.items() if other != label},
        _thresholds(group) if said.p.shape[1] == 2 else (),
    )


def participants(run: Run) -> list[Participant]:
    """Who took part, with how many of each class; none where a folder does not say, or too many to read."""
    counts: dict[str, dict[str, Any]] = run.about.get("class_counts") or {}
    found = [Participant(name, each["train"], each["held_out"]) for name, each in sorted(counts.items())]
    return found if len(found) <= MOST_SITES else []


def class_names(run: Run, classes: int) -> tuple[str, ...]:
    """The names of the classes, or their numbers where they have none."""
    names = tuple((run.about.get("task") or {}).get("class_names") or ())
    return names if len(names) == classes else tuple(f"class {label}" for label in range(classes))


def _by_seed(run: Run, group: Sequence[PlanRun]) -> dict[int, Said]:
    """What the models of a method say, by seed; the folds of a seed one after the other."""
    parts: dict[int, list[Said]] = {}
    for one in group:
        told = run.predictions_of(one)
        if "probabilities" in told and len(told["labels"]):
            sites = told.get("sites", np.array([], dtype=str))
            groups = {name.removeprefix(KEPT_AS): each for name, each in told.items() if name.startswith(KEPT_AS)}
            parts.setdefault(one.plan.seed, []).append(Said(told["probabilities"], told["labels"], sites, groups))
    return {seed: _together(mine) for seed, mine in parts.items()}


def _together(parts: Sequence[Said]) -> Said:
    p, y, sites = (np.concatenate([getattr(said, name) for said in parts]) for name in ("p", "y", "sites"))
    columns = [column for column in parts[0].groups if all(column in said.groups for said in parts)]
    return Said(p, y, sites, {column: np.concatenate([said.groups[column] for said in parts]) for column in columns})


def _thresholds(group: Sequence[PlanRun]) -> tuple[tuple[str, float], ...]:
    """The chosen threshold and two others, with how each was found; the mean over the folds of a seed."""
    asked = group[0].plan.threshold
    found = [one.row.get("thresholds") or {} for one in group]
    wanted = asked["sensitivity"] if isinstance(asked, dict) else SENSITIVITY
    told = {
        "number": ("as the scenario says", asked if isinstance(asked, float) else None),
        "half": ("even odds", HALF),
        "youden": ("most sensitivity + specificity on the training samples (Youden)", _mean(found, "youden")),
        "sensitivity": (f"sensitivity of {100 * wanted:g}% on the training samples", _mean(found, "sensitivity")),
    }
    first = "sensitivity" if isinstance(asked, dict) else "number" if isinstance(asked, float) else asked or "half"
    order = [first, *(way for way in told if way != first)]
    known = [(how, threshold) for how, threshold in map(told.__getitem__, order) if threshold is not None]
    return tuple(known[:3])


def _mean(found: Sequence[dict[str, float]], name: str) -> float | None:
    values = [each[name] for each in found if name in each]
    return float(np.mean(values)) if values else None
