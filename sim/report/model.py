"""The model that a page shows, by the predictions that a run has kept.

It is that of the run's main method with its first seed; of folds, their models together, each on unseen samples.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fedsmall.data.subgroups import KEPT_AS, UNKNOWN
from fedsmall.evaluation import clinical as of_two
from fedsmall.evaluation.clinical import (
    HALF,
    SENSITIVITY,
    AtThreshold,
    Estimate,
    at_threshold,
    auc,
    can_recalibrate,
    share_of,
)
from fedsmall.evaluation.statistics import Interval, Scale, interval
from fedsmall.sim.report import curves
from fedsmall.sim.report.sections import Cells, Section, number, over_seeds, share
from fedsmall.sim.report.style import looks
from fedsmall.sim.report.tables import by_label, table
from fedsmall.sim.runs.folder import PlanRun, Run
from fedsmall.wire import Arrays

MOST_CLASSES, MOST_SITES = 12, 40
NOWHERE = np.array([], dtype=str)  # the sites of samples that are nobody's own
EVENTS = 100  # of either class in an external validation (Vergouwe et al. 2005)
LEAST = 5  # samples of a site on which a statistic is shown
CUT = re.compile(r"(?P<below>below )?(?P<low>-?[\d.]+(e[-+]?\d+)?)( to below .*| or more)?$")
FLOOR = 8  # samples of a group whose figures are shown, as of a hospital; of fewer they are as good as labels

Statistic = tuple[Callable[..., float], Scale]


class Worth(NamedTuple):
    """A statistic of the model shown, with its interval over patients, and over seeds where there are several."""

    name: str
    of_samples: Estimate
    of_seeds: Interval | None


def interval_over_seeds(values: Iterable[float], scale: Scale) -> Interval | None:
    """The interval over the seeds whose values are known; None for a single one."""
    known = [value for value in values if np.isfinite(value)]
    return interval(known, scale=scale) if len(known) > 1 else None


def task_of(run: Run) -> Mapping[str, Any]:
    """What run.json says of the task."""
    return run.about.get("task") or {}


def kept_predictions(run: Run, *names: str) -> tuple[str, dict[str, dict[int, Arrays]]]:
    """The method shown ("" for none), and the predictions of methods that kept such an array, by seed, folds joined."""
    parts_of: dict[str, dict[int, list[Arrays]]] = {}
    for label, group in by_label(run.done).items():
        for plan_run in group:
            predictions = run.predictions_of(plan_run)
            if set(names) & set(predictions) and len(predictions["labels"]):
                parts_of.setdefault(label, {}).setdefault(plan_run.plan.seed, []).append(predictions)
    kept = {
        label: {
            seed: {
                name: np.concatenate([part[name] for part in parts])
                for name in parts[0]
                if all(name in part for part in parts)
            }
            for seed, parts in seeds.items()
        }
        for label, seeds in parts_of.items()
    }
    main = table(run).reference if kept else None
    return main if main in kept else next(iter(kept), ""), kept


def folds_of(run: Run, label: str) -> int:
    """Of how many folds a method's models are; 0 for none."""
    return int(next(plan_run.plan.folds or 0 for plan_run in run.done if plan_run.label == label))


