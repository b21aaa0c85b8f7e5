"""The bound on the aggregation period over chances of failure, site sizes and numbers of sites, as one figure."""

from collections.abc import Callable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from fedsmall.planning.theory import Advice, period_for
from fedsmall.sim.report.figures import INK, STYLE

FAILURES = tuple(0.01 * i for i in range(1, 100, 4))  # as in the authors' notebook, like the two that follow
SIZES = (8, 16, 32, 64, 128, 256)
SITES = (50, 100, 150, 500, 2000)
COLOURS = ("#c9b6dd", "#9fb4d8", "#56a5d8", "#3aa6a6", "#12876f", "#0d5c4b")
MARKERS = "ovsDPh"
YOURS = "#d9541e"


def sweep(advice: Advice) -> Figure:
    """Proposition 4's bound over delta for sites of several sizes, and over n for several numbers of sites.

    The federation of ``advice`` is a thicker line, with a ring at its bound and a star where the simulation has every
    model through. What takes more sites than there are is left out.
    Source: Kamp et al. 2023, Appendix A.5.1; the grids are those of the authors' notebook.
    """
    m, n, d = advice.sites, advice.samples_per_site, advice.permute_every
    error, delta = advice.error, advice.failure
    with mpl.rc_context(STYLE | {"figure.facecolor": "white", "axes.facecolor": "white"}):
        figure = Figure(figsize=(8.2, 3.9), layout="constrained")
        by_failure, by_size = figure.subplots(1, 2)
        failures, sizes = sorted({*FAILURES, delta}), sorted({*SIZES, n})
        _lines(by_failure, "n", SIZES, n, failures, lambda size, chance: period_for(m, size, d, error, chance))
        by_failure.set(xlabel="delta, the chance of failure", title=f"m = {m}, by delta")
        _lines(by_size, "m", SITES, m, sizes, lambda sites, size: period_for(sites, int(size), d, error, delta))
        by_size.set(xlabel="n, samples of a site", title=f"delta = {delta:g}, by n")
        _sizes(by_size)
        for axes, x in ((by_failure, delta), (by_size, n)):
            axes.plot(x, advice.bound, "o", color="none", mec=YOURS, mew=1.8, ms=11, zorder=5, label="your bound")
            axes.plot(x, advice.all_models, "*", color=YOURS, mec=INK, mew=0.7, ms=11, zorder=6, label="simulated")
            axes.legend(fontsize=8, labelcolor=INK)
        by_failure.set_ylabel("b at least, in rounds")
        figure.suptitle(f"Proposition 4: rounds between aggregations, epsilon = {error:g}, d = {d}", fontsize=10.5)
    return figure


def _lines(
    axes: Axes,
    symbol: str,
    values: Sequence[int],
    own: int,
    xs: Sequence[float],
    period: Callable[[int, float], float | None],
) -> None:
    for value in sorted({*values, own}):
        yours = value == own
        bounds = [period(value, x) for x in xs]
        reached = [np.nan if bound is None else bound for bound in bounds]
        index = values.index(value) if value in values else 0
        colour, marker = (YOURS, None) if yours else (COLOURS[index], MARKERS[index])
        axes.plot(
            xs,
            reached,
            color=colour,
            marker=marker,
            ms=4,
            lw=2.4 if yours else 1.2,
            zorder=4 if yours else 3,
            label=f"{symbol} = {value}" + ", yours" * yours,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda b, _: f"{b:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _sizes(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
