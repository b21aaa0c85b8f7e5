from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.errors import PlanError
from fedsmall.planning.theory import expected_draws, rounds_but_for, simulate_visits
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
