"""The model that a page shows, by the predictions that a run has kept.

It is that of the run's main method with its first seed; under cross-validation the folds' models together, each on the
samples that it has not seen. Other seeds stand beside it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fedsmall.data.outcomes import ORDINAL
from fedsmall.data.subgroups import KEPT_AS, UNKNOWN
from fedsmall.evaluation import clinical as of_two
from fedsmall.evaluation.clinical import (
    NUMBER_STATISTICS,
    SENSITIVITY,
    AtThreshold,
    Estimate,
    at_threshold,
    auc,
    bootstrap_interval,
    mean_absolute_error,
    mean_error,
    wilson,
)
from fedsmall.evaluation.metrics import kappa, label_metrics
from fedsmall.evaluation.statistics import Interval, Scale, interval
from fedsmall.evaluation.survival import concordance, integrated_brier
from fedsmall.sim.report import curves
from fedsmall.sim.report.sections import Cells, Drawing, Section, number, over_seeds, share
from fedsmall.sim.report.style import looks
from fedsmall.sim.report.tables import by_label, table
from fedsmall.sim.runs.folder import PlanRun, Run
from fedsmall.wire import Arrays

MOST_CLASSES, MOST_SITES = 12, 40
LEAST = 5  # samples of a site on which a statistic is shown
HALF = 0.5
CUT = re.compile(r"(?P<below>below )?(?P<low>-?[\d.]+(e[-+]?\d+)?)( to below .*| or more)?$")
FLOOR = 8  # samples of a group whose figures are shown, as of a hospital; of fewer they are as good as labels

Statistic = tuple[Callable[..., float], Scale]


class Worth(NamedTuple):
    """A statistic of the model shown, with its interval by the test samples, and over seeds where there are several."""

    name: str
    of_samples: Estimate
    of_seeds: Interval | None


def _kept(run: Run, *names: str) -> tuple[str, dict[str, dict[int, Arrays]]]:
    """The method shown, and the predictions of each method by seed, where one of these arrays was kept.

    The folds of a seed are concatenated; the method is "" where nothing was kept.
    """
    found: dict[str, dict[int, list[Arrays]]] = {}
    for label, group in by_label(run.done).items():
        for one in group:
            said = run.predictions_of(one)
            if set(names) & set(said) and len(said["labels"]):
                found.setdefault(label, {}).setdefault(one.plan.seed, []).append(said)
    kept = {label: {seed: _joined(parts) for seed, parts in seeds.items()} for label, seeds in found.items()}
    main = table(run).reference if kept else None
    return main if main in kept else next(iter(kept), ""), kept


def _joined(parts: Sequence[Arrays]) -> Arrays:
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _folds(run: Run, label: str) -> int:
    return int(next(one.plan.folds or 0 for one in run.done if one.label == label))


def _of_sites(sites: np.ndarray | None) -> list[tuple[str, np.ndarray]]:
    """The sites by name, with their samples as a mask; none where the test set is nobody's own."""
    names = sorted(set(sites.tolist())) if sites is not None else []
    return [(name, sites == name) for name in names[:MOST_SITES]]


# Classes


class Said(NamedTuple):
    """Predictions: ``p`` (samples, classes), ``y`` (samples,) and ``sites`` (samples,) or none.

    ``groups`` names each sample's subgroup, (samples,), by column.
    """

    p: np.ndarray
    y: np.ndarray
    sites: np.ndarray
    groups: Mapping[str, np.ndarray]

    def positive(self, label: int) -> tuple[np.ndarray, np.ndarray]:
        """The probabilities of one class, and who was of it."""
        return self.p[:, label], self.y == label


def _said(arrays: Arrays) -> Said:
    groups = {name.removeprefix(KEPT_AS): each for name, each in arrays.items() if name.startswith(KEPT_AS)}
    return Said(arrays["probabilities"], arrays["labels"], arrays.get("sites", np.array([], dtype=str)), groups)


