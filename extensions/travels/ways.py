"""Where the models of a run were, contact by contact, and from which sites each had learnt by then."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np

from fedsmall.plan import Method, Plan
from fedsmall.planning.validation import among
from fedsmall.sim.report.figures import site_names
from fedsmall.sim.runs.folder import PlanRun, Run, reference_of
from fedsmall.travel.journey import groups_of, journey
from fedsmall.travel.schedule import Action, Contact

MISSED = ("absent", "silent", "set aside", "refused")  # kinds of events: a site gave no update that was used
REPLACED = "replaced"  # by the last common model, for what the site of this event had trained
BAD = (*MISSED, REPLACED)


@final
class Learnt:
    """``seen`` (models, sites): from which sites models have learnt, by the rules of what counts in averages."""

    def __init__(self, method: Method, models: int, sites: int) -> None:
        self._method = method
        self.seen = np.zeros((models, sites), bool)
        self._group = groups_of(method, models, method.group_count(sites))
        self._commons = np.zeros((method.group_count(sites), sites), bool)
        self._trained, self._here = np.zeros(models, bool), np.zeros(models, bool)  # since the average; just now
        self._by = np.full(models, -1)  # the site that trained it last
        self._turn = 0

    def train(self, at: np.ndarray, befell: Mapping[int, str]) -> None:
        """Models train at the sites ``at`` (models,), to some of which ``befell`` a kind of :data:`BAD`."""
        kinds = [befell.get(site) for site in at.tolist()]
        replaced = np.array([befell.get(site) == REPLACED for site in self._by.tolist()])
        self._here = np.array([kind not in MISSED for kind in kinds]) & ~replaced
        self.seen[replaced], self._trained[replaced] = self._commons[self._group[replaced]], False
        self.seen[self._here, at[self._here]] = True
        self._by[self._here] = at[self._here]
        self._trained |= self._here

    def average(self, refused: bool = False) -> None:
        """The models of each group become one, unless its average is ``refused``."""
        counted = self._trained & self._here if self._method.hidden else self._trained
        turns = self._method.by_samples
        for group in [self._turn] if turns else range(len(self._commons)):
            members = counted & (self._group == group)
            if members.any() and not refused:
                self._commons[group] = self.seen[members].any(axis=0)
        if turns:
            self._turn = (self._turn + 1) % len(self._commons)
            self._group[:] = self._turn
        self.seen, self._trained[:] = self._commons[self._group], False


FEW = 12  # so many models are followed, and so many contacts shown, whole
MOST = 1000  # sites: what each model has learnt from is kept for every one of them
AFTER = 3  # contacts that are shown from an average on
BEFORE = 2  # and before one, where others are left out

Way = tuple[Contact, np.ndarray]  # a contact, and where each model trains for it


class Stop(NamedTuple):
    """A contact: where each model trained for it, and what models have learnt from when it is over.

    ``at`` (models,) are indices of sites in the order of names. ``before``, ``trained`` and ``averaged`` (models,) are
    the shares of all samples (else sites) that each model has learnt from as it comes, as it leaves, and after the
    average; ``sites`` and ``samples`` means over models as they leave. ``skipped`` contacts before this one are not
    shown.
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
    """The ways of the models of the run's main method, or of another; None where no model went anywhere."""
    done = [plan_run for plan_run in run.done if plan_run.plan.method.moves]
    main = run.scenario.reference or reference_of([plan_run.plan.method for plan_run in run.done])
    for plan_run in sorted(done, key=lambda plan_run: plan_run.label != main):
        samples = samples_of(plan_run)
        names = tuple(samples) or tuple(site_names(run))
        count = len(names) or int(run.about.get("sites", 0))
        names = names or tuple(f"site {number + 1}" for number in range(count))
        if (ways := travels_of(plan_run, names, tuple(samples.values()))) is not None:
            return ways
    return None


def samples_of(plan_run: PlanRun) -> dict[str, int]:
    """The training samples of every site by name, in the order of names; empty where some are not known."""
    real = plan_run.row.get("real", {}).get("sites", {})
    samples = plan_run.row.get("samples") or {site: summary["samples"] for site, summary in real.items()}
    return {site: samples[site] for site in sorted(samples)} if all(samples.values()) else {}


def travels_of(plan_run: PlanRun, names: tuple[str, ...], samples: tuple[int, ...]) -> Travels | None:
    """The way of the models of one plan's run over sites of these ``names``; None where none went, or for too many."""
    plan, sites = among(plan_run.plan, len(names)), len(names)
    apart = plan.method.regions is not None and plan.method.regions.are_apart(sites)
    if apart or not 2 <= sites <= MOST:
        return None
    try:
        ways = list(journey(plan, sites, samples))
    except ValueError:  # it takes numbers of samples that an older folder does not hold
        return None
    ways = [(contact, at) for contact, at in ways if contact.t <= plan_run.row["rounds"]]
    if all((at == after).all() for (_, at), (_, after) in pairwise(ways)):
        return None
    counted = () if plan.method.by_samples else samples  # else a model trains on a part of a site's samples
    shown = contacts_shown([contact.action for contact, _ in ways])
    stops = _stops(plan_run, plan, ways[: shown[-1] + 1], names, counted)
    kept = [stops[index]._replace(skipped=index - before - 1) for before, index in pairwise([-1, *shown])]
    groups = groups_of(plan.method, len(ways[0][1]), plan.method.group_count(sites))
    return Travels(plan, names, counted, groups, tuple(kept))


def contacts_shown(actions: Sequence[Action]) -> list[int]:
    """Numbers of the contacts shown: up to a little beyond the first average, without a long stretch before it."""
    every = list(range(len(actions)))
    first = next((index for index, action in enumerate(actions) if action is Action.AGGREGATE), None)
    if first is None or first + AFTER <= FEW:
        return every[: max(FEW if first is None else first + AFTER, FEW - 4)]
    late = every[first - BEFORE : first + AFTER]
    return [*every[: FEW - BEFORE - AFTER], *late]


def _stops(
    plan_run: PlanRun, plan: Plan, ways: Sequence[Way], names: Sequence[str], samples: Sequence[int]
) -> list[Stop]:
    counts = np.array(samples or [1] * len(names))
    share, learnt, stops = counts / counts.sum(), Learnt(plan.method, len(ways[0][1]), len(names)), []
    for contact, at in ways:
        events = [event for event in plan_run.events if event["t"] == contact.t and event.get("kind") in BAD]
        befell = {event["site"]: event["kind"] for event in events}
        before = learnt.seen @ share
        learnt.train(at, {names.index(site): kind for site, kind in befell.items() if site in names})
        left = learnt.seen.copy()  # (models, sites)
        if contact.action is Action.AGGREGATE:
            learnt.average(refused="server" in befell)
        means = float(left.sum(axis=1).mean()), float((left @ counts).mean())
        stops.append(Stop(contact.t, contact.action, at, before, left @ share, learnt.seen @ share, *means))
    return stops
