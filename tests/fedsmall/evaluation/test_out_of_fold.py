"""What sites tell adds up to what scikit-learn says of all their samples together; no sample is in it."""

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from fedsmall.data.federation import Task
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.outputs import answer
from fedsmall.evaluation.site_sums import add_sums, auc_error, metric_sums, metrics_of_sums, sum_shapes

KINDS = {"two classes": (2, "cross_entropy"), "one output": (2, "logistic"), "four classes": (4, "cross_entropy")}


def hospitals(kind: str, spread: float = 2.0, sites: int = 6):
    """Each site's outputs and targets, in which there is something to find."""
    classes, loss = KINDS[kind]
    rng = np.random.default_rng(len(kind))
    task = Task("t", (3,), classes, loss, ("accuracy", "loss", "auc"))
    drawn = []
    for _ in range(sites):
        y = rng.integers(0, classes, rng.integers(9, 40))
        if loss == "logistic":
            outputs = rng.normal(spread * (y - 0.5), spread)[:, None]
        else:
            outputs = rng.normal(spread * np.eye(classes)[y], spread)
        drawn.append((outputs, y))
    return task, drawn


def pooled(task: Task, drawn):
    outputs, y = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    shares = np.hstack([1 - expit(outputs), expit(outputs)]) if task.loss == "logistic" else softmax(outputs, axis=1)
    return shares, y


def plain_ece(shares: np.ndarray, y: np.ndarray, bins: int = 10) -> float:
    total = 0.0
    for low in range(bins):
        inside = [k for k in range(len(y)) if low <= min(int(shares[k].max() * bins), bins - 1) < low + 1]
        if inside:
            right = np.mean([shares[k].argmax() == y[k] for k in inside])
            total += len(inside) / len(y) * abs(np.mean([shares[k].max() for k in inside]) - right)
    return total


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_sites_are_scikit_learns_of_the_pooled_predictions(kind: str, spread: float) -> None:
    task, drawn = hospitals(kind, spread)
    shares, y = pooled(task, drawn)

    whole = add_sums(metric_sums(outputs, targets, task) for outputs, targets in drawn)
    found = metrics_of_sums(whole, task)

    assert found["loss"] == pytest.approx(log_loss(y, shares), rel=1e-12)
    assert found["accuracy"] == accuracy_score(y, shares.argmax(axis=1))
    of_two = task.classes == 2
    assert found["brier"] == pytest.approx(brier_score_loss(y, shares[:, 1] if of_two else shares), rel=1e-12)
    assert found["ece"] == pytest.approx(plain_ece(shares, y), abs=1e-12)
    area = roc_auc_score(y, shares[:, 1]) if of_two else roc_auc_score(y, shares, multi_class="ovr")
    assert abs(found["auc"] - area) <= auc_error(whole) + 1e-12
    assert 0 < auc_error(whole) < 0.035


def test_the_error_that_is_stated_of_the_auc_can_be_reached() -> None:
    task = Task("t", (1,), 2, "logistic")
    drawn = np.array([[0.01], [0.02], [0.025], [0.03]])  # one bin
    whole = metric_sums(drawn, np.array([0, 0, 1, 1]), task)

    assert metrics_of_sums(whole, task)["auc"] == 0.5
    assert auc_error(whole) == 0.5  # the scores themselves have 1
    assert evaluate(drawn, np.array([0, 0, 1, 1]), Task("t", (1,), 2, "logistic", ("auc",)))["auc"] == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_tells_the_same_numbers_of_itself_as_its_metrics(kind: str) -> None:
    task, drawn = hospitals(kind)

    for outputs, y in drawn:
        found, metrics = metrics_of_sums(metric_sums(outputs, y, task), task), evaluate(outputs, y, task)
        assert found["loss"] == pytest.approx(metrics["loss"], rel=1e-12)
        assert found["accuracy"] == pytest.approx(metrics["accuracy"], rel=1e-12)


def test_what_is_told_has_the_shapes_that_the_task_says_and_counts_everybody() -> None:
    for kind in KINDS:
        task, drawn = hospitals(kind)
        told = metric_sums(*drawn[0], task)

        assert {name: array.shape for name, array in told.items()} == sum_shapes(task)
        assert (told["scores"].sum(axis=(1, 2)) == len(drawn[0][1])).all()
        assert told["confidence"][0].sum() == told["count"] == len(drawn[0][1])


def test_members_of_a_route_answer_together_before_anything_is_summed() -> None:
    task, drawn = hospitals("two classes")
    outputs, y = drawn[0]
    members = np.stack([outputs, outputs[:, ::-1], 2 * outputs])

    told = metric_sums(answer(members, task.loss), y, task)

    shares = softmax(members, axis=2).mean(axis=0)
    assert metrics_of_sums(told, task)["loss"] == pytest.approx(log_loss(y, shares, labels=[0, 1]), rel=1e-12)


def test_numbers_and_margins_have_what_has_a_meaning_for_them() -> None:
    numbers, margins = Task("t", (1,), 2, "l1"), Task("t", (1,), 2, "hinge")
    outputs, targets = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[1.0, 1.0], [1.0, 1.0]])

    assert metrics_of_sums(metric_sums(outputs, targets, numbers), numbers) == {
        "loss": 1.75,
        "mae": 1.75,
        "rmse": pytest.approx(5.25**0.5),
    }
    found = metrics_of_sums(metric_sums(np.array([[2.0], [-0.5], [0.5]]), np.array([1, 0, 0]), margins), margins)
    assert found == {"loss": pytest.approx((0 + 0.5 + 1.5) / 3), "accuracy": pytest.approx(2 / 3), "auc": 1.0}


def test_samples_of_one_class_have_no_auc() -> None:
    task, drawn = hospitals("two classes")
    outputs, y = drawn[0]

    assert "auc" not in metrics_of_sums(metric_sums(outputs[y == 1], y[y == 1], task), task)