def masks_of_sites(sites: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """The sites by name, with their samples as a mask; none where the test set is nobody's own."""
    return [(name, sites == name) for name in sorted(set(sites.tolist()))[:MOST_SITES]]


# Classes


class Predictions(NamedTuple):
    """Predictions ``p`` (samples, classes), ``y``, ``sites`` or (0,), each sample's group by column, its patient."""

    p: np.ndarray
    y: np.ndarray
    sites: np.ndarray
    groups: Mapping[str, np.ndarray]
    whose: np.ndarray | None = None

    def positive(self, label: int) -> tuple[np.ndarray, np.ndarray]:
        """The probabilities of one class, and who was of it."""
        return self.p[:, label], self.y == label


@dataclass(frozen=True)
class Clinical:
    """A classifier, with the predictions of all methods; of two classes three ``thresholds``, the chosen one first."""

    run: Run
    label: str
    folds: int
    classes: tuple[str, ...]
    kept: Mapping[str, Mapping[int, Predictions]]
    thresholds: tuple[tuple[str, float], ...]

    @property
    def seed(self) -> int:
        """The seed of the model that is shown."""
        return int(next(iter(self.kept[self.label])))

    @property
    def of_seeds(self) -> list[Predictions]:
        """Those of the models of all seeds of its method."""
        return list(self.kept[self.label].values())

    @property
    def predictions(self) -> Predictions:
        """Those of the model that is shown."""
        return self.of_seeds[0]

    @property
    def is_binary(self) -> bool:
        """Whether there are two classes, the last of which is the positive one."""
        return len(self.classes) == 2

    @property
    def of_class(self) -> list[tuple[int, str]]:
        """The classes for which curves are drawn: the positive one of two, or each against the rest."""
        return [(1, self.classes[1])] if self.is_binary else list(enumerate(self.classes))[:MOST_CLASSES]

    def worth(self, label: int) -> list[Worth]:
        """The statistics of one class against the rest."""
        pairs, whose = [predictions.positive(label) for predictions in self.of_seeds], self.predictions.whose
        over = {
            name: interval_over_seeds((value(*pair) for pair in pairs), of_two.SCALES.get(name, "share"))
            for name, value in of_two.VALUES.items()
        }
        return [Worth(name, estimate, over[name]) for name, estimate in of_two.estimates_of(*pairs[0], whose).items()]


def clinical(run: Run) -> Clinical | None:
    """The model of classes that a page shows; None where no method has predictions of any, as in older folders."""
    label, kept = kept_predictions(run, "probabilities")
    if not kept:
        return None
    predictions = {
        method: {seed: _predictions_of(arrays) for seed, arrays in seeds.items()} for method, seeds in kept.items()
    }
    seed, first = next(iter(predictions[label].items()))
    group = [method for method in by_label(run.done)[label] if method.plan.seed == seed]
    classes = first.p.shape[1]
    thresholds = _thresholds(group) if classes == 2 else ()
    return Clinical(run, label, folds_of(run, label), class_names(run, classes), predictions, thresholds)


def _predictions_of(arrays: Arrays) -> Predictions:
    groups = {name.removeprefix(KEPT_AS): groups_of for name, groups_of in arrays.items() if name.startswith(KEPT_AS)}
    p, y, sites = arrays["probabilities"], arrays["labels"], arrays.get("sites", NOWHERE)
    return Predictions(p, y, sites, groups, arrays.get("patients"))


def class_names(run: Run, classes: int) -> tuple[str, ...]:
    """The names of the classes, or their numbers where they have none."""
    names = tuple(task_of(run).get("class_names") or ())
    return names if len(names) == classes else tuple(f"class {label}" for label in range(classes))


def _thresholds(group: Sequence[PlanRun]) -> tuple[tuple[str, float], ...]:
    """The chosen threshold and two others, with how each was found; the mean over the folds of a seed."""
    asked = group[0].plan.threshold
    wanted = asked["sensitivity"] if isinstance(asked, dict) else SENSITIVITY
    unseen = "on samples that it had not seen"
    ways: dict[str, tuple[str, Sequence[float]]] = {
        "number": ("as the scenario says", [asked] if isinstance(asked, float) else []),
        "half": ("even odds", [HALF]),
        "youden": (f"most sensitivity + specificity {unseen} (Youden)", _values(group, "youden")),
        "sensitivity": (f"sensitivity of {100 * wanted:g}% {unseen}", _values(group, "sensitivity")),
    }
    first = "sensitivity" if isinstance(asked, dict) else "number" if isinstance(asked, float) else asked or "half"
    first = first if ways[first][1] else "half"
    order = [ways.pop(first), *ways.values()]
    return tuple((how, float(np.mean(values))) for how, values in order if values)[:3]


def _values(group: Sequence[PlanRun], name: str) -> list[float]:
    rows = [plan_run.row.get("thresholds") or {} for plan_run in group]
    return [row[name] for row in rows if name in row]


OF_MODEL = Markup(
    "The global model of <b>{label}</b> with seed {seed}{folds}, on {samples} test samples{positive}. Intervals are "
    "95%. Those <b>over patients</b>{how} say what other patients of the same kind would change for this one model"
    "{splits}."
)
OF_SPLITS = (
    "; those <b>over random splits</b> ({} seeds) what another draw of data and chance would change for the method"
)
AT_THRESHOLDS = Markup(
    'PPV and NPV hold where {} is as frequent as in these test samples. <code>threshold = "youden"</code>, '
    "<code>{{sensitivity = 0.95}}</code> or a number in the scenario chooses; what is found is found on "
    "samples that the model had not seen: those that <code>stop</code> holds out, or out of fold."
)
CHOSEN_FIRST = (
    "The chosen threshold first, and others beside it. Intervals over patients (Wilson), under each what was counted."
)
RANKED = (
    "Over patients: DeLong's interval for the ROC-AUC, on the scale of the logit; 500 bootstrap resamples for the "
    "others. ECE over ten bins of equal width."
)
RECALIBRATED = (
    "Recalibrated (intercept {:.2f}, slope {:.2f}) on training samples that the model had not seen; the package keeps "
    "it. The loss on the test samples was {:.4f} before, and is {:.4f}."
)
OFF = Markup(
    "Its probabilities are off: an interval of calibration intercept or slope does not hold 0 or 1. "
    "<code>recalibrate = true</code> in the scenario corrects that on training samples that the model has not seen."
)
TOGETHER = "The {} test samples are of {} patients: intervals over patients take a patient's samples together."
HINGE = " This model's margins are no probabilities: its calibration says nothing."
FROM = Markup("{:.3f}<br><small>{}</small>")


def describe_model(
    label: str, seed: int, folds: int, samples: int, seeds: int, how: str = "", positive: str = ""
) -> Markup:
    """Which model is shown, on how many samples, and what its intervals are over."""
    of_folds = f", of {folds} folds each on the samples that it has not seen" if folds else ""
    splits = Markup(OF_SPLITS.format(seeds)) if seeds > 1 else ""
    words = {"samples": samples, "splits": splits, "how": how, "positive": positive}
    return OF_MODEL.format(label=label, seed=seed, folds=of_folds, **words)


def clinical_sections(shown: Clinical) -> list[Section]:
    """The model of classes on a page: confusion matrix, thresholds, ranking, hospitals, subgroups."""
    names, (y, positive) = shown.classes, (shown.predictions.y, shown.classes[-1])
    of_positive = f", {(y == 1).sum()} of them {positive}" if shown.is_binary else ""
    how, least = shown.thresholds[0] if shown.is_binary else ("", HALF)
    cut, p = f" at threshold {least:.3f} ({how})" * shown.is_binary, shown.predictions.p
    called = (p[:, 1] >= least).astype(int) if shown.is_binary else p.argmax(axis=1)
    matrix = np.bincount(y * len(names) + called, minlength=len(names) ** 2).reshape(len(names), -1)
    rows = [[name, *row, row.sum()] for name, row in zip(names, matrix, strict=True)]
    first = Section(
        "The model that is shown",
        "model",
        [describe_model(shown.label, shown.seed, shown.folds, len(y), len(shown.of_seeds), positive=of_positive)],
        Cells(["truth", *(f"called {name}" for name in names), "all"], rows, f"Confusion matrix{cut}."),
    )
    return [first, _ranking(shown), *_at_thresholds(shown), *_hospitals(shown), *_subgroups(shown)]


def nobody_positive(run: Run) -> list[str]:
    """A warning where the model shown calls no patient positive, or everybody, at its threshold; else none."""
    shown = clinical(run)
    if shown is None or not shown.is_binary:
        return []
    (_, threshold), (p, positive) = shown.thresholds[0], shown.predictions.positive(1)
    at = at_threshold(p, positive, threshold)
    called = at.true_positive + at.false_positive
    nobody, everybody = ("no patient", "sensitivity", at.sensitivity), ("every patient", "specificity", at.specificity)
    whom, what, lost = everybody if called else nobody
    if 0 < called < len(p) or not lost.of:
        return []
    cure = 'threshold = "youden" or recipe = {class_weights = "balanced"} in the scenario helps'
    return [
        f"Warning: at its threshold of {threshold:.3f}, {shown.label} calls {whom} {shown.classes[1]} "
        f"({what} {lost.hits} of {lost.of}); {cure}."
    ]


def are_dealt(run: Run) -> bool:
    """Whether samples were dealt to sites, and did not come with them."""
    return any(plan.sites and "natural" not in plan.partition for plan in run.plans)


def purpose(run: Run) -> str:
    """Whether a page is of a comparison of methods or of a model for patients, and what the latter still wants."""
    shown, missing = clinical(run), []
    if not run.real and are_dealt(run):
        missing.append("samples of real hospitals (these were split over sites by chance)")
    if shown is not None and shown.is_binary:
        y, whose = shown.predictions.y, shown.predictions.whose
        patients = np.unique(np.c_[np.arange(len(y)) if whose is None else whose, y], axis=0)[:, 1]
        events = int(min(np.bincount(patients, minlength=2)))
        if events < EVENTS:
            missing.append(f"at least {EVENTS} test patients of each class (there are {events} of the rarer)")
    if not any((held := plan.method.validation) and not held.by_samples for plan in run.plans):
        missing.append("validation at hospitals that took no part in training (validate = {routes = 5})")
    if not run.scenario.study.ethics:
        missing.append("an ethical approval (ethics, under [study])")
    missing.append("a look at its calibration, and approval, where it is to be used")
    if use := run.scenario.study.intended_use:
        return (
            f"This is of a model for patients, meant for this: {use.rstrip('.')}. It still requires {_listed(missing)}."
        )
    return f"This is a comparison of methods, not a model for patients. For that it requires {_listed(missing)}."


def _listed(words: Sequence[str]) -> str:
    return " and ".join([*filter(None, ["; ".join(words[:-1])]), words[-1]])


def _at_thresholds(shown: Clinical) -> list[Section]:
    if not shown.is_binary:
        return []
    rows = []
    for how, threshold in shown.thresholds:
        at = at_threshold(*shown.predictions.positive(1), threshold, shown.predictions.whose)
        rows.append([FROM.format(threshold, how), *map(share, (at.sensitivity, at.specificity, at.ppv, at.npv))])
    heads = [f"threshold for {shown.classes[1]}", "sensitivity", "specificity", "PPV", "NPV"]
    cells = Cells(heads, rows, CHOSEN_FIRST, reference=0)
    return [Section("Model at thresholds", "thresholds", table=cells, notes=[AT_THRESHOLDS.format(shown.classes[1])])]


def _ranking(shown: Clinical) -> Section:
    of_class, words = ([], (0,)) if shown.is_binary else (["class"], (0, 1))
    worth = {name: shown.worth(label) for label, name in shown.of_class}
    rows = [
        [*[name][: len(of_class)], each.name, number(each.of_samples), over_seeds(each.of_seeds)]
        for name, of_name in worth.items()
        for each in of_name
    ]
    groups = by_label(shown.run.done).values()
    pairs = {
        label: [{name: kept.positive(k) for k, name in shown.of_class} for kept in shown.kept[label].values()]
        for label in sorted(shown.kept, key=lambda label: label != shown.label)
    }
    styles = looks([group[0].plan.method for group in groups])
    drawn = curves.of_classes(curves.Judged(pairs, styles, shown.is_binary, shown.predictions.whose))
    notes = [RANKED + HINGE * (task_of(shown.run).get("loss") == "hinge"), *note_patients(shown.predictions.whose)]
    notes += _recalibration(shown, worth)
    cells = Cells([*of_class, "statistic", "over patients", "over random splits"], rows, words=words)
    return Section("Discrimination and calibration", "ranking", table=cells, notes=notes, figures=drawn)


def note_patients(whose: np.ndarray | None) -> list[str]:
    """That samples are of fewer patients, where they are, and what intervals make of it."""
    return [] if whose is None else [TOGETHER.format(len(whose), len(np.unique(whose)))]


def _recalibration(shown: Clinical, worth: Mapping[str, Sequence[Worth]]) -> list[str]:
    """What recalibration did to the model shown, or that it is to be had where its calibration is off; else nothing."""
    shown_run = next(one for one in shown.run.done if one.label == shown.label and one.plan.seed == shown.seed)
    if found := shown_run.row.get("recalibration"):
        before, after = (row["common"]["loss"] for row in (found, shown_run.row))
        return [RECALIBRATED.format(found["intercept"], found["slope"], before, after)]
    is_simulated = not shown.run.real and "engine" in shown.run.about  # elsewhere there are no folds
    able = can_recalibrate(shown_run.plan, task_of(shown.run).get("loss", ""), len(shown.classes))
    ideals = {"calibration intercept": 0, "calibration slope": 1}
    judged = [(one.of_samples, ideals[one.name]) for one in worth.get(shown.classes[-1], ()) if one.name in ideals]
    is_off = any(estimate.low > ideal or estimate.high < ideal for estimate, ideal in judged)
    return [OFF] * (is_simulated and able and is_off)


class AtPart(NamedTuple):
    """The model on the samples of a site or subgroup: of two classes ``area`` and ``errors``, of more ``accuracy``."""

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
            return [self.samples, *([share(self.accuracy)] if self.accuracy else [])]
        return [self.samples, self.positive, number(self.area), *map(share, self.errors[5:7])]


def _at(shown: Clinical, column: str, name: str, mask: np.ndarray) -> AtPart:
    p, y, whose = shown.predictions.p[mask], shown.predictions.y[mask], shown.predictions.whose
    whose = None if whose is None else whose[mask]
    if not shown.is_binary:
        accuracy = share_of(p.argmax(axis=1) == y, np.ones(len(y), dtype=bool), whose)
        return AtPart(column, name, len(y), accuracy=accuracy)
    errors = at_threshold(p[:, 1], y == 1, shown.thresholds[0][1], whose)
    return AtPart(column, name, len(y), int((y == 1).sum()), auc(p[:, 1], y == 1, whose), errors)


def at_sites(shown: Clinical) -> list[AtPart]:
    """The model of two classes on each site's own held-out samples, by name."""
    masks = masks_of_sites(shown.predictions.sites) if shown.is_binary else []
    return [_at(shown, "site", site, mask) for site, mask in masks]


def _hospitals(shown: Clinical) -> list[Section]:
    heads = ["site", "samples", shown.classes[1], "ROC-AUC", "sensitivity", "specificity"]
    caption = "The model shown on what each site has held out, at the chosen threshold. Intervals over patients."
    rows = [[at.group, *at.cells] for at in at_sites(shown)]
    return [Section("Hospital by hospital", "hospitals", table=Cells(heads, rows, caption))] if rows else []


def subgroups(shown: Clinical) -> list[AtPart]:
    """Every group of every column that the scenario names, in order; those hidden have a name alone."""
    parts = []
    for column, names in shown.predictions.groups.items():
        sizes = dict(zip(*(counts.tolist() for counts in np.unique(names, return_counts=True)), strict=True))
        hidden = hidden_groups(sizes)
        parts += [
            AtPart(column, name) if name in hidden else _at(shown, column, name, names == name)
            for name in sorted(sizes, key=_place)
        ]
    return parts


def hidden_groups(sizes: Mapping[str, int]) -> set[str]:
    """Which of a column's groups are hidden: those below the floor, and more until together they reach it.

    Else the difference of all samples and the groups shown would tell of a few.
    """
    by_size = sorted(sizes, key=lambda name: (sizes[name], name))
    hidden = [name for name in by_size if sizes[name] < FLOOR]
    while hidden and len(hidden) < len(by_size) and sum(sizes[name] for name in hidden) < FLOOR:
        hidden.append(by_size[len(hidden)])
    return set(hidden)


def _place(name: str) -> tuple[bool, float, str]:
    """The sort key of a group: parts of numbers from low to high, words by the alphabet, the unknown last."""
    cut = CUT.match(name)
    low = np.inf if cut is None else -np.inf if cut["below"] else float(cut["low"])
    return name == UNKNOWN, low, name


def _subgroups(shown: Clinical) -> list[Section]:
    parts = subgroups(shown)
    if not parts:
        return []
    columns = [at.column for at in parts]
    named = ["" if column == before else column for column, before in zip(columns, ["", *columns], strict=False)]
    figures = [shown.classes[1], "ROC-AUC", "sensitivity", "specificity"] if shown.is_binary else ["accuracy"]
    caption = (
        f"The model shown on parts of the test samples{', at the chosen threshold' * shown.is_binary}. Intervals are "
        "over patients; they are for one group each, and of several groups one may differ by chance."
    )
    rows = [[name, at.group, *at.cells] for name, at in zip(named, parts, strict=True)]
    note = f"Groups of fewer than {FLOOR} samples are not shown, nor is one by which they could be worked out."
    notes = [note] * any(at.hidden for at in parts)
    cells = Cells(["by", "group", "samples", *figures], rows, caption, words=(0, 1))
    return [Section("Subgroup by subgroup", "subgroups", table=cells, notes=notes)]
