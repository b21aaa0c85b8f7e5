from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as oracle

from fedsmall.federation import Task
from fedsmall.metrics import accuracies, evaluate, loss, predicted
from fedsmall.tasks import CLASS_METRICS

TWO = Task("t", (3,), 2, metrics=CLASS_METRICS)
FOUR = Task("t", (3,), 4, metrics=CLASS_METRICS)


@given(seed=st.integers(0, 10_000), samples=st.integers(20, 60))
@settings(max_examples=30, deadline=None)
def test_metrics_of_many_classes_are_scikit_learns(seed, samples):
    rng = np.random.default_rng(seed)
    outputs, y = rng.normal(size=(samples, 4)), np.concatenate([np.arange(4), rng.integers(0, 4, samples - 4)])
    shares = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)

    found = evaluate(outputs, y, FOUR)

    assert set(found) == set(CLASS_METRICS)
    assert found["accuracy"] == oracle.accuracy_score(y, outputs.argmax(1))
    assert found["balanced_accuracy"] == pytest.approx(oracle.balanced_accuracy_score(y, outputs.argmax(1)))
    assert found["sensitivity"] == pytest.approx(oracle.recall_score(y, outputs.argmax(1), average="macro"))
    assert found["macro_f1"] == pytest.approx(oracle.f1_score(y, outputs.argmax(1), average="macro"))
    assert found["auc"] == pytest.approx(oracle.roc_auc_score(y, shares, multi_class="ovr"))
    assert found["loss"] == pytest.approx(oracle.log_loss(y, shares))


@pytest.mark.parametrize(
    ("name", "torch_loss"),
    [
        ("cross_entropy", torch.nn.functional.cross_entropy),
        ("logistic", lambda s, y: torch.nn.functional.binary_cross_entropy_with_logits(s[:, 0], y.double())),
        ("hinge", lambda s, y: torch.clamp(1 - s[:, 0] * (2 * y - 1), min=0).mean()),
    ],
)
def test_losses_are_torchs(name, torch_loss):
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(9, 2 if name == "cross_entropy" else 1)) * 50, rng.integers(0, 2, 9)

    expected = float(torch_loss(torch.tensor(outputs), torch.tensor(y)))

    assert loss(outputs, y, name) == pytest.approx(expected, rel=1e-12)


def test_one_output_and_the_two_it_stands_for_are_worth_the_same():
    scores, y = np.array([[2.0], [-1.0], [0.5], [-3.0]]), np.array([1, 1, 0, 0])

    one = evaluate(scores, y, replace(TWO, loss="logistic"))
    two = evaluate(np.hstack([0 * scores, scores]), y, TWO)

    assert one == pytest.approx(two)


def test_sensitivity_is_of_class_one_and_specificity_of_class_zero():
    scores, y = np.array([[1.0], [1.0], [-1.0], [1.0]]), np.array([1, 1, 1, 0])

    found = evaluate(scores, y, Task("t", (3,), 2, loss="hinge", metrics=CLASS_METRICS))

    assert found["sensitivity"] == pytest.approx(2 / 3)
    assert found["specificity"] == 0.0


def test_what_the_samples_cannot_show_is_left_out():
    found = evaluate(np.array([[1.0, 2.0]]), np.array([1]), TWO)

    assert "auc" not in found
    assert "specificity" not in found
    assert found["accuracy"] == 1.0
    assert evaluate(np.zeros((0, 2)), np.zeros(0, dtype=int), TWO) == {}


def test_a_model_that_diverged_has_an_accuracy_and_no_auc():
    found = evaluate(np.array([[np.nan, 1.0], [0.0, 1.0]]), np.array([0, 1]), TWO)

    assert "auc" not in found
    assert "loss" not in found
    assert "accuracy" in found


def test_many_models_are_judged_as_one_by_one():
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(5, 12, 4)), rng.integers(0, 4, 12)

    together = accuracies(outputs, y)

    assert together.tolist() == [evaluate(model, y, FOUR)["accuracy"] for model in outputs]
    assert accuracies(outputs[..., :1], y % 2).tolist() == [np.mean(predicted(m[:, :1]) == y % 2) for m in outputs]


def test_regression_is_judged_by_the_mean_absolute_error():
    task = Task("t", (3,), 2, loss="l1", metrics=("mae", "loss"))

    assert evaluate(np.array([[1.0, 2.0]]), np.array([[0.0, 4.0]]), task) == {"mae": 1.5, "loss": 1.5}


def test_an_unknown_loss_is_named():
    with pytest.raises(ValueError, match="names 'huber'"):
        loss(np.zeros((1, 2)), np.zeros(1, dtype=int), "huber")
