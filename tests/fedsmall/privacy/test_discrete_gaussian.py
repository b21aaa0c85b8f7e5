"""Noise on a grid: it is the discrete Gaussian, and no float tells what it was added to."""

import math

import numpy as np
import pytest
from scipy import stats

from fedsmall.privacy.discrete_gaussian import FINENESS, add_noise, discrete_gaussian, grid_for, system_words, widened


@pytest.mark.parametrize("ratio", [0.6, 1.0, 1.7, 4.0])
def test_draws_have_the_chances_of_a_discrete_gaussian(ratio):
    """An independent oracle: the chances summed from their definition."""
    reach = np.arange(-math.ceil(4 * ratio), math.ceil(4 * ratio) + 1)
    chances = np.exp(-(reach**2) / (2 * ratio**2))

    drawn = discrete_gaussian(200_000, ratio, system_words)

    seen = (drawn[:, None] == reach).sum(axis=0)
    assert stats.chisquare(seen, chances / chances.sum() * seen.sum()).pvalue > 1e-6
    assert seen.sum() > 0.999 * len(drawn)


def test_a_fine_grid_gives_a_gaussian():
    drawn = discrete_gaussian(200_000, 1.3 * 2.0**FINENESS, system_words)

    assert stats.kstest(drawn / (1.3 * 2.0**FINENESS), "norm").pvalue > 1e-6
    assert len(set(drawn.tolist())) > 0.99 * len(drawn)
    assert abs((drawn % 2).mean() - 0.5) < 0.01  # no multiple of the grid is left out


@pytest.mark.parametrize("deviation", [1e-9, 0.37, 1.0, 1e4])
def test_whatever_it_is_added_to_the_sum_lies_on_the_same_grid(deviation):
    values = np.concatenate([np.zeros(50), np.random.default_rng(0).normal(size=50) * deviation])

    noised = add_noise(values.reshape(10, 10), deviation, system_words)

    steps = noised / grid_for(deviation)
    assert noised.shape == (10, 10)
    assert (steps == np.rint(steps)).all()
    assert 2**FINENESS <= deviation / grid_for(deviation) < 2 ** (FINENESS + 1)


def test_where_an_update_is_not_finite_neither_is_what_leaves():
    assert np.isnan(add_noise(np.ones(3), math.nan, system_words)).all()
    assert np.isnan(add_noise(np.ones(3), math.inf, np.random.default_rng(0))).all()
    assert add_noise(np.ones(3), 0.0, system_words).tolist() == [1, 1, 1]


def test_rounding_to_the_grid_is_paid_for():
    """Two neighbouring sums of norm 1 apart, at worst rounded away from each other, are no further apart than paid."""
    numbers, multiplier = 400, 3.0
    deviation = widened(1.0, multiplier, numbers)
    grid = grid_for(multiplier)
    apart = np.full(numbers, 1 / math.sqrt(numbers))
    other = np.full(numbers, 0.4999 * grid)

    rounded = np.rint((other + apart) / grid) * grid - np.rint(other / grid) * grid

    assert multiplier * np.linalg.norm(rounded) <= deviation < multiplier * 1.0001


def test_the_system_gives_words_of_64_bits():
    words = system_words(1000)

    assert words.dtype == np.uint64
    assert (words > 2**63).sum() > 400


@pytest.mark.parametrize("summands", [2, 3, 23])
def test_discrete_gaussians_add_up_to_one(summands):
    """Of three steps of the grid each, where sites have 2**24 divided by the root of their number."""

    def chances(variance: float, reach: int = 400) -> np.ndarray:
        weights = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * variance))
        return weights / weights.sum()

    each = total = chances(9.0)
    for _ in range(summands - 1):
        total = np.convolve(total, each)[400:-400]

    assert np.abs(total - chances(9.0 * summands)).sum() < 1e-13
