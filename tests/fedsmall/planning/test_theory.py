from dataclasses import asdict
from fractions import Fraction
from itertools import combinations, permutations, product
from math import ceil, log, sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.aggregation_period import period_for
from fedsmall.aggregation.radon import iterated_radon_point
from fedsmall.errors import PlanError
from fedsmall.planning.theory import (
    advise,
    advise_radon,
    expected_draws,
    radon_failure,
    radon_failure_as_printed,
    rounds_between_aggregations,
    rounds_but_for,
    rounds_to_visit,
    samples_for,
    simulate_visits,
    sites_to_visit,
)
from fedsmall.randomness import rng_for


def test_the_papers_radon_experiment():
    # 441 sites with 2 samples each: the Radon experiment of Kamp et al. 2023
    visits = sites_to_visit(samples_for(0.05, sqrt(0.01)), 2)

    assert visits == 24
    assert rounds_between_aggregations(441, visits, 1, 0.01) == pytest.approx(24.778, abs=5e-4)


def test_the_authors_notebook_asks_for_samples_at_the_whole_failure():
    visits = sites_to_visit(samples_for(0.05, 0.01), 2)

    # printed by the notebook that the authors published with the paper
    assert rounds_between_aggregations(441, visits, 1, 0.01) == pytest.approx(49.898296243030956, rel=1e-12)


def test_advice_is_what_was_simulated_beside_the_bound():
    advice = advise(441, 2, runs=20)

    assert advice.bound == pytest.approx(24.778, abs=5e-4)
    assert advice.aggregate_every == advice.all_models > ceil(advice.bound) == 25
    assert advice.sites_to_visit == 24


@pytest.mark.thorough
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


@pytest.mark.parametrize(("sites", "visits", "failure"), [(10, 10, 0.05), (50, 10, 0.01), (50, 40, 0.01)])
def test_the_lemma_bounds_the_chance_that_no_model_is_through_and_not_that_one_or_all_are(sites, visits, failure):
    walked = simulate_visits(sites, visits, runs=100, rng=rng_for(1, "test"))
    bound = ceil(rounds_to_visit(sites, visits, failure=failure))

    none = (walked.min(axis=1) > bound).mean()

    assert none <= failure
    assert 0.5 < (walked <= bound).mean() < 1 - failure
    assert (walked.max(axis=1) <= bound).mean() < 0.5
    assert rounds_but_for(failure, walked.max(axis=1)) > rounds_but_for(failure, walked) > bound


def test_advice_can_be_replayed_and_written_down():
    assert asdict(advise(20, 4, 2, runs=5)) == asdict(advise(20, 4, 2, runs=5))


def test_another_learner_needs_other_samples():
    advice = advise(20, 1, samples_needed=lambda error, failure: 3.5, runs=5)

    assert (advice.samples_needed, advice.sites_to_visit) == (3.5, 4)


def test_few_samples_are_told_before_anything_is_walked():
    with pytest.raises(PlanError, match=r"takes 47 samples for a model; the sites hold 40 \(10 x 4\)\. Allow a larger"):
        advise(10, 4)


@pytest.mark.parametrize("value", [0, 1, -0.1, 2])
def test_chances_are_between_zero_and_one(value):
    with pytest.raises(PlanError, match=f"failure is a number between 0 and 1, both excluded; got {value}"):
        rounds_to_visit(10, 3, failure=value)
    with pytest.raises(PlanError, match="error is a number between 0 and 1"):
        samples_for(value, 0.1)


def test_sites_must_have_samples():
    with pytest.raises(PlanError, match="samples_per_site is at least 1; got 0"):
        sites_to_visit(10, 0)


def test_samples_for_one_hypothesis():
    assert samples_for(0.1, 0.05) == pytest.approx(log(20) / 0.1)


def none_is_through(sites, visits, stays):
    """The exact chance that no model has been at so many sites, by the chain of what every model has visited."""
    states = {tuple(1 << site for site in range(sites)): Fraction(1)}
    orders = list(permutations(range(sites)))
    for _ in range(stays - 1):
        following = {}
        for visited, chance in states.items():
            for order in orders:
                then = tuple(seen | 1 << site for seen, site in zip(visited, order, strict=True))
                following[then] = following.get(then, Fraction(0)) + chance / len(orders)
        states = following
    return sum(chance for visited, chance in states.items() if all(seen.bit_count() < visits for seen in visited))


@pytest.mark.parametrize("failure", [0.9, 0.5, 0.1, 0.01, 0.001])
@pytest.mark.parametrize(("sites", "visits"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2), (3, 3)])
def test_the_lemma_holds_exactly_for_up_to_three_sites(sites, visits, failure):
    stays = ceil(rounds_to_visit(sites, visits, failure=failure))

    assert none_is_through(sites, visits, stays) <= failure


def test_two_models_fall_short_together_and_never_alone():
    together = [none_is_through(2, 2, stays) for stays in range(1, 6)]

    assert together == [Fraction(1, 2 ** (stays - 1)) for stays in range(1, 6)]  # the chance of one, not its square


@pytest.mark.parametrize("sites", [1, 2, 3, 7])
@pytest.mark.parametrize("samples", [1, 2, 3, 50])
@pytest.mark.parametrize("failure", [0.01, 0.3, 0.9])
def test_the_swept_period_is_the_proposition_reckoned_in_fractions(sites, samples, failure):
    needed = ceil(log(1 / sqrt(failure)) / 0.05 / samples)
    harmonic = [sum(Fraction(1, i) for i in range(1, k + 1)) for k in range(sites + 1)]

    period = period_for(sites, samples, 2, 0.05, failure)

    if needed > sites:
        assert period is None
    else:
        exact = 2 * sites * (harmonic[sites] - harmonic[sites - needed])
        assert period == pytest.approx(float(exact) / failure ** (1 / (2 * sites)), rel=1e-12)


