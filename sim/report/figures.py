"""The figures of a run, as matplotlib figures and as SVG that takes the page's own ink, light or dark."""

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator

from fedsmall.evaluation.intervals import Scale, interval
from fedsmall.evaluation.metrics import LOWER_IS_BETTER
from fedsmall.journey import journey
from fedsmall.plan import Plan
from fedsmall.schedule import Action, contacts_of
from sim.report.sentences import named
from sim.report.style import LOOKS, Style, looks
from sim.report.tables import by_label, primary, scale_of, table
from sim.report.traffic import amount
from sim.runs.folder import PlanRun, Run

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

MODELS = ("FedDC", "FedAvg", "FedDC+Radon")  # looks for models that are followed

Points = list[tuple[float, list[float]]]  # x, and the values of all seeds there


def overview(run: Run) -> Figure:
    """Every method at the end of its runs: the common model with its interval, and each site's own model as a dot."""
    shown, groups = table(run), by_label(run.done)
    rows = shown.of_methods
    drawn = looks([row.method for row in rows if row.method])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 0.9 + 0.42 * len(rows)), layout="constrained")
        axes = figure.subplots()
        for height, row in enumerate(reversed(rows)):
            look = drawn[row.label]
            own = _per_site(groups[row.label], shown.metric)
            size = 9 if len(own) > 20 else 26
            axes.scatter(own, _jitter(len(own), height), s=size, color=look.colour, alpha=0.4, linewidths=0, zorder=2)
            if row.common is not None:
                low, high = np.nan_to_num([row.common.low, row.common.high], nan=row.common.mean)
                axes.plot([low, high], [height, height], color=look.colour, lw=2.4, zorder=3, solid_capstyle="butt")
                axes.plot(row.common.mean, height, look.marker, color=look.colour, ms=7.5, mec=INK, mew=0.7, zorder=4)
        axes.set_yticks(range(len(rows)), [row.label for row in reversed(rows)])
        axes.set_ylim(-0.6, len(rows) - 0.4)
        if shown.trivial and (least := shown.main(shown.trivial)):
            axes.axvline(least.mean, color=INK, lw=1.0, ls=(0, (1, 2)), zorder=1)
            axes.set_title(f"dotted: {shown.trivial.label}", loc="right", fontsize=8.5)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{named(shown.metric)} on the test samples")
        _as_shares(axes.xaxis, shown.metric)
    return figure


def curves(run: Run) -> Figure:
    """The course of a run: the common model by rounds and by bytes sent, and the sites' own models by rounds."""
    groups, metric = by_label(run.done), primary(run)
    drawn, scale = looks([group[0].plan.method for group in groups.values()]), scale_of(metric)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.2, 3.5), layout="constrained")
        common, sites, by_bytes = figure.subplots(1, 3, sharey=True)
        for label, group in groups.items():
            _curve(common, _points(group, "common", metric, _round), drawn[label], label, scale)
            _curve(sites, _points(group, "sites", f"{metric}_mean", _round), drawn[label], label, scale)
            if any(one.row["bytes_sent"] for one in group):
                _curve(by_bytes, _points(group, "common", metric, _bytes), drawn[label], label, scale)
        common.set(title="common model", xlabel="rounds", ylabel=named(metric))
        sites.set(title="sites' own models, mean over sites", xlabel="rounds")
        by_bytes.set(title="common model, by traffic", xlabel="bytes sent, all sites together")
        _as_amounts(by_bytes)
        _as_shares(common.yaxis, metric)
        if metric not in LOWER_IS_BETTER:
            common.set_ylim(top=min(common.get_ylim()[1], 1.02))
        for axes in (common, sites):
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        _legend(figure, (common, sites, by_bytes), list(drawn))
    return figure


def chain(run: Run, followed: int = 3) -> Figure | None:
    """Where some models were after each contact, and how many sites a model has seen; None where nothing is chained."""
    plans = [plan for plan in run.plans if not plan.method.phases]  # whose models do not all set out at once
    plan = next((plan for plan in plans if plan.method.permute_every and plan.method.aggregate_every), None)
    plan = plan or next((plan for plan in plans if plan.method.permute_every), None)
    sites = run.about.get("sites", 0)
    if plan is None or sites < 2:
        return None
    rounds, places, averages = journeys(plan, sites)
    # up to a little beyond the first average, where that is not too much to look at
    contacts = next((index + 3 for index, t in enumerate(rounds) if t in averages and index < 30), 25)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10.2, 3.1), layout="constrained")
        paths, seen = figure.subplots(1, 2, width_ratios=(2.2, 1))
        _paths(paths, rounds[:contacts], places[:contacts], sites, followed)
        shown = [t for t in averages if t <= rounds[:contacts][-1]]
        for t in shown:
            paths.axvline(t, color=INK, lw=1.1, ls=(0, (4, 2)))
        paths.set_xlabel("round" + " (dashed upright line: all models are averaged)" * bool(shown))
        paths.set_title(f"{plan.method.label}, seed {plan.seed}: where {min(followed, sites)} of {sites} models were")
        _seen(seen, rounds, places, sites)
    return figure


