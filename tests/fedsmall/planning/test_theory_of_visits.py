from fractions import Fraction
from itertools import permutations, product
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.errors import PlanError
from fedsmall.planning.theory import (
    expected_draws,
    rounds_but_for,
    simulate_visits,
    sites_seen,
    sites_seen_in_groups,
)
from fedsmall.randomness import rng_for


def chance_by_markov_chain(sites, visits, stays):
    """The chance that so many uniform draws see that many different sites, by the chain of the number seen."""
    seen = np.zeros(sites + 1)
    seen[0] = 1
    stay, step = np.arange(sites + 1) / sites, np.arange(sites, 0, -1) / sites
    for _ in range(stays):
        seen = seen * stay + np.append(0, seen[:-1] * step)
    return seen[visits:].sum()


def test_drawing_all_of_three_takes_five_and_a_half_draws():
    assert expected_draws(3, 3) == pytest.approx(3 * (1 + 1 / 2 + 1 / 3))
    assert expected_draws(3, 1) == 1


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 30), st.data())
def test_expected_draws_are_those_of_the_markov_chain(sites, data):
    visits = data.draw(st.integers(1, sites))
    horizon = 60 * sites

    tail = 0.0  # the mean of a count is the sum of the chances that it is larger than 0, 1, ...
    seen = np.eye(sites + 1)[0]
    stay, step = np.arange(sites + 1) / sites, np.arange(sites, 0, -1) / sites
    for _ in range(horizon):
        tail += seen[:visits].sum()
        seen = seen * stay + np.append(0, seen[:-1] * step)

    assert expected_draws(sites, visits) == pytest.approx(tail, rel=1e-9)


@pytest.mark.parametrize(("sites", "visits"), [(10, 10), (50, 10), (30, 24)])
def test_the_simulation_of_one_model_is_the_markov_chain(sites, visits):
    walked = simulate_visits(sites, visits, runs=200, rng=rng_for(0, "test"))

    for stays in (visits, visits + 3, 2 * visits):
        exact = chance_by_markov_chain(sites, visits, stays)
        assert (walked <= stays).mean() == pytest.approx(exact, abs=5 * sqrt(0.25 / walked.size) + 1e-3)


def test_a_period_stretches_the_walk():
    every = simulate_visits(8, 5, 1, runs=5, rng=rng_for(2, "test"))
    third = simulate_visits(8, 5, 3, runs=5, rng=rng_for(2, "test"))

    np.testing.assert_array_equal(third, 3 * every)


@pytest.mark.parametrize(("sites", "visits"), [(1, 1), (2, 1), (2, 2), (3, 3)])
def test_the_smallest_federations_walk(sites, visits):
    rounds = simulate_visits(sites, visits, runs=50, rng=rng_for(3, "test"))

    assert rounds.shape == (50, sites)
    assert rounds.min() == visits


def test_rounds_are_read_off_the_runs():
    rounds = np.array([[1, 2], [3, 8]])

    assert [rounds_but_for(failure, rounds) for failure in (0.25, 0.5)] == [3, 2]
    assert [rounds_but_for(failure, rounds.max(axis=1)) for failure in (0.5, 0.01)] == [2, 8]


@pytest.mark.parametrize("visits", [0, 11])
def test_visits_are_limited_by_the_sites(visits):
    with pytest.raises(PlanError, match=f"a model can visit 1 to 10 different sites of 10; {visits} were asked for"):
        simulate_visits(10, visits, rng=rng_for(0, "test"))


def seen_exactly(sites, contacts, assignments):
    """The mean number of sites in a first part's union over all equally likely sequences of assignments."""
    walks = list(product(assignments, repeat=contacts))
    total = sum(len(set().union(*(assignment[0] for assignment in walk))) for walk in walks)
    return Fraction(total, len(walks))