@pytest.mark.parametrize("height", [1, 2])
@pytest.mark.parametrize("chance", [Fraction(1, 100), Fraction(1, 10), Fraction(1, 3), Fraction(9, 10)])
def test_radon_points_on_a_line_fail_as_medians_of_medians_do(height, chance):
    exact = Fraction(0)
    for models in product((0, 1), repeat=3**height):  # a model that fails lies beyond all that do not
        level = models
        while len(level) > 1:
            level = [sorted(level[i : i + 3])[1] for i in range(0, len(level), 3)]
        exact += level[0] * chance ** sum(models) * (1 - chance) ** (3**height - sum(models))

    assert radon_failure(3, height, float(chance)) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("radon_number", [3, 4, 6])
def test_two_failing_models_of_r_are_counted_exactly(radon_number):
    chance = Fraction(1, 20)
    exact = sum(
        chance**failing * (1 - chance) ** (radon_number - failing)
        for failing in range(2, radon_number + 1)
        for _ in combinations(range(radon_number), failing)
    )

    assert radon_failure(radon_number, 1, 0.05) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize(("parameters", "height", "failure"), [(1, 2, 0.2), (3, 1, 0.1), (8, 1, 0.05), (8, 2, 0.05)])
def test_models_that_fail_far_out_make_radon_points_fail_as_often_as_is_said(parameters, height, failure):
    r, runs, rng = parameters + 2, 1500, rng_for(5, "test")

    failed = 0
    for _ in range(runs):
        models = rng.standard_normal((r**height, parameters))
        models[:, 0] += (rng.random(r**height) < failure) * rng.uniform(1e6, 2e6, r**height)
        failed += abs(iterated_radon_point(models, height)[0]) > 1e2  # a convex loss, the first coordinate

    said = radon_failure(r, height, failure)
    assert failed / runs == pytest.approx(said, abs=5 * sqrt(said * (1 - said) / runs))


def test_equation_1_holds_at_height_one_and_is_exceeded_at_height_two():
    assert radon_failure_as_printed(10, 2, 0.05) == pytest.approx(float(Fraction(1, 2) ** 4))
    assert radon_failure_as_printed(10, 2, 0.05) < 0.0625001 < 0.2 < radon_failure(10, 2, 0.05)
    assert radon_failure_as_printed(3, 10, 0.3) < 1e-40
    assert radon_failure_as_printed(10, 3, 0.1) == 1


@pytest.mark.thorough
@given(st.integers(3, 500), st.floats(1e-6, 0.999))
def test_equation_1_is_no_less_than_what_is_reached_at_height_one(radon_number, failure):
    assert radon_failure(radon_number, 1, failure) <= radon_failure_as_printed(radon_number, 1, failure) * (1 + 1e-9)


def test_advice_on_radon_points_for_the_papers_experiment():
    advice = advise_radon(441, 19)

    assert (advice.radon_number, advice.height) == (21, 2)
    assert advice.failure_as_printed == pytest.approx(0.21**4)
    assert advice.failure_at_most > advice.failure  # no gain is provable there
    assert advice.samples_alone == pytest.approx(20 * log(21))  # Corollary 3: n0(.05, 1/21)


@pytest.mark.parametrize(("sites", "parameters", "height"), [(3, 1, 1), (8, 1, 1), (9, 1, 2), (440, 19, 1), (25, 3, 2)])
def test_the_height_is_the_largest_that_the_sites_allow(sites, parameters, height):
    assert advise_radon(sites, parameters).height == height


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 1), "takes at least r = parameters [+] 2 = 3 models; this run has 1"),
        ((2, 1), "takes at least r = parameters [+] 2 = 3 models; this run has 2"),
        ((440, 19, 2), r"m >= r\*\*h sites: 21\*\*2 = 441 for 19 parameters at height 2; there are 440"),
        ((441, 19, 2, 0.05, 1 / 21), "below 1/r = 1/21 = 0.0476 for 19 parameters; got 0.047619. Take a smaller"),
        ((441, 19, 0), "height is at least 1; got 0"),
        ((441, 19, 2, 0.05, 0.0), "failure is a number between 0 and 1"),
    ],
)
def test_where_the_proposition_does_not_speak_is_told(arguments, message):
    with pytest.raises(PlanError, match=message):
        advise_radon(*arguments)


@pytest.mark.parametrize("failure", [0.25, 1e-4])
def test_advice_walks_enough_chains_for_the_chance_it_names(monkeypatch, failure):
    walked = []

    def watched(*arguments, runs, rng):
        walked.append(runs)
        return simulate_visits(*arguments, runs=runs, rng=rng)

    monkeypatch.setattr("fedsmall.planning.theory.simulate_visits", watched)
    advise(4, 100, failure=failure)

    assert walked == [max(100, ceil(10 / sqrt(failure)))]


@pytest.mark.parametrize(("sites", "samples"), [(1, 60), (2, 40), (3, 16), (30, 3)])
def test_after_the_recommended_rounds_every_model_is_through(sites, samples):
    advice = advise(sites, samples, 2)
    walked = simulate_visits(sites, advice.sites_to_visit, 2, runs=400, rng=rng_for(6, "test"))

    assert (walked.max(axis=1) <= advice.aggregate_every).mean() >= 0.9 - 5 * sqrt(0.09 / 100)
    assert advice.aggregate_every % 2 == 0
