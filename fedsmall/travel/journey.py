"""Who is where: the sites at which models train at each communication round, as the plan alone decides it.

Models are numbered; number k is of group k modulo the groups.

Routes are a cross-validation: a model of route k never trains at the sites of fold k, and is only evaluated there. A
route is one or several groups of models. Folds are dealt once, by a named stream and by numbers of ``samples``; who
goes where is drawn anew, without a conflict. With fewer sites than routes each deals its own samples to folds.

Regions are several servers: sites dealt to regions, each of which averages its own models; now and then all of them
together. Bytes between servers are counted apart. Source: client, edge and cloud of Liu et al. 2020.

What is seen of a run is the :class:`RoundResult` after each stretch of communication rounds.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple, Protocol

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.features import check_features
from fedsmall.plan import Method, Plan
from fedsmall.randomness import rng_for
from fedsmall.travel.schedule import (
    AbstractSchedule,
    Action,
    CommRound,
    bijection,
    comm_rounds_of,
    participants,
    schedule_for,
)
from fedsmall.wire import Arrays


def groups_of(method: Method, models: int, groups: int) -> np.ndarray:
    """The group of every model at the start, of so many ``groups``: (models,)."""
    numbers = np.arange(models)
    return np.zeros_like(numbers) if method.by_samples else numbers % groups


def routes_of(method: Method, sites: int) -> np.ndarray:
    """The route of every model among so many sites, where there are routes: (models,)."""
    return route_of(groups_of(method, method.travelling(sites), method.group_count(sites)), method.routes)


def set_out(plan: Plan, sites: int, comm_round: CommRound, samples: Sequence[int] = ()) -> np.ndarray:
    """The sites at which models train for the first communication round."""
    at, folds = draw_sites(plan, sites, comm_round, samples), folds_of(plan, samples)
    if folds is None:
        return at
    return np.asarray(at[assign_sites(rng_for(plan.travel_seed, "set out"), routes_of(plan.method, sites), folds[at])])


def move_on(
    plan: Plan, sites: int, at: np.ndarray, before: CommRound, comm_round: CommRound, samples: Sequence[int] = ()
) -> np.ndarray:
    """The sites at which models train for ``comm_round``, which were at the sites ``at`` for the one ``before``.

    A piece of a communication round moves nobody. Where all sites take part, an aggregation does not either, unless it
    leaves groups that are to meet other sites; else every model goes to a site drawn for ``comm_round``.
    """
    method = plan.method
    stays = before.action is Action.AGGREGATE and method.everyone(sites) and not method.grouped
    if not before.travels or stays:
        return at
    if method.region_count > 1:
        return np.asarray(passage(plan, sites, before.t)[at])
    if method.route == "shuffled":
        order = _cycle(plan, sites)
        return np.asarray(order[(np.argsort(order)[at] + 1) % sites])
    if method.route == "cyclic" or (method.topology is not None and method.topology.by == "ring"):
        return np.asarray((at + 1) % sites)
    folds = folds_of(plan, samples)
    if folds is None and method.everyone(sites):
        return np.asarray(bijection(plan.travel_seed, before.t, sites)[at])
    there = draw_sites(plan, sites, comm_round, samples)
    if folds is None:
        route = bijection(plan.travel_seed, before.t, len(at))
    else:
        rng, routes = rng_for(plan.travel_seed, "permute", before.t), routes_of(method, sites)[np.argsort(at)]
        route = assign_sites(rng, routes, folds[there])
    return np.asarray(there[route[np.argsort(np.argsort(at))]])  # by the ranks of their sites


def draw_sites(plan: Plan, sites: int, comm_round: CommRound, samples: Sequence[int] = ()) -> np.ndarray:
    """The numbers of the sites that take part in a communication round, in order; of the first, where all go round."""
    if not plan.method.is_federated:
        return np.arange(sites)
    method = plan.method
    if method.route != "random":
        models = method.travelling(sites)
        places = np.arange(models) * sites // models  # as far from each other as can be
        return places if method.route == "cyclic" else _cycle(plan, sites)[places]

    def draw(attempt: int) -> np.ndarray:
        t, everyone = comm_round.due, range(sites)
        return np.array(participants(plan.travel_seed, t, everyone, method.fraction, method.models, attempt))

    folds = folds_of(plan, samples)
    if folds is not None:
        routes = routes_of(method, sites)
        attempts = (draw(attempt) for attempt in count())  # again where not all models have room
        return next(chosen for chosen in attempts if has_room(routes, folds[chosen]))
    return draw(0)


def _cycle(plan: Plan, sites: int) -> np.ndarray:
    """The order in which all sites are visited, drawn once for a run: (sites,)."""
    return rng_for(plan.travel_seed, "cycle").permutation(sites)


def journey(plan: Plan, sites: int, samples: Sequence[int] = ()) -> Iterator[tuple[CommRound, np.ndarray]]:
    """Every communication round of a run over so many sites, and the sites at which its models train for it."""
    comm_rounds = comm_rounds_of(plan)
    at = set_out(plan, sites, comm_rounds[0], samples)
    for before, comm_round in zip([comm_rounds[0], *comm_rounds], comm_rounds, strict=False):
        at = at if comm_round is before else move_on(plan, sites, at, before, comm_round, samples)
        yield comm_round, at


def folds_of(plan: Plan, sizes: Sequence[int]) -> np.ndarray | None:
    """The folds of sites of ``sizes`` samples, without which ValueError; None where models may train at all sites."""
    routes = plan.method.routes
    if not routes or plan.method.by_samples:
        return None
    if not len(sizes):
        raise ValueError("folds of sites are drawn by their numbers of samples, one a site; give them")
    if len(sizes) < routes:
        raise ValueError(f"{len(sizes)} sites make no {routes} folds; ask for the plan among so many sites")
    return _remembered(plan.travel_seed, tuple(sizes), routes)


@lru_cache(maxsize=16)
def _remembered(seed: int, sizes: tuple[int, ...], routes: int) -> np.ndarray:
    folds = deal_folds(seed, sizes, routes)
    folds.flags.writeable = False
    return folds


def deal_folds(seed: int, sizes: Sequence[int], routes: int) -> np.ndarray:
    """The fold of every site, (sites,), from the sites' numbers of samples, in the order of their names.

    Folds differ by one site at most: sites are dealt from large to small, the largest to the fold that has least.
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


