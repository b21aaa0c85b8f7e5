"""Who is where: the sites at which travellers train, from contact to contact, as the plan alone decides it."""

from collections.abc import Iterator

import numpy as np

from fedsmall.plan import Plan
from fedsmall.schedule import Action, Contact, bijection, contacts_of, participants, spaced


def moved(plan: Plan, sites: int, at: np.ndarray, before: Contact, contact: Contact) -> np.ndarray:
    """The sites at which travellers train for ``contact``, which were at the sites ``at`` for the one ``before``.

    A piece of a contact moves nobody. Where all sites take part, an aggregation does not either, unless it leaves
    groups that are to meet other sites; where some of them do, every traveller goes to a site that was drawn for
    ``contact``, so that none waits at one that was not.
    """
    method = plan.method
    everyone = method.everyone(sites)
    if not before.travels or (everyone and before.action is Action.AGGREGATE and method.groups == 1):
        return at
    if method.route == "cyclic":
        return np.asarray((at + 1) % sites)
    route = bijection(plan.seed, before.t, len(at))
    if everyone:
        return np.asarray(route[at])
    return np.asarray(drawn(plan, sites, contact)[route[np.argsort(np.argsort(at))]])


def drawn(plan: Plan, sites: int, contact: Contact) -> np.ndarray:
    """The numbers of the sites that take part in a contact, in order; of the first, where all go round."""
    method = plan.method
    if method.family != "federated":
        return np.arange(sites)
    if method.route == "cyclic":
        return np.array(spaced(range(sites), method.travelling(sites)))
    return np.array(participants(plan.seed, contact.due, range(sites), method.fraction, method.models))


def journey(plan: Plan, sites: int) -> Iterator[tuple[Contact, np.ndarray]]:
    """Every contact of a run over so many sites, and the sites at which its travellers train for it."""
    at, before = np.arange(sites), None
    for contact in contacts_of(plan):
        at = drawn(plan, sites, contact) if before is None else moved(plan, sites, at, before, contact)
        yield contact, at
        before = contact
