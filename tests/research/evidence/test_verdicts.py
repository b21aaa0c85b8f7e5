import numpy as np
import pytest
from scipy import stats

from fedsmall.evaluation.statistics import Interval, holm, interval, paired
from fedsmall.research.evidence.verdicts import (
    runs_to_decide,
    seeds_for_width,
    smallest_p,
    verdict,
    verdict_on_difference,
)


def test_seeds_for_width_is_the_first_that_is_narrow_enough():
    n = seeds_for_width(sd=0.02, width=0.02)

    reach = [2 * stats.t.ppf(0.975, k - 1) * 0.02 / k**0.5 for k in (n - 1, n)]
    assert reach[0] >= 0.02 > reach[1]


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.79, 0.81, "agrees"), (0.70, 0.90, "undecided"), (0.81, 0.83, "undecided"), (0.83, 0.85, "differs")],
)
def test_verdict_needs_the_whole_interval_on_one_side_of_the_margin(low, high, word):
    assert verdict(Interval((low + high) / 2, low, high, 5), published=0.80, margin=0.02).word == word


def test_a_published_spread_widens_the_interval():
    measured = Interval(0.80, 0.795, 0.805, 5)

    assert verdict(measured, 0.80, spread=None).word == "agrees"
    assert verdict(measured, 0.80, spread=0.02).word == "undecided"


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.05, 0.08, "agrees"),
        (-0.01, 0.02, "differs"),
        (0.01, 0.03, "differs"),
        (0.08, 0.10, "differs"),
        (-0.05, -0.03, "differs"),
        (-0.02, 0.08, "undecided"),
    ],
)
def test_verdict_on_a_claimed_six_points(low, high, word):
    assert verdict_on_difference(Interval((low + high) / 2, low, high, 5), claimed=0.06).word == word


@pytest.mark.parametrize("runs", [1, 2, 3, 6, 9, 18])
def test_no_p_value_is_below_the_smallest_for_its_runs(runs):
    clearest = paired(np.arange(1, runs + 1), np.zeros(runs)).p_value

    assert clearest == pytest.approx(smallest_p(runs))
    assert holm([clearest] * 4).min() == pytest.approx(smallest_p(runs, 4))


@pytest.mark.parametrize(("comparisons", "runs"), [(1, 6), (3, 7), (4, 8), (8, 9), (14, 10)])
def test_the_fewest_runs_that_can_decide_are_the_first_below_five_percent(comparisons, runs):
    assert runs_to_decide(comparisons) == runs
    assert smallest_p(runs, comparisons) <= 0.05 < smallest_p(runs - 1, comparisons)


def test_one_of_many_verdicts_needs_more_room():
    measured = Interval(0.80, 0.785, 0.815, 10)

    assert [verdict(measured, 0.80, comparisons=count).word for count in (1, 8)] == ["agrees", "undecided"]
    spread = [verdict(Interval(0.9, 0.899, 0.901, 10), 0.80, 0.03, comparisons=count).word for count in (1, 8)]
    assert spread == ["differs", "undecided"]  # the published mean's part of the interval is corrected, too


def test_one_run_decides_nothing():
    assert verdict(interval([0.8]), 0.8).word == "undecided"
    assert verdict_on_difference(interval([0.8]), 0.1).word == "undecided"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: seeds_for_width(1, 0), "positive width"),
        (lambda: seeds_for_width(1.0, 1e-6, most=100), "more than 100 seeds"),
    ],
)
def test_errors_name_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