@dataclass(frozen=True)
class Clinical:
    """A classifier: its method's ``label`` and ``seed``, and the predictions of all methods, by seed.

    ``thresholds`` are three of two classes with how each was found, the chosen one first.
    """

    run: Run
    label: str
    folds: int
    classes: tuple[str, ...]
    kept: Mapping[str, Mapping[int, Said]]
    thresholds: tuple[tuple[str, float], ...]

    @property
    def seed(self) -> int:
        """The seed of the model that is shown."""
        (seed, *_) = self.kept[self.label]
        return seed

    @property
    def said(self) -> Said:
        """What the model that is shown says."""
        return self.kept[self.label][self.seed]

    @property
    def of_seeds(self) -> list[Said]:
        """What the models of all seeds of its method say."""
        return list(self.kept[self.label].values())

    @property
    def two(self) -> bool:
        """Whether there are two classes, the last of which is the positive one."""
        return len(self.classes) == 2

    @property
    def of_class(self) -> list[tuple[int, str]]:
        """The classes for which curves are drawn: the positive one of two, or each against the rest."""
        return [(1, self.classes[1])] if self.two else list(enumerate(self.classes))[:MOST_CLASSES]

    @property
    def matrix(self) -> np.ndarray:
        """How many of each class (rows) are called what (columns), (classes, classes); at the chosen threshold."""
        called = (self.said.p[:, 1] >= self.thresholds[0][1]).astype(int) if self.two else self.said.p.argmax(axis=1)
        cells = np.bincount(self.said.y * len(self.classes) + called, minlength=len(self.classes) ** 2)
        return cells.reshape(len(self.classes), -1)

    def worth(self, label: int) -> list[Worth]:
        """The statistics of one class against the rest."""
        found = []
        for name, estimate in of_two.STATISTICS.items():
            values = [of_two.VALUES[name](*said.positive(label)) for said in self.of_seeds]
            known = [value for value in values if np.isfinite(value)]
            mean = interval(known, scale="share") if len(known) > 1 else None
            found.append(Worth(name, estimate(*self.said.positive(label)), mean))
        return found


def clinical(run: Run) -> Clinical | None:
    """The model of classes that a page shows; None where no method has predictions of any, as in older folders."""
    label, kept = _kept(run, "probabilities")
    if not kept:
        return None
    said = {one: {seed: _said(arrays) for seed, arrays in seeds.items()} for one, seeds in kept.items()}
    seed, first = next(iter(said[label].items()))
    group = [one for one in by_label(run.done)[label] if one.plan.seed == seed]
    classes = first.p.shape[1]
    thresholds = _thresholds(group) if classes == 2 else ()
    return Clinical(run, label, _folds(run, label), class_names(run, classes), said, thresholds)


def class_names(run: Run, classes: int) -> tuple[str, ...]:
    """The names of the classes, or their numbers where they have none."""
    names = tuple((run.about.get("task") or {}).get("class_names") or ())
    return names if len(names) == classes else tuple(f"class {label}" for label in range(classes))


def _thresholds(group: Sequence[PlanRun]) -> tuple[tuple[str, float], ...]:
    """The chosen threshold and two others, with how each was found; the mean over the folds of a seed."""
    asked = group[0].plan.threshold
    found = [one.row.get("thresholds") or {} for one in group]
    wanted = asked["sensitivity"] if isinstance(asked, dict) else SENSITIVITY
    ways = {
        "number": ("as the scenario says", asked if isinstance(asked, float) else None),
        "half": ("even odds", HALF),
        "youden": ("most sensitivity + specificity on the training samples (Youden)", _mean(found, "youden")),
        "sensitivity": (f"sensitivity of {100 * wanted:g}% on the training samples", _mean(found, "sensitivity")),
    }
    first = "sensitivity" if isinstance(asked, dict) else "number" if isinstance(asked, float) else asked or "half"
    order = [first, *(way for way in ways if way != first)]
    known = [(how, threshold) for how, threshold in map(ways.__getitem__, order) if threshold is not None]
    return tuple(known[:3])


def _mean(found: Sequence[dict[str, float]], name: str) -> float | None:
    values = [each[name] for each in found if name in each]
    return float(np.mean(values)) if values else None


OF_MODEL = Markup(
    "The common model of <b>{label}</b> with seed {seed}{folds}, on {samples} test samples{positive}. Intervals are "
    "95%. Those <b>by test samples</b>{how} say what other patients of the same kind would change for this one model; "
    "those <b>over seeds</b> ({seeds}) what another draw of data and chance would change for the method."
)
AT_THRESHOLDS = Markup(
    'PPV and NPV hold where {} is as frequent as in these test samples. <code>threshold = "youden"</code>, '
    "<code>{{sensitivity = 0.95}}</code> or a number in the scenario chooses; what is found is found on training "
    "samples alone."
)
RANKED = (
    "By test samples: DeLong's interval for the ROC-AUC, on the scale of the logit; 500 bootstrap resamples for the "
    "others. ECE over ten bins of equal width."
)
HINGE = " This model's margins are no probabilities: its calibration says nothing."
FROM = Markup("{:.3f}<br><small>{}</small>")


