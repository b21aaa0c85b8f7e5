"""What groups change in the papers' bounds, held against the routes that runs really take."""

from math import sqrt

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.planning.theory import (
    advise,
    advise_groups,
    rounds_between_aggregations,
    rounds_to_visit,
    simulate_visits,
    sites_seen,
    sites_seen_in_groups,
)
from fedsmall.randomness import rng_for
from fedsmall.travel.journey import journey


def sites_of_group(plan: Plan, sites: int, groups: int) -> tuple[int, int]:
    """How many different sites the first group's models, and the first model, have been at by the routes of a run."""
    places = np.array([at for _, at in journey(plan, sites)])  # (contacts, models)
    return len(np.unique(places[:, ::groups])), len(np.unique(places[:, 0]))


@pytest.mark.parametrize(
    ("sites", "models", "groups", "settings"),
    [
        (20, None, 5, {"aggregate_every": 1}),
        (20, 20, 4, {"permute_every": 1, "aggregate_every": 3}),
        (20, 8, 4, {"aggregate_every": 1}),
        (12, 6, 2, {"permute_every": 1, "aggregate_every": 4}),
        (15, 3, 3, {"permute_every": 1}),
    ],
)
def test_groups_see_as_many_sites_as_the_closed_form_says(sites, models, groups, settings):
    contacts, seeds = 7, 300
    parts = method("TravellingGroups", groups=groups, models=models, **settings)
    seen = []
    for seed in range(seeds):
        plan = Plan(name="t", task="breast_cancer", rounds=contacts, seed=seed, method=parts)
        seen.append(sites_of_group(plan, sites, groups))

    expected = (sites_seen_in_groups(sites, contacts, groups, models), sites_seen(sites, contacts, models or sites))
    np.testing.assert_allclose(np.mean(seen, axis=0), expected, atol=5 * np.std(seen, axis=0).max() / sqrt(seeds))


@pytest.mark.parametrize("sites", [10, 50])
def test_the_bound_grows_as_groups_get_fewer_models_and_is_that_of_all_for_one_group(sites):
    bounds = [rounds_to_visit(sites, 6, failure=0.1, models=models) for models in (sites, 5, 2, 1)]

    assert bounds[0] == rounds_to_visit(sites, 6, failure=0.1)
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(10 * rounds_to_visit(sites, 6, failure=1 - 1e-12))  # Markov's inequality


@pytest.mark.thorough
@pytest.mark.parametrize(("sites", "visits"), [(4, 3), (10, 6), (30, 9)])
@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("failure", [0.5, 0.9])
def test_all_models_of_a_group_fall_short_together_no_more_often_than_the_bound_says(sites, visits, members, failure):
    walked = simulate_visits(sites, visits, runs=2000, rng=rng_for(0, "test"))

    bound = rounds_to_visit(sites, visits, failure=failure, models=members)

    assert (walked[:, :members] > bound).all(axis=1).mean() <= failure


def test_one_group_is_the_advice_without_groups():
    one, plain = advise_groups(50, 4, 1), advise(50, 4)

    assert (one.bound, one.all_members, one.visits) == (plain.bound, plain.all_models, plain.sites_to_visit)
    assert (one.noise, one.group_sees, one.members) == (1, 50, 50)


def test_a_group_waits_for_fewer_models_than_all():
    advice = advise_groups(50, 4, 10)

    assert advice.members == 5
    assert advice.bound == rounds_between_aggregations(50, 12, 1, 0.01, 5)
    assert advise(50, 4).one_model <= advice.all_members < advise(50, 4).all_models


def test_an_average_of_a_group_keeps_as_much_noise_as_is_said():
    errors = np.random.default_rng(0).standard_normal((4000, 48))

    of_group, of_all = errors[:, ::6].mean(axis=1).std(), errors.mean(axis=1).std()

    assert of_group / of_all == pytest.approx(advise_groups(48, 50, 6).noise, rel=0.05)
    assert errors.reshape(4000, 8, 6).mean(axis=1).mean(axis=1) == pytest.approx(errors.mean(axis=1))  # together: none


def test_radon_points_of_a_group_are_those_of_as_many_sites():
    with_points = advise_groups(441, 2, 10, parameters=19)
    without = advise_groups(441, 2, 40, parameters=19)

    assert with_points.radon is not None
    assert (with_points.radon.height, with_points.radon.radon_number) == (1, 21)
    assert with_points.radon.failure_at_most < 0.02
    assert without.radon is None
    assert without.radon_refused == "a Radon point takes 21 models, a group has 11"


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ((9, 50, 10), "groups is 1 to the number of models, 9; got 10"),
        ((9, 50, 2, 10), "models is 1 to the number of sites, 9; got 10"),
        ((9, 50, 2, 9, -1), "communication rounds are 0 or more; got -1"),
    ],
)
def test_what_cannot_be_grouped_is_told(asked, line):
    with pytest.raises(PlanError, match=line):
        advise_groups(*asked)
