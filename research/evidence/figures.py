"""The figures of docs/evidence: vector graphics in the papers' own form, readable in grey."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from fedsmall.evaluation.statistics import interval
from fedsmall.research.evidence.items import Item
from fedsmall.research.evidence.result import EvidenceRow, ItemResult
from fedsmall.sim.report.figures import STYLE, WHITE, save
from fedsmall.sim.report.style import LOOKS, Style

WIDTH = 6.8  # inches: a text column of the page
NAMES = {"accuracy": "test accuracy", "auc": "ROC-AUC", "samples_per_site": "samples per site"}


def draw(item: Item, result: ItemResult, folder: Path, kind: str = "svg") -> Path | None:
    """Draw the figure of a result into ``folder`` and return its path; None where nothing was run."""
    if not result.rows:
        return None
    path = folder / f"{item.name}.{kind}"
    with mpl.rc_context(STYLE | WHITE):
        save(FIGURES[item.figure](item, result), path)
    return path


def curves(item: Item, result: ItemResult) -> Figure:
    """The sites' own models by rounds, with a band for the interval over seeds, and the global model as rings.

    Where a method has no models of sites (central training) the curve is its one model. Published finals are bars
    beyond the right edge.
    """
    figure, axes = column(0.48)
    drawn = result.looks()
    for label, whose in result.curves.items():
        line(axes, label, drawn[label], *(whose.get("sites") or whose["common"]))
        if "sites" in whose and "common" in whose:
            rounds, mean, *_ = whose["common"]
            axes.plot(rounds, mean, "o", mfc="none", mec=drawn[label].colour, ms=8, mew=1.2)
    edge = max(axes.get_lines()[0].get_xdata())
    comparable = [row for row in result.rows if _comparable(item, row)]
    for row in comparable:
        axes.plot([edge * 1.03, edge * 1.08], [row.published] * 2, color=drawn[row.label].colour, lw=2.5)
        axes.plot(edge * 1.055, row.published, drawn[row.label].marker, color=drawn[row.label].colour, ms=5)
    if comparable:
        top = ("data", "axes fraction")
        axes.annotate("published", (edge * 1.055, 1.0), xycoords=top, ha="center", fontsize=7.5)
    axes.set(xlabel="round", ylabel=f"{_named(item.metric)}\n(sites' own models; rings: common)")
    legend(axes)
    return figure


def bars(item: Item, result: ItemResult) -> Figure:
    """One row a method: mean and interval, every seed as a dot, the published number as a hollow diamond."""
    rows = list(reversed(result.of_methods))
    figure, axes = column(0.05 * len(rows) + 0.1)
    drawn = result.looks()
    for place, row in enumerate(rows):
        _dots(axes, drawn[row.label], row.values, float(place))
        if _comparable(item, row):
            axes.plot(row.published, place, "D", mfc="none", mec="black", ms=7, zorder=5)
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_xlabel(f"{_named(item.metric)} (mean and 95% interval; every seed a dot)")
    axes.grid(visible=False, axis="y")
    for row in (row for row in result.rows if row.trivial):
        axes.axvline(row.mean.mean, color="black", lw=1, ls=":", zorder=1, label=row.label)
        legend(axes, 2)
    if any(_comparable(item, row) for row in rows):
        axes.plot([], [], "D", mfc="none", mec="black", label="published")
        legend(axes, 2)
    return figure


def periods(item: Item, result: ItemResult) -> Figure:
    """Metric against the aggregation period b, one curve with daisy-chaining and one without; "never" at the right."""
    figure, axes = column(0.48)
    series: dict[str, list[tuple[float, EvidenceRow]]] = {}
    for row in result.of_methods:
        method, _, period = row.label.partition(", b=")
        series.setdefault(method, []).append((float("inf") if period == "never" else float(period), row))
    ticks = sorted({b for points in series.values() for b, _ in points if np.isfinite(b)})
    never = 2.5 * ticks[-1]
    for method, points in series.items():
        _series(axes, method, LOOKS[method], [(min(b, never), row) for b, row in points])
    axes.set_xscale("log")
    axes.set_xticks([*ticks, never], [*(f"{b:g}" for b in ticks), "never"])
    axes.minorticks_off()
    axes.set(xlabel="rounds between aggregations, b", ylabel=_named(item.metric))
    legend(axes, 2)
    return figure


def growing(item: Item, result: ItemResult) -> Figure:
    """Metric against the value that is varied, one curve a method."""
    figure, axes = column(0.48)
    for label, look in result.looks().items():
        _series(axes, label, look, [(float(row.variant), row) for row in result.rows if row.label == label])
    values = sorted({float(row.variant) for row in result.rows})
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:g}" for value in values])
    axes.minorticks_off()
    key = item.vary.key.rsplit(".", 1)[-1] if item.vary else ""
    axes.set(xlabel=_named(key), ylabel=_named(item.metric))
    legend(axes)
    return figure


def hospitals(item: Item, result: ItemResult) -> Figure:
    """One panel a hospital: the metric of the global model on its own held-out patients, one row a method."""
    table = result.hospitals
    if not table:
        return bars(item, result)
    drawn = result.looks()
    labels = [label for label in reversed(table) if label in drawn]
    sites = list(next(iter(table.values())))
    figure = Figure(figsize=(WIDTH * 1.3, 0.21 * len(labels) + 0.9), layout="constrained")
    for axes, site in zip(figure.subplots(1, len(sites), sharey=True), sites, strict=True):
        for place, label in enumerate(labels):
            values = [value for value in table[label].get(site, {}).get(item.metric, []) if np.isfinite(value)]
            if values:
                _dots(axes, drawn[label], values, float(place))
        axes.set_yticks(range(len(labels)), labels)
        axes.set_title(site)
        axes.grid(visible=False, axis="y")
    figure.supxlabel(f"{_named(item.metric)} of the global model on the hospital's own held-out patients", fontsize=9)
    return figure


FIGURES: dict[str, Callable[[Item, ItemResult], Figure]] = {
    "curves": curves,
    "bars": bars,
    "periods": periods,
    "growing": growing,
    "hospitals": hospitals,
}


def _comparable(item: Item, row: EvidenceRow) -> bool:
    """Whether a published number belongs into the figure: one from other data would only stretch its axis."""
    return row.published is not None and not item.apart


def _named(name: str) -> str:
    return NAMES.get(name, name.replace("_", " "))


def _dots(axes: Any, look: Style, values: Sequence[float], place: float) -> None:
    mean = interval(values)
    offsets = np.linspace(-0.22, 0.22, len(values)) if len(values) > 1 else np.zeros(1)
    axes.plot(values, place + offsets, ".", color=look.colour, alpha=0.45, ms=5, mew=0, zorder=2)
    if np.isfinite(mean.width):
        axes.plot([mean.low, mean.high], [place] * 2, color=look.colour, lw=2, zorder=3, solid_capstyle="butt")
    axes.plot(mean.mean, place, look.marker, color=look.colour, mec="black", mew=0.5, ms=6.5, zorder=4)


def _series(axes: Any, label: str, look: Style, points: Sequence[tuple[float, EvidenceRow]]) -> None:
    points = sorted(points, key=lambda point: point[0])
    ends = [[getattr(row.mean, end) for _, row in points] for end in ("mean", "low", "high")]
    line(axes, label, look, [value for value, _ in points], *ends)


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
