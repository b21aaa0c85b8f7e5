"""Many models judged at once agree with scikit-learn asked model by model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.federation import Task
from fedsmall.metrics import evaluate
from fedsmall.metrics_at_once import evaluate_many

METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "sensitivity", "specificity", "auc", "loss")


def task(classes: int, loss: str) -> Task:
    return Task("any", (2,), classes, loss, METRICS)


def agree(outputs: np.ndarray, y: np.ndarray, asked: Task) -> None:
    at_once = evaluate_many(outputs, y, asked)

    for model, output in enumerate(outputs):
        one_by_one = evaluate(output, y, asked)
        mine = {name: values[model] for name, values in at_once.items() if not np.isnan(values[model])}
        assert mine == pytest.approx(one_by_one, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(2, 5),
    samples=st.integers(1, 40),
    models=st.integers(1, 4),
    loss=st.sampled_from(["cross_entropy", "logistic", "hinge"]),
    coarse=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_equals_scikit_learn_model_by_model(classes, samples, models, loss, coarse, seed):
    rng = np.random.default_rng(seed)
    classes = classes if loss == "cross_entropy" else 2
    width = classes if loss == "cross_entropy" else 1
    outputs = rng.normal(size=(models, samples, width))
    outputs = np.round(outputs) if coarse else outputs  # rounded scores tie
    y = rng.integers(0, classes, samples)

    agree(outputs, y, task(classes, loss))


def test_a_class_that_no_sample_has_is_left_out_of_the_means():
    outputs = np.random.default_rng(0).normal(size=(3, 10, 4))

    agree(outputs, np.array([0, 1] * 5), task(4, "cross_entropy"))


def test_one_class_alone_has_no_area_under_the_curve():
    found = evaluate_many(np.zeros((2, 3, 2)), np.zeros(3, int), task(2, "cross_entropy"))

    assert "auc" not in found
    assert found["accuracy"].tolist() == [1.0, 1.0]


def test_a_diverged_model_has_no_area_and_the_others_keep_theirs():
    outputs = np.random.default_rng(1).normal(size=(2, 6, 2))
    outputs[0, 0, 0] = np.nan

    found = evaluate_many(outputs, np.array([0, 1, 0, 1, 0, 1]), task(2, "cross_entropy"))

    assert np.isnan(found["auc"][0])
    assert not np.isnan(found["auc"][1])


def test_regression_has_the_mean_absolute_error():
    asked = Task("any", (2,), 3, "l1", ("mae", "loss"))

    found = evaluate_many(np.zeros((2, 4, 3)), np.ones((4, 3)), asked)

    assert found["mae"].tolist() == [1.0, 1.0]


def test_no_samples_show_nothing():
    assert evaluate_many(np.zeros((2, 0, 2)), np.zeros(0, int), task(2, "cross_entropy")) == {}