def _of_model(label: str, seed: int, folds: int, samples: int, seeds: int, how: str = "", positive: str = "") -> Markup:
    of_folds = f", of {folds} folds each on the samples that it has not seen" if folds else ""
    words = {"samples": samples, "seeds": seeds, "how": how, "positive": positive}
    return OF_MODEL.format(label=label, seed=seed, folds=of_folds, **words)


def clinical_sections(shown: Clinical) -> list[Section]:
    """The model of classes on a page: who is called what, thresholds, ranking, hospitals, subgroups."""
    names, (y, positive) = shown.classes, (shown.said.y, shown.classes[-1])
    of_positive = f", {(y == 1).sum()} of them {positive}" if shown.two else ""
    cut = f", from a probability of {shown.thresholds[0][1]:.3f} on ({shown.thresholds[0][0]})" if shown.two else ""
    called = [[name, *row, row.sum()] for name, row in zip(names, shown.matrix, strict=True)]
    first = Section(
        "The model that is shown",
        "model",
        [_of_model(shown.label, shown.seed, shown.folds, len(y), len(shown.of_seeds), positive=of_positive)],
        Cells(["truth", *(f"called {name}" for name in names), "all"], called, f"Who is called what{cut}."),
    )
    return [first, *_at_thresholds(shown), _ranking(shown), *_hospitals(shown), *_subgroups(shown)]


def _at_thresholds(shown: Clinical) -> list[Section]:
    if not shown.two:
        return []
    found = [(how, at_threshold(*shown.said.positive(1), threshold)) for how, threshold in shown.thresholds]
    rows = [
        [FROM.format(at.threshold, how), *map(share, (at.sensitivity, at.specificity, at.ppv, at.npv))]
        for how, at in found
    ]
    heads = [f"called {shown.classes[1]} from", "sensitivity", "specificity", "PPV", "NPV"]
    caption = (
        "The chosen threshold first, and others beside it. Intervals by test samples (Wilson), under each what was "
        "counted."
    )
    cells = Cells(heads, rows, caption, reference=0)
    return [Section("Model at thresholds", "thresholds", table=cells, notes=[AT_THRESHOLDS.format(shown.classes[1])])]


def _ranking(shown: Clinical) -> Section:
    of_class, words = ([], (0,)) if shown.two else (["class"], (0, 1))
    rows = [
        [*[name][: len(of_class)], each.name, number(each.of_samples), over_seeds(each.of_seeds)]
        for label, name in shown.of_class
        for each in shown.worth(label)
    ]
    note = RANKED + HINGE * ((shown.run.about.get("task") or {}).get("loss") == "hinge")
    cells = Cells([*of_class, "statistic", "by test samples", "over seeds"], rows, words=words)
    return Section("Ranking and calibration", "ranking", table=cells, notes=[note], figures=_drawn(shown))


def _drawn(shown: Clinical) -> list[Drawing]:
    groups = by_label(shown.run.done).values()
    pairs = {
        label: [{name: said.positive(k) for k, name in shown.of_class} for said in shown.kept[label].values()]
        for label in [shown.label, *(label for label in shown.kept if label != shown.label)]
    }
    return curves.of_classes(curves.Judged(pairs, looks([group[0].plan.method for group in groups]), shown.two))


class AtPart(NamedTuple):
    """The model shown on a part of the samples, of a site or a subgroup; only its names where it is hidden.

    For two classes ``area`` and ``errors`` at the chosen threshold, for more ``accuracy``.
    """

    column: str
    group: str
    samples: int = 0
    positive: int = 0
    area: Estimate | None = None
    errors: AtThreshold | None = None
    accuracy: Estimate | None = None

    @property
    def hidden(self) -> bool:
        """Whether it is too small to be shown, or would show one that is."""
        return not self.samples

    @property
    def cells(self) -> list[object]:
        """Its row in a table, behind its names."""
        if self.hidden:
            return [Markup("<small>not shown</small>")]
        if self.area is None or self.errors is None:
            return [self.samples, *(share(each) for each in (self.accuracy,) if each)]
        return [self.samples, self.positive, number(self.area), *map(share, self.errors[5:7])]


