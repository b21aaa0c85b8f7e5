"""Who is where: the sites at which travellers train, from contact to contact, as the plan alone decides it.

Travellers are numbered; number k is of group k modulo the groups.

Routes are a cross-validation: a model of route k never trains at the sites of fold k, and is only evaluated there, so
every sample is judged by models that never saw its site. A route is one or several groups of models. Folds are dealt
once, by a named stream and by numbers of ``samples``; who goes where at a contact is drawn anew, without a conflict.
With fewer sites than routes every site deals its own samples to folds, and the routes take turns, for with a model at
each site no two could be under way at once.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from fedsmall.plan import Method, Plan
from fedsmall.randomness import rng_for
from fedsmall.travel.regions import passage
from fedsmall.travel.schedule import (
    AbstractSchedule,
    Action,
    Contact,
    bijection,
    contacts_of,
    participants,
    schedule_for,
)


def groups_of(method: Method, travellers: int, groups: int) -> np.ndarray:
    """The group of every traveller at the start, of so many ``groups``: (travellers,)."""
    numbers = np.arange(travellers)
    return np.zeros_like(numbers) if method.by_samples else numbers % groups


def routes_of(method: Method, sites: int) -> np.ndarray:
    """The route of every traveller among so many sites, where there are routes: (travellers,)."""
    groups = groups_of(method, method.travelling(sites), method.group_count(sites))
    return route_of(groups, method.routes)


def set_out(plan: Plan, sites: int, contact: Contact, samples: Sequence[int] = ()) -> np.ndarray:
    """The sites at which travellers train for the first contact."""
    at, folds = draw_sites(plan, sites, contact, samples), folds_of(plan, samples)
    if folds is None:
        return at
    return np.asarray(at[assign_sites(rng_for(plan.travel_seed, "set out"), routes_of(plan.method, sites), folds[at])])


def move_on(
    plan: Plan, sites: int, at: np.ndarray, before: Contact, contact: Contact, samples: Sequence[int] = ()
) -> np.ndarray:
    """The sites at which travellers train for ``contact``, which were at the sites ``at`` for the one ``before``.

    A piece of a contact moves nobody. Where all sites take part, an aggregation does not either, unless it leaves
    groups that are to meet other sites; else every traveller goes to a site drawn for ``contact``.
    """
    method = plan.method
    everyone = method.everyone(sites)
    if not before.travels or (everyone and before.action is Action.AGGREGATE and not method.grouped):
        return at
    if method.region_count > 1:
        return np.asarray(passage(plan, sites, before.t)[at])
    if method.route == "cyclic" or (method.topology is not None and method.topology.by == "ring"):
        return np.asarray((at + 1) % sites)
    folds = folds_of(plan, samples)
    if folds is not None:
        taking_part = draw_sites(plan, sites, contact, samples)
        route = assign_sites(
            rng_for(plan.travel_seed, "permute", before.t), routes_of(method, sites)[np.argsort(at)], folds[taking_part]
        )
        return np.asarray(taking_part[route[np.argsort(np.argsort(at))]])
    route = bijection(plan.travel_seed, before.t, len(at))
    if everyone:
        return np.asarray(route[at])
    return np.asarray(draw_sites(plan, sites, contact, samples)[route[np.argsort(np.argsort(at))]])


def draw_sites(plan: Plan, sites: int, contact: Contact, samples: Sequence[int] = ()) -> np.ndarray:
    """The numbers of the sites that take part in a contact, in order; of the first, where all go round."""
    if not plan.method.is_federated:
        return np.arange(sites)
    method = plan.method
    if method.route == "cyclic":
        models = method.travelling(sites)
        return np.arange(models) * sites // models  # as far from each other as can be
    folds = folds_of(plan, samples)
    if folds is not None:
        return np.array(draw_sites_by_routes(plan.travel_seed, method, contact.due, folds))
    return np.array(participants(plan.travel_seed, contact.due, range(sites), method.fraction, method.models))


def draw_sites_by_routes(seed: int, method: Method, t: int, folds: np.ndarray) -> list[int]:
    """The sites drawn for the contact after round ``t``, drawn again where not all travellers have room at them."""
    routes, attempt = routes_of(method, len(folds)), 0
    while True:
        chosen = participants(seed, t, range(len(folds)), method.fraction, method.models, attempt)
        if has_room(routes, folds[chosen]):
            return chosen
        attempt += 1


def journey(plan: Plan, sites: int, samples: Sequence[int] = ()) -> Iterator[tuple[Contact, np.ndarray]]:
    """Every contact of a run over so many sites, and the sites at which its travellers train for it."""
    contacts = contacts_of(plan)
    at = set_out(plan, sites, contacts[0], samples)
    for before, contact in zip([contacts[0], *contacts], contacts, strict=False):
        at = at if contact is before else move_on(plan, sites, at, before, contact, samples)
        yield contact, at


def folds_of(plan: Plan, sizes: Sequence[int]) -> np.ndarray | None:
    """The folds of a plan's sites of ``sizes`` samples; None where its models may train at all sites.

    Raises ValueError where the sizes are wanted and not there.
    """
    routes = plan.method.routes
    if not routes or plan.method.by_samples:
        return None
    if not len(sizes):
        raise ValueError("folds of sites are dealt by their numbers of samples, one a site; give them")
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

    Folds differ by one site at most, the later ones being the larger, and are about equally large in samples: sites are
    dealt from large to small in rounds of one a fold, the largest to the fold that has least.
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
    before = bisect_left(_averages(schedule_for(plan), plan.rounds), t)
    return before % plan.method.group_count(1)


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
    """Whether models of these ``routes`` can be at sites of these ``folds``, one at each, and none at its own fold.

    By Hall's theorem only models of one route can be too many.
    """
    most = int(max(routes.max(initial=0), folds.max(initial=0))) + 1
    crowd = np.bincount(routes, minlength=most) + np.bincount(folds, minlength=most)
    return bool((crowd <= len(folds)).all())


def assign_sites(rng: np.random.Generator, routes: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """At which site each model trains: (models,) numbers of sites, all different, none of the model's own fold.

    A uniformly random permutation, each of whose conflicts is mended by a swap with a model drawn among all that may
    swap; there always is one. Where folds and routes are equally large, a model is equally often at each site that it
    may be at.

    Raises ValueError where there is no such assignment (:func:`has_room`).
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
