"""Where the models of a run were, contact by contact, and what each had learnt from by then."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from fedsmall.extensions.travels.learnt import BAD, Learnt
from fedsmall.plan import Plan
from fedsmall.sim.report.chain import site_names
from fedsmall.sim.runs.chosen import reference_of
from fedsmall.sim.runs.folder import PlanRun, Run
from fedsmall.travel.journey import groups_of, journey
from fedsmall.travel.routes import among
from fedsmall.travel.schedule import Action, Contact

FEW = 12  # so many models are followed, and so many contacts shown, whole
MOST = 1000  # sites: what each model has learnt from is kept for every one of them
AFTER = 3  # contacts that are shown from an average on
BEFORE = 2  # and before one, where others are left out

Way = tuple[Contact, np.ndarray]  # a contact, and where each model trains for it


class Stop(NamedTuple):
    """A contact: where each model trained for it, and what models have learnt from when it is over.

    ``at`` (models,) are numbers of sites in the order of names. ``before``, ``trained`` and ``averaged`` (models,) are
    the shares of all samples, or of all sites where samples were not counted, that each model has learnt from as it
    comes, as it leaves, and after the average if there is one. ``sites`` and ``samples`` are means over the models as
    they leave. ``skipped`` contacts before this one are not shown.
    """

    t: int
    action: Action
    at: np.ndarray
    before: np.ndarray
    trained: np.ndarray
    averaged: np.ndarray
    sites: float
    samples: float
    skipped: int = 0


class Travels(NamedTuple):
    """The way of a plan's models: the sites' names and training samples (none where not known), groups, and stops."""

    plan: Plan
    names: tuple[str, ...]
    samples: tuple[int, ...]
    groups: np.ndarray
    stops: tuple[Stop, ...]

    @property
    def followed(self) -> list[int]:
        """The models that are drawn: all, or of many those that stand evenly in the order in which they set out."""
        models = len(self.groups)
        return [int(number) for number in np.linspace(0, models - 1, min(FEW, models))]


def travels(run: Run) -> Travels | None:
    """The way of the models of the run's main method, or of another; None where no model went anywhere.

    The ways are those of the plan (:func:`fedsmall.travel.journey.journey`), by which engines and real sites go. An
    update that a site did not give, or that was set aside, is an event of the run, and taught its model nothing.
    """
    done = [one for one in run.done if one.plan.method.moves]
    main = run.scenario.reference or reference_of([one.plan.method for one in run.done])
    for one in sorted(done, key=lambda one: one.label != main):
        samples = samples_of(one)
        names = tuple(samples) or tuple(site_names(run))
        count = len(names) or int(run.about.get("sites", 0))
        names = names or tuple(f"site {number + 1}" for number in range(count))
        if (found := travels_of(one, names, tuple(samples.values()))) is not None:
            return found
    return None


def samples_of(one: PlanRun) -> dict[str, int]:
    """The training samples of every site by name, in the order of names; empty where some are not known."""
    real = one.row.get("real", {}).get("sites", {})
    found = one.row.get("samples") or {site: told["samples"] for site, told in real.items()}
    return {site: found[site] for site in sorted(found)} if all(found.values()) else {}


def travels_of(one: PlanRun, names: tuple[str, ...], samples: tuple[int, ...]) -> Travels | None:
    """The way of the models of one plan's run over the sites of these ``names``; None where none went anywhere.

    None too where there are more than :data:`MOST` sites. ``samples`` are those on which each site trains; empty where
    they are not known.
    """
    plan, sites = among(one.plan, len(names)), len(names)
    apart = plan.method.regions is not None and plan.method.regions.are_apart(sites)
    if apart or not 2 <= sites <= MOST:
        return None
    try:
        ways = list(journey(plan, sites, samples))
    except ValueError:  # it takes numbers of samples that an older folder does not hold
        return None
    ways = [(contact, at) for contact, at in ways if contact.t <= one.row["rounds"]]
    if all((at == after).all() for (_, at), (_, after) in pairwise(ways)):
        return None
    counted = () if plan.method.by_samples else samples  # else a model trains on a part of a site's samples
    shown = which([contact.action for contact, _ in ways])
    stops = _stops(one, plan, ways[: shown[-1] + 1], names, counted)
    kept = [stops[index]._replace(skipped=index - before - 1) for before, index in pairwise([-1, *shown])]
    groups = groups_of(plan.method, len(ways[0][1]), plan.method.group_count(sites))
    return Travels(plan, names, counted, groups, tuple(kept))


def which(actions: Sequence[Action]) -> list[int]:
    """The contacts that are shown, by number: the first ones up to a little beyond the first average.

    Where that is late, those between the first and the last before it are left out.
    """
    every = list(range(len(actions)))
    first = next((index for index, action in enumerate(actions) if action is Action.AGGREGATE), None)
    if first is None or first + AFTER <= FEW:
        return every[: max(FEW if first is None else first + AFTER, FEW - 4)]
    late = every[first - BEFORE : first + AFTER]
    return [*every[: FEW - BEFORE - AFTER], *late]


def _stops(one: PlanRun, plan: Plan, ways: Sequence[Way], names: Sequence[str], samples: Sequence[int]) -> list[Stop]:
    """Every contact of the ``ways`` with what models have learnt from."""
    counts = np.array(samples or [1] * len(names))
    share, learnt, stops = counts / counts.sum(), Learnt(plan.method, len(ways[0][1]), len(names)), []
    for contact, at in ways:
        told = [each for each in one.events if each["t"] == contact.t and each.get("kind") in BAD]
        befell = {each["site"]: each["kind"] for each in told}
        before = learnt.seen @ share
        learnt.train(at, {names.index(site): kind for site, kind in befell.items() if site in names})
        left = learnt.seen.copy()  # (models, sites)
        if contact.action is Action.AGGREGATE:
            learnt.average(refused="server" in befell)
        shares, sites, met = (
            (before, left @ share, learnt.seen @ share),
            left.sum(axis=1).mean(),
            (left @ counts).mean(),
        )
        stops.append(Stop(contact.t, contact.action, at, *shares, float(sites), float(met)))
    return stops
