"""Who is where: the sites at which travellers train, from contact to contact, as the plan alone decides it.

Where models travel by routes (:mod:`fedsmall.travel.routes`), numbers of ``samples`` decide beside the plan which sites
are in which fold: no traveller is ever at a site of the fold of its route. Travellers are numbered; number k is of
group k modulo the groups.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from fedsmall.plan import Method, Plan
from fedsmall.randomness import rng_for
from fedsmall.travel.regions import passage as between_regions
from fedsmall.travel.routes import folds_of, has_room, places, route_of
from fedsmall.travel.schedule import Action, Contact, bijection, contacts_of, participants, spaced


def groups_of(method: Method, travellers: int, groups: int) -> np.ndarray:
    """The group of every traveller at the start, of so many ``groups``: (travellers,)."""
    numbers = np.arange(travellers)
    return np.zeros_like(numbers) if method.by_samples else numbers % groups


def routes_of(method: Method, sites: int) -> np.ndarray:
    """The route of every traveller among so many sites, where there are routes: (travellers,)."""
    assert method.validation is not None
    groups = groups_of(method, method.travelling(sites), method.group_count(sites))
    return route_of(groups, method.validation.routes)


def set_out(plan: Plan, sites: int, contact: Contact, samples: Sequence[int] = ()) -> np.ndarray:
    """The sites at which travellers train for the first contact."""
    there, folds = drawn(plan, sites, contact, samples), folds_of(plan, samples)
    if folds is None:
        return there
    return np.asarray(there[first_places(plan.travel_seed, routes_of(plan.method, sites), folds[there])])


def moved(
    plan: Plan, sites: int, at: np.ndarray, before: Contact, contact: Contact, samples: Sequence[int] = ()
) -> np.ndarray:
    """The sites at which travellers train for ``contact``, which were at the sites ``at`` for the one ``before``.

    A piece of a contact moves nobody. Where all sites take part, an aggregation does not either, unless it leaves
    groups that are to meet other sites; where some of them do, every traveller goes to a site that was drawn for
    ``contact``, so that none waits at one that was not.
    """
    method = plan.method
    everyone = method.everyone(sites)
    if not before.travels or (everyone and before.action is Action.AGGREGATE and not method.grouped):
        return at
    if method.region_count > 1:
        return np.asarray(between_regions(plan, sites, before.t)[at])
    if method.route == "cyclic" or (method.topology is not None and method.topology.by == "ring"):
        return np.asarray((at + 1) % sites)
    folds = folds_of(plan, samples)
    if folds is not None:
        there = drawn(plan, sites, contact, samples)
        route = passage(plan.travel_seed, before.t, routes_of(method, sites)[np.argsort(at)], folds[there])
        return np.asarray(there[route[np.argsort(np.argsort(at))]])
    route = bijection(plan.travel_seed, before.t, len(at))
    if everyone:
        return np.asarray(route[at])
    return np.asarray(drawn(plan, sites, contact, samples)[route[np.argsort(np.argsort(at))]])


def first_places(seed: int, routes: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """At which of the sites that take part first, of these ``folds``, travellers of these ``routes`` set out."""
    return places(rng_for(seed, "set out"), routes, folds)


def passage(seed: int, t: int, routes: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """Where models go at contact ``t``: that at the i-th site, by name, of route routes[i], to the i-th place of it.

    ``folds`` are those of the sites that take part next, in the order of names.
    """
    return places(rng_for(seed, "permute", t), routes, folds)


def drawn(plan: Plan, sites: int, contact: Contact, samples: Sequence[int] = ()) -> np.ndarray:
    """The numbers of the sites that take part in a contact, in order; of the first, where all go round."""
    if plan.method.family != "federated":
        return np.arange(sites)
    method = plan.method
    if method.route == "cyclic":
        return np.array(spaced(range(sites), method.travelling(sites)))
    folds = folds_of(plan, samples)
    if folds is not None:
        return np.array(drawn_by_routes(plan.travel_seed, method, contact.due, folds))
    return np.array(participants(plan.travel_seed, contact.due, range(sites), method.fraction, method.models))


def drawn_by_routes(seed: int, method: Method, t: int, folds: np.ndarray) -> list[int]:
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
        at = at if contact is before else moved(plan, sites, at, before, contact, samples)
        yield contact, at
