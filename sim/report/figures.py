"""The figures of a run and of a plan: matplotlib's, and SVG that takes the page's own ink, light or dark."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from fedsmall.evaluation.metrics import LOWER_IS_BETTER
from fedsmall.evaluation.statistics import Interval, interval
from fedsmall.sim.report.sentences import amount, metric_name
from fedsmall.sim.report.style import Style, looks
from fedsmall.sim.report.tables import by_label, is_percent, primary, scale_of, table
from fedsmall.sim.runs.folder import PlanRun, Run
from fedsmall.sim.runs.hospitals import Growth
from fedsmall.travel.schedule import comm_rounds_of

INK, RULE = "#1b2530", "#d5dae1"  # become currentColor and var(--rule) in a page
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": 10,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "fedsmall",
}

WHITE = {"figure.facecolor": "white", "axes.facecolor": "white"}  # of a file that stands by itself
LARGE: dict[Any, Any] = {"font.size": 11, "axes.labelsize": 11}  # of figures that a telephone shows small
SMALL, LOW = (4.1, 3.9), (4.1, 3.4)  # inches, of figures of which several stand side by side

Points = list[tuple[float, Interval]]  # x, and the mean over seeds there


class Line(NamedTuple):
    """A line as matplotlib has it in its ``look``; ``band`` and ``bars`` are (low, high) at every ``x``."""

    x: Any
    y: Any
    look: Mapping[str, Any]
    band: Any = None
    bars: Any = None


def draw(place: tuple[Figure, Axes], lines: Iterable[Line], names: bool = True) -> Figure:
    """Draw lines with their bands and bars into a figure, with a legend of their ``names``."""
    figure, axes = place
    for line in lines:
        if line.y is not None:
            axes.plot(line.x, line.y, **line.look)
        if line.band is not None:
            axes.fill_between(line.x, *line.band, color=line.look["color"], alpha=0.16, lw=0)
        if line.bars is not None:
            axes.vlines(line.x, *line.bars, color=line.look["color"], lw=1.2)
    if names:
        with mpl.rc_context(STYLE):
            axes.legend(fontsize=8.5, loc="best", labelcolor=INK, handlelength=2.2)
    return figure


def empty(x: str, y: str, style: dict[Any, Any] = STYLE, size: tuple[float, float] = SMALL) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, in the look of the page."""
    with mpl.rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.set(xlabel=x, ylabel=y)
    return figure, axes


def square(x: str, y: str) -> tuple[Figure, Axes]:
    """A small figure whose two axes are shares, from 0 to 1."""
    figure, axes = empty(x, y, STYLE | LARGE)
    with mpl.rc_context(STYLE | LARGE):
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xticks=np.linspace(0, 1, 6), yticks=np.linspace(0, 1, 6))
    return figure, axes


