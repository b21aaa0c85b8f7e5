"""Routes as cross-validation: a model of route k never trains at the sites of fold k, and is only judged there.

So every sample of every site is judged by models that never saw its site, and no site is given up for it. A route
is one or several groups of models (:mod:`fedsmall.travel.commons`): what never trains at a site is averaged with
nothing that does. Folds are dealt once, by a named stream; who goes where at a contact is drawn anew, without a
conflict.

Of fewer sites than routes no fold of sites can be made. There every site deals its own samples to folds, and a model of
route k trains at all sites on the samples outside of fold k. With a model at each site no two routes could be under way
at once, so they take turns: all sites train one route's models, and after their average the next route's.
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fedsmall.data.sources.pool import Part
from fedsmall.data.splits import classes_of, kin_of, representatives
from fedsmall.errors import PlanError
from fedsmall.federation import Samples
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.travel.schedule import AbstractSchedule, Action, schedule_for


def folds_of(plan: Plan, sizes: Sequence[int]) -> np.ndarray | None:
    """The folds of a plan's sites, which hold so many samples; None where its models may train at all sites.

    Raises ValueError where the numbers of samples are wanted and not there.
    """
    validation = plan.method.validation
    if validation is None or plan.method.by_samples:
        return None
    if not len(sizes):
        raise ValueError("folds of sites are dealt by their numbers of samples, one a site; give them")
    if len(sizes) < validation.routes:
        raise ValueError(f"{len(sizes)} sites make no {validation.routes} folds; ask for the plan among so many sites")
    return _remembered(plan.travel_seed, tuple(sizes), validation.routes)


@lru_cache(maxsize=16)
def _remembered(seed: int, sizes: tuple[int, ...], routes: int) -> np.ndarray:
    folds = dealt(seed, sizes, routes)
    folds.flags.writeable = False
    return folds


def dealt(seed: int, sizes: Sequence[int], routes: int) -> np.ndarray:
    """The fold of every site, (sites,), from the sites' numbers of samples, in the order of their names.

    Folds differ by one site at most, the later ones being the larger, and are about equally large in samples: sites
    are dealt in rounds of one for each fold, from large to small, the largest of a round to the fold that has least.
    """
    order = rng_for(seed, "folds of sites").permutation(len(sizes))
    order = order[np.argsort(-np.asarray(sizes)[order], kind="stable")]  # large first, equal ones shuffled
    folds, held = np.empty(len(sizes), dtype=np.int64), np.zeros(routes)
    for start in range(0, len(sizes), routes):
        turn = order[start : start + routes]
        least_first = np.argsort(held, kind="stable")[: len(turn)]
        folds[turn] = least_first
        held[least_first] += np.asarray(sizes)[turn]
    # so that routes with one model more than others keep away from folds with one site less
    by_sites = np.argsort(np.bincount(folds, minlength=routes), kind="stable")
    return np.argsort(by_sites)[folds]


def among(plan: Plan, sites: int) -> Plan:
    """The plan as so many sites follow it: with fewer sites than routes, folds are of samples; trees have a forest."""
    plan = plan.with_model_of(sites)
    validation = plan.method.validation
    if validation is None or validation.by_samples or sites >= validation.routes:
        return plan
    of_samples = validation.model_copy(update={"by_samples": True})
    return plan.model_copy(update={"method": plan.method.model_copy(update={"validation": of_samples})})


def folds_of_samples(plan: Plan, site: str, own: Samples) -> np.ndarray:
    """The fold of every sample of a site, (samples,), where folds are of samples.

    Folds differ by one sample at most, in all and of each class; which get one more is drawn, by the site. A patient's
    samples are in one fold, and so are equal ones: this then holds of the first of each, and the others follow them.

    Raises PlanError where a site has samples of one patient alone: a route would have none there.
    """
    assert plan.method.validation is not None
    kin = kin_of(Part(own.x, own.y, own.patients))
    groups = np.arange(len(own)) if kin is None else kin
    first = representatives(groups)
    if len(first) < 2:
        whose = "one sample" if len(own) < 2 else "samples of one patient, or equal ones,"
        raise PlanError(
            f"{site} has {whose} and folds of samples need two at least: every route leaves some out. Give it more."
        )
    routes, rng = plan.method.validation.routes, rng_for(plan.seed, "folds of samples", site)
    shuffled = first[rng.permutation(len(first))]
    dealt = shuffled[np.argsort(classes_of(own.y)[shuffled], kind="stable")]  # class by class, shuffled within
    of_group = np.empty(int(groups.max()) + 1, dtype=np.int64)
    of_group[groups[dealt]] = (np.arange(len(dealt)) + rng.integers(routes)) % routes
    return np.asarray(of_group[groups])


def turn_at(plan: Plan, t: int) -> int:
    """The group whose turn round ``t`` is: the next one after every average."""
    before = bisect_left(_averages(schedule_for(plan), plan.rounds), t)
    return before % plan.method.group_count(1)


def route_at(plan: Plan, t: int) -> int:
    """The route whose models train in round ``t``, where folds are of samples; else 0."""
    validation = plan.method.validation
    return turn_at(plan, t) % validation.routes if validation is not None and plan.method.by_samples else 0


@lru_cache(maxsize=16)
def _averages(schedule: AbstractSchedule, rounds: int) -> tuple[int, ...]:
    """The rounds before the last after which models are averaged."""
    return tuple(t for t in range(1, rounds) if schedule.action(t) is Action.AGGREGATE)


def route_of(groups: Sequence[int] | np.ndarray, routes: int) -> np.ndarray:
    """The routes to which groups of models belong."""
    return np.asarray(groups, dtype=np.int64) % routes


def has_room(routes: np.ndarray, folds: np.ndarray) -> bool:
    """Whether models of these ``routes`` can be at sites of these ``folds``, one at each, and none at its own fold.

    By Hall's theorem: models of two routes may be anywhere between them, so only those of one can be too many.
    """
    most = int(max(routes.max(initial=0), folds.max(initial=0))) + 1
    crowd = np.bincount(routes, minlength=most) + np.bincount(folds, minlength=most)
    return bool((crowd <= len(folds)).all())


def places(rng: np.random.Generator, routes: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """At which site each model trains: (models,) numbers of sites, all different, none of the model's own fold.

    A uniformly random permutation, whose conflicts are mended by swaps with models drawn among all that may swap. Every
    swap mends one and makes none, and there is always one to be had. Where folds and routes are equally large, a model
    is equally often at each site that it may be at.

    Raises ValueError where there is no such assignment (:func:`has_room`).
    """
    if len(routes) != len(folds) or not has_room(routes, folds):
        raise ValueError("models of these routes cannot all be at sites of these folds without one at its own fold")
    drawn = rng.permutation(len(folds))
    for model in np.flatnonzero(folds[drawn] == routes):
        own = routes[model]
        if folds[drawn[model]] != own:
            continue  # a swap before has mended it
        able = np.flatnonzero((folds[drawn] != own) & (routes != own))
        other = able[rng.integers(len(able))]
        drawn[[model, other]] = drawn[[other, model]]
    return np.asarray(drawn)