def _at(shown: Clinical, column: str, name: str, mine: np.ndarray) -> AtPart:
    p, y = shown.said.p[mine], shown.said.y[mine]
    if not shown.two:
        return AtPart(column, name, len(y), accuracy=wilson(int((p.argmax(axis=1) == y).sum()), len(y)))
    errors = at_threshold(p[:, 1], y == 1, shown.thresholds[0][1])
    return AtPart(column, name, len(y), int((y == 1).sum()), auc(p[:, 1], y == 1), errors)


def at_sites(shown: Clinical) -> list[AtPart]:
    """The model of two classes on each site's own held-out samples, by name."""
    return [_at(shown, "site", site, mine) for site, mine in _of_sites(shown.said.sites)] if shown.two else []


def _hospitals(shown: Clinical) -> list[Section]:
    heads = ["site", "samples", shown.classes[1], "ROC-AUC", "sensitivity", "specificity"]
    caption = "The model shown on what each site has held out, at the chosen threshold. Intervals by test samples."
    rows = [[at.group, *at.cells] for at in at_sites(shown)]
    return [Section("Hospital by hospital", "hospitals", table=Cells(heads, rows, caption))] if rows else []


def subgroups(shown: Clinical) -> list[AtPart]:
    """Every group of every column that the scenario names, in order.

    Groups below ``FLOOR`` samples are hidden, and others by which they could be computed.
    """
    found = []
    for column, names in shown.said.groups.items():
        sizes = dict(zip(*(each.tolist() for each in np.unique(names, return_counts=True)), strict=True))
        hidden = hidden_groups(sizes)
        found += [
            AtPart(column, name) if name in hidden else _at(shown, column, name, names == name)
            for name in sorted(sizes, key=_place)
        ]
    return found


def hidden_groups(sizes: Mapping[str, int], floor: int = FLOOR) -> set[str]:
    """Which of a column's groups are hidden: those below the floor, and more until together they reach it.

    Else the difference of all samples and the groups shown would tell of a few.
    """
    by_size = sorted(sizes, key=lambda name: (sizes[name], name))
    hidden = [name for name in by_size if sizes[name] < floor]
    while hidden and len(hidden) < len(by_size) and sum(sizes[name] for name in hidden) < floor:
        hidden.append(by_size[len(hidden)])
    return set(hidden)


def _place(name: str) -> tuple[bool, float, str]:
    """The sort key of a group: parts of numbers from low to high, words by the alphabet, the unknown last."""
    cut = CUT.match(name)
    low = np.inf if cut is None else -np.inf if cut["below"] else float(cut["low"])
    return name == UNKNOWN, low, name


def _subgroups(shown: Clinical) -> list[Section]:
    found = subgroups(shown)
    if not found:
        return []
    columns = [at.column for at in found]
    named = ["" if column == before else column for column, before in zip(columns, ["", *columns], strict=False)]
    figures = [shown.classes[1], "ROC-AUC", "sensitivity", "specificity"] if shown.two else ["accuracy"]
    caption = (
        f"The model shown on parts of the test samples{', at the chosen threshold' * shown.two}. Intervals by test "
        "samples; they are for one group each, and of several groups one may differ by chance."
    )
    rows = [[name, at.group, *at.cells] for name, at in zip(named, found, strict=True)]
    note = f"Groups of fewer than {FLOOR} samples are not shown, nor is one by which they could be worked out."
    notes = [note] * any(at.hidden for at in found)
    cells = Cells(["by", "group", "samples", *figures], rows, caption, words=(0, 1))
    return [Section("Subgroup by subgroup", "subgroups", table=cells, notes=notes)]


# Grades, labels, numbers, and times until an event


@dataclass(frozen=True)
class Outcome:
    """A model of another outcome, or what a page adds on grades; ``asks`` says what is predicted.

    ``sites`` are the statistics named ``heads`` at each site that held out enough samples: (site, samples, estimates).
    """

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
    words = _of_model(shown.label, shown.seed, shown.folds, shown.samples, shown.seeds, how)
    rows = [[each.name, _number(each.of_samples), over_seeds(each.of_seeds, ".4g")] for each in shown.worth]
    cells = Cells(["statistic", "by test samples", "over seeds"], rows, words=(0,))
    first = Section(title, part, [Markup("{}. {}").format(shown.asks, words)], cells, shown.notes, shown.figures)
    if not shown.sites:
        return [first]
    at_site = [[site, samples, *map(_number, estimates)] for site, samples, estimates in shown.sites]
    caption = "The model shown on what each site has held out. Intervals by test samples."
    cells = Cells(["site", "samples", *shown.heads], at_site, caption)
    return [first, Section("Hospital by hospital", f"{part}-hospitals".removeprefix("model-"), table=cells)]


