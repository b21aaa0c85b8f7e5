"""Figures of one model, small enough for a telephone, and the numbers behind them as CSV; one function draws all."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsmall.evaluation.clinical import Bin, Curve, calibration, precision_recall, roc, wilson
from fedsmall.evaluation.statistics import interval
from fedsmall.evaluation.survival import at, brier_scores, kaplan_meier, mean_time
from fedsmall.sim.report.figures import INK, LARGE, SMALL, STYLE, square
from fedsmall.sim.report.sections import Drawing
from fedsmall.sim.report.style import LOOKS, SPARE, Style
from fedsmall.sim.runs.files import as_csv

GRID = np.linspace(0, 1, 101)
MOST_OTHERS, MOST_CURVES = 5, 12
FIFTHS, TENTHS = 5, 10  # groups of samples
Z95 = 1.96  # of a normal distribution: between -1.96 and 1.96 standard deviations lie 95%
LOOK = LOOKS["FedDC"]
GROUPS = (LOOKS["FedDC"], LOOKS["DaisyChain"], LOOKS["FedAvg"])  # three looks that are told apart in grey, too
MANY = (*GROUPS, *SPARE)
CLASSES = (*SPARE, *LOOKS.values())
SHADES = (0.12, 0.88)  # of the colour map, between which grades lie: light to dark, so they are told apart in grey
DASHED = (0, (5, 2))

Pair = tuple[np.ndarray, np.ndarray]


class Line(NamedTuple):
    """A line as matplotlib has it in its ``look``; ``band`` and ``bars`` are (low, high) at every ``x``."""

    x: Any
    y: Any
    look: Mapping[str, Any]
    band: Any = None
    bars: Any = None


def curves(place: tuple[Figure, Axes], lines: Iterable[Line], named: bool = True) -> Figure:
    """Draw lines with their bands and bars into a figure, and the names of those that are ``named``."""
    figure, axes = place
    for line in lines:
        if line.y is not None:
            axes.plot(line.x, line.y, **line.look)
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=line.look["color"], alpha=0.16, lw=0)
        if line.bars is not None:
            axes.vlines(line.x, *line.bars, color=line.look["color"], lw=1.2)
    if named:
        with mpl.rc_context(STYLE):
            axes.legend(fontsize=8.5, loc="best", labelcolor=INK, handlelength=2.2)
    return figure


def diagonal(name: str | None = None, ends: Sequence[float] = (0, 1)) -> Line:
    """The line on which both axes are the same."""
    return Line(ends, ends, {"color": INK, "lw": 0.9, "ls": (0, (1, 2)), "label": name})


def empty(x: str, y: str, style: dict[Any, Any] = STYLE) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, in the look of the page."""
    with mpl.rc_context(style):
        figure = Figure(figsize=SMALL, layout="constrained")
        axes = figure.subplots()
        axes.set(xlabel=x, ylabel=y)
    return figure, axes


def _plain(look: Style, name: str | None, lw: float, *, marked: bool = False, dashed: bool = True) -> dict[str, Any]:
    marks = {"marker": look.marker, "ms": 4.5} if marked else {}
    dashes = {"ls": look.dashes} if dashed else {}
    return {"color": look.colour, **dashes, **marks, "lw": lw, "label": name}


def _cells(values: Iterable[float]) -> list[str]:
    return [f"{value:.6g}" for value in values]


# Classes: ROC, precision and recall, calibration


class Judged(NamedTuple):
    """What is drawn of classifiers: by method, and by seed, the (probabilities, truth) of each class by name.

    The method shown comes first, with its first seed; ``looks`` are those of methods; ``two``: only the positive of two
    classes is drawn.
    """

    pairs: Mapping[str, Sequence[Mapping[str, Pair]]]
    looks: Mapping[str, Style]
    two: bool

    @property
    def label(self) -> str:
        """The method that is shown."""
        return next(iter(self.pairs))

    @property
    def classes(self) -> list[tuple[str, Pair, Style]]:
        """The classes of the model that is shown, with a look for each."""
        looks = [self.looks[self.label]] if self.two else CLASSES
        shown = self.pairs[self.label][0].items()
        return [(name, pair, look) for (name, pair), look in zip(shown, looks, strict=False)]

    def points(self, curve: Callable[..., Curve], names: tuple[str, str]) -> str:
        """The points of the curves of all methods and seeds, as CSV."""
        rows: list[list[Any]] = [["method", "seed_place", "class", "threshold", *names]]
        for label, seeds in self.pairs.items():
            for place, classes in enumerate(seeds):
                for name, pair in classes.items():
                    drawn = curve(*pair)
                    points = zip(drawn.thresholds, drawn.x, drawn.y, strict=True)
                    rows += [[label, place, name, *_cells(point)] for point in points]
        return as_csv(rows)


