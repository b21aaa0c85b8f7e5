from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedsmall.evaluation.statistics import Interval, holm, interval, paired

# Monte-Carlo error of a share near .05 over 2000 repetitions is .0049; three of them are the slack below.
REPETITIONS = 2000
SLACK = 0.015


def test_interval_of_a_textbook_sample():
    found = interval([1, 2, 3, 4, 5])  # sd 1.5811, t(.975, 4) = 2.7764

    assert found == Interval(3, found.low, found.high, 5)
    assert found.low == pytest.approx(3 - 2.7764 * 1.5811 / 5**0.5, abs=1e-3)
    assert found.high == pytest.approx(3 + 2.7764 * 1.5811 / 5**0.5, abs=1e-3)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_t_interval_covers_the_mean_of_normal_runs_at_its_level(n):
    rng = np.random.default_rng(n)

    covered = np.mean([interval(rng.normal(0.8, 0.05, n)).contains(0.8) for _ in range(REPETITIONS)])

    assert covered == pytest.approx(0.95, abs=SLACK)


def test_normal_factor_in_place_of_t_would_cover_too_little():
    rng = np.random.default_rng(0)
    runs = rng.normal(0, 1, (REPETITIONS, 3))

    reach = 1.96 * runs.std(axis=1, ddof=1) / 3**0.5
    covered = np.mean(np.abs(runs.mean(axis=1)) <= reach)

    assert covered < 0.90


def test_one_run_has_a_mean_and_no_interval():
    found = interval([0.7])

    assert found.mean == 0.7
    assert np.isnan(found.width)
    assert not found.contains(0.7)


def test_equal_runs_have_an_interval_without_width():
    assert interval([0.5, 0.5, 0.5]).width == 0


@pytest.mark.thorough
@pytest.mark.parametrize("n", [8, 10])
def test_a_null_comparison_rejects_at_its_level_or_less(n):
    rng = np.random.default_rng(n)

    p = np.array([paired(rng.normal(0, 1, n), rng.normal(0, 1, n)).p_value for _ in range(400)])

    assert np.mean(p <= 0.05) <= 0.05 + 0.033
    assert np.mean(p <= 0.05) >= 0.01  # a test that never rejects would pass the line above


@pytest.mark.thorough
def test_sampled_sign_flips_reject_at_their_level():
    rng = np.random.default_rng(3)

    p = np.array([paired(rng.standard_t(3, 20), np.zeros(20)).p_value for _ in range(60)])

    assert np.mean(p <= 0.05) <= 0.05 + 0.066


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
def test_sign_flips_are_the_share_of_patterns_as_far_from_zero(tenths):
    differences = np.array(tenths) / 10  # coarse, so that patterns tie
    patterns = np.array(list(product((-1, 1), repeat=len(tenths))))

    share = np.mean(np.abs(patterns @ np.array(tenths)) >= abs(sum(tenths)))  # in whole numbers, without rounding

    assert paired(differences, np.zeros(len(tenths))).p_value == pytest.approx(share, abs=1e-12)


def test_fishers_own_example_of_the_sign_flips():
    # Fisher 1935, section 21: of the 2**15 sign patterns of Darwin's differences, 1726 are as extreme: p = .0527.
    differences = np.array([6, 8, 14, 16, 23, 24, 28, 29, 41, -48, 49, 56, 60, -67, 75], dtype=float)

    assert paired(differences, np.zeros(15)).p_value == pytest.approx(1726 / 2**15, abs=1e-4)


def test_five_seeds_cannot_reject_at_five_per_cent():
    a, b = np.array([0.9, 0.91, 0.92, 0.93, 0.94]), np.array([0.1, 0.12, 0.11, 0.14, 0.13])

    found = paired(a, b)

    assert found.p_value == 2 / 2**5
    assert found.decides()


def test_pairing_sees_what_the_seeds_hide():
    rng = np.random.default_rng(0)
    seeds = rng.normal(0.7, 0.1, 10)
    a, b = seeds + 0.02 + rng.normal(0, 0.003, 10), seeds

    assert paired(a, b).decides()
    assert stats.ttest_ind(a, b).pvalue > 0.05


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8))
def test_swapping_the_methods_mirrors_the_comparison(values):
    a, b = np.array(values), np.zeros(len(values))

    one, other = paired(a, b), paired(b, a)

    assert one.p_value == other.p_value
    assert (one.difference.mean, one.difference.low) == (-other.difference.mean, -other.difference.high)


def test_corrected_intervals_hold_all_means_of_a_table_together():
    rng = np.random.default_rng(11)
    runs = rng.normal(0, 1, (300, 6, 6))  # (repetitions, comparisons, seeds)

    held = np.mean([all(interval(one).corrected(6).contains(0) for one in table) for table in runs])
    raw = np.mean([all(interval(one).contains(0) for one in table) for table in runs])

    assert held == pytest.approx(0.95, abs=0.03)
    assert raw < 0.8


def test_few_seeds_and_equal_differences_decide_nothing():
    clear, same = [0.5, 0.51, 0.52, 0.53, 0.54], [0.1] * 5

    assert paired(clear, [0.0] * 5).decides()
    assert not paired(clear[:4], [0.0] * 4).decides()
    assert not paired(same, [0.0] * 5).decides()
    assert paired([0.3, 0.1, 0.2], [0.2, 0.0, 0.1]).difference.flat


def test_equal_methods_are_not_told_apart():
    same = [0.8, 0.9, 0.7]

    assert paired(same, same).p_value == 1
    assert not paired(same, same).decides()


def test_holms_worked_example():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_lies_between_the_raw_values_and_bonferroni_and_keeps_their_order(p):
    found = holm(p)

    assert np.all(found >= p)
    assert np.all(found <= np.minimum(np.array(p) * len(p), 1))
    order = np.argsort(p, kind="stable")
    assert np.all(np.diff(found[order]) >= 0)


def test_holm_holds_the_family_wise_error_where_raw_tests_do_not():
    rng = np.random.default_rng(7)
    shared = rng.normal(size=(REPETITIONS, 1))  # tests of one table are dependent: they share seeds
    p = 2 * stats.norm.sf(np.abs((rng.normal(size=(REPETITIONS, 10)) + shared) / 2**0.5))

    corrected = np.mean([np.any(holm(row) <= 0.05) for row in p])
    raw = np.mean(np.any(p <= 0.05, axis=1))

    assert corrected <= 0.05 + SLACK
    assert raw > 0.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interval([]), "at least one run"),
        (lambda: interval([0.5, float("nan")]), "1 of 2 values are not finite"),
        (lambda: paired([1, 2], [1]), "a has 2, b has 1"),
        (lambda: holm([0.5, 1.5]), "between 0 and 1"),
    ],
)
def test_errors_name_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
