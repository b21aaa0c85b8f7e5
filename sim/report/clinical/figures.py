"""Figures of the clinical half, each small enough for a telephone, and the numbers behind each as CSV."""

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsmall.evaluation.clinical import Curve, calibration, precision_recall, roc
from fedsmall.evaluation.statistics import interval
from fedsmall.sim.report.clinical.shown import Clinical
from fedsmall.sim.report.figures import INK, STYLE, square
from fedsmall.sim.report.style import LOOKS, SPARE, looks
from fedsmall.sim.report.tables import by_label
from fedsmall.sim.runs.files import as_csv

GRID = np.linspace(0, 1, 101)
MOST_OTHERS = 5

Rows = list[list[Any]]


def roc_figure(shown: Clinical) -> Figure:
    """Sensitivity over 1 - specificity: the model shown, the band over seeds, other methods, and chance."""
    figure, axes = square("1 - specificity", "sensitivity")
    axes.plot([0, 1], [0, 1], color=INK, lw=0.9, ls=(0, (1, 2)), label="always one class")
    _curves(axes, shown, roc, _roc_at)
    _legend(axes)
    return figure


def pr_figure(shown: Clinical) -> Figure:
    """Precision over recall: the same, and the share of the positive class as chance."""
    figure, axes = square("sensitivity (recall)", "PPV (precision)")
    if shown.two:
        share = float((shown.said.y == 1).mean())
        axes.axhline(share, color=INK, lw=0.9, ls=(0, (1, 2)), label=f"always {shown.classes[1]}")
    _curves(axes, shown, precision_recall, _pr_at)
    _legend(axes)
    return figure


def calibration_figure(shown: Clinical) -> Figure:
    """What was so over what was predicted, in ten bins, with the interval of each by its samples."""
    figure, axes = square("predicted probability", "observed share")
    axes.plot([0, 1], [0, 1], color=INK, lw=0.9, ls=(0, (1, 2)), label="perfect")
    for (label, name), look in zip(shown.of_class, _palette(shown), strict=False):
        bins = calibration(*shown.said.positive(label))
        x, y = [each.predicted for each in bins], [each.observed.value for each in bins]
        axes.plot(x, y, color=look.colour, marker=look.marker, ms=4.5, lw=1.4, label=None if shown.two else name)
        if shown.two:
            axes.vlines(x, [b.observed.low for b in bins], [b.observed.high for b in bins], color=look.colour, lw=1.2)
    _legend(axes)
    return figure


def curve_data(shown: Clinical, curve: Callable[..., Curve], names: tuple[str, str]) -> str:
    """The points of the curves of all methods and seeds, as CSV."""
    rows: Rows = [["method", "seed_place", "class", "threshold", *names]]
    for label, of_seeds in {shown.label: shown.of_seeds, **shown.others}.items():
        for place, said in enumerate(of_seeds):
            for number, name in shown.of_class:
                drawn = curve(*said.positive(number))
                points = zip(drawn.thresholds, drawn.x, drawn.y, strict=True)
                rows += [[label, place, name, *(f"{v:.6g}" for v in point)] for point in points]
    return as_csv(rows)


def calibration_data(shown: Clinical) -> str:
    """The bins of the calibration curve, as CSV."""
    rows: Rows = [["class", "samples", "predicted", "observed", "observed_low", "observed_high"]]
    for number, name in shown.of_class:
        for each in calibration(*shown.said.positive(number)):
            ends = each.observed
            rows.append([name, each.samples, each.predicted, ends.value, ends.low, ends.high])
    return as_csv(rows)


def _curves(axes: Axes, shown: Clinical, curve: Callable[..., Curve], at: Callable[[Curve], np.ndarray]) -> None:
    if not shown.two:
        for (number, name), look in zip(shown.of_class, _palette(shown), strict=False):
            drawn = curve(*shown.said.positive(number))
            axes.plot(drawn.x, drawn.y, color=look.colour, ls=look.dashes, lw=1.4, label=name)
        return
    drawn_as = looks([group[0].plan.method for group in by_label(shown.run.done).values()])
    for label, of_seeds in list(shown.others.items())[:MOST_OTHERS]:
        mean = np.mean([at(curve(*said.positive(1))) for said in of_seeds], axis=0)
        axes.plot(GRID, mean, color=drawn_as[label].colour, ls=drawn_as[label].dashes, lw=1.0, label=label, alpha=0.9)
    look = drawn_as[shown.label]
    _band(axes, [at(curve(*said.positive(1))) for said in shown.of_seeds], look.colour)
    own = curve(*shown.said.positive(1))
    axes.plot(own.x, own.y, color=look.colour, lw=2.2, label=shown.label)


def _band(axes: Axes, values: Sequence[np.ndarray], colour: str) -> None:
    """The 95% interval of the mean curve over seeds, point by point."""
    if len(values) < 2:
        return
    ends = [interval(np.clip(column, 0, 1), scale="share") for column in np.array(values).T]
    axes.fill_between(GRID, [e.low for e in ends], [e.high for e in ends], color=colour, alpha=0.16, lw=0)


def _roc_at(curve: Curve) -> np.ndarray:
    """The sensitivity at every point of the grid of false positive rates."""
    return np.asarray(np.interp(GRID, curve.x, curve.y))


def _pr_at(curve: Curve) -> np.ndarray:
    """The best precision that is had at every recall of the grid or above."""
    best = np.maximum.accumulate(curve.y[::-1])[::-1]
    return np.array([best[min(np.searchsorted(curve.x, at - 1e-12), len(best) - 1)] for at in GRID])


def _palette(shown: Clinical) -> list[Any]:
    if shown.two:
        return [looks([group[0].plan.method for group in by_label(shown.run.done).values()])[shown.label]]
    return [*SPARE, *LOOKS.values()]


def _legend(axes: Axes) -> None:
    with mpl.rc_context(STYLE):
        axes.legend(fontsize=8.5, loc="best", labelcolor=INK, handlelength=2.2)