def of_classes(judged: Judged) -> list[Drawing]:
    """The ROC curve, precision and recall, and calibration."""
    seeds = judged.pairs[judged.label]
    band = "Band: 95% interval of the mean over seeds, point by point." if len(seeds) > 1 and judged.two else ""
    thick = "Thick: the model that is shown; thin: other methods, mean over seeds." if judged.two else ""
    bars = "Ten bins; upright: Wilson's interval of each." if judged.two else "Ten bins."
    area = [diagonal("always one class"), *_of_methods(judged, roc, _roc_at)]
    precise = _of_methods(judged, precision_recall, _pr_at)
    if judged.two:
        ((name, (_, positive)),) = seeds[0].items()
        rate = float(positive.mean())
        precise = [diagonal(f"always {name}")._replace(x=[-0.01, 1.01], y=[rate, rate]), *precise]
    return [
        Drawing(
            curves(square("1 - specificity", "sensitivity"), area),
            "ROC curve",
            f"ROC curve. {thick} {band}",
            judged.points(roc, ("false_positive_rate", "sensitivity")),
            "roc.csv",
        ),
        Drawing(
            curves(square("sensitivity (recall)", "PPV (precision)"), precise),
            "precision and recall",
            f"Precision and recall. {band}",
            judged.points(precision_recall, ("recall", "precision")),
            "pr.csv",
        ),
        _calibrated(judged, f"Calibration. {bars}"),
    ]


def _calibrated(judged: Judged, caption: str) -> Drawing:
    found = [(name, calibration(*pair), look) for name, pair, look in judged.classes]
    lines = [_bins(bins, look, None if judged.two else name, bars=judged.two) for name, bins, look in found]
    rows: list[list[Any]] = [["class", "samples", "predicted", "observed", "observed_low", "observed_high"]]
    rows += [[name, each.samples, each.predicted, *each.observed[:3]] for name, bins, _ in found for each in bins]
    figure = curves(square("predicted probability", "observed share"), [diagonal("perfect"), *lines])
    return Drawing(figure, "calibration", caption, as_csv(rows), "calibration.csv")


def _bins(bins: Sequence[Bin], look: Style, name: str | None, *, bars: bool) -> Line:
    shares = [each.observed for each in bins]
    ends = ([each.low for each in shares], [each.high for each in shares])
    drawn = _plain(look, name, 1.4, marked=True, dashed=False)
    return Line([each.predicted for each in bins], [each.value for each in shares], drawn, bars=ends if bars else None)


def _of_methods(judged: Judged, curve: Callable[..., Curve], at_grid: Callable[[Curve], np.ndarray]) -> list[Line]:
    """Of two classes the mean of other methods, the band over seeds and the model shown; of more each class."""
    if not judged.two:
        found = [(curve(*pair), _plain(look, name, 1.4)) for name, pair, look in judged.classes]
        return [Line(drawn.x, drawn.y, look) for drawn, look in found]
    (label, *others), lines = judged.pairs, []
    on_grid = {
        one: np.array([at_grid(curve(*pair)) for classes in judged.pairs[one] for pair in classes.values()])
        for one in [label, *others[:MOST_OTHERS]]
    }
    for one in others[:MOST_OTHERS]:
        lines.append(Line(GRID, on_grid[one].mean(axis=0), _plain(judged.looks[one], one, 1.0) | {"alpha": 0.9}))
    own = {"color": judged.looks[label].colour}
    if len(on_grid[label]) > 1:
        ends = [interval(np.clip(column, 0, 1), scale="share") for column in on_grid[label].T]
        lines.append(Line(GRID, None, own, ([e.low for e in ends], [e.high for e in ends])))
    ((_, pair, _),) = judged.classes
    drawn = curve(*pair)
    return [*lines, Line(drawn.x, drawn.y, own | {"lw": 2.2, "label": label})]


