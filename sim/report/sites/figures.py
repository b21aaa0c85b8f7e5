"""Figures of a run over real sites, from sums: the ROC curve at the edges of bins, calibration, seconds of contacts."""

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsmall.evaluation.clinical import wilson
from fedsmall.sim.report.figures import INK, LARGE, SMALL, STYLE, square
from fedsmall.sim.report.sites.at_home import AtHome
from fedsmall.sim.report.style import LOOKS, SPARE, looks
from fedsmall.sim.runs.files import as_csv

MOST_CURVES = 12


def drawings(shown: AtHome) -> list[tuple[Figure, str, str, str, str]]:
    """Figure, title, caption, data as CSV, and the name of the file of the data; those that the run has numbers for."""
    whole, found = shown.together, []
    if whole.get("roc"):
        caption = "ROC curve of all patients together, a point at every edge of the bins in which scores were told."
        found.append((roc_figure(shown), "ROC curve", caption, _roc_data(shown), "roc.csv"))
    if whole.get("confidence"):
        caption = "Calibration: of those named with such a probability, how many are. Upright: Wilson's interval."
        found.append((calibration_figure(shown), "calibration", caption, _calibration_data(shown), "calibration.csv"))
    if len(shown.real["contacts"]) > 2:
        caption = "Seconds of each contact, from the first order to the last answer."
        found.append((contacts_figure(shown), "seconds of contacts", caption, _contacts_data(shown), "contacts.csv"))
    return found


def roc_figure(shown: AtHome) -> Figure:
    """Sensitivity over 1 - specificity; of more than two classes each against the rest."""
    figure, axes = square("1 - specificity", "sensitivity")
    axes.plot([0, 1], [0, 1], color=INK, lw=0.9, ls=(0, (1, 2)), label="always one class")
    names = shown.classes[1:] if shown.two else shown.classes or shown.labels
    styles = [_look(shown)] if shown.two else [*SPARE, *LOOKS.values()]
    curves = shown.together["roc"][:MOST_CURVES]
    for (x, y), name, look in zip(curves, names, styles, strict=False):
        axes.plot(x, y, color=look.colour, marker=".", ms=4, lw=1.8, label=shown.one.label if shown.two else name)
    axes.legend(fontsize=8.5, loc="best", labelcolor=INK, frameon=False)
    return figure


def calibration_figure(shown: AtHome) -> Figure:
    """The share that was right over the probability of the class that was named."""
    figure, axes = square("probability of the class that is named", "share that is of it")
    axes.plot([0, 1], [0, 1], color=INK, lw=0.9, ls=(0, (1, 2)), label="perfect")
    bins, look = _bins(shown), _look(shown)
    x = [sure for _, sure, *_ in bins]
    axes.plot(x, [each[2] for each in bins], color=look.colour, marker=look.marker, ms=4.5, lw=1.4)
    axes.vlines(x, [each[3] for each in bins], [each[4] for each in bins], color=look.colour, lw=1.2)
    axes.legend(fontsize=8.5, loc="best", labelcolor=INK, frameon=False)
    return figure


def contacts_figure(shown: AtHome) -> Figure:
    """Seconds of contacts over rounds."""
    with mpl.rc_context(STYLE | LARGE):
        figure = Figure(figsize=SMALL, layout="constrained")
        axes = figure.subplots()
        rounds, seconds, _ = zip(*sorted(shown.real["contacts"]), strict=True)
        axes.plot(rounds, seconds, color=_look(shown).colour, marker=".", ms=5, lw=1.2)
        axes.set(xlabel="round", ylabel="seconds", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def _look(shown: AtHome):  # type: ignore[no-untyped-def]
    return looks([shown.one.plan.method])[shown.one.label]


def _bins(shown: AtHome) -> list[tuple[int, float, float, float, float]]:
    """Of each bin that holds somebody: how many, mean probability, share that was right, and the interval of that."""
    found = []
    for count, sure, right in np.array(shown.together["confidence"]).T:
        if count:
            share = wilson(int(right), int(count))
            found.append((int(count), float(sure / count), share.value, share.low, share.high))
    return found


def _roc_data(shown: AtHome) -> str:
    names = shown.classes[1:] if shown.two else shown.classes or shown.labels
    rows = [["class", "false_positive_rate", "sensitivity"]]
    for name, curve in zip(names, shown.together["roc"], strict=True):
        rows += [[name, *(f"{value:.6g}" for value in point)] for point in zip(*curve, strict=True)]
    return as_csv(rows)


def _calibration_data(shown: AtHome) -> str:
    heads = ["samples", "predicted", "observed", "observed_low", "observed_high"]
    return as_csv([heads, *(list(map(str, each)) for each in _bins(shown))])


def _contacts_data(shown: AtHome) -> str:
    return as_csv([["round", "seconds", "answers"], *(list(map(str, each)) for each in sorted(shown.real["contacts"]))])
