"""What groups of travelling models that never merge change in the papers' bounds (`docs/findings.md`: not worth it).

Run it as ``python -m examples.theory_of_groups SITES SAMPLES GROUPS [COMM_ROUNDS [MODELS [PARAMETERS]]]``.
"""

import sys
from dataclasses import dataclass
from math import sqrt

from fedsmall.errors import PlanError
from fedsmall.planning.theory import (
    RadonAdvice,
    advise_radon,
    rounds_between_aggregations,
    rounds_but_for,
    samples_for,
    simulate_visits,
    sites_to_visit,
)
from fedsmall.randomness import rng_for


def sites_seen(sites: int, comm_rounds: int, models: int = 1) -> float:
    """The mean number of sites that a model has been at after T communication rounds: m * (1 - (1 - 1/m)**T).

    At every communication round, a first stay at home included, the ``models`` go to different sites, drawn uniformly
    anew; their number does not matter to one of them. Raises PlanError unless every model can have a site of its own.
    """
    _check_range("models", models, sites)
    return sites_seen_in_groups(sites, comm_rounds, models, models)


def sites_seen_in_groups(sites: int, comm_rounds: int, groups: int, models: int | None = None) -> float:
    """The mean number of sites that a group learns from in T communication rounds: m * (1 - (1 - M/(G m))**T).

    At every communication round M ``models`` (default: one a site) sit at different sites, drawn uniformly anew, M / G
    of each group; where that is no whole number, the larger parts go to random groups. Holds at the group's next
    average. Raises PlanError unless every model can have a site, and every group a model.
    """
    models = sites if models is None else models
    _check_range("models", models, sites)
    if not 1 <= groups <= models:
        raise PlanError(f"groups is 1 to the number of models, {models}; got {groups}")
    if comm_rounds < 0:
        raise PlanError(f"communication rounds are 0 or more; got {comm_rounds}")
    return sites * (1 - (1 - models / (groups * sites)) ** comm_rounds)


@dataclass(frozen=True)
class GroupAdvice:
    """What theory says of one group of travelling models, which averages fewer models and sees fewer sites.

    Of its ``members`` models each has been at ``model_sees`` sites after ``comm_rounds``, and all together at
    ``group_sees``, on average. ``bound`` is Proposition 4's, in rounds; in ``all_members`` simulated rounds all have
    been at ``visits`` sites but for a chance of sqrt(delta), and ``short_together`` is how likely all fall short at the
    bound. ``noise`` is the error of the group's average over that of a model a site, if errors are independent.
    ``radon`` is what Radon points of the group promise, or ``radon_refused`` why nothing.
    """

    groups: int
    members: int
    comm_rounds: int
    model_sees: float
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
    comm_rounds: int = 30,
    permute_every: int = 1,
    error: float = 0.05,
    failure: float = 0.01,
    *,
    parameters: int | None = None,
) -> GroupAdvice:
    """What becomes of Lemma 5 and Proposition 4 (Kamp et al. 2023) in ``groups`` of ``models``; one a site by default.

    A given model needs as many rounds as without groups; what is said of models together changes. Raises PlanError
    where a group would have no model, or all sites together too few samples.
    """
    travelling = sites if models is None else models
    group_sees = sites_seen_in_groups(sites, comm_rounds, groups, travelling)
    members = travelling // groups
    visits = sites_to_visit(samples_for(error, sqrt(failure)), samples_per_site)
    bound = rounds_between_aggregations(sites, visits, permute_every, failure, members)
    rounds = simulate_visits(sites, visits, permute_every, rng=rng_for(0, "visits"))[:, :members]
    radon, refused = _radon_of_group(members, parameters, error, failure)
    return GroupAdvice(
        groups,
        members,
        comm_rounds,
        model_sees=sites_seen(sites, comm_rounds, travelling),
        group_sees=group_sees,
        visits=visits,
        bound=bound,
        all_members=rounds_but_for(sqrt(failure), rounds.max(axis=1)),
        short_together=float((rounds > bound).all(axis=1).mean()),
        noise=sqrt(sites / members),
        radon=radon,
        radon_refused=refused,
    )


def _radon_of_group(
    members: int, parameters: int | None, error: float, failure: float
) -> tuple[RadonAdvice | None, str]:
    if parameters is None:
        return None, ""
    if members < parameters + 2:
        return None, f"a Radon point takes {parameters + 2} models, a group has {members}"
    try:
        return advise_radon(members, parameters, None, error, failure), ""
    except PlanError as refusal:
        return None, str(refusal)


def _check_range(name: str, value: int, sites: int) -> None:
    if not 1 <= value <= sites:
        raise PlanError(f"{name} is 1 to the number of sites, {sites}; got {value}")


def lines(of: GroupAdvice, sites: int) -> list[str]:
    """What is printed of it, for a chance of failure of .01."""
    after = f"after {of.comm_rounds} communication rounds, of {sites}"
    said = [
        f"groups that never merge: {of.groups} of {of.members} models",
        f"sites that a model has been at on average, {after}: {of.model_sees:.1f}",
        f"sites that a group's models have been at together, {after}: {of.group_sees:.1f}",
        f"rounds, simulated: every model of a group is through (90%): {of.all_members}",
        f"rounds, bound of Proposition 4 of a group's models: {of.bound:.3f}",
        f"chance that all of them fall short at that bound, simulated: {of.short_together:.3f}",
        f"noise of a group's average, over that of a model a site: {of.noise:.2f} times",
    ]
    if of.radon:
        said += [f"Radon points of a group, height {of.radon.height}: fail at most with {of.radon.failure_at_most:.3g}"]
    return said + ([f"Radon points of a group: none; {of.radon_refused}"] if of.radon_refused else [])


def main(sites: int, samples: int, groups: int, comm_rounds: int = 30, models: int = 0, parameters: int = 0) -> None:
    print(
        "\n".join(
            lines(
                advise_groups(sites, samples, groups, models or None, comm_rounds, parameters=parameters or None), sites
            )
        )
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