def _roc_at(curve: Curve) -> np.ndarray:
    return np.asarray(np.interp(GRID, curve.x, curve.y))


def _pr_at(curve: Curve) -> np.ndarray:
    """The best precision at every recall of the grid or above."""
    best = np.maximum.accumulate(curve.y[::-1])[::-1]
    return np.array([best[min(np.searchsorted(curve.x, recall - 1e-12), len(best) - 1)] for recall in GRID])


# Grades, and several labels


def of_grades(names: Sequence[str], p: np.ndarray, y: np.ndarray) -> list[Drawing]:
    """What the model says of the samples of each grade, and the calibration of being above each grade."""
    means = {name: p[y == label].mean(axis=0) for label, name in enumerate(names) if (y == label).any()}
    above = {f"above {name}": (p[:, label + 1 :].sum(axis=1), y > label) for label, name in enumerate(names[:-1])}
    return [
        Drawing(
            _bars(names, means),
            "what is said of each grade",
            "The mean probability of every grade, for the test samples that are truly of each. Of a perfect model each "
            "bar has one shade.",
            as_csv([["true", *names], *([name, *_cells(shares)] for name, shares in means.items())]),
            "grades.csv",
        ),
        _reliability(
            above,
            "calibration of being above a grade",
            "How many are above a grade over the probability that the model gives to that, in fifths of the test "
            "samples in the order of that probability. On the diagonal it is as likely as the model says.",
            ("which", "above.csv"),
        ),
    ]


def _bars(names: Sequence[str], means: Mapping[str, np.ndarray]) -> Figure:
    figure, axes = empty("true grade", "mean probability")
    shades = mpl.colormaps["cividis_r"](np.linspace(*SHADES, len(names)))
    below = np.zeros(len(means))
    for label, name in enumerate(names):
        shares = np.array([each[label] for each in means.values()])
        axes.bar(list(means), shares, bottom=below, color=shades[label], edgecolor=INK, linewidth=0.5, label=name)
        below = below + shares
    axes.set_ylim(0, 1)
    place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": min(len(names), 4)}
    with mpl.rc_context({"text.color": INK}):
        axes.legend(fontsize=8.5, labelcolor=INK, frameon=False, **place)
    return figure


def of_labels(names: Sequence[str], p: np.ndarray, y: np.ndarray) -> list[Drawing]:
    """The ROC curve of each label, and how often each is there over the probability that the model gives it."""
    shown = {name: (p[:, k], y[:, k] > 0) for k, name in enumerate(names[: len(MANY)])}
    found = {name: roc(*pair) for name, pair in shown.items() if 0 < pair[1].mean() < 1}
    lines = [
        Line(*curve[:2], _plain(look, name, 1.6)) for (name, curve), look in zip(found.items(), MANY, strict=False)
    ]
    points = [[name, *_cells(point)] for name, curve in found.items() for point in zip(*curve[:2], strict=True)]
    return [
        Drawing(
            curves(square("1 - specificity", "sensitivity"), [diagonal(), *lines]),
            "ROC curves",
            "ROC curve of each label. Steps are of test samples: keep this page as you keep those.",
            as_csv([["label", "1_minus_specificity", "sensitivity"], *points]),
            "roc.csv",
        ),
        _reliability(
            shown,
            "calibration",
            "How many have each label over the probability that the model gives it, in fifths of the test samples in "
            "the order of that probability. On the diagonal it is as frequent as the model says.",
            ("label", "calibration.csv"),
        ),
    ]


def _reliability(pairs: Mapping[str, Pair], title: str, caption: str, named: tuple[str, str]) -> Drawing:
    """Observed over predicted, in fifths of the samples by prediction; a line for each of the ``pairs``."""
    fifths = {name: grouped(*pair, FIFTHS) for name, pair in pairs.items()}
    lines = [
        Line(points[:, 1], points[:, 2], _plain(look, name, 1.4, marked=True))
        for (name, points), look in zip(fifths.items(), MANY, strict=False)
    ]
    rows = [[name, *_cells(point)] for name, points in fifths.items() for point in points]
    figure = curves(square("predicted", "observed"), [diagonal(), *lines])
    return Drawing(figure, title, caption, as_csv([[named[0], "samples", "predicted", "observed"], *rows]), named[1])


