from dataclasses import asdict
from math import ceil, log, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for
from fedsmall.theory import (
    Visits,
    advise,
    expected_draws,
    rounds_between_aggregations,
    rounds_to_visit,
    samples_for,
    simulate_visits,
    sites_to_visit,
)


def chance_by_markov_chain(sites, visits, stays):
    """The chance that so many uniform draws see that many different sites, by the chain of the number seen."""
    seen = np.zeros(sites + 1)
    seen[0] = 1
    stay, step = np.arange(sites + 1) / sites, np.arange(sites, 0, -1) / sites
    for _ in range(stays):
        seen = seen * stay + np.append(0, seen[:-1] * step)
    return seen[visits:].sum()


def test_the_papers_radon_experiment():
    # 441 sites with 2 samples each: the Radon experiment of Kamp et al. 2023
    visits = sites_to_visit(samples_for(0.05, sqrt(0.01)), 2)

    assert visits == 24
    assert rounds_between_aggregations(441, visits, 1, 0.01) == pytest.approx(24.778, abs=5e-4)


def test_the_authors_notebook_asks_for_samples_at_the_whole_failure():
    visits = sites_to_visit(samples_for(0.05, 0.01), 2)

    # printed by the notebook that the authors published with the paper
    assert rounds_between_aggregations(441, visits, 1, 0.01) == pytest.approx(49.898296243030956, rel=1e-12)


def test_advice_holds_both_numbers_and_says_which_is_which():
    advice = advise(441, 2, runs=20)

    assert advice.bound == pytest.approx(24.778, abs=5e-4)
    assert advice.aggregate_every == 25
    assert advice.notebook_bound == pytest.approx(49.898296243030956, rel=1e-12)
    assert (advice.sites_to_visit, advice.notebook_sites_to_visit) == (24, 47)


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


@settings(deadline=None)
@given(st.integers(1, 200), st.integers(1, 20), st.floats(1e-6, 0.999), st.data())
def test_the_proposition_is_the_lemma_at_the_square_root(sites, permute_every, failure, data):
    visits = data.draw(st.integers(1, sites))

    bound = rounds_between_aggregations(sites, visits, permute_every, failure)

    assert bound == pytest.approx(rounds_to_visit(sites, visits, permute_every, sqrt(failure)))
    assert bound == pytest.approx(permute_every * expected_draws(sites, visits) * failure ** (-1 / (2 * sites)))


def test_the_bounds_grow_with_visits_and_confidence_and_period():
    assert rounds_to_visit(50, 11) > rounds_to_visit(50, 10)
    assert rounds_to_visit(50, 10, failure=0.001) > rounds_to_visit(50, 10, failure=0.01)
    assert rounds_to_visit(50, 10, permute_every=3) == pytest.approx(3 * rounds_to_visit(50, 10))


@pytest.mark.parametrize(("sites", "visits"), [(10, 10), (50, 10), (30, 24)])
def test_the_simulation_of_one_model_is_the_markov_chain(sites, visits):
    walked = simulate_visits(sites, visits, runs=200, rng=rng_for(0, "test"))

    for stays in (visits, visits + 3, 2 * visits):
        exact = chance_by_markov_chain(sites, visits, stays)
        assert walked.chance_of_one(stays) == pytest.approx(exact, abs=5 * sqrt(0.25 / walked.rounds.size) + 1e-3)


@pytest.mark.parametrize(("sites", "visits", "failure"), [(10, 10, 0.05), (50, 10, 0.01), (50, 40, 0.01)])
def test_the_lemma_bounds_the_chance_that_no_model_is_through_and_not_that_one_or_all_are(sites, visits, failure):
    walked = simulate_visits(sites, visits, runs=100, rng=rng_for(1, "test"))
    bound = ceil(rounds_to_visit(sites, visits, failure=failure))

    none = (walked.rounds.min(axis=1) > bound).mean()

    assert none <= failure
    assert 0.5 < walked.chance_of_one(bound) < 1 - failure
    assert walked.chance_of_all(bound) < 0.5
    assert walked.all(failure) > walked.one(failure) > bound


def test_a_period_stretches_the_walk():
    every = simulate_visits(8, 5, 1, runs=5, rng=rng_for(2, "test")).rounds
    third = simulate_visits(8, 5, 3, runs=5, rng=rng_for(2, "test")).rounds

    np.testing.assert_array_equal(third, 3 * every)


@pytest.mark.parametrize(("sites", "visits"), [(1, 1), (2, 1), (2, 2), (3, 3)])
def test_the_smallest_federations_walk(sites, visits):
    rounds = simulate_visits(sites, visits, runs=50, rng=rng_for(3, "test")).rounds

    assert rounds.shape == (50, sites)
    assert rounds.min() == visits


def test_rounds_are_read_off_the_runs():
    walked = Visits(np.array([[1, 2], [3, 8]]))

    assert (walked.one(0.25), walked.one(0.5), walked.all(0.5), walked.all(0.01)) == (3, 2, 2, 8)
    assert (walked.chance_of_one(2), walked.chance_of_all(2)) == (0.5, 0.5)


def test_advice_leaves_out_what_is_beyond_reach():
    advice = advise(40, 2, runs=5)

    assert advice.sites_to_visit == 24
    assert advice.notebook_sites_to_visit == 47
    assert advice.notebook_bound is None


def test_advice_can_be_replayed_and_written_down():
    assert asdict(advise(20, 4, 2, runs=5)) == asdict(advise(20, 4, 2, runs=5))


def test_another_learner_needs_other_samples():
    advice = advise(20, 1, samples_needed=lambda error, failure: 3.5, runs=5)

    assert (advice.samples_needed, advice.sites_to_visit) == (3.5, 4)


def test_few_samples_are_told_before_anything_is_walked():
    with pytest.raises(
        PlanError, match=r"takes 47 samples for a model; 10 sites with 4 samples hold 40. Allow a larger"
    ):
        advise(10, 4)


@pytest.mark.parametrize("value", [0, 1, -0.1, 2])
def test_chances_are_between_zero_and_one(value):
    with pytest.raises(PlanError, match=f"failure is a number between 0 and 1, both excluded; got {value}"):
        rounds_to_visit(10, 3, failure=value)
    with pytest.raises(PlanError, match="error is a number between 0 and 1"):
        samples_for(value, 0.1)


@pytest.mark.parametrize("visits", [0, 11])
def test_visits_are_limited_by_the_sites(visits):
    with pytest.raises(PlanError, match=f"a model can visit 1 to 10 different sites of 10; {visits} were asked for"):
        simulate_visits(10, visits, rng=rng_for(0, "test"))


def test_sites_must_have_samples():
    with pytest.raises(PlanError, match="samples_per_site is at least 1; got 0"):
        sites_to_visit(10, 0)


def test_samples_for_one_hypothesis():
    assert samples_for(0.1, 0.05) == pytest.approx(log(20) / 0.1)