@pytest.mark.parametrize("contacts", [0, 1, 2, 3, 4])
@pytest.mark.parametrize(("sites", "travellers"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
def test_a_model_sees_what_all_injective_assignments_say(sites, travellers, contacts):
    assignments = [[{site} for site in places] for places in permutations(range(sites), travellers)]

    exact = seen_exactly(sites, contacts, assignments)

    assert sites_seen(sites, contacts, travellers) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("contacts", [0, 1, 2, 3])
@pytest.mark.parametrize(("sites", "groups"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 2)])
def test_a_group_sees_what_all_deals_say(sites, groups, contacts):
    part = sites // groups
    deals = [[set(order[:part])] for order in permutations(range(sites))]

    exact = seen_exactly(sites, contacts, deals)

    assert sites_seen_in_groups(sites, contacts, groups) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("contacts", [1, 2, 3])
def test_where_parts_differ_the_larger_ones_fall_to_random_groups(contacts):
    halves = [[set(order[:size])] for order in permutations(range(3)) for size in (1, 2)]  # three sites, two groups

    exact = seen_exactly(3, contacts, halves)

    assert sites_seen_in_groups(3, contacts, 2) == pytest.approx(float(exact), rel=1e-12)


def mean_seen(sites, contacts, visit, runs=1000):
    """The mean number of different sites over simulated runs, and five standard errors of it."""
    rng = rng_for(4, "test")
    counts = [len(set().union(*(visit(rng) for _ in range(contacts)))) for _ in range(runs)]
    return np.mean(counts), 5 * np.std(counts) / sqrt(runs) + 1e-12


@pytest.mark.parametrize(
    ("sites", "travellers", "contacts"), [(1, 1, 5), (2, 1, 3), (3, 2, 4), (20, 4, 30), (50, 50, 40)]
)
def test_simulated_travellers_see_as_many_sites(sites, travellers, contacts):
    measured, tolerance = mean_seen(
        sites, contacts, lambda rng: {int(rng.choice(sites, size=travellers, replace=False)[0])}
    )

    assert sites_seen(sites, contacts, travellers) == pytest.approx(measured, abs=tolerance)


@pytest.mark.parametrize(("sites", "fraction", "contacts"), [(1, 1.0, 2), (2, 0.5, 4), (3, 0.1, 5), (20, 0.25, 15)])
def test_simulated_travellers_under_a_fraction_see_as_many_sites(sites, fraction, contacts):
    drawn = max(1, round(fraction * sites))

    def visit(rng):  # draw the sites that take part, then hand the travellers to them by a bijection
        there = rng.choice(sites, size=drawn, replace=False)
        return {int(there[rng.permutation(drawn)[0]])}

    measured, tolerance = mean_seen(sites, contacts, visit)

    assert sites_seen(sites, contacts, drawn) == pytest.approx(measured, abs=tolerance)


@pytest.mark.parametrize(("sites", "groups", "contacts"), [(1, 1, 3), (2, 2, 3), (3, 2, 3), (50, 10, 8), (23, 5, 6)])
def test_simulated_groups_see_as_many_sites(sites, groups, contacts):
    def visit(rng):  # dealt out like cards, the first card to a random group
        first = rng.integers(groups)
        return set(rng.permutation(sites)[first::groups].tolist())

    measured, tolerance = mean_seen(sites, contacts, visit)

    assert sites_seen_in_groups(sites, contacts, groups) == pytest.approx(measured, abs=tolerance)


def test_one_group_sees_all_at_once_and_a_group_a_site_is_a_traveller():
    assert sites_seen_in_groups(12, 1, 1) == 12
    assert [sites_seen_in_groups(12, t, 12) for t in range(9)] == [sites_seen(12, t) for t in range(9)]


@settings(deadline=None)
@given(st.integers(1, 40), st.data())
def test_sites_seen_are_the_mean_of_the_markov_chain(sites, data):
    contacts = data.draw(st.integers(0, 60))

    chances = [chance_by_markov_chain(sites, visits, contacts) for visits in range(1, sites + 1)]

    assert sites_seen(sites, contacts) == pytest.approx(sum(chances), rel=1e-9, abs=1e-12)


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
