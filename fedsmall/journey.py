"""Who is where: the sites at which travellers train, from contact to contact, as the plan alone decides it.

Where a phase of the run is for the largest sites, their numbers of ``samples`` decide beside the plan which those are.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from fedsmall.plan import Method, Plan
from fedsmall.schedule import Action, Contact, bijection, contacts_of, participants, spaced


def moved(
    plan: Plan, sites: int, at: np.ndarray, before: Contact, contact: Contact, samples: Sequence[int] = ()
) -> np.ndarray:
    """The sites at which travellers train for ``contact``, which were at the sites ``at`` for the one ``before``.

    A piece of a contact moves nobody. Where all sites take part, an aggregation does not either, unless it leaves
    groups that are to meet other sites; where some of them do, every traveller goes to a site that was drawn for
    ``contact``, so that none waits at one that was not. A phase sets out anew.
    """
    if contact.phase != before.phase:
        return drawn(plan, sites, contact, samples)
    method, there = plan.method.in_phase(contact.phase), taking_part(plan.method, contact.phase, sites, samples)
    everyone = method.everyone(len(there))
    if not before.travels or (everyone and before.action is Action.AGGREGATE and method.groups == 1):
        return at
    if method.route == "cyclic":
        return np.asarray(there[(np.searchsorted(there, at) + 1) % len(there)])
    route = bijection(plan.seed, before.t, len(at))
    if everyone:
        return np.asarray(there[route[np.searchsorted(there, at)]])
    return np.asarray(drawn(plan, sites, contact, samples)[route[np.argsort(np.argsort(at))]])


def drawn(plan: Plan, sites: int, contact: Contact, samples: Sequence[int] = ()) -> np.ndarray:
    """The numbers of the sites that take part in a contact, in order; of the first, where all go round."""
    if plan.method.family != "federated":
        return np.arange(sites)
    method = plan.method.in_phase(contact.phase)
    there = taking_part(plan.method, contact.phase, sites, samples).tolist()
    if method.route == "cyclic":
        return np.array(spaced(there, method.travelling(len(there))))
    return np.array(participants(plan.seed, contact.due, there, method.fraction, method.models))


def taking_part(method: Method, phase: int, sites: int, samples: Sequence[int] = ()) -> np.ndarray:
    """The numbers of the sites that take part in a phase, in order: those with the most ``samples``, or all.

    Of sites with equal numbers those come first that are first by name. Raises ValueError where ``samples`` are wanted
    and not there.
    """
    count = method.phases[phase].sites_of(sites) if method.phases else sites
    if count >= sites:
        return np.arange(sites)
    if len(samples) != sites:
        raise ValueError("which sites are the largest is known from their numbers of samples, one a site; give them")
    return np.sort(np.argsort(-np.asarray(samples), kind="stable")[:count])


def journey(plan: Plan, sites: int, samples: Sequence[int] = ()) -> Iterator[tuple[Contact, np.ndarray]]:
    """Every contact of a run over so many sites, and the sites at which its travellers train for it."""
    contacts = contacts_of(plan)
    at = drawn(plan, sites, contacts[0], samples)
    for before, contact in zip([contacts[0], *contacts], contacts, strict=False):
        at = at if contact is before else moved(plan, sites, at, before, contact, samples)
        yield contact, at
