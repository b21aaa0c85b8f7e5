"""Figures of models that predict no classes, each small enough for a telephone, and the numbers behind each as CSV."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedsmall.evaluation.survival import at, brier_scores, kaplan_meier, mean_time
from fedsmall.sim.report.figures import INK, SMALL, STYLE, square
from fedsmall.sim.report.style import LOOKS, SPARE
from fedsmall.sim.runs.files import as_csv

TENTHS = 10
Z95 = 1.96  # of a normal distribution: between -1.96 and 1.96 standard deviations lie 95%
LOOK = LOOKS["FedDC"]
GROUPS = (LOOKS["FedDC"], LOOKS["DaisyChain"], LOOKS["FedAvg"])  # three looks that are told apart in grey, too
MANY = (*GROUPS, *SPARE)

Told = tuple[Figure, str, str, str, str]  # figure, title, caption, data, file


def of_numbers(name: str, predicted: np.ndarray, true: np.ndarray) -> list[Told]:
    """The figures of a model of numbers: what was true over what it predicted, and its errors."""
    held = "Each dot is a test sample: keep this page as you keep those."
    tenths = as_csv([["samples", "mean_predicted", "mean_true"], *_tenths(predicted, true)])
    spread = float((predicted - true).std(ddof=1)) if len(true) > 1 else 0.0
    errors = as_csv([["mean_error", "sd_of_errors"], [f"{(predicted - true).mean():.6g}", f"{spread:.6g}"]])
    return [
        (
            _true_over_predicted(name, predicted, true),
            "predicted and true",
            f"True over predicted. Diamonds: means of tenths of the samples, in the order of predictions. {held}",
            tenths,
            "predicted.csv",
        ),
        (
            _errors(name, predicted, true),
            "errors",
            "Errors over predictions. Dashed: the mean error, and 1.96 standard deviations around it, between which "
            "lie 95% of errors if they are normal (Bland & Altman 1986).",
            errors,
            "errors.csv",
        ),
    ]


def of_times(name: str, survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> list[Told]:
    """The figures of a model of times until an event: curves of three groups by risk, and the error over time."""
    groups = _thirds(survival, cuts[0], labels)
    rows = [["group", "kind", name, "share"]]
    for group, (steps, curve) in groups.items():
        rows += [[group, "observed", f"{t:g}", f"{s:.6g}"] for t, s in zip(*steps, strict=True)]
        rows += [[group, "predicted", f"{t:g}", f"{s:.6g}"] for t, s in zip(*curve, strict=True)]
    when, scores = brier_scores(survival[None], cuts[0], *labels.T)
    flat = brier_scores(_one_curve(survival, cuts[0], labels)[None], cuts[0], *labels.T)[1]
    errors = [
        [f"{t:g}", f"{model:.6g}", f"{same:.6g}"] for t, model, same in zip(when, scores[0], flat[0], strict=True)
    ]
    return [
        (
            _curves(name, groups),
            "survival by predicted risk",
            "Share without the event, in thirds of the test samples by predicted risk: steps as it was (Kaplan-Meier), "
            "dots the mean of what the model says. Steps are of test samples: keep this page as you keep those.",
            as_csv(rows),
            "survival.csv",
        ),
        (
            _error_over_time(name, when, scores[0], flat[0]),
            "Brier score over time",
            "Mean squared error of the predicted share at each time; dashed: one curve for all test samples.",
            as_csv([[name, "model", "one_curve"], *errors]),
            "brier.csv",
        ),
    ]


Curve = tuple[np.ndarray, np.ndarray]


def _thirds(survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> dict[str, tuple[Curve, Curve]]:
    """Of each third by risk the steps that were observed and the mean predicted curve."""
    order = np.argsort(mean_time(survival, cuts), kind="stable")
    found = {}
    for group, mine in zip(("high risk", "middle", "low risk"), np.array_split(order, 3), strict=True):
        if len(mine):
            curve = np.concatenate([[1.0], survival[mine].mean(axis=0)])
            found[group] = kaplan_meier(*labels[mine].T), (np.concatenate([[0.0], cuts]), curve)
    return found


def _one_curve(survival: np.ndarray, cuts: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Kaplan and Meier's curve of all samples at the cuts, for each of them: as ``survival``."""
    return np.tile(at(kaplan_meier(*labels.T), cuts), (len(survival), 1))


