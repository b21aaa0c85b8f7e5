import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.special import logsumexp

from fedsmall.evaluation.metrics import predicted_classes
from fedsmall.evaluation.outputs import log_sum, named_classes, probabilities

OUTPUTS = np.random.default_rng(0).normal(size=(200, 3)) * 5


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_the_class_that_is_named_is_the_one_that_metrics_count(columns):
    outputs = OUTPUTS[:, :columns]

    assert np.array_equal(named_classes(outputs), predicted_classes(outputs))


@pytest.mark.parametrize("columns", [1, 2])
def test_a_threshold_is_one_on_the_probability_of_class_1(columns):
    outputs = OUTPUTS[:, :columns]

    named = named_classes(outputs, threshold=0.2)

    assert np.array_equal(named, probabilities(outputs, "logistic")[:, 1] > 0.2)
    assert named.sum() > named_classes(outputs).sum()


def test_a_tie_and_a_lead_too_small_for_a_probability_are_told_apart():
    assert named_classes(np.array([[0.0, 0.0], [0.0, 1e-300]])).tolist() == [0, 1]


def test_probabilities_sum_to_one_and_one_output_is_the_log_odds_of_class_1():
    odds = OUTPUTS[:, 1] - OUTPUTS[:, 0]

    assert np.allclose(probabilities(odds[:, None], "logistic"), probabilities(OUTPUTS[:, :2], "cross_entropy"))
    assert np.allclose(probabilities(OUTPUTS, "cross_entropy").sum(axis=1), 1)


def test_numbers_have_no_probabilities():
    with pytest.raises(ValueError, match="no probabilities"):
        probabilities(OUTPUTS, "l1")


@given(arrays(np.float64, array_shapes(min_dims=1, max_dims=3, max_side=12), elements=st.floats(-60, 60, width=16)))
def test_the_logarithm_of_a_sum_of_exponentials_has_the_bits_of_scipys(outputs):
    assert np.array_equal(log_sum(outputs), logsumexp(outputs, axis=-1))


@pytest.mark.parametrize("odd", [[np.inf, 0.0], [np.nan, 0.0], [-np.inf, -np.inf], [-np.inf, 3.0]])
def test_nor_does_it_differ_where_a_model_has_diverged(odd):
    with np.errstate(invalid="ignore"):
        assert np.array_equal(log_sum(np.array(odd)), logsumexp(odd), equal_nan=True)
