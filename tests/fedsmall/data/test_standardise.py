import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from fedsmall.data.preparation import agree, apply, sums


@given(seed=st.integers(0, 999), sites=st.integers(1, 8), shift=st.floats(-1e3, 1e3))
@settings(max_examples=40, deadline=None)
def test_sums_over_sites_give_the_scaling_of_all_samples_pooled(seed, sites, shift):
    rng = np.random.default_rng(seed)
    parts = [rng.normal(shift, 2.0, size=(rng.integers(1, 9), 3)) for _ in range(sites)]
    parts[0] = np.vstack([parts[0], [[shift, np.nan, shift + 1]]])

    scaling = agree([sums(part, floor=1) for part in parts])

    oracle = StandardScaler().fit(np.vstack(parts))  # leaves NaN out, as we do
    np.testing.assert_allclose(scaling.mean, oracle.mean_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(scaling.scale, oracle.scale_, rtol=1e-5)


def test_a_missing_value_becomes_the_mean():
    x = np.array([[1.0, np.nan], [3.0, 4.0], [np.nan, 8.0]])

    scaled = apply(agree([sums(x, floor=1)]), x)

    assert scaled.tolist() == [[-1.0, 0.0], [1.0, -1.0], [0.0, 1.0]]


def test_a_feature_with_too_few_values_is_not_told():
    few, many = np.array([[7.0, 1.0]] * 4 + [[np.nan, 1.0]]), np.array([[2.0, 3.0]] * 5)

    told = sums(few, floor=5)

    assert (told.count[0], told.total[0], told.squares[0]) == (0.0, 0.0, 0.0)
    assert agree([told, sums(many, floor=5)]).mean.tolist() == [2.0, 2.0]


def test_a_feature_that_nobody_tells_of_stays_as_it_is():
    scaling = agree([sums(np.array([[7.0], [9.0]]), floor=5)])

    assert apply(scaling, np.array([[7.0], [np.nan]])).tolist() == [[7.0], [0.0]]


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 + 0.1, -3.3e-5])
def test_a_constant_feature_is_not_blown_up_by_rounding(value):
    x = np.full((7, 1), value)

    assert agree([sums(x[:3], 1), sums(x[3:], 1)]).scale.tolist() == [1.0]


def test_what_is_not_finite_is_not_hidden():
    assert apply(agree([sums(np.ones((2, 1)), 1)]), np.array([[np.inf]])).tolist() == [[np.inf]]