def _curves(name: str, groups: dict[str, tuple[Curve, Curve]]) -> Figure:
    figure, axes = empty(name, "share without the event")
    for (group, (steps, curve)), look in zip(groups.items(), GROUPS, strict=False):
        times, shares = np.concatenate([[0.0], steps[0]]), np.concatenate([[1.0], steps[1]])
        axes.step(times, shares, where="post", color=look.colour, lw=1.6, ls=look.dashes, label=group)
        axes.plot(*curve, ls="", marker=look.marker, ms=4.5, color=look.colour)
    axes.set_ylim(-0.02, 1.02)
    legend(axes)
    return figure


def _error_over_time(name: str, when: np.ndarray, scores: np.ndarray, flat: np.ndarray) -> Figure:
    figure, axes = empty(name, "Brier score")
    axes.plot(when, scores, color=LOOK.colour, marker=LOOK.marker, ms=4, lw=1.6, label="the model")
    axes.plot(when, flat, color=INK, lw=1.1, ls=(0, (5, 2)), label="one curve for all")
    axes.set_ylim(bottom=0)
    legend(axes)
    return figure


def _tenths(predicted: np.ndarray, true: np.ndarray) -> list[list[str]]:
    """Samples in the order of their predictions, in ten groups of equal size: how many, and their two means."""
    groups = np.array_split(np.argsort(predicted, kind="stable"), min(TENTHS, len(true)))
    return [[str(len(mine)), f"{predicted[mine].mean():.6g}", f"{true[mine].mean():.6g}"] for mine in groups]


def _true_over_predicted(name: str, predicted: np.ndarray, true: np.ndarray) -> Figure:
    figure, axes = empty(f"predicted {name}", f"true {name}")
    ends = [min(predicted.min(), true.min()), max(predicted.max(), true.max())]
    axes.plot(ends, ends, color=INK, lw=0.9, ls=(0, (1, 2)), label="perfect")
    axes.plot(predicted, true, ls="", marker="o", ms=3, color=LOOK.colour, alpha=0.45)
    rows = np.array([[float(cell) for cell in row] for row in _tenths(predicted, true)])
    axes.plot(rows[:, 1], rows[:, 2], ls="-", lw=1, marker="D", ms=4.5, color=INK, label="means of tenths")
    legend(axes)
    return figure


def _errors(name: str, predicted: np.ndarray, true: np.ndarray) -> Figure:
    figure, axes = empty(f"predicted {name}", "predicted minus true")
    apart = predicted - true
    spread = apart.std(ddof=1) if len(apart) > 1 else 0.0
    axes.axhline(0, color=INK, lw=0.9, ls=(0, (1, 2)))
    for place in (-Z95, 0, Z95):
        axes.axhline(apart.mean() + place * spread, color=LOOK.colour, lw=1.1, ls=(0, (5, 2)))
    axes.plot(predicted, apart, ls="", marker="o", ms=3, color=LOOK.colour, alpha=0.45)
    return figure


def reliability_of(said: np.ndarray, so: np.ndarray, groups: int) -> np.ndarray:
    """Samples in the order of a probability that is ``said``, in groups of equal size: (groups, 3).

    Of each how many there are, the mean of what is said, and the share of which it was ``so``.
    """
    parts = np.array_split(np.argsort(said, kind="stable"), min(groups, len(said)))
    return np.array([[len(mine), said[mine].mean(), so[mine].mean()] for mine in parts])


def reliability(curves: dict[str, np.ndarray]) -> Figure:
    """What was so over what is said, a line for each of a few ``curves`` of :func:`reliability_of`."""
    figure, axes = square("predicted", "observed")
    axes.plot([0, 1], [0, 1], color=INK, lw=0.9, ls=(0, (1, 2)))
    for (name, points), look in zip(curves.items(), MANY, strict=False):
        x, y = points[:, 1], points[:, 2]
        axes.plot(x, y, color=look.colour, ls=look.dashes, marker=look.marker, ms=4.5, lw=1.4, label=name)
    legend(axes)
    return figure


def empty(x: str, y: str) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, in the look of the page."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=SMALL, layout="constrained")
        axes = figure.subplots()
        axes.set(xlabel=x, ylabel=y)
    return figure, axes


def legend(axes: Axes) -> None:
    """The names of lines, in the ink of the page."""
    with mpl.rc_context(STYLE):
        axes.legend(fontsize=8.5, loc="best", labelcolor=INK, handlelength=2.2)