def _number(estimate: Estimate) -> Markup:
    return number(estimate, ".4g", "not defined here")


def question(run: Run) -> str:
    """What a run asks of a new sample, where its scenario does not say."""
    task = run.about.get("task") or {}
    if (target := task.get("target")) is None:
        return "What is the class of a new sample?"
    if labels := task.get("labels"):
        return f"Which of {', '.join(labels)} are there in a new sample?"
    return f"When does the event come to a new sample, in {target}?" if task.get("cuts") else f"What is its {target}?"


def outcome(run: Run) -> Outcome | None:
    """The model that a page shows of no classes; None where they are classes, or where nothing was kept of it."""
    task = run.about.get("task") or {}
    label, kept = _kept(run, "predictions", "survival", "label_probabilities") if task.get("target") else ("", {})
    if not kept:
        return None
    seeds = list(kept[label].values())
    make = _of_times if task.get("cuts") else _of_labels if task.get("labels") else _of_numbers
    heads, asks, arrays, statistics, drawings, *notes = make(task, seeds)
    sites = _at_each_site(seeds[0].get("sites"), arrays[0], [*heads.values()])
    worth = [_worth(name, of, arrays, scale) for name, (of, scale) in statistics.items()]
    whose = (label, next(iter(kept[label])), _folds(run, label), len(seeds[0]["labels"]), len(seeds))
    return Outcome(*whose, asks, worth, drawings, [*heads], sites, notes)


def _of_numbers(task: Mapping[str, Any], seeds: Sequence[Arrays]) -> tuple[Any, ...]:
    name, arrays = task["target"], [(each["predictions"][:, 0], each["labels"][:, 0]) for each in seeds]
    shown: dict[str, Statistic] = {statistic: (of, "plain") for statistic, of in NUMBER_STATISTICS.items()}
    heads = {"mean absolute error": mean_absolute_error, "mean error": mean_error}
    return heads, f"A number is predicted: {name}", arrays, shown, curves.of_numbers(name, *arrays[0])


LABELS: dict[str, tuple[str, Scale]] = {
    "ROC-AUC, the mean over labels": ("auc", "share"),
    "F1, the mean over labels": ("macro_f1", "share"),
    "share of samples of which all labels are right": ("subset_accuracy", "share"),
    "share of all labels that are right": ("label_accuracy", "share"),
}
OF_EACH = {"ROC-AUC": "auc", "F1": "macro_f1", "average precision": "average_precision"}
CALLED = "A label is called where its probability is above one half. F1 of a label that is nowhere is left out."


def _of_labels(task: Mapping[str, Any], seeds: Sequence[Arrays]) -> tuple[Any, ...]:
    names, arrays = task["labels"], [(each["label_probabilities"], each["labels"]) for each in seeds]
    counts = zip(names, seeds[0]["labels"].sum(axis=0), strict=True)
    asks = "Labels are predicted, each by itself; of the test samples they are there so often: " + ", ".join(
        f"{name} in {int(count)}" for name, count in counts
    )
    shown: dict[str, Statistic] = {name: (partial(_metric, metric), scale) for name, (metric, scale) in LABELS.items()}
    for label, name in enumerate(names):
        shown |= {f"{name}: {word}": (partial(_metric, m, label=label), "share") for word, m in OF_EACH.items()}
    heads = {name: shown[name][0] for name in list(shown)[:3:2]}
    return heads, asks, arrays, shown, curves.of_labels(names, *arrays[0]), CALLED


def _metric(name: str, p: np.ndarray, y: np.ndarray, label: int | None = None) -> float:
    if label is not None:
        p, y = p[:, [label]], y[:, [label]]
    odds = np.log(np.clip(p, 1e-300, None)) - np.log1p(-np.clip(p, None, 1 - 1e-16))
    return float(label_metrics(odds[None], y, (name,))[name][0])


