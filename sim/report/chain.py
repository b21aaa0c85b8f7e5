"""Where travelling models were, contact by contact, as a figure."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedsmall.plan import Plan
from fedsmall.sim.report.figures import INK, RULE, STYLE
from fedsmall.sim.report.style import LOOKS
from fedsmall.sim.runs.folder import Run
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Action

MOST_NAMES = 20
MOST_MARKED = 200  # sites whose every training is marked
MOST_COUNTED = 500  # models whose sites are counted
MODELS = ("FedDC", "FedAvg", "FedDC+Radon")  # looks for models that are followed


def chain(run: Run, followed: int = 3) -> Figure | None:
    """Where some models were after each contact, and how many sites a model has seen; None where nothing is chained."""
    plans = [plan for plan in run.plans if plan.method.permute_every and not plan.method.routes]
    plan = next((plan for plan in plans if plan.method.aggregate_every), None)
    plan = plan or next(iter(plans), None)
    sites = run.about.get("sites", 0)
    if plan is None or sites < 2 or (plan.method.regions is not None and plan.method.regions.are_apart(sites)):
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
        if len(names := site_names(run)) == sites <= MOST_NAMES:
            paths.set_yticks(range(sites), names)
            paths.set_ylabel("")
    return figure


def site_names(run: Run) -> list[str]:
    """The names of a run's sites in order, as far as its evaluations name them."""
    ends = [plan_run.evaluations[-1]["sites"].get("names") or [] for plan_run in run.done if plan_run.evaluations]
    return sorted(max(ends, key=len, default=[]))


def journeys(plan: Plan, sites: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Rounds (contacts,), each model's site after each, an index by name (contacts, models), and rounds of averaging."""
    contacts, places = zip(*journey(plan, sites), strict=True)
    averages = [contact.t for contact in contacts if contact.action is Action.AGGREGATE]
    return np.array([0, *(contact.t for contact in contacts)]), np.array([*places, places[-1]]), averages


def _paths(axes: Axes, rounds: np.ndarray, places: np.ndarray, sites: int, followed: int) -> None:
    models = places.shape[1]
    if sites <= MOST_MARKED:  # more would be a grey area, and megabytes
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
    """Sites that a model has trained at: fewest, mean and most over the models, or a sample of very many."""
    places = places[:, np.unique(np.linspace(0, places.shape[1] - 1, MOST_COUNTED).astype(int))]
    models = np.arange(places.shape[1])
    been, counts = np.zeros((len(models), sites), bool), [np.zeros(len(models), dtype=int)]
    for at in places[:-1]:
        counts.append(counts[-1] + ~been[models, at])
        been[models, at] = True
    seen = np.array(counts[1:])  # (contacts, models)
    look = LOOKS["FedDC"]
    axes.plot(rounds[1:], seen.mean(axis=1), color=look.colour, lw=1.8)
    axes.fill_between(rounds[1:], seen.min(axis=1), seen.max(axis=1), color=look.colour, alpha=0.15, lw=0)
    axes.axhline(sites, color=INK, lw=0.8, ls=(0, (1, 2)))
    axes.set_title("sites that a model has seen")
    axes.set(xlabel="round", ylim=(0, sites * 1.06))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
