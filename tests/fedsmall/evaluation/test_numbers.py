import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.evaluation.clinical import NUMBER_STATISTICS, calibration_slope
from fedsmall.evaluation.metrics import default_metric, evaluate, evaluate_many, known_metric

AGE = Task("t", (3,), 1, "mse", ("mae", "rmse", "r2", "loss"), target="age", unit=(50.0, 12.0))


@given(seed=st.integers(0, 10**6), samples=st.integers(2, 30), loss=st.sampled_from(["mse", "l1", "huber"]))
@settings(max_examples=25, deadline=None)
def test_errors_are_scikit_learns_in_the_unit_of_the_target(seed, samples, loss):
    rng = np.random.default_rng(seed)
    outputs, y = rng.normal(size=(4, samples, 1)), rng.normal(size=(samples, 1))
    task = Task("t", (3,), 1, loss, AGE.metrics, unit=AGE.unit)

    found = evaluate_many(outputs, y, task)

    for place, own in enumerate(outputs):
        predicted, true = 50 + 12 * own, 50 + 12 * y
        assert found["mae"][place] == pytest.approx(mean_absolute_error(true, predicted))
        assert found["rmse"][place] == pytest.approx(root_mean_squared_error(true, predicted))
        assert found["r2"][place] == pytest.approx(r2_score(true, predicted))


def test_the_share_explained_of_equal_targets_is_not_defined():
    found = evaluate(np.zeros((3, 1)), np.ones((3, 1)), AGE)

    assert set(found) == {"mae", "rmse", "loss"}
    assert found["mae"] == 12


def test_always_the_mean_explains_nothing_and_the_truth_all():
    true = np.array([1.0, 2.0, 6.0])

    r_squared = NUMBER_STATISTICS["R2"]
    assert r_squared(np.full(3, true.mean()), true) == pytest.approx(0)
    assert r_squared(true, true) == 1


def test_the_slope_of_calibration_is_that_of_a_straight_line():
    rng = np.random.default_rng(0)
    predicted = rng.normal(size=20)
    true = 3 + 0.5 * predicted + rng.normal(size=20)

    assert calibration_slope(predicted, true) == pytest.approx(np.polyfit(predicted, true, 1)[0])
    assert np.isnan(calibration_slope(np.ones(4), np.arange(4.0)))


def test_a_metric_of_classes_is_none_of_numbers():
    with pytest.raises(PlanError, match="there is no 'auc' for this task"):
        known_metric("auc", "mse")

    assert known_metric("r2_score", "huber") == "r2"
    assert default_metric([np.ones((3, 1))], AGE) == "mae"
