from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from scipy.stats import rankdata
from sklearn import metrics as oracle

from fedsmall.data.federation import Task
from fedsmall.evaluation.metrics import by_digits, evaluate, evaluate_many, mid_ranks
from fedsmall.evaluation.site_sums import held_out_sums, metric_sums, metrics_of_sums
from fedsmall.planning.tasks import CLASS_METRICS

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


def of_scikit_learn(outputs: np.ndarray, y: np.ndarray, task: Task) -> dict[str, float]:
    """The metrics of one model as scikit-learn has them; those that it refuses or warns of are left out."""
    guess = outputs.argmax(axis=1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).astype(int)
    seen = np.unique(y)
    recall = oracle.recall_score(y, guess, labels=seen, average=None, zero_division=0.0)
    expected = {
        "accuracy": oracle.accuracy_score(y, guess),
        "balanced_accuracy": recall.mean(),
        "macro_f1": oracle.f1_score(y, guess, average="macro", zero_division=0.0),
    }
    others = [label for label in range(task.classes) if np.any(y != label)]
    specificity = {
        label: oracle.recall_score(y != label, guess != label, pos_label=True, zero_division=0.0) for label in others
    }
    if task.classes > 2:
        expected |= {"sensitivity": recall.mean(), "specificity": np.mean(list(specificity.values()))}
    else:
        expected |= {"sensitivity": recall[list(seen).index(1)]} if 1 in seen else {}
        expected |= {"specificity": specificity[1]} if 1 in specificity else {}
    if task.classes > 2:
        # by the same formula: scores that tie but for the last digit are no matter of the metric
        scores = dict(enumerate(np.exp(outputs - logsumexp(outputs, axis=1, keepdims=True)).T))
    else:
        scores = {1: outputs[:, 0] if outputs.shape[1] == 1 else outputs[:, 1] - outputs[:, 0]}
    areas = [oracle.roc_auc_score(y == k, of_k) for k, of_k in scores.items() if 0 < np.sum(y == k) < len(y)]
    return expected | ({"auc": np.mean(areas)} if areas else {})


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(2, 5),
    samples=st.integers(1, 40),
    models=st.integers(1, 4),
    loss=st.sampled_from(["cross_entropy", "logistic", "hinge"]),
    coarse=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_many_models_at_once_are_scikit_learns_one_by_one(classes, samples, models, loss, coarse, seed):
    rng = np.random.default_rng(seed)
    classes = classes if loss == "cross_entropy" else 2
    outputs = rng.normal(size=(models, samples, classes if loss == "cross_entropy" else 1))
    outputs = np.round(outputs) if coarse else outputs  # rounded scores tie
    y = rng.integers(0, classes, samples)
    task = Task("t", (2,), classes, loss, tuple(name for name in CLASS_METRICS if name != "loss"))

    at_once = evaluate_many(outputs, y, task)

    for model, output in enumerate(outputs):
        mine = {name: values[model] for name, values in at_once.items() if not np.isnan(values[model])}
        assert mine == pytest.approx(of_scikit_learn(output, y, task), abs=1e-12)


@pytest.mark.parametrize("values", [1, 3, 40, 10_000])
@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (2, 3, 30), (4, 0)])
def test_mid_ranks_are_scipys(shape, values):
    scores = np.random.default_rng(0).integers(-values, values, shape) / 7

    assert np.array_equal(mid_ranks(scores), rankdata(scores, axis=-1))


def test_a_diverged_model_has_no_area_and_the_others_keep_theirs():
    outputs = np.random.default_rng(1).normal(size=(2, 6, 2))
    outputs[0, 0, 0] = np.nan

    found = evaluate_many(outputs, np.array([0, 1, 0, 1, 0, 1]), TWO)

    assert np.isnan(found["auc"][0])
    assert not np.isnan(found["auc"][1])


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

    task = Task("t", (3,), 2, loss=name, metrics=("loss",))
    assert evaluate(outputs, y, task)["loss"] == pytest.approx(expected, rel=1e-12)


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


def test_regression_is_judged_by_the_mean_absolute_error():
    task = Task("t", (3,), 2, loss="l1", metrics=("mae", "loss"))

    assert evaluate(np.array([[1.0, 2.0]]), np.array([[0.0, 4.0]]), task) == {"mae": 1.5, "loss": 1.5}


def test_an_unknown_loss_is_named():
    with pytest.raises(ValueError, match="names 'quantile'"):
        evaluate(np.zeros((1, 2)), np.zeros(1, dtype=int), replace(TWO, loss="quantile"))


@pytest.mark.parametrize("classes", [2, 4])
def test_there_is_one_brier_score_and_it_is_scikit_learns(classes):
    rng = np.random.default_rng(0)
    outputs, y = rng.normal(size=(50, classes)), rng.integers(classes, size=50)
    task = Task("t", (3,), classes, metrics=("brier",))

    found = [
        evaluate(outputs, y, task),
        *(metrics_of_sums(way(outputs, y, task), task) for way in (metric_sums, held_out_sums)),
    ]

    shares = softmax(outputs, axis=1)
    assert [each["brier"] for each in found] == pytest.approx([oracle.brier_score_loss(y, shares)] * 3)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        *[(13880.4, "13,880"), (9999.6, "10,000"), (1234.5, "1234"), (0.0213456, "0.02135"), (-56789, "-56,790")],
        *[(0, "0"), (float("nan"), "nan"), (float("inf"), "inf"), (2.5e20, "2.5e+20"), (-0.00001, "-1e-05")],
    ],
)
def test_a_number_is_said_by_its_first_digits_and_written_out_where_it_is_large(number, said):
    assert by_digits(number) == said


def test_a_difference_has_its_sign():
    assert (by_digits(12345, sign="+"), by_digits(1110, 3), by_digits(0.5, sign="+")) == ("+12,340", "1,110", "+0.5")
