import numpy as np
import pytest
from scipy.stats import norm

from fedsmall.extensions.audit.membership import GUESSES, lower_bound, p_value, refuted

RUNS = 200


def randomised(rng, epsilon: float, candidates: int = 250) -> tuple[np.ndarray, np.ndarray]:
    """Randomised response, the worst mechanism of its epsilon: each coin is told right with probability e^e/(1+e^e)."""
    members = rng.random(candidates) < 0.5
    told = np.where(rng.random(candidates) < 1 / (1 + np.exp(-epsilon)), members, ~members)
    return np.where(told, 1.0, -1.0) * (1 + rng.random(candidates)), members


def noised(rng, noise: float, candidates: int = 250) -> tuple[np.ndarray, np.ndarray]:
    """One Gaussian release for each candidate, and its log likelihood ratio."""
    members = rng.random(candidates) < 0.5
    return (members + noise * rng.standard_normal(candidates) - 0.5) / noise**2, members


def true_epsilon(noise: float, delta: float) -> float:
    """The epsilon of one Gaussian release (Balle and Wang 2018, theorem 8)."""
    low, high = 0.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        spent = norm.cdf(0.5 / noise - middle * noise) - np.exp(middle) * norm.cdf(-0.5 / noise - middle * noise)
        low, high = (middle, high) if spent > delta else (low, middle)
    return high


def test_sixty_four_right_guesses_show_an_epsilon_of_three():
    assert refuted(250, GUESSES, GUESSES) == pytest.approx(3.04, abs=0.01)
    assert refuted(250, GUESSES, GUESSES // 2) == 0


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
def test_the_bound_never_exceeds_the_epsilon_of_a_gaussian_release(noise):
    rng, delta = np.random.default_rng(0), 1e-5

    bounds = [lower_bound(*noised(rng, noise), delta=delta) for _ in range(RUNS)]

    assert max(bounds) <= true_epsilon(noise, delta)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 2.0])
def test_the_bound_errs_in_no_more_than_five_percent_of_runs_under_the_worst_mechanism(epsilon):
    rng = np.random.default_rng(1)

    wrong = sum(lower_bound(*randomised(rng, epsilon)) > epsilon for _ in range(1000))

    assert wrong <= 65  # 50 expected at most; 65 are two deviations more


def test_a_false_claim_is_refuted():
    rng = np.random.default_rng(2)

    bounds = [lower_bound(*randomised(rng, 3.0)) for _ in range(RUNS)]

    assert np.median(bounds) > 1.5  # so epsilon = 1.5 is refuted in most runs


def test_scores_that_know_nothing_refute_nothing():
    rng = np.random.default_rng(3)

    bounds = [lower_bound(rng.standard_normal(250), rng.random(250) < 0.5) for _ in range(RUNS)]

    assert np.mean(np.array(bounds) == 0) >= 0.9


def test_fewer_candidates_than_guesses_are_all_guessed():
    members = np.array([True, False, True, True, False, True])

    assert lower_bound(np.where(members, 1.0, -1.0), members) == refuted(6, 6, 6) > 0


@pytest.mark.parametrize("right", [1, 30, 60])
def test_a_larger_epsilon_explains_more(right):
    values = [p_value(250, 64, right, epsilon, 1e-5) for epsilon in (0.0, 0.5, 1.0, 2.0, 4.0)]

    assert values == sorted(values)
    assert p_value(250, 64, right, 1.0, 1e-3) >= p_value(250, 64, right, 1.0, 0.0)
