"""What groups change in the papers' bounds, held against the routes that runs really take."""

from fractions import Fraction
from itertools import permutations, product
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.theory_of_groups import advise_groups, main, sites_seen, sites_seen_in_groups
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.planning.theory import advise, rounds_between_aggregations, rounds_to_visit, simulate_visits
from fedsmall.randomness import rng_for
from fedsmall.travel.journey import journey
from tests.fedsmall.planning.test_theory_of_visits import chance_by_markov_chain


def sites_of_group(plan: Plan, sites: int, groups: int) -> tuple[int, int]:
    """How many different sites the first group's models, and the first model, have been at by the routes of a run."""
    places = np.array([at for _, at in journey(plan, sites)])  # (communication rounds, models)
    return len(np.unique(places[:, ::groups])), len(np.unique(places[:, 0]))


@pytest.mark.parametrize(
    ("sites", "models", "groups", "parts"),
    [
        (20, None, 5, {"aggregate_every": 1}),
        (20, 20, 4, {"permute_every": 1, "aggregate_every": 3}),
        (20, 8, 4, {"aggregate_every": 1}),
        (12, 6, 2, {"permute_every": 1, "aggregate_every": 4}),
        (15, 3, 3, {"permute_every": 1}),
    ],
)
def test_groups_see_as_many_sites_as_the_closed_form_says(sites, models, groups, parts):
    comm_rounds, seeds = 7, 300
    grouped = method("TravellingGroups", groups=groups, models=models, **parts)
    seen = []
    for seed in range(seeds):
        plan = Plan(name="t", task="breast_cancer", rounds=comm_rounds, seed=seed, method=grouped)
        seen.append(sites_of_group(plan, sites, groups))

    expected = (
        sites_seen_in_groups(sites, comm_rounds, groups, models),
        sites_seen(sites, comm_rounds, models or sites),
    )
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


def seen_exactly(sites, comm_rounds, assignments):
    """The mean number of sites in a first part's union over all equally likely sequences of assignments."""
    walks = list(product(assignments, repeat=comm_rounds))
    total = sum(len(set().union(*(assignment[0] for assignment in walk))) for walk in walks)
    return Fraction(total, len(walks))


@pytest.mark.parametrize("comm_rounds", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(("sites", "travellers"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
def test_a_model_sees_what_all_injective_assignments_say(sites, travellers, comm_rounds):
    assignments = [[{site} for site in places] for places in permutations(range(sites), travellers)]

    exact = seen_exactly(sites, comm_rounds, assignments)

    assert sites_seen(sites, comm_rounds, travellers) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("comm_rounds", [0, 1, 2, 3])
@pytest.mark.parametrize(("sites", "groups"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2)])
def test_a_group_sees_what_all_deals_say(sites, groups, comm_rounds):
    part = sites // groups
    deals = [[set(order[:part])] for order in permutations(range(sites))]

    exact = seen_exactly(sites, comm_rounds, deals)

    assert sites_seen_in_groups(sites, comm_rounds, groups) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("comm_rounds", [1, 2, 3])
def test_where_parts_differ_the_larger_ones_fall_to_random_groups(comm_rounds):
    halves = [[set(order[:size])] for order in permutations(range(3)) for size in (1, 2)]  # three sites, two groups

    exact = seen_exactly(3, comm_rounds, halves)

    assert sites_seen_in_groups(3, comm_rounds, 2) == pytest.approx(float(exact), rel=1e-12)


def mean_seen(sites, comm_rounds, visit, runs=1000):
    """The mean number of different sites over simulated runs, and five standard errors of it."""
    rng = rng_for(4, "test")
    counts = [len(set().union(*(visit(rng) for _ in range(comm_rounds)))) for _ in range(runs)]
    return np.mean(counts), 5 * np.std(counts) / sqrt(runs) + 1e-12


@pytest.mark.parametrize(
    ("sites", "travellers", "comm_rounds"), [(1, 1, 5), (2, 1, 3), (3, 2, 4), (20, 4, 30), (50, 50, 40)]
)
def test_simulated_travellers_see_as_many_sites(sites, travellers, comm_rounds):
    measured, tolerance = mean_seen(
        sites, comm_rounds, lambda rng: {int(rng.choice(sites, size=travellers, replace=False)[0])}
    )

    assert sites_seen(sites, comm_rounds, travellers) == pytest.approx(measured, abs=tolerance)


@pytest.mark.parametrize(("sites", "fraction", "comm_rounds"), [(1, 1.0, 2), (2, 0.5, 4), (3, 0.1, 5), (20, 0.25, 15)])
def test_simulated_travellers_under_a_fraction_see_as_many_sites(sites, fraction, comm_rounds):
    drawn = max(1, round(fraction * sites))

    def visit(rng):  # draw the sites that take part, then hand the travellers to them by a bijection
        there = rng.choice(sites, size=drawn, replace=False)
        return {int(there[rng.permutation(drawn)[0]])}

    measured, tolerance = mean_seen(sites, comm_rounds, visit)

    assert sites_seen(sites, comm_rounds, drawn) == pytest.approx(measured, abs=tolerance)


@pytest.mark.parametrize(("sites", "groups", "comm_rounds"), [(1, 1, 3), (2, 2, 3), (3, 2, 3), (50, 10, 8), (23, 5, 6)])
def test_simulated_groups_see_as_many_sites(sites, groups, comm_rounds):
    def visit(rng):  # dealt out like cards, the first card to a random group
        first = rng.integers(groups)
        return set(rng.permutation(sites)[first::groups].tolist())

    measured, tolerance = mean_seen(sites, comm_rounds, visit)

    assert sites_seen_in_groups(sites, comm_rounds, groups) == pytest.approx(measured, abs=tolerance)


def test_one_group_sees_all_at_once_and_a_group_a_site_is_a_traveller():
    assert sites_seen_in_groups(12, 1, 1) == 12
    assert [sites_seen_in_groups(12, t, 12) for t in range(9)] == [sites_seen(12, t) for t in range(9)]


@settings(deadline=None)
@given(st.integers(1, 40), st.data())
def test_sites_seen_are_the_mean_of_the_markov_chain(sites, data):
    comm_rounds = data.draw(st.integers(0, 60))

    chances = [chance_by_markov_chain(sites, visits, comm_rounds) for visits in range(1, sites + 1)]

    assert sites_seen(sites, comm_rounds) == pytest.approx(sum(chances), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sites_seen(3, 1, 4), "models is 1 to the number of sites, 3; got 4"),
        (lambda: sites_seen(3, -1), "communication rounds are 0 or more; got -1"),
        (lambda: sites_seen_in_groups(3, 1, 0), "groups is 1 to the number of models, 3; got 0"),
        (lambda: sites_seen_in_groups(3, 1, 2, models=1), "groups is 1 to the number of models, 1; got 2"),
        (lambda: sites_seen_in_groups(3, 1, 2, models=4), "models is 1 to the number of sites, 3; got 4"),
    ],
)
def test_who_cannot_travel_is_told(call, message):
    with pytest.raises(PlanError, match=message):
        call()


def test_it_prints_what_groups_change(capsys):
    main(50, 4, 10, 10)
    main(441, 2, 40, parameters=19)

    said = capsys.readouterr().out
    assert "groups that never merge: 10 of 5 models" in said
    assert "been at on average, after 10 communication rounds, of 50: 9.1" in said
    assert "been at together, after 10 communication rounds, of 50: 32.6" in said
    assert "noise of a group's average, over that of a model a site: 3.16 times" in said
    assert "none; a Radon point takes 21 models, a group has 11" in said
