"""What is expected at an unseen hospital: its interval covers it, and no hospital of few patients is shown."""

from functools import cache

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedsmall.data.federation import Task
from fedsmall.evaluation.site_sums import LEAST_SHOWN, add_sums, expected_at_unseen, metric_sums, metrics_of_sums

TASK = Task("t", (1,), 2, "logistic")


DRAWS = 150


def hospital(rng: np.random.Generator, patients: int):
    """Scores and outcomes at a hospital, whose patients and whose scores are shifted by an effect of its own."""
    effect = rng.normal(0, 0.7)
    y = rng.random(patients) < 1 / (1 + np.exp(-effect))
    return (rng.normal(1.5 * (y - 0.5), 1) + effect * rng.choice([-1, 1], 1))[:, None], y.astype(int)


def told(rng: np.random.Generator, sites: int, patients: int = 30):
    return {f"site-{k:02d}": metric_sums(*hospital(rng, patients), TASK) for k in range(sites)}


@cache
def population():
    """What all hospitals have on average."""
    return metrics_of_sums(add_sums(told(np.random.default_rng(99), 3000).values()), TASK)


@cache
def drawn(draw: int, sites: int):
    return told(np.random.default_rng(draw), sites)


@pytest.mark.thorough
@pytest.mark.parametrize("sites", [6, 20])
def test_the_interval_holds_what_all_hospitals_have_on_average_nine_times_of_ten_or_oftener(sites: int) -> None:
    held = dict.fromkeys(("loss", "accuracy", "brier", "auc"), 0)

    for draw in range(DRAWS):
        metrics = expected_at_unseen(drawn(draw, sites), TASK)["metrics"]
        for name in held:
            held[name] += metrics[name]["low"] <= population()[name] <= metrics[name]["high"]

    for name, times in held.items():
        assert 0.88 <= times / DRAWS <= 0.985, name  # so strong an effect is skewed, which costs a t interval some


@pytest.mark.thorough
def test_an_interval_over_patients_as_if_they_were_independent_holds_it_too_seldom() -> None:
    held = 0
    for draw in range(DRAWS):
        found = metrics_of_sums(add_sums(drawn(draw, 20).values()), TASK)["accuracy"]
        held += abs(found - population()["accuracy"]) <= 1.96 * np.sqrt(found * (1 - found) / (20 * 30))

    assert held / DRAWS < 0.85


def test_values_are_those_of_all_patients_together() -> None:
    rng = np.random.default_rng(0)
    drawn = [hospital(rng, patients) for patients in (9, 30, 61)]

    found = expected_at_unseen({f"h{k}": metric_sums(*each, TASK) for k, each in enumerate(drawn)}, TASK)

    scores, y = (np.concatenate(parts) for parts in zip(*drawn, strict=True))
    assert found["samples"] == 100
    assert found["sites"] == 3
    assert found["metrics"]["accuracy"]["value"] == pytest.approx(((scores[:, 0] > 0) == y).mean())
    area = found["metrics"]["auc"]
    assert abs(area["value"] - roc_auc_score(y, scores[:, 0])) <= found["auc_error"]
    assert area["low"] <= area["value"] - found["auc_error"]


def test_a_hospital_of_few_patients_counts_and_is_not_shown() -> None:
    rng = np.random.default_rng(0)
    sums = {"large": metric_sums(*hospital(rng, 8), TASK), "small": metric_sums(*hospital(rng, LEAST_SHOWN - 1), TASK)}

    found = expected_at_unseen(sums, TASK)

    assert list(found["hospitals"]) == ["large"]
    assert found["samples"] == 8 + LEAST_SHOWN - 1


def test_what_one_hospital_alone_has_shown_has_no_interval() -> None:
    both, negative = np.array([[1.0], [-1.0]] * 4), np.array([[-1.0]] * 8)
    sums = {
        "a": metric_sums(both, np.array([1, 0] * 4), TASK),
        "b": metric_sums(negative, np.zeros(8, dtype=int), TASK),
    }

    metrics = expected_at_unseen(sums, TASK)["metrics"]

    assert metrics["auc"] == {"value": 1.0, "low": None, "high": None}
    assert metrics["accuracy"]["low"] is not None
    assert expected_at_unseen({}, TASK) == {}
    assert expected_at_unseen({"a": sums["a"]}, TASK)["metrics"]["loss"]["low"] is None
