"""The gate sets aside what is absurd, and nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsmall.algorithm.gate import GATE, GROWTH, are_outsized, name_culprit, refusal, size, sizes, too_large

COMMON = {"w": np.array([3.0, 4.0], np.float32)}


def comm_round(*updates: float, sent: float = 5.0):
    """Models that were sent with this norm, and what came back: further by an update of the given norm."""
    was = np.tile(np.array([sent, 0.0], np.float32), (len(updates), 1))
    return {"w": was + np.array([[0.0, u] for u in updates], np.float32)}, {"w": was}


def set_aside(*updates: float, gate: float = GATE, sent: float = 5.0) -> dict[int, str]:
    return too_large(*comm_round(*updates, sent=sent), COMMON, gate)


def test_a_size_is_the_norm_over_all_floats_whatever_their_magnitude():
    stack = {"a": np.array([[3.0, 0.0], [3e200, 0.0]]), "b": np.array([[4.0], [4e200]]), "n": np.array([9, 9])}

    np.testing.assert_allclose(sizes(stack), [5.0, 5e200])
    assert size({"a": np.float32(3e30), "b": np.float32(4e30)}) == pytest.approx(5e30)


@pytest.mark.parametrize("others", [2, 3, 19])
@pytest.mark.parametrize("absurd", [1e3, 1e30])
def test_one_absurd_update_is_set_aside_in_company_of_two_or_more(others, absurd):
    reasons = set_aside(*[0.1] * others, absurd)

    assert list(reasons) == [others]
    assert "the median of this communication round's" in reasons[others]


def test_the_reason_says_how_many_times_the_median_it_was():
    assert set_aside(1.0, 1.0, 1240.0) == {2: "its update is 1,240 times the median of this communication round's"}


@pytest.mark.parametrize("updates", [(0.1, 0.1, 1.9), (0.0, 0.0, 4.0), (1.0, 1.0, 24.0), (1e6, 1e6, 1e6)])
def test_what_is_not_both_far_from_the_others_and_larger_than_the_model_stays(updates):
    assert set_aside(*updates) == {}


@given(st.lists(st.floats(0.05, 0.95), min_size=1, max_size=9))
def test_no_update_within_the_model_is_ever_set_aside(updates):
    assert set_aside(*updates, gate=1.0001) == {}


def test_with_two_sites_only_a_growth_by_a_thousand_counts():
    assert set_aside(1.0, 4000.0) == {}
    assert list(set_aside(1.0, 6000.0)) == [1]
    assert "the size of the model that it was sent" in set_aside(1.0, 6000.0)[1]


def test_models_that_all_begin_at_zero_are_compared_with_each_other():
    came, sent = comm_round(0.1, 0.1, 0.1, 50.0, sent=0.0)

    assert list(too_large(came, sent, {"w": np.zeros(2)}, GATE)) == [3]
    assert too_large(sent, sent, {"w": np.zeros(2)}, GATE) == {}


def test_running_statistics_are_judged_apart():
    came, sent = comm_round(0.1, 0.1, 0.1)
    variances = {"bn.running_var": np.ones((3, 2))}
    absurd = {"bn.running_var": np.array([[1.0, 1.0], [1e9, 1.0], [1.1, 1.0]])}
    global_model = {**COMMON, "bn.running_var": np.ones(2)}

    assert too_large(came | variances, sent | variances, global_model, GATE) == {}
    assert list(too_large(came | absurd, sent | variances, global_model, GATE)) == [1]


def test_an_aggregate_that_is_not_finite_or_has_grown_a_thousandfold_is_refused():
    assert refusal({"w": np.array([900.0 * 5, 0.0])}, COMMON, GATE) is None
    assert "1,000 times" in refusal({"w": np.array([1100.0 * 5, 0.0])}, COMMON, GATE)
    assert refusal({"w": np.array([1100.0 * 5, 0.0])}, COMMON, 0.0) is None
    assert "not finite" in refusal({"w": np.array([np.nan, 0.0])}, COMMON, 0.0)
    assert refusal({"w": np.array([GROWTH, 0.0])}, {"w": np.zeros(2)}, GATE) is None


def test_a_traveller_is_absurd_by_its_own_size_or_by_what_goes_with_it():
    none = np.zeros(4)

    assert are_outsized(np.array([5.0, 5.0, 6.0, 500.0]), none, COMMON).tolist() == [False, False, False, True]
    assert are_outsized(np.full(4, 5.0), np.array([0.0, 1.0, 2.0, 1e9]), COMMON).tolist() == [False, False, False, True]
    assert are_outsized(np.full(4, 5.0), np.array([0.0, 0.0, 2.0, 1e9]), COMMON).tolist() == [False] * 4
    assert are_outsized(np.array([5.0, 1e9]), np.zeros(2), COMMON).tolist() == [False, True]


def test_who_trained_an_absurd_traveller_last_is_named_and_so_is_the_site_where_it_came_to_nothing():
    assert name_culprit("essen", "why", None) == ("essen", "set aside", "why")
    site, kind, reason = name_culprit("essen", "why", "bonn")
    assert (site, kind) == ("bonn", "replaced")
    assert "essen (why)" in reason
