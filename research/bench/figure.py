"""The figure of ``fedsmall bench``: updates a second of every contender, and how the engine's cost grows."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from fedsmall.research.bench.timing import Measured
from fedsmall.sim.report.figures import STYLE

OURS, OTHERS = "#d9541e", "#8fa3b5"


def figure(measured: Sequence[Measured], growth: Sequence[dict[str, Any]]) -> Figure:
    """One panel for each workload, and one for each quantity that was varied."""
    workloads = list(dict.fromkeys(m.workload for m in measured))
    varied = list(dict.fromkeys(row["varied"] for row in growth))
    columns = max(len(workloads), len(varied), 1)
    with mpl.rc_context({**STYLE, "figure.facecolor": "white"}):
        drawn = Figure(figsize=(3.1 * columns, 2.6 * (1 + bool(varied))), layout="constrained")
        axes = drawn.subplots(1 + bool(varied), columns, squeeze=False)
        for place, key in enumerate(workloads):
            _bars(axes[0][place], key, [m for m in measured if m.workload == key])
        for place, name in enumerate(varied):
            _line(axes[1][place], name, [row for row in growth if row["varied"] == name])
        for empty in [a for row in axes for a in row if not a.has_data()]:
            empty.set_axis_off()
    return drawn


def _bars(axes: Axes, key: str, measured: Sequence[Measured]) -> None:
    labels = [m.contender for m in measured][::-1]
    rates = [m.rate for m in measured][::-1]
    axes.barh(labels, rates, color=[OURS if label == "cohort" else OTHERS for label in labels], height=0.62)
    if max(rates) > 10 * min(rates):
        axes.set_xscale("log")
        axes.set_xlim(min(rates) / 3, max(rates) * 12)
    else:
        axes.set_xlim(0, max(rates) * 1.3)
    axes.set_ylim(-0.7, max(len(rates), 4) - 0.3)
    axes.set_title(f"{key}: client updates a second")
    axes.grid(False)
    for height, rate in enumerate(rates):
        axes.annotate(f"{rate:,.0f}", (rate, height), (4, 0), textcoords="offset points", va="center", fontsize=8)


def _line(axes: Axes, name: str, rows: Sequence[dict[str, Any]]) -> None:
    sizes, costs = [row[name] for row in rows], [1e6 / row["rate"] for row in rows]
    axes.plot(sizes, costs, "o-", color=OURS)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0, 1.15 * max(costs))
    axes.set_xlabel(name)
    axes.set_title("microseconds per client update")