def journeys(plan: Plan, sites: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Where each model is after each contact: rounds (contacts,), sites (contacts, models), and rounds of averaging.

    Sites stand for their names in order. Replays the run's own routes; a silent site's wait is not in it.
    """
    contacts, places = zip(*journey(plan, sites), strict=True)
    averages = [contact.t for contact in contacts if contact.action is Action.AGGREGATE]
    return np.array([0, *(contact.t for contact in contacts)]), np.array([*places, places[-1]]), averages


def _paths(axes: Axes, rounds: np.ndarray, places: np.ndarray, sites: int, followed: int) -> None:
    models = places.shape[1]
    grid_x, grid_y = np.meshgrid(rounds, np.arange(sites))
    axes.scatter(grid_x, grid_y, s=2.5, color=RULE, linewidths=0)
    chosen = np.linspace(0, models - 1, min(followed, models)).astype(int)
    for look, model in zip((LOOKS[name] for name in MODELS), chosen, strict=False):
        path = places[:, model]
        axes.plot(rounds, path, color=look.colour, ls=look.dashes, marker=look.marker, ms=5, lw=1.6)
    axes.set_ylabel("site")
    axes.grid(visible=False)
    axes.margins(x=0.01)
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))


def _seen(axes: Axes, rounds: np.ndarray, places: np.ndarray, sites: int) -> None:
    """Sites that a model has trained at, over the models: the fewest, the mean, the most."""
    models = places.shape[1]
    been = np.zeros((models, sites), bool)
    counts = []
    for at in places[:-1]:
        been[np.arange(models), at] = True
        counts.append(been.sum(axis=1))
    seen = np.array(counts)  # (contacts, models)
    look = LOOKS["FedDC"]
    axes.plot(rounds[1:], seen.mean(axis=1), color=look.colour, lw=1.8)
    axes.fill_between(rounds[1:], seen.min(axis=1), seen.max(axis=1), color=look.colour, alpha=0.15, lw=0)
    axes.axhline(sites, color=INK, lw=0.8, ls=(0, (1, 2)))
    axes.set_title("sites that a model has seen")
    axes.set(xlabel="round", ylim=(0, sites * 1.06))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def svg(figure: Figure, title: str) -> str:
    """The figure as an SVG element for a page: text stays text, ink and rules are the page's own."""
    text = io.StringIO()
    with mpl.rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    body = text.getvalue()
    body = body[body.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    body = re.sub(
        r'width="([\d.]+)pt" height="([\d.]+)pt"', r'style="width:100%;max-width:\1pt;height:auto"', body, count=1
    )
    body = body.replace(INK, "currentColor").replace(RULE, "var(--rule)")
    body = body.replace("'DejaVu Sans'", "system-ui").replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
    return body


def _curve(axes: Axes, points: Points, look: Style, label: str, scale: Scale) -> None:
    if not points:
        return
    x = [at for at, _ in points]
    means = [interval(values, scale=scale) for _, values in points]
    middle = [mean.mean for mean in means]
    every = max(1, len(x) // 8)
    axes.plot(
        x, middle, color=look.colour, ls=look.dashes, marker=look.marker, ms=4.5, lw=1.6, markevery=every, label=label
    )
    if all(mean.n > 1 for mean in means):
        low, high = [mean.low for mean in means], [mean.high for mean in means]
        axes.fill_between(x, low, high, color=look.colour, alpha=0.15, lw=0)


def _points(group: Sequence[PlanRun], whose: str, name: str, along: Callable[[PlanRun, int], float]) -> Points:
    """The values of all seeds at every x that all of them have."""
    values: dict[float, list[float]] = {}
    for one in group:
        for evaluation in one.evaluations:
            value = (evaluation[whose] or {}).get(name)
            if value is not None and np.isfinite(value):
                values.setdefault(along(one, evaluation["t"]), []).append(float(value))
    return [(x, here) for x, here in sorted(values.items()) if len(here) == len(group)]


def _round(one: PlanRun, t: int) -> float:
    return float(t)


def _bytes(one: PlanRun, t: int) -> float:
    """Bytes sent up to round ``t``: contacts of one run all cost the same."""
    contacts = [contact.t for contact in contacts_of(one.plan)]
    return float(one.row["bytes_sent"] * sum(due <= t for due in contacts) / len(contacts))


def _per_site(group: Sequence[PlanRun], metric: str) -> np.ndarray:
    """Each site's own model at the end, mean over the seeds."""
    last = [one.evaluations[-1]["sites"].get("per_site", {}).get(metric) for one in group]
    values = [each for each in last if each is not None]
    same = bool(values) and len({len(each) for each in values}) == 1
    return np.asarray(np.mean(values, axis=0)) if same else np.array([])


def _jitter(count: int, height: int) -> np.ndarray:
    """Heights that keep dots apart, the same every time."""
    heights: np.ndarray = height + 0.26 * np.sin(np.arange(count) * 2.399963)
    return heights


def _legend(figure: Figure, axes: Sequence[Axes], order: Sequence[str]) -> None:
    handles: dict[str, Any] = {}
    for part in axes:
        for handle, label in zip(*part.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    labels = [label for label in order if label in handles]
    figure.legend([handles[label] for label in labels], labels, loc="outside upper left", ncols=min(len(labels), 5))


def _as_amounts(axes: Axes) -> None:
    """A logarithmic axis of bytes, told as a reader wants them."""
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, numticks=6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: amount(size)))
    low, high = axes.get_xlim()
    few = high / low < 15
    axes.xaxis.set_minor_locator(LogLocator(10, subs=(2.0, 5.0) if few else ()))
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda size, _: amount(size)))


def _as_shares(axis: Any, metric: str) -> None:
    if metric not in LOWER_IS_BETTER:
        axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.0f}%"))