def save(figure: Figure, path: Path) -> None:
    """Write a figure so that equal numbers give equal files."""
    figure.savefig(path, bbox_inches="tight", dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def overview(run: Run) -> Figure:
    """Every method at the end of its runs: the global model with its interval, and each site's own model as a dot."""
    shown, groups = table(run), by_label(run.done)
    rows = shown.of_methods
    drawn = looks([row.method for row in rows if row.method])
    with mpl.rc_context(STYLE | LARGE):
        figure = Figure(figsize=(5.2, 1.0 + 0.46 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for height, row in enumerate(reversed(rows)):
            look = drawn[row.label]
            of_sites = _per_site(groups[row.label], shown.metric)
            size = 9 if len(of_sites) > 20 else 26
            heights = height + 0.26 * np.sin(np.arange(len(of_sites)) * 2.399963)  # keep dots apart, always the same
            axes.scatter(of_sites, heights, s=size, color=look.colour, alpha=0.4, linewidths=0, zorder=2)
            if row.common is not None:
                low, high = np.nan_to_num([row.common.low, row.common.high], nan=row.common.mean)
                axes.plot([low, high], [height, height], color=look.colour, lw=2.4, zorder=3, solid_capstyle="butt")
                axes.plot(row.common.mean, height, look.marker, color=look.colour, ms=7.5, mec=INK, mew=0.7, zorder=4)
        axes.set_yticks(range(len(rows)), [row.label for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        ends = {shown.trivial.label: shown.main(shown.trivial)} if shown.trivial else {}
        ends |= {"a site alone": shown.alone, **shown.central}
        known = [(name, end.mean) for name, end in ends.items() if end is not None]
        lines = {"dotted": (0, (1, 2)), "dashed": (0, (5, 3)), "dash-dotted": (0, (6, 2, 1, 2))}
        for dashes, (_, mean) in zip(lines.values(), known, strict=False):  # pooled: a regression's before Central's
            axes.axvline(mean, color=INK, lw=1.0, ls=dashes, zorder=1)
        styles = [f"{dashes}: {name}" for dashes, (name, _) in zip(lines, known, strict=False)]
        axes.set_title("\n".join(styles), loc="right", fontsize=8.5)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{metric_name(shown.metric)} on the test samples")
        _as_shares(axes.xaxis, shown.metric)
        low, high = axes.get_xlim()
        axes.set_xlim(max(low, -0.01), high if shown.lower_is_better else min(high, 1.01))
    return figure


class Panel(NamedTuple):
    """A part of the course of a run: whose models, along what, and how that is called."""

    title: str
    whose: str
    along: str
    x: str


PANELS = {
    "common": Panel("global model, by rounds", "common", "rounds", "rounds"),
    "sites": Panel("local models, mean over sites", "sites", "rounds", "rounds"),
    "bytes": Panel("global model, by traffic", "common", "bytes", "bytes sent, all sites together"),
}


def curves(run: Run) -> Figure:
    """The course of a run: the global model by rounds and by bytes sent, and local models by rounds."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.2, 3.5), layout="constrained")
        parts = figure.subplots(1, 3, sharey=True)
        for axes, (name, panel) in zip(parts, PANELS.items(), strict=True):
            _panel((figure, axes), run, name)
            axes.set(title=panel.title)
        parts[0].set(ylabel=metric_name(primary(run)))
        named = [zip(*part.get_legend_handles_labels(), strict=True) for part in reversed(parts)]
        handles = {label: handle for pairs in named for handle, label in pairs}
        labels = [label for label, _ in course_looks(run) if label in handles]
        figure.legend([handles[name] for name in labels], labels, loc="outside upper left", ncols=min(len(labels), 5))
    return figure


def course(run: Run, name: str) -> Figure:
    """One panel of :func:`curves` by itself, as large as a telephone is wide."""
    place = empty("", metric_name(primary(run)), STYLE | LARGE, LOW)
    with mpl.rc_context(STYLE | LARGE):
        return _panel(place, run, name)


def growth(run: Run, grown: Growth) -> Figure:
    """What methods come to against the number of hospitals that take part; bands are 95% intervals over seeds."""
    looks_of, points_of = dict(course_looks(run)), growth_points(grown)
    figure, axes = empty("hospitals", metric_name(grown.metric), STYLE | LARGE, LOW)
    with mpl.rc_context(STYLE | LARGE):
        lines = [
            course_line(points, looks_of[label], label) for label, points in points_of.items() if label in looks_of
        ]
        draw((figure, axes), lines, names=False)
        counts = sorted({int(hospitals) for points in points_of.values() for hospitals, _ in points})
        axes.set_xscale("log")
        axes.set_xticks(counts, [str(count) for count in counts], minor=False)
        axes.minorticks_off()
    return figure


def growth_points(grown: Growth) -> dict[str, Points]:
    """By method how many hospitals took part, and what came of it."""
    return {
        label: [
            (float(count), interval(found, scale=scale_of(grown.metric)))
            for count, found in sorted(values.items())
            if found
        ]
        for label, values in grown.values.items()
    }


def has_course(run: Run) -> bool:
    """Whether a method was judged more than once, so that there is a line to draw."""
    return any(len(plan_run.evaluations) > 1 for plan_run in run.done)


def course_looks(run: Run) -> list[tuple[str, Style]]:
    """How each method is drawn, in the order of tables."""
    return list(looks([group[0].plan.method for group in by_label(run.done).values()]).items())


def course_points(run: Run, name: str) -> dict[str, Points]:
    """What a panel draws, by method: every x that all seeds have, and the mean of their values there."""
    panel, metric = PANELS[name], primary(run)
    scale = scale_of(metric)
    key = metric if panel.whose == "common" else f"{metric}_mean"
    of_methods: dict[str, Points] = {}
    for label, group in by_label(run.done).items():
        if panel.along == "bytes" and not any(plan_run.row["bytes_sent"] for plan_run in group):
            continue
        values: dict[float, list[float]] = {}
        for plan_run in group:
            for evaluation in plan_run.evaluations:
                value = (evaluation[panel.whose] or {}).get(key)
                if value is not None and np.isfinite(value):
                    x = float(evaluation["t"]) if panel.along == "rounds" else _bytes(plan_run, evaluation["t"])
                    values.setdefault(x, []).append(float(value))
        whole = [(x, of_seeds) for x, of_seeds in sorted(values.items()) if len(of_seeds) == len(group)]
        of_methods[label] = [(x, interval(of_seeds, scale=scale)) for x, of_seeds in whole]
    return of_methods


def _panel(place: tuple[Figure, Axes], run: Run, name: str) -> Figure:
    metric, drawn, shown = primary(run), dict(course_looks(run)), table(run)
    lines = [course_line(points, drawn[label], label) for label, points in course_points(run, name).items() if points]
    figure, axes = place
    draw(place, lines, names=False)
    axes.set(xlabel=PANELS[name].x)
    if PANELS[name].along == "bytes":
        _as_amounts(axes)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if shown.trivial and (least := shown.main(shown.trivial)):
        axes.axhline(least.mean, color=INK, lw=1.0, ls=(0, (1, 2)), zorder=1)
    _as_shares(axes.yaxis, metric)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, 0.0), high if metric in LOWER_IS_BETTER else min(high, 1.0))
    return figure


def svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element for a page: text stays text, ink and rules are the page's own."""
    text = io.StringIO()
    canvas: Any = FigureCanvasSVG(figure)
    with mpl.rc_context(STYLE):  # not savefig, which would lay the figure out and draw it twice, to the same letters
        canvas.print_svg(text, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(
        r'width="([\d.]+)pt" height="([\d.]+)pt"', r'style="width:100%;max-width:\1pt;height:auto"', body, count=1
    )
    body = re.sub(r'(?<= )(d|x|y)="[^"]*"', lambda place: re.sub(r"(\.\d\d)\d+", r"\1", place[0]), body)
    body = body.replace(INK, "currentColor").replace(RULE, "var(--rule)")
    body = body.replace("'DejaVu Sans'", "system-ui").replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
    return body


def course_line(points: Points, look: Style, label: str) -> Line:
    """The line of a method in its look, with a band where its means are over several."""
    x, means = zip(*points, strict=True)
    drawn: dict[str, Any] = {"color": look.colour, "ls": look.dashes, "marker": look.marker, "label": label}
    drawn |= {"ms": 4.5, "lw": 1.6, "markevery": max(1, len(x) // 8)}
    several = all(mean.n > 1 for mean in means)
    band = ([mean.low for mean in means], [mean.high for mean in means]) if several else None
    return Line(x, [mean.mean for mean in means], drawn, band)


def _bytes(plan_run: PlanRun, t: int) -> float:
    """Bytes sent up to round ``t``: all communication rounds cost the same, unless averages may be left out."""
    comm_rounds = [comm_round.t for comm_round in comm_rounds_of(plan_run.plan)]
    if "averages" in plan_run.row:
        by_then = zip(comm_rounds, plan_run.row["averages"]["bytes_sent"], strict=False)
        return float(max((sent for due, sent in by_then if due <= t), default=0))
    return float(plan_run.row["bytes_sent"] * sum(due <= t for due in comm_rounds) / len(comm_rounds))


def _per_site(group: Sequence[PlanRun], metric: str) -> np.ndarray:
    last = [plan_run.evaluations[-1]["sites"].get("per_site", {}).get(metric) for plan_run in group]
    values = [value for value in last if value is not None]
    same = bool(values) and len({len(value) for value in values}) == 1
    return np.asarray(np.mean(values, axis=0)) if same else np.array([])


def _as_amounts(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, numticks=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: amount(size)))
    low, high = axes.get_xlim()
    few = high / low < 15
    axes.xaxis.set_minor_locator(LogLocator(10, subs=(2.0, 5.0) if few else ()))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda size, _: amount(size)))


def _as_shares(axis: Any, metric: str) -> None:
    if is_percent(metric):
        axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%"))
