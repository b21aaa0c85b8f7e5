"""What groups of travelling models change in the papers' bounds: each averages fewer models, and sees fewer sites."""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for
from fedsmall.theory.bounds import (
    RadonAdvice,
    advise_radon,
    rounds_between_aggregations,
    samples_for,
    sites_to_visit,
)
from fedsmall.theory.visits import simulate_visits, sites_seen, sites_seen_in_groups

RUNS = 100


@dataclass(frozen=True)
class GroupAdvice:
    """What theory says of one group of travelling models.

    ``members`` are the models of a group, at least so many. ``traveller_sees`` and ``group_sees`` are the different
    sites that a model, and a group's models together, have been at after ``contacts``, on average. ``bound`` is
    Proposition 4's in rounds, of a group's models; ``all_members`` are the simulated rounds in which all of them have
    been at ``visits`` sites, but for a chance of sqrt(delta), and ``short_together`` is the simulated chance that they
    all fall short at the bound. ``noise`` is what independent errors of the models leave in a group's average, over
    what they leave in an average of a model a site. ``radon`` is what Radon points of a group's models promise, and
    ``radon_refused`` why they promise nothing.
    """

    groups: int
    members: int
    contacts: int
    traveller_sees: float
    group_sees: float
    visits: int
    bound: float
    all_members: int
    short_together: float
    noise: float
    radon: RadonAdvice | None
    radon_refused: str


def advise_groups(
    sites: int,
    samples_per_site: int,
    groups: int,
    models: int | None = None,
    contacts: int = 30,
    permute_every: int = 1,
    error: float = 0.05,
    failure: float = 0.01,
    *,
    parameters: int | None = None,
    samples_needed: Callable[[float, float], float] = samples_for,
    seed: int = 0,
) -> GroupAdvice:
    """What becomes of Lemma 5 and Proposition 4 (Kamp et al. 2023) in ``groups`` of ``models``; one a site by default.

    A model's way does not depend on who else travels, so a given model needs as many rounds as without groups. What
    changes is what is said of models together. Raises PlanError where a group would have no model, or all sites
    together too few samples.
    """
    travelling = sites if models is None else models
    group_sees = sites_seen_in_groups(sites, contacts, groups, travelling)
    members = travelling // groups
    visits = sites_to_visit(samples_needed(error, sqrt(failure)), samples_per_site)
    bound = rounds_between_aggregations(sites, visits, permute_every, failure, members)
    walked = simulate_visits(sites, visits, permute_every, runs=RUNS, rng=rng_for(seed, "visits")).of(members)
    radon, refused = _radon(members, parameters, error, failure, samples_needed)
    return GroupAdvice(
        groups=groups,
        members=members,
        contacts=contacts,
        traveller_sees=sites_seen(sites, contacts, travelling),
        group_sees=group_sees,
        visits=visits,
        bound=bound,
        all_members=walked.all(sqrt(failure)),
        short_together=walked.chance_of_none(bound),
        noise=sqrt(sites / members),
        radon=radon,
        radon_refused=refused,
    )


def _radon(
    members: int,
    parameters: int | None,
    error: float,
    failure: float,
    samples_needed: Callable[[float, float], float],
) -> tuple[RadonAdvice | None, str]:
    if parameters is None:
        return None, ""
    if members < parameters + 2:
        return None, f"a Radon point takes {parameters + 2} models, a group has {members}"
    try:
        return advise_radon(members, parameters, None, error, failure, samples_needed=samples_needed), ""
    except PlanError as error_:
        return None, str(error_)
