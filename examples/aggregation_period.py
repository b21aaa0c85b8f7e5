"""The bound on the aggregation period (Kamp et al. 2023, Proposition 4), drawn for a federation and others around it.

Run it as ``python -m examples.aggregation_period SITES SAMPLES [FILE.svg]``; `fedsmall plan` prints what it draws.
"""

import sys
from collections.abc import Callable, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from fedsmall.planning.theory import Advice, advise, rounds_between_aggregations, samples_for, sites_to_visit
from fedsmall.sim.report.figures import INK, STYLE, WHITE, save

FAILURES = tuple(0.01 * i for i in range(1, 100, 4))  # as in the authors' notebook, like the two that follow
SIZES = (8, 16, 32, 64, 128, 256)
SITES = (50, 100, 150, 500, 2000)
COLOURS = ("#c9b6dd", "#9fb4d8", "#56a5d8", "#3aa6a6", "#12876f", "#0d5c4b")
MARKERS = "ovsDPh"
YOURS = "#d9541e"


def period_for(
    sites: int, samples_per_site: int, permute_every: int = 1, error: float = 0.05, failure: float = 0.01
) -> float | None:
    """Proposition 4's bound on b as a function of the federation; None where all its sites hold too few samples.

    For the sweeps of Appendix A.5.1, whose authors' notebook draws a number there, H of a negative index being zero.
    """
    visits = sites_to_visit(samples_for(error, sqrt(failure)), samples_per_site)
    return rounds_between_aggregations(sites, visits, permute_every, failure) if visits <= sites else None


def sweep(advice: Advice) -> Figure:
    """Proposition 4's bound over delta for sites of several sizes, and over n for several numbers of sites.

    The federation of ``advice`` is a thicker line, with a ring at its bound and a star where the simulation has every
    model through. What takes more sites than there are is left out.
    Source: Kamp et al. 2023, Appendix A.5.1; the grids are those of the authors' notebook.
    """
    m, n, d = advice.sites, advice.samples_per_site, advice.permute_every
    error, delta = advice.error, advice.failure
    with mpl.rc_context(STYLE | WHITE):
        figure = Figure(figsize=(8.2, 3.9), layout="constrained")
        by_failure, by_size = figure.subplots(1, 2)
        failures, sizes = sorted({*FAILURES, delta}), sorted({*SIZES, n})
        _lines(by_failure, "n", SIZES, n, failures, lambda size, chance: period_for(m, size, d, error, chance))
        by_failure.set(xlabel="delta, the chance of failure", title=f"m = {m}, by delta")
        _lines(by_size, "m", SITES, m, sizes, lambda sites, size: period_for(sites, int(size), d, error, delta))
        by_size.set(xlabel="n, samples of a site", title=f"delta = {delta:g}, by n")
        by_size.set_xscale("log", base=2)
        by_size.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:g}"))
        by_size.xaxis.set_minor_locator(NullLocator())
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
        bounds = [period(value, x) for x in xs]
        reached = [np.nan if bound is None else bound for bound in bounds]
        look: dict[str, Any] = {"color": YOURS, "lw": 2.4, "zorder": 4, "label": f"{symbol} = {value}, yours"}
        if value != own:
            index = values.index(value)
            look = {"color": COLOURS[index], "marker": MARKERS[index], "lw": 1.2, "zorder": 3}
            look["label"] = f"{symbol} = {value}"
        axes.plot(xs, reached, ms=4, **look)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda b, _: f"{b:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


if __name__ == "__main__":
    sites, samples = map(int, sys.argv[1:3])
    path = Path(sys.argv[3] if len(sys.argv) > 3 else "aggregation_period.svg")
    save(sweep(advise(sites, samples)), path)
    print(path)
