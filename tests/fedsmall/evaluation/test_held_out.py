"""Sums that sites tell of their held-out patients show what one central test set of the same patients would."""

import json

import numpy as np
import pytest
from sklearn.metrics import (
    balanced_accuracy_score,
    brier_score_loss,
    confusion_matrix,
    f1_score,
    roc_auc_score,
    roc_curve,
)

from fedsmall.data.federation import Task
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.site_sums import (
    EDGES,
    add_sums,
    auc_of_sums,
    held_out_shapes,
    held_out_sums,
    judged_at_home,
    metrics_of_sums,
    roc_points,
    sums_from_json,
    sums_to_json,
)

METRICS = ("accuracy", "balanced_accuracy", "macro_f1", "sensitivity", "specificity", "auc", "brier", "loss")


def task_of(classes: int, loss: str = "cross_entropy") -> Task:
    names = ("mae", "loss") if loss == "l1" else tuple(name for name in METRICS if loss != "hinge" or name != "brier")
    return Task("t", (1,), classes, loss, names)


def patients(classes: int, count: int, seed: int = 0, outputs: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=count)
    said = rng.normal(size=(count, outputs or classes))
    said[np.arange(count), np.minimum(y, said.shape[1] - 1)] += np.where(y < said.shape[1], 1.0, -1.0)
    return said, y


@pytest.mark.parametrize(
    ("classes", "loss", "outputs"),
    [(2, "cross_entropy", 2), (2, "logistic", 1), (2, "hinge", 1), (3, "cross_entropy", 3)],
)
def test_the_sums_of_all_sites_show_the_metrics_of_all_patients(classes, loss, outputs):
    task, (said, y) = task_of(classes, loss), patients(classes, 200, outputs=outputs)
    cuts = np.split(np.arange(200), [30, 90])

    found = metrics_of_sums(add_sums(held_out_sums(said[mine], y[mine], task) for mine in cuts), task)

    whole = evaluate(said, y, task)
    assert found.keys() - {"ece"} == whole.keys()
    assert all(found[name] == pytest.approx(whole[name], abs=1e-12) for name in whole if name != "auc")
    assert found["auc"] == pytest.approx(whole["auc"], abs=0.01)


def test_the_metrics_of_the_matrix_are_those_of_scikit_learn():
    task, (said, y) = task_of(3), patients(3, 90)

    sums = held_out_sums(said, y, task)

    called = said.argmax(axis=1)
    assert sums["called"].tolist() == confusion_matrix(y, called).tolist()
    assert metrics_of_sums(sums, task)["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(y, called))
    assert metrics_of_sums(sums, task)["macro_f1"] == pytest.approx(f1_score(y, called, average="macro"))


def test_the_area_and_the_curve_are_those_of_the_binned_scores():
    task, (said, y) = task_of(2), patients(2, 120)
    sums = held_out_sums(said, y, task)
    bins = np.digitize(said[:, 1] - said[:, 0], EDGES)

    x, sensitivity = roc_points(sums)

    expected = roc_curve(y, bins, drop_intermediate=False)
    assert auc_of_sums(sums).value == pytest.approx(roc_auc_score(y, bins))
    assert auc_of_sums(sums).low < auc_of_sums(sums).value < auc_of_sums(sums).high
    assert set(zip(expected[0].tolist(), expected[1].tolist(), strict=True)) == set(
        zip(x.tolist(), sensitivity.tolist(), strict=True)
    )


def test_the_brier_score_is_scikit_learns():
    task, (said, y) = task_of(2, "logistic"), patients(2, 60, outputs=1)

    found = metrics_of_sums(held_out_sums(said, y, task), task)

    assert found["brier"] == pytest.approx(brier_score_loss(y, 1 / (1 + np.exp(-said[:, 0]))))


def test_a_model_of_no_numbers_is_told_as_one_that_knows_nothing():
    task, (said, y) = task_of(2), patients(2, 20)

    sums = held_out_sums(np.full_like(said, np.nan), y, task)

    assert sums["called"][:, 1].sum() == 0  # a tie goes to the lower class
    assert sums["correct"] == np.trace(sums["called"])


def test_numbers_that_are_predicted_have_a_mean_error_and_no_classes():
    task = task_of(1, "l1")

    sums = held_out_sums(np.array([[1.0], [3.0]]), np.array([[0.0], [1.0]]), task)

    assert sums.keys() == held_out_shapes(task).keys() == {"count", "loss", "absolute", "squared"}
    assert metrics_of_sums(sums, task) == {"loss": 1.5, "mae": 1.5, "rmse": pytest.approx(2.5**0.5)}


def test_sums_are_the_same_after_they_were_written():
    task, (said, y) = task_of(3), patients(3, 40)
    sums = held_out_sums(said, y, task)

    again = sums_from_json(json.loads(json.dumps(sums_to_json(sums))))

    assert {name: array.shape for name, array in again.items()} == held_out_shapes(task)
    assert all((again[name] == sums[name]).all() for name in sums)


def test_what_a_page_needs_is_of_every_site_and_of_all_together():
    task = task_of(2)
    told = {
        site: held_out_sums(*patients(2, count, seed), task)
        for seed, (site, count) in enumerate({"b": 30, "a": 50}.items())
    }

    shown = judged_at_home(told, task)

    assert list(shown["sites"]) == ["a", "b"]
    assert (shown["together"]["count"], shown["together"]["sites"]) == (80, 2)
    assert shown["together"]["called"] == (told["a"]["called"] + told["b"]["called"]).tolist()
    assert {k: each["value"] for k, each in shown["together"]["over_sites"].items()} == shown["together"]["metrics"]
    assert json.loads(json.dumps(shown)) == shown


def test_an_interval_over_hospitals_holds_its_own_value_whatever_the_number_of_classes():
    for classes in (2, 3):
        told = {f"s{seed}": held_out_sums(*patients(classes, 40, seed), task_of(classes)) for seed in range(4)}

        over = judged_at_home(told, task_of(classes))["together"]["over_sites"]

        assert {"brier", "auc", "balanced_accuracy"} < over.keys()
        assert all(each["low"] <= each["value"] <= each["high"] for each in over.values())


def test_an_interval_of_errors_in_a_unit_goes_beyond_one():
    rng, task = np.random.default_rng(0), task_of(1, "l1")
    told = {site: held_out_sums(*rng.normal(150, 80, size=(2, 40, 1)), task) for site in "abcd"}

    over = judged_at_home(told, task)["together"]["over_sites"]

    assert {"loss", "mae", "rmse"} <= over.keys()
    assert all(1 < each["low"] < each["value"] < each["high"] for each in over.values())