def grouped(predicted: np.ndarray, true: np.ndarray, groups: int) -> np.ndarray:
    """Samples in the order of what is predicted, in groups of equal size: how many, and their two means (groups, 3)."""
    parts = np.array_split(np.argsort(predicted, kind="stable"), min(groups, len(true)))
    return np.array([[len(mine), predicted[mine].mean(), true[mine].mean()] for mine in parts])


# Numbers, and times until an event


def of_numbers(name: str, predicted: np.ndarray, true: np.ndarray) -> list[Drawing]:
    """What was true over what was predicted, and the errors."""
    held = "Each dot is a test sample: keep this page as you keep those."
    tenths, apart = grouped(predicted, true, TENTHS), predicted - true
    mean, spread = apart.mean(), float(apart.std(ddof=1)) if len(true) > 1 else 0.0
    dots = {"ls": "", "marker": "o", "ms": 3, "color": LOOK.colour, "alpha": 0.45}
    means = {"ls": "-", "lw": 1, "marker": "D", "ms": 4.5, "color": INK, "label": "means of tenths"}
    ends = [min(predicted.min(), true.min()), max(predicted.max(), true.max())]
    pairs = [diagonal("perfect", ends), Line(predicted, true, dots), Line(tenths[:, 1], tenths[:, 2], means)]
    figure, axes = empty(f"predicted {name}", "predicted minus true")
    axes.axhline(0, color=INK, lw=0.9, ls=(0, (1, 2)))
    for place in (-Z95, 0, Z95):
        axes.axhline(mean + place * spread, color=LOOK.colour, lw=1.1, ls=DASHED)
    return [
        Drawing(
            curves(empty(f"predicted {name}", f"true {name}"), pairs),
            "predicted and true",
            f"True over predicted. Diamonds: means of tenths of the samples, in the order of predictions. {held}",
            as_csv([["samples", "mean_predicted", "mean_true"], *map(_cells, tenths)]),
            "predicted.csv",
        ),
        Drawing(
            curves((figure, axes), [Line(predicted, apart, dots)], named=False),
            "errors",
            "Errors over predictions. Dashed: the mean error, and 1.96 standard deviations around it, between which "
            "lie 95% of errors if they are normal (Bland & Altman 1986).",
            as_csv([["mean_error", "sd_of_errors"], _cells([mean, spread])]),
            "errors.csv",
        ),
    ]


