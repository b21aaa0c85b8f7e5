"""Figures of one model, small enough for a telephone, and the numbers behind them as CSV; one function draws all."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsmall.evaluation.clinical import Bin, Curve, calibration, net_benefit, precision_recall, roc, wilson
from fedsmall.evaluation.statistics import interval
from fedsmall.evaluation.survival import at, brier_scores, kaplan_meier, mean_time
from fedsmall.sim.report.figures import INK, LARGE, STYLE, Line, draw, empty, square
from fedsmall.sim.report.sections import Drawing
from fedsmall.sim.report.style import LOOKS, SPARE, Style
from fedsmall.sim.runs.files import as_csv

GRID = np.linspace(0, 1, 101)
MOST_OTHERS, MOST_CURVES = 5, 12
MANY_POINTS, CELLS = 2000, 500  # of a curve, from which on it is drawn by a point for each cell of a square
FIFTHS, TENTHS = 5, 10  # groups of samples
Z95 = 1.96  # of a normal distribution: between -1.96 and 1.96 standard deviations lie 95%
LOOK = LOOKS["FedDC"]
GROUPS = (LOOKS["FedDC"], LOOKS["DaisyChain"], LOOKS["FedAvg"])  # three looks that are told apart in grey, too
MANY = (*GROUPS, *SPARE)
CLASSES = (*SPARE, *LOOKS.values())
SHADES = (0.12, 0.88)  # of the colour map, between which grades lie: light to dark, so they are told apart in grey
DASHED = (0, (5, 2))
CONSTANT = "always one class"
OF_BINS = ["samples", "predicted", "observed", "observed_low", "observed_high"]
STEPS = "Steps are of test samples: keep this page as you keep those."

Pair = tuple[np.ndarray, np.ndarray]


def diagonal(name: str | None = None, ends: Sequence[float] = (0, 1)) -> Line:
    """The line on which both axes are the same."""
    return Line(ends, ends, {"color": INK, "lw": 0.9, "ls": (0, (1, 2)), "label": name})


def _plain(look: Style, name: str | None, lw: float) -> dict[str, Any]:
    return {"color": look.colour, "ls": look.dashes, "lw": lw, "label": name}


def _cells(values: Iterable[float]) -> list[str]:
    return [f"{value:.6g}" for value in values]


# Classes: ROC, precision and recall, calibration


class Judged(NamedTuple):
    """What is drawn of classifiers: by method, and by seed, the (probabilities, truth) of each class by name.

    The method shown comes first, with its first seed; ``looks`` are those of methods. Of two classes
    (``is_binary``) only the positive one is drawn. ``whose`` is each sample's patient, where they have several.
    """

    pairs: Mapping[str, Sequence[Mapping[str, Pair]]]
    looks: Mapping[str, Style]
    is_binary: bool
    whose: np.ndarray | None = None

    @property
    def classes(self) -> list[tuple[str, Pair, Style]]:
        """The classes of the model that is shown, with a look for each."""
        label, seeds = next(iter(self.pairs.items()))
        looks = [self.looks[label]] if self.is_binary else CLASSES
        return [(name, pair, look) for (name, pair), look in zip(seeds[0].items(), looks, strict=False)]

    def points(self, curve: Callable[..., Curve], names: tuple[str, str]) -> str:
        """The points of the curves of all methods and seeds, as CSV."""
        rows: list[list[Any]] = [["method", "seed_place", "class", "threshold", *names]]
        for label, seeds in self.pairs.items():
            for place, classes in enumerate(seeds):
                for name, pair in classes.items():
                    points = np.array(corners(curve(*pair)))[[2, 0, 1]].T
                    rows += [[label, place, name, *_cells(point)] for point in points]
        return as_csv(rows)


def corners(curve: Curve) -> Curve:
    """The points at which a curve turns, and its ends; of very many those that a picture can show apart."""
    across, up = np.diff(curve.x), np.diff(curve.y)
    turns = np.ones(len(curve.x), bool)
    turns[1:-1] = ~np.isclose(across[1:] * up[:-1], across[:-1] * up[1:], atol=1e-15)
    if turns.sum() > MANY_POINTS:
        turns[1:-1] &= np.diff(np.round(np.stack(curve[:2]) * CELLS)[:, :-1]).any(axis=0)
    return Curve(*(numbers[turns] for numbers in curve))


def of_classes(judged: Judged) -> list[Drawing]:
    """The ROC curve, precision and recall, and calibration."""
    several = len(next(iter(judged.pairs.values()))) > 1
    band = "Band: 95% interval of the mean over seeds, point by point." if several and judged.is_binary else ""
    thick = "Thick: the model that is shown; thin: other methods, mean over seeds." if judged.is_binary else ""
    bars = "Ten bins; vertical bars: 95% interval (Wilson)." if judged.is_binary else "Ten bins."
    precise = _of_methods(judged, precision_recall, _pr_at)
    if judged.is_binary:
        ((name, (_, positive), _),) = judged.classes
        rate = float(positive.mean())
        precise = [diagonal(f"always {name}")._replace(x=[-0.01, 1.01], y=[rate, rate]), *precise]
    lines = _of_methods(judged, roc, lambda curve: np.asarray(np.interp(GRID, curve.x, curve.y)))
    area = draw(square("1 - specificity", "sensitivity"), [diagonal(CONSTANT), *lines])
    rates = judged.points(roc, ("false_positive_rate", "sensitivity"))
    precision = draw(square("sensitivity (recall)", "PPV (precision)"), precise)
    recalls = judged.points(precision_recall, ("recall", "precision"))
    bins_of = [(name, calibration(*pair, judged.whose), look) for name, pair, look in judged.classes]
    lines = [_bins(bins, look, None if judged.is_binary else name, judged.is_binary) for name, bins, look in bins_of]
    calibrated = draw(square("predicted probability", "observed frequency"), [diagonal("perfect"), *lines])
    rows = as_csv([["class", *OF_BINS], *([name, *_bin_cells(row)] for name, bins, _ in bins_of for row in bins)])
    decisions = _decisions(judged) if judged.is_binary else []
    return [
        Drawing(area, "ROC curve", f"ROC curve. {thick} {band}", rates, "roc.csv"),
        Drawing(precision, "precision and recall", f"Precision and recall. {band}", recalls, "pr.csv"),
        Drawing(calibrated, "calibration", f"Calibration. {bars}", rows, "calibration.csv"),
        *decisions,
    ]


def _decisions(judged: Judged) -> list[Drawing]:
    ((name, pair, look),) = judged.classes
    curve, everybody = net_benefit(*pair), net_benefit(np.ones(len(pair[1])), pair[1])
    low, dashed = -0.05, {"color": INK, "lw": 0.9, "ls": (0, (4, 2)), "label": "treat all"}
    lines = [
        Line([0, 1], [0, 0], {"color": INK, "lw": 0.9, "label": "treat nobody"}),
        Line(everybody.x, np.maximum(everybody.y, low), dashed),
        Line(curve.x, np.maximum(curve.y, low), {"color": look.colour, "lw": 2.2, "label": next(iter(judged.pairs))}),
    ]
    rows = [["threshold", "net_benefit", "treat_all"], *map(_cells, zip(curve.x, curve.y, everybody.y, strict=True))]
    caption = "Decision curve: net benefit over the threshold; of use where it lies above both other lines."
    place = square("threshold", "net benefit")
    place[1].set(ylim=(low, max(0.1, float(pair[1].mean()) + 0.05)))
    place[1].set_yticks(np.linspace(0, max(0.1, round(float(pair[1].mean()), 1)), 3))
    return [Drawing(draw(place, lines), f"decision curve for {name}", caption, as_csv(rows), "decisions.csv")]


def _bins(bins: Sequence[Bin], look: Style, name: str | None, with_bars: bool) -> Line:
    shares = [row.observed for row in bins]
    ends = [share.low for share in shares], [share.high for share in shares]
    drawn = {"color": look.colour, "marker": look.marker, "ms": 4.5, "lw": 1.4, "label": name}
    points = [row.predicted for row in bins], [share.value for share in shares]
    return Line(*points, drawn, bars=ends if with_bars else None)


def _bin_cells(row: Bin) -> list[object]:
    return [row.samples, row.predicted, *row.observed[:3]]


def _of_methods(judged: Judged, curve: Callable[..., Curve], at_grid: Callable[[Curve], np.ndarray]) -> list[Line]:
    """Of two classes the mean of other methods, the band over seeds and the model shown; of more each class."""
    if not judged.is_binary:
        class_curves = [(corners(curve(*pair)), _plain(look, name, 1.4)) for name, pair, look in judged.classes]
        return [Line(drawn.x, drawn.y, look) for drawn, look in class_curves]
    lines, (label, *others) = [], list(judged.pairs)[: MOST_OTHERS + 1]
    on_grid = {
        method: np.array([at_grid(curve(*pair)) for classes in judged.pairs[method] for pair in classes.values()])
        for method in [label, *others]
    }
    for other in others:
        lines.append(Line(GRID, on_grid[other].mean(axis=0), _plain(judged.looks[other], other, 1.0) | {"alpha": 0.9}))
    colour = {"color": judged.looks[label].colour}
    if len(on_grid[label]) > 1:
        ends = [interval(np.clip(column, 0, 1), scale="share") for column in on_grid[label].T]
        lines.append(Line(GRID, None, colour, ([e.low for e in ends], [e.high for e in ends])))
    ((_, pair, _),) = judged.classes
    drawn = corners(curve(*pair))
    return [*lines, Line(drawn.x, drawn.y, colour | {"lw": 2.2, "label": label})]


def _pr_at(curve: Curve) -> np.ndarray:
    """The best precision at every recall of the grid or above."""
    best = np.maximum.accumulate(curve.y[::-1])[::-1]
    return best[np.minimum(np.searchsorted(curve.x, GRID - 1e-12), len(best) - 1)]


# Grades, and several labels


def of_grades(names: Sequence[str], p: np.ndarray, y: np.ndarray) -> list[Drawing]:
    """What the model says of the samples of each grade, and the calibration of being above each grade."""
    means = {name: p[y == label].mean(axis=0) for label, name in enumerate(names) if (y == label).any()}
    above = {f"above {name}": (p[:, label + 1 :].sum(axis=1), y > label) for label, name in enumerate(names[:-1])}
    data = as_csv([["true", *names], *([name, *_cells(shares)] for name, shares in means.items())])
    caption = (
        "The mean probability of every grade, for the test samples that are truly of each. Of a perfect model each bar "
        "has one shade."
    )
    calibrated = (
        "How many are above a grade over the probability that the model gives to that, in fifths of the test samples "
        "in the order of that probability. On the diagonal it is as likely as the model says."
    )
    drawn = Drawing(_bars(names, means), "what is said of each grade", caption, data, "grades.csv")
    return [drawn, _reliability(above, "calibration of being above a grade", calibrated, "which", "above.csv")]


def _bars(names: Sequence[str], means: Mapping[str, np.ndarray]) -> Figure:
    figure, axes = empty("true grade", "mean probability")
    shades = mpl.colormaps["cividis_r"](np.linspace(*SHADES, len(names)))
    below = np.zeros(len(means))
    for label, name in enumerate(names):
        shares = np.array([mean[label] for mean in means.values()])
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
    rocs = {name: corners(roc(*pair)) for name, pair in shown.items() if 0 < pair[1].mean() < 1}
    lines = [Line(*curve[:2], _plain(look, name, 1.6)) for (name, curve), look in zip(rocs.items(), MANY, strict=False)]
    points = [[name, *_cells(point)] for name, curve in rocs.items() for point in zip(*curve[:2], strict=True)]
    data = as_csv([["label", "1_minus_specificity", "sensitivity"], *points])
    area = draw(square("1 - specificity", "sensitivity"), [diagonal(), *lines])
    calibrated = (
        "How many have each label over the probability that the model gives it, in fifths of the test samples in the "
        "order of that probability. On the diagonal it is as frequent as the model says."
    )
    drawn = Drawing(area, "ROC curves", f"ROC curve of each label. {STEPS}", data, "roc.csv")
    return [drawn, _reliability(shown, "calibration", calibrated, "label", "calibration.csv")]


def _reliability(pairs: Mapping[str, Pair], title: str, caption: str, head: str, file: str) -> Drawing:
    """Observed over predicted, in fifths of the samples by prediction; a line for each of the ``pairs``."""
    fifths = {name: group_means(*pair, FIFTHS) for name, pair in pairs.items()}
    lines = [
        Line(points[:, 1], points[:, 2], _plain(look, name, 1.4) | {"marker": look.marker, "ms": 4.5})
        for (name, points), look in zip(fifths.items(), MANY, strict=False)
    ]
    rows = [[name, *_cells(point)] for name, points in fifths.items() for point in points]
    figure = draw(square("predicted", "observed"), [diagonal(), *lines])
    return Drawing(figure, title, caption, as_csv([[head, "samples", "predicted", "observed"], *rows]), file)


def group_means(predicted: np.ndarray, true: np.ndarray, groups: int) -> np.ndarray:
    """Samples in the order of what is predicted, in groups of equal size: how many, and their two means (groups, 3)."""
    parts = np.array_split(np.argsort(predicted, kind="stable"), min(groups, len(true)))
    return np.array([[len(members), predicted[members].mean(), true[members].mean()] for members in parts])


# Numbers, and times until an event


def of_numbers(name: str, predicted: np.ndarray, true: np.ndarray) -> list[Drawing]:
    """What was true over what was predicted, and the errors."""
    tenths, errors = group_means(predicted, true, TENTHS), predicted - true
    mean, spread = errors.mean(), float(errors.std(ddof=1)) if len(true) > 1 else 0.0
    dots = {"ls": "", "marker": "o", "ms": 3, "color": LOOK.colour, "alpha": 0.45}
    means = {"ls": "-", "lw": 1, "marker": "D", "ms": 4.5, "color": INK, "label": "means of tenths"}
    ends = [min(predicted.min(), true.min()), max(predicted.max(), true.max())]
    pairs = [diagonal("perfect", ends), Line(predicted, true, dots), Line(tenths[:, 1], tenths[:, 2], means)]
    figure, axes = empty(f"predicted {name}", "predicted minus true")
    axes.axhline(0, color=INK, lw=0.9, ls=(0, (1, 2)))
    for place in (-Z95, 0, Z95):
        axes.axhline(mean + place * spread, color=LOOK.colour, lw=1.1, ls=DASHED)
    draw((figure, axes), [Line(predicted, errors, dots)], names=False)
    truth = draw(empty(f"predicted {name}", f"true {name}"), pairs)
    over = (
        "True over predicted. Diamonds: means of tenths of the samples, in the order of predictions. Each dot is a "
        "test sample: keep this page as you keep those."
    )
    bland = (
        "Errors over predictions. Dashed: the mean error, and 1.96 standard deviations around it, between which lie "
        "95% of errors if they are normal (Bland & Altman 1986)."
    )
    rows = as_csv([["samples", "mean_predicted", "mean_true"], *map(_cells, tenths)])
    row = as_csv([["mean_error", "sd_of_errors"], _cells([mean, spread])])
    drawn = Drawing(truth, "predicted and true", over, rows, "predicted.csv")
    return [drawn, Drawing(figure, "errors", bland, row, "errors.csv")]


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
    share[1].set_ylim(-0.02, 1.02)
    draw(error, [Line(when, scores, model), Line(when, flat, constant)], names=False)
    error[1].set_ylim(bottom=0)
    of_groups = (
        "Share without the event, in thirds of the test samples by predicted risk: steps as it was (Kaplan-Meier), "
        f"dots the mean of what the model says. {STEPS}"
    )
    over_time = "Mean squared error of the predicted share at each time; dashed: one curve for all test samples."
    data = as_csv([[name, "model", "one_curve"], *errors])
    return [
        Drawing(draw(share, _steps(groups)), "survival by predicted risk", of_groups, as_csv(rows), "survival.csv"),
        Drawing(draw(error, []), "Brier score over time", over_time, data, "brier.csv"),
    ]


def _thirds(survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> dict[str, tuple[Pair, Pair]]:
    """Of each third by risk the observed steps and the mean predicted curve."""
    order = np.argsort(mean_time(survival, cuts), kind="stable")
    thirds = {}
    for group, members in zip(("high risk", "middle", "low risk"), np.array_split(order, 3), strict=True):
        if len(members):
            curve = np.concatenate([[1.0], survival[members].mean(axis=0)])
            thirds[group] = kaplan_meier(*labels[members].T), (np.concatenate([[0.0], cuts]), curve)
    return thirds


def _steps(groups: Mapping[str, tuple[Pair, Pair]]) -> list[Line]:
    lines = []
    for (group, (steps, curve)), look in zip(groups.items(), GROUPS, strict=False):
        times, shares = np.concatenate([[0.0], steps[0]]), np.concatenate([[1.0], steps[1]])
        lines.append(Line(times, shares, _plain(look, group, 1.6) | {"drawstyle": "steps-post"}))
        lines.append(Line(*curve, {"ls": "", "marker": look.marker, "ms": 4.5, "color": look.colour}))
    return lines


# Sums over real sites


def of_sums(
    together: Mapping[str, Any], comm_rounds: Sequence[Any], names: Sequence[str], look: Style, label: str
) -> list[Drawing]:
    """ROC curve, calibration and seconds of communication rounds, as far as told; ``names`` are those of the curves."""
    drawings = []
    if points := together.get("roc"):
        caption = "ROC curve of all patients together, a point at every edge of the bins in which scores were sent."
        shown = [(label, look)] if len(names) == 1 else list(zip(names, CLASSES, strict=False))[:MOST_CURVES]
        lines = [
            Line(x, y, {"color": of_class.colour, "marker": ".", "ms": 4, "lw": 1.8, "label": name})
            for (x, y), (name, of_class) in zip(points, shown, strict=False)
        ]
        rows = [["class", "false_positive_rate", "sensitivity"]]
        for name, curve in zip(names, points, strict=True):
            rows += [[name, *_cells(point)] for point in zip(*curve, strict=True)]
        figure = draw(square("1 - specificity", "sensitivity"), [diagonal(CONSTANT), *lines])
        drawings.append(Drawing(figure, "ROC curve", caption, as_csv(rows), "roc.csv"))
    if together.get("confidence"):
        caption = (
            "Calibration: of those named with such a probability, how many are. Vertical bars: 95% interval (Wilson)."
        )
        sums = zip(*together["confidence"], strict=True)  # of each bin samples, their probabilities, who was right
        bins = [Bin(int(n), float(sure / n), wilson(int(right), int(n))) for n, sure, right in sums if n]
        place = square("probability of the class that is named", "share that is of it")
        figure = draw(place, [diagonal("perfect"), _bins(bins, look, None, with_bars=True)])
        data = as_csv([OF_BINS, *map(_bin_cells, bins)])
        drawings.append(Drawing(figure, "calibration", caption, data, "calibration.csv"))
    if len(comm_rounds) > 2:
        caption = "Seconds of each communication round, from the first order to the last answer."
        figure, axes = empty("round", "seconds", STYLE | LARGE)
        rounds, seconds, _ = zip(*sorted(comm_rounds), strict=True)
        line = Line(rounds, seconds, {"color": look.colour, "marker": ".", "ms": 5, "lw": 1.2})
        draw((figure, axes), [line], names=False)
        axes.set_ylim(0, None)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        data = as_csv([["round", "seconds", "answers"], *sorted(comm_rounds)])
        drawings.append(Drawing(figure, "seconds of communication rounds", caption, data, "communication_rounds.csv"))
    return drawings