def _concordance(survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> float:
    return float(concordance(survival[None], cuts[0], *labels.T)[0])


def _integrated_brier(survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> float:
    return float(integrated_brier(survival[None], cuts[0], *labels.T)[0])


TIMES: dict[str, Statistic] = {
    "concordance index (Harrell)": (_concordance, "plain"),
    "integrated Brier score": (_integrated_brier, "plain"),
}
CONCORDANT = (
    "Concordance: of pairs of which it is known who had the event first, the share that the model has in that order "
    "(0.5 is chance). Brier score: 0 is perfect; those lost from sight are made up for by others like them, which "
    "holds where they were lost for reasons that have nothing to do with the event."
)


def _of_times(task: Mapping[str, Any], seeds: Sequence[Arrays]) -> tuple[Any, ...]:
    name, arrays = task["target"], [(each["survival"], each["cuts"], each["labels"]) for each in seeds]
    events = int(seeds[0]["labels"][:, 1].sum())
    asks = (
        f"The time until an event is predicted, {name}; it happened in {events} of the test samples, and the others "
        "were seen without it until their time"
    )
    heads = {"concordance index (Harrell)": _concordance}
    return heads, asks, arrays, TIMES, curves.of_times(name, *arrays[0]), CONCORDANT


def _kappa(p: np.ndarray, y: np.ndarray) -> float:
    return kappa(p.argmax(axis=1), y)


def _off(p: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(p.argmax(axis=1) - y).mean())


def _within(p: np.ndarray, y: np.ndarray, reach: int) -> float:
    return float((np.abs(p.argmax(axis=1) - y) <= reach).mean())


GRADES: dict[str, Statistic] = {
    "quadratic weighted kappa": (_kappa, "gain"),
    "mean absolute error, in grades": (_off, "positive"),
    "share called right": (partial(_within, reach=0), "share"),
    "share at most one grade off": (partial(_within, reach=1), "share"),
}
LIKELIEST = (
    "The grade that is called is the likeliest one. Quadratic weighted kappa (Cohen 1968): 1 where all are called "
    "right, 0 for what chance or one grade for all would give; two grades off count four times as much as one."
)


def grades(run: Run) -> Outcome | None:
    """What a page adds on grades; None where classes have no order, or nothing was kept of a model."""
    shown = clinical(run)
    if shown is None or (run.about.get("task") or {}).get("loss") != ORDINAL:
        return None
    said, names, arrays = shown.said, shown.classes, [(each.p, each.y) for each in shown.of_seeds]
    worth = [_worth(name, of, arrays, scale) for name, (of, scale) in GRADES.items()]
    worth += [_recall(label, name, arrays) for label, name in enumerate(names)]
    return Outcome(
        *(shown.label, shown.seed, shown.folds, len(said.y), len(arrays)),
        "Grades are predicted, from the lowest to the highest: " + ", ".join(names),
        worth,
        curves.of_grades(names, said.p, said.y),
        ("kappa", "grades off"),
        _at_each_site(said.sites if len(said.sites) else None, arrays[0], (_kappa, _off)),
        [LIKELIEST],
    )


def _recall(label: int, name: str, arrays: Sequence[tuple[np.ndarray, np.ndarray]]) -> Worth:
    """The share of a grade's samples that are called so: the first seed's with Wilson's interval."""
    counts = [(int((p[y == label].argmax(axis=1) == label).sum()), int((y == label).sum())) for p, y in arrays]
    shares = [hits / of for hits, of in counts if of]
    title = f"recall of {name} ({counts[0][1]} samples)"
    return Worth(title, wilson(*counts[0]), interval(shares, scale="share") if len(shares) > 1 else None)


def _worth(
    name: str, statistic: Callable[..., float], of_seeds: Sequence[tuple[np.ndarray, ...]], scale: Scale
) -> Worth:
    """A statistic of the first seed's predictions, and over the seeds; ``scale`` bounds it."""
    known = [value for value in (statistic(*arrays) for arrays in of_seeds) if np.isfinite(value)]
    return Worth(
        name, bootstrap_interval(statistic, *of_seeds[0]), interval(known, scale=scale) if len(known) > 1 else None
    )


def _at_each_site(
    sites: np.ndarray | None, arrays: tuple[np.ndarray, ...], statistics: Sequence[Callable[..., float]]
) -> list[tuple[str, int, list[Estimate]]]:
    found = []
    for site, mine in _of_sites(sites):
        if mine.sum() >= LEAST:
            own = tuple(array[mine] for array in arrays)
            found.append((site, int(mine.sum()), [bootstrap_interval(of, *own) for of in statistics]))
    return found