def of_times(name: str, survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> list[Drawing]:
    """The share without the event in three groups by risk, and the error over time."""
    groups = _thirds(survival, cuts[0], labels)
    rows = [["group", "kind", name, "share"]]
    for group, pair in groups.items():
        for kind, curve in zip(("observed", "predicted"), pair, strict=True):
            rows += [[group, kind, f"{t:g}", f"{s:.6g}"] for t, s in zip(*curve, strict=True)]
    when, (scores,) = brier_scores(survival[None], cuts[0], *labels.T)
    same_for_all = np.tile(at(kaplan_meier(*labels.T), cuts[0]), (len(survival), 1))
    (flat,) = brier_scores(same_for_all[None], cuts[0], *labels.T)[1]
    errors = [[f"{t:g}", *_cells(pair)] for t, *pair in zip(when, scores, flat, strict=True)]
    model = {"color": LOOK.colour, "marker": LOOK.marker, "ms": 4, "lw": 1.6, "label": "the model"}
    constant = {"color": INK, "lw": 1.1, "ls": DASHED, "label": "one curve for all"}
    share, error = empty(name, "share without the event"), empty(name, "Brier score")
    drawn = curves(error, [Line(when, scores, model), Line(when, flat, constant)], named=False)
    share[1].set_ylim(-0.02, 1.02)
    error[1].set_ylim(bottom=0)
    return [
        Drawing(
            curves(share, _steps(groups)),
            "survival by predicted risk",
            "Share without the event, in thirds of the test samples by predicted risk: steps as it was (Kaplan-Meier), "
            "dots the mean of what the model says. Steps are of test samples: keep this page as you keep those.",
            as_csv(rows),
            "survival.csv",
        ),
        Drawing(
            curves((drawn, error[1]), []),
            "Brier score over time",
            "Mean squared error of the predicted share at each time; dashed: one curve for all test samples.",
            as_csv([[name, "model", "one_curve"], *errors]),
            "brier.csv",
        ),
    ]


def _thirds(survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> dict[str, tuple[Pair, Pair]]:
    """Of each third by risk the observed steps and the mean predicted curve."""
    order = np.argsort(mean_time(survival, cuts), kind="stable")
    found = {}
    for group, mine in zip(("high risk", "middle", "low risk"), np.array_split(order, 3), strict=True):
        if len(mine):
            curve = np.concatenate([[1.0], survival[mine].mean(axis=0)])
            found[group] = kaplan_meier(*labels[mine].T), (np.concatenate([[0.0], cuts]), curve)
    return found


def _steps(groups: Mapping[str, tuple[Pair, Pair]]) -> list[Line]:
    lines = []
    for (group, (steps, curve)), look in zip(groups.items(), GROUPS, strict=False):
        times, shares = np.concatenate([[0.0], steps[0]]), np.concatenate([[1.0], steps[1]])
        lines.append(Line(times, shares, _plain(look, group, 1.6) | {"drawstyle": "steps-post"}))
        lines.append(Line(*curve, {"ls": "", "marker": look.marker, "ms": 4.5, "color": look.colour}))
    return lines


# Sums over real sites


def of_sums(
    together: Mapping[str, Any], contacts: Sequence[Any], names: Sequence[str], look: Style, label: str
) -> list[Drawing]:
    """The ROC curve at the edges of bins, calibration, and seconds of contacts, as far as there are numbers.

    ``names`` are those of classes or labels; the first of two classes has no curve.
    """
    found = []
    if together.get("roc"):
        caption = "ROC curve of all patients together, a point at every edge of the bins in which scores were told."
        found.append(_binned_roc(together["roc"], names, look, label, caption))
    if together.get("confidence"):
        caption = "Calibration: of those named with such a probability, how many are. Upright: Wilson's interval."
        sums = zip(*together["confidence"], strict=True)  # of each bin samples, their probabilities, who was right
        bins = [Bin(int(n), float(sure / n), wilson(int(right), int(n))) for n, sure, right in sums if n]
        place = square("probability of the class that is named", "share that is of it")
        heads = ["samples", "predicted", "observed", "observed_low", "observed_high"]
        rows = [[str(each.samples), str(each.predicted), *map(str, each.observed[:3])] for each in bins]
        figure = curves(place, [diagonal("perfect"), _bins(bins, look, None, bars=True)])
        found.append(Drawing(figure, "calibration", caption, as_csv([heads, *rows]), "calibration.csv"))
    if len(contacts) > 2:
        caption = "Seconds of each contact, from the first order to the last answer."
        rows = [["round", "seconds", "answers"], *(list(map(str, each)) for each in sorted(contacts))]
        drawing = _seconds(contacts, look)
        found.append(Drawing(drawing, "seconds of contacts", caption, as_csv(rows), "contacts.csv"))
    return found


def _binned_roc(
    points: Sequence[Sequence[Any]], names: Sequence[str], look: Style, label: str, caption: str
) -> Drawing:
    two = len(names) == 1
    marks = {"marker": ".", "ms": 4, "lw": 1.8}
    lines = [
        Line(x, y, {"color": of_class.colour, **marks, "label": label if two else name})
        for (x, y), name, of_class in zip(points[:MOST_CURVES], names, [look] if two else CLASSES, strict=False)
    ]
    rows = [["class", "false_positive_rate", "sensitivity"]]
    for name, curve in zip(names, points, strict=True):
        rows += [[name, *_cells(point)] for point in zip(*curve, strict=True)]
    figure = curves(square("1 - specificity", "sensitivity"), [diagonal("always one class"), *lines])
    return Drawing(figure, "ROC curve", caption, as_csv(rows), "roc.csv")


def _seconds(contacts: Sequence[Any], look: Style) -> Figure:
    figure, axes = empty("round", "seconds", STYLE | LARGE)
    rounds, seconds, _ = zip(*sorted(contacts), strict=True)
    line = Line(rounds, seconds, {"color": look.colour, "marker": ".", "ms": 5, "lw": 1.2})
    curves((figure, axes), [line], named=False)
    axes.set_ylim(0, None)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure
