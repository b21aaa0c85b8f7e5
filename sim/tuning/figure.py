"""The figure of a search, as wide as a column of text, readable in grey."""

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fedsmall.plan import Method
from fedsmall.sim.report.figures import STYLE, WHITE
from fedsmall.sim.report.style import Style, looks
from fedsmall.sim.tuning.search import RateChoice

WIDTH = 6.8  # inches: a text column of the page


def sensitivity(choices: Mapping[str, RateChoice], methods: Sequence[Method], metric: str = "score") -> Figure:
    """Validation score against the learning rate, one curve a method, the chosen rate ringed."""
    drawn = looks(methods)
    with mpl.rc_context(STYLE | WHITE):
        figure, axes = column(0.48)
        for label, choice in choices.items():
            scores = choice.scores.values()
            ends = [[getattr(score, end) for score in scores] for end in ("mean", "low", "high")]
            line(axes, label, drawn[label], list(choice.scores), *ends)
            at = choice.scores[choice.lr].mean
            axes.plot(choice.lr, at, "o", mfc="none", mec=drawn[label].colour, ms=11, mew=1.5)
        axes.set_xscale("log")
        axes.set(
            xlabel="learning rate (ringed: chosen)", ylabel=f"{metric.replace('_', ' ')} on left-out training sites"
        )
        legend(axes)
    return figure


def column(height: float) -> tuple[Figure, Any]:
    """A figure as wide as a column, and its axes; its height is a share of that."""
    figure = Figure(figsize=(WIDTH, WIDTH * height))
    return figure, figure.add_subplot()


def line(axes: Any, label: str, look: Style, x: Sequence[float], mean: Any, low: Any, high: Any) -> None:
    """A line in a method's look, with a band from ``low`` to ``high``."""
    axes.plot(x, mean, label=label, color=look.colour, ls=look.dashes, marker=look.marker, ms=5, lw=1.5)
    axes.fill_between(x, low, high, color=look.colour, alpha=0.13, linewidth=0)


def legend(axes: Any, columns: int = 3) -> None:
    """The legend, above the axes."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.02), ncols=columns, fontsize=8)
