import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsmall.evaluation.statistics import ENDS, Interval, interval, paired

SHARES = st.lists(st.floats(0, 1), min_size=2, max_size=12)


@pytest.mark.thorough
@given(SHARES)
def test_no_interval_leaves_what_a_share_can_be(values):
    made = interval(values, scale="share")

    assert 0 <= made.low <= made.mean + 1e-12
    assert made.mean - 1e-12 <= made.high <= 1
    wide = made.corrected(20)
    assert 0 <= wide.low <= made.low + 1e-12
    assert made.high - 1e-12 <= wide.high <= 1


@given(SHARES, SHARES)
def test_no_difference_of_shares_is_beyond_one(a, b):
    shared = min(len(a), len(b))

    gap = paired(a[:shared], b[:shared], test="t", scale="gain").difference.corrected(9)

    assert -1 <= gap.low <= gap.mean + 1e-12
    assert gap.mean - 1e-12 <= gap.high <= 1


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=12))
def test_no_loss_is_below_zero(values):
    assert interval(values, scale="positive").low >= 0


def test_two_seeds_far_apart_say_nearly_nothing_and_nothing_impossible():
    made = interval([0.734, 0.9], scale="share")

    assert (made.low, made.high) == (pytest.approx(0.0038, abs=1e-3), pytest.approx(0.9998, abs=1e-3))


def test_a_narrow_interval_is_students():
    values = [0.80, 0.801, 0.799, 0.8005]

    plain, share = interval(values), interval(values, scale="share")

    assert share.low == pytest.approx(plain.low, abs=1e-5)
    assert share.high == pytest.approx(plain.high, abs=1e-5)


@pytest.mark.parametrize("scale", ["plain", "share", "gain", "positive"])
def test_an_interval_corrected_is_the_interval_at_the_corrected_level(scale):
    values = [0.6, 0.7, 0.72, 0.55, 0.66]

    corrected, asked = interval(values, scale=scale).corrected(4), interval(values, 1 - 0.05 / 4, scale)

    assert (corrected.low, corrected.high) == (pytest.approx(asked.low), pytest.approx(asked.high))


@pytest.mark.parametrize("scale", ENDS)
@pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
def test_equal_values_have_no_width_wherever_they_are(scale, value):
    made = interval([value] * 4, scale=scale)

    assert made.flat
    assert made.corrected(7) == made == Interval(value, value, value, 4, scale)


@pytest.mark.parametrize("runs", [3, 5, 10])
@pytest.mark.parametrize(("mean", "spread"), [(0.6, 0.08), (0.85, 0.05), (0.95, 0.02)])
def test_intervals_of_shares_hold_the_mean_as_often_as_they_say(mean, spread, runs):
    size = mean * (1 - mean) / spread**2 - 1
    draws = np.random.default_rng(runs).beta(mean * size, (1 - mean) * size, (1500, runs))

    made = [interval(values, scale="share") for values in draws]

    # three standard errors of 1,500 draws at 95% are 1.7 points
    assert np.mean([each.contains(mean) for each in made]) == pytest.approx(0.95, abs=0.02)


@given(SHARES, st.sampled_from(["plain", "gain"]))
def test_p_is_below_five_percent_where_and_only_where_the_interval_leaves_zero_out(values, scale):
    values = [value - 0.4 for value in values]

    compared = paired(values, [0.0] * len(values), test="t", scale=scale)

    if abs(compared.p_value - 0.05) > 1e-9 and not compared.difference.flat:
        assert (compared.p_value < 0.05) == (not compared.difference.contains(0.0))


def test_the_p_of_the_plain_scale_is_that_of_students_test():
    a, b = [0.7, 0.8, 0.75, 0.71, 0.9], [0.6, 0.75, 0.77, 0.6, 0.8]

    assert paired(a, b, test="t").p_value == pytest.approx(stats.ttest_rel(a, b).pvalue)


def test_what_is_decided_is_a_corrected_p_below_five_percent():
    compared = paired([0.05, 0.07, 0.06, 0.01, 0.04], [0.0] * 5, test="t", scale="gain")

    for comparisons in range(1, 9):
        assert compared.decides(comparisons) == (compared.corrected_p(comparisons) < 0.05)
    assert compared.decides(1)
    assert not compared.decides(8)


def test_an_error_that_explodes_on_seven_of_eight_seeds_is_worse():
    exploded = [2e5, 3e6, 55.0, 4e7, 1e8, 6e5, 9e6, 2e7]
    usual = [52.0, 55.0, 54.0, 57.0, 53.0, 56.0, 51.0, 58.0]

    gap = paired(exploded, usual, test="t", scale="change")

    assert gap.decides(4)
    assert gap.difference.low > 100
    assert not paired(exploded, usual, test="t").decides()


def test_a_change_mirrors_as_a_ratio_does():
    a, b = [1.0, 1.2, 0.9, 1.4], [0.5, 0.7, 0.6, 0.6]

    one, other = (paired(*pair, test="t", scale="change").difference for pair in ((a, b), (b, a)))

    assert 1 + one.mean == pytest.approx(stats.gmean(a) / stats.gmean(b))
    assert [1 + one.low, 1 + one.high] == pytest.approx([1 / (1 + other.high), 1 / (1 + other.low)])