def turn_at(plan: Plan, t: int) -> int:
    """The group whose turn round ``t`` is: the next one after every average."""
    return bisect_left(_averages(schedule_for(plan), plan.rounds), t) % plan.method.group_count(1)


def route_at(plan: Plan, t: int) -> int:
    """The route whose models train in round ``t``, where folds are of samples; else 0."""
    return turn_at(plan, t) % plan.method.routes if plan.method.by_samples else 0


@lru_cache(maxsize=16)
def _averages(schedule: AbstractSchedule, rounds: int) -> tuple[int, ...]:
    return tuple(t for t in range(1, rounds) if schedule.action(t) is Action.AGGREGATE)


def route_of(groups: Sequence[int] | np.ndarray, routes: int) -> np.ndarray:
    """The routes to which groups of models belong."""
    return np.asarray(groups, dtype=np.int64) % routes


def has_room(routes: np.ndarray, folds: np.ndarray) -> bool:
    """Whether models of these ``routes`` can be at sites of these ``folds``, one at each, and none at its own fold."""
    most = int(max(routes.max(initial=0), folds.max(initial=0))) + 1
    crowd = np.bincount(routes, minlength=most) + np.bincount(folds, minlength=most)
    return bool((crowd <= len(folds)).all())


def assign_sites(rng: np.random.Generator, routes: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """At which site each model trains: (models,) numbers of sites, all different, none of the model's own fold.

    A uniformly random permutation, each of whose conflicts is mended by a swap with a model drawn among all that may
    swap; by Hall's theorem there always is one. Raises ValueError where there is no such assignment (:func:`has_room`).
    """
    if len(routes) != len(folds) or not has_room(routes, folds):
        raise ValueError("models of these routes cannot all be at sites of these folds without one at its own fold")
    drawn = rng.permutation(len(folds))
    for model in np.flatnonzero(folds[drawn] == routes):
        route = routes[model]
        if folds[drawn[model]] != route:
            continue  # a swap before has mended it
        able = np.flatnonzero((folds[drawn] != route) & (routes != route))
        other = able[rng.integers(len(able))]
        drawn[[model, other]] = drawn[[other, model]]
    return np.asarray(drawn)


DECIDE_NOTHING = {"name", "evaluate_every", "metric", "threshold", "recalibrate"}  # keys of a plan that move no model


def regions_of(plan: Plan, sites: int) -> np.ndarray:
    """The region of every site, (sites,), in the order of names: as the plan has them, else dealt by a named stream."""
    regions = plan.method.regions
    if regions is None or regions.sites is None:
        return _dealt(plan.travel_seed, sites, plan.method.region_count)
    number = {site: k for k, name in enumerate(sorted(regions.sites)) for site in regions.sites[name]}
    return np.array([number[site] for site in regions.names])


@lru_cache(maxsize=16)
def _dealt(seed: int, sites: int, regions: int) -> np.ndarray:
    dealt = np.empty(sites, dtype=np.int64)
    dealt[rng_for(seed, "regions").permutation(sites)] = np.arange(sites) % regions
    dealt.flags.writeable = False
    return dealt


def passage(plan: Plan, sites: int, t: int) -> np.ndarray:
    """To which site the model at each site goes after round ``t``, (sites,).

    Every model is drawn to cross over or not; those that do change places, the others do within their region.
    """
    assert plan.method.regions is not None
    rng, regions = rng_for(plan.travel_seed, "permute", t), regions_of(plan, sites)
    crossing = rng.random(sites) < plan.method.regions.across
    company = np.where(crossing, plan.method.region_count, regions)
    to = np.empty(sites, dtype=np.int64)
    for together in range(plan.method.region_count + 1):
        places = np.flatnonzero(company == together)
        to[places] = rng.permutation(places)
    return to


def crossings(plan: Plan, sites: int, last: np.ndarray, at: np.ndarray) -> int:
    """How many models that were at the sites ``last`` are at sites of another region now."""
    if plan.method.region_count == 1 or last is at:
        return 0
    regions = regions_of(plan, sites)
    return int((regions[last] != regions[at]).sum())


def meet(plan: Plan, comm_round: CommRound) -> bool:
    """Whether the regions' global models are averaged at a communication round."""
    assert plan.method.regions is not None
    every = plan.method.regions.average_every
    due = every is None or comm_round.t % every == 0 or comm_round.t == plan.rounds
    return comm_round.action is Action.AGGREGATE and due


def route_within(plan: Plan, sites: Sequence[str], t: int) -> dict[str, str]:
    """Where the models at one region's ``sites`` go after round ``t``, by :func:`passage`, where no model crosses."""
    assert plan.method.regions is not None
    names = plan.method.regions.names
    to = passage(plan, len(names), t)
    return {site: names[to[names.index(site)]] for site in sites}


def plan_above(plan: Plan) -> Plan:
    """The weighted mean of regions' global models, run above them; without a gate, and noise was charged below."""
    assert plan.method.regions is not None
    every = plan.method.regions.average_every or plan.method.aggregate_every
    mean = Method(name="FedAvg", label=plan.method.label, aggregate_every=every, weighted=True, gate=False)
    return plan.model_copy(update={"method": mean, "initial_models": "common", "evaluate_every": None})


def differences(plan: Plan, other: Plan) -> list[str]:
    """What decides numbers and is not the same in two plans, a line each: "recipe.lr is 0.1 and 0.05"."""
    first, second = (
        _flat(json.loads(plan_of_two.model_dump_json(exclude=DECIDE_NOTHING))) for plan_of_two in (plan, other)
    )
    keys = [key for key in sorted(first | second) if first.get(key) != second.get(key) and key != "method.label"]
    return [f"{key} is {first.get(key, 'not there')} and {second.get(key, 'not there')}" for key in keys]


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        deeper = isinstance(value, dict) and bool(value)
        flat |= _flat(value, f"{before}{key}.") if deeper else {f"{before}{key}": value}
    return flat


def check_regions(plan: Plan, sites: int) -> None:
    """Raise PlanError where so many sites make no such regions, or these are averaged when nothing is within any."""
    regions, within = plan.method.regions, plan.method.aggregate_every
    if regions is None or regions.number == 1:
        return
    if regions.number > sites:
        raise PlanError(f"{regions.number} regions need a site each, and there are {sites}. Give {sites} at most.")
    if regions.sites and len(regions.names) != sites:
        raise PlanError(f"regions names {len(regions.names)} sites, and there are {sites}. Name each of them.")
    if regions.average_every is None:
        return
    if plan.method.random_schedule:
        raise PlanError(
            "With random_schedule nobody knows the rounds of an average: leave average_every of regions out."
        )
    if within is None or regions.average_every % within:
        raise PlanError(
            f"Regions are averaged every {regions.average_every} rounds, after an average within each, and that is "
            f"every {within or 'last'} rounds. Give a multiple of it."
        )


def check_region_names(plan: Plan, names: Sequence[str]) -> None:
    """Raise PlanError where the plan's regions name other sites than there are."""
    regions = plan.method.regions
    if regions is None or regions.sites is None or regions.names == tuple(sorted(names)):
        return
    unknown, left = sorted(set(regions.names) - set(names)), sorted(set(names) - set(regions.names))
    what = f"there is no site {unknown[0]!r}" if unknown else f"site {left[0]!r} is in no region"
    raise PlanError(f"regions names the sites of every region, and {what}. There are: {', '.join(sorted(names))}.")


def check_apart(plan: Plan, region: str = "") -> None:
    """Raise PlanError where a plan's regions cannot be federations of their own, or have none of this name."""
    regions, label = plan.method.regions, plan.method.label
    if regions is None or regions.sites is None or regions.number == 1:
        raise PlanError(
            f"{label!r} does not say which hospitals are in which of several regions. Write regions = "
            '{sites = {north = ["bonn", "essen"], south = ["ulm"]}, across = 0}.'
        )
    if region and region not in regions.sites:
        raise PlanError(f"The scenario has no region {region!r}; it has {', '.join(sorted(regions.sites))}.")
    if regions.across:
        raise PlanError(
            "Over real sites no model crosses from region to region, for their servers have no line to each other. "
            "Write across = 0 into regions."
        )
    if plan.method.random_schedule:
        raise PlanError("Over real sites regions meet in rounds that all know: leave random_schedule out.")
    check_features(plan)
    check_regions(plan, len(regions.names))


class RoundResult(NamedTuple):
    """What is there after a communication round, or after a piece of one, before anything else moves.

    ``global_model`` is the evaluated and kept result of an aggregation, and ``global_models`` are the groups' models
    from which all set out after it; ``of_routes`` gives what is evaluated of each route. ``sites`` have just trained,
    and ``models`` gives what they trained, {name: (sites, ...)}, in the order of their names. ``updates`` (rounds of
    local training, over all sites), ``bytes_sent``, ``bytes_between`` (servers of regions) and ``events`` are those
    since the result before; ``memory`` is what sites remember. ``averaged``: how many models an average took, if all.
    """

    comm_round: CommRound
    global_model: Arrays | None
    sites: tuple[str, ...]
    models: Callable[[], Arrays]
    updates: int
    bytes_sent: int
    events: list[dict[str, Any]]
    memory: Arrays
    bytes_between: int = 0
    global_models: tuple[Arrays, ...] = ()
    of_routes: Callable[[], tuple[Arrays, ...]] = tuple
    averaged: tuple[int, bool] | None = None


class Watcher(Protocol):
    """Somebody who looks at the moments of a run and changes nothing."""

    def needs(self, comm_round: CommRound) -> bool:
        """Whether the models must be seen as they leave at this communication round."""

    def see(self, result: RoundResult) -> None:
        """Take in a result."""


Event = dict[str, Any]  # what became of a site at a round that did not go as it should
Initial = Callable[[str | None], Arrays]  # the model with which a site starts, or the global one for None


def event(t: int, site: str, kind: str, reason: str) -> Event:
    """What is written down of a site at round ``t``; the report has a row for it."""
    return {"t": t, "site": site, "kind": kind, "reason": reason}


def starting(plan: Plan, sites: int, initial: Initial) -> list[Arrays]:
    """The models with which the groups start: all one, or each its own where initial models are independent."""
    method = plan.method
    groups = method.region_count if method.region_count > 1 else method.group_count(sites)
    independent = plan.initial_models == "independent" and method.group_count(sites) > 1
    return [initial(f"group-{group}") if independent else initial(None) for group in range(groups)]
