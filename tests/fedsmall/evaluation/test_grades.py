"""Classes in their order: their probabilities, and what calls are worth, held to scikit-learn."""

import numpy as np
import pytest
import torch
from scipy.special import expit, softmax
from sklearn.metrics import cohen_kappa_score, mean_absolute_error, recall_score, roc_auc_score

from fedsmall.data.federation import Task
from fedsmall.evaluation import outputs as in_numpy
from fedsmall.evaluation.baselines import constant
from fedsmall.evaluation.metrics import (
    default_metric,
    distance_of,
    evaluate,
    evaluate_many,
    kappa_of,
    known_metric,
    metrics_of,
)
from fedsmall.evaluation.outputs import answer, by_class, probabilities, spread
from fedsmall.evaluation.site_sums import held_out_sums, metrics_of_sums
from fedsmall.models import networks as in_torch
from fedsmall.models.networks import Ensemble

RNG = np.random.default_rng(2)
OUTPUTS = 2 * RNG.normal(size=(5, 80, 3))
Y = RNG.integers(4, size=80)
TASK = Task("t", (3,), 4, "ordinal", metrics_of("ordinal"))


def test_probabilities_are_differences_of_falling_log_odds_and_sum_to_one():
    p, odds = probabilities(OUTPUTS, "ordinal"), in_numpy.cumulative(OUTPUTS)

    assert (np.diff(odds, axis=-1) < 0).all()
    assert (p >= 0).all()
    np.testing.assert_allclose(p.sum(axis=-1), 1)
    for grade in range(3):
        np.testing.assert_allclose(p[..., grade + 1 :].sum(axis=-1), expit(odds[..., grade]))


@pytest.mark.parametrize("size", [1, 1e3, 1e6])
def test_no_output_makes_a_probability_that_is_none(size):
    p = probabilities(size * OUTPUTS, "ordinal")

    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(axis=-1), 1)


def test_outputs_are_found_again_from_probabilities():
    np.testing.assert_allclose(in_numpy.outputs_of(in_numpy.log_shares(OUTPUTS) + 3), OUTPUTS, atol=1e-10)


def test_torch_says_the_same():
    outputs = torch.tensor(OUTPUTS)

    np.testing.assert_allclose(in_torch.log_shares(outputs), in_numpy.log_shares(OUTPUTS), atol=1e-12)
    np.testing.assert_allclose(in_torch.outputs_of(in_torch.log_shares(outputs)), OUTPUTS, atol=1e-10)


def test_metrics_are_those_of_scikit_learn():
    found = evaluate_many(OUTPUTS, Y, TASK)

    for model, outputs in enumerate(OUTPUTS):
        p = probabilities(outputs, "ordinal")
        called = p.argmax(axis=1)
        assert found["kappa"][model] == pytest.approx(cohen_kappa_score(Y, called, weights="quadratic"))
        assert found["mae"][model] == pytest.approx(mean_absolute_error(Y, called))
        assert found["accuracy"][model] == pytest.approx((called == Y).mean())
        assert found["balanced_accuracy"][model] == pytest.approx(recall_score(Y, called, average="macro"))
        assert found["auc"][model] == pytest.approx(roc_auc_score(Y, p, multi_class="ovr"))
        assert found["loss"][model] == pytest.approx(-np.log(p[np.arange(80), Y]).mean())


def test_two_grades_off_count_four_times_as_much():
    once, twice = np.zeros((2, 1, 3, 3))
    once[0, [0, 1, 2, 0], [0, 1, 2, 1]] = 1
    twice[0, [0, 1, 2, 0], [0, 1, 2, 2]] = 1

    assert 1 > kappa_of(once)[0] > kappa_of(twice)[0]
    assert kappa_of(np.eye(3)[None])[0] == 1
    assert (distance_of(once)[0], distance_of(twice)[0]) == (0.25, 0.5)


def test_calling_all_alike_has_a_kappa_of_zero_and_names_the_commonest():
    y = np.array([0, 1, 2, 2, 3, 2])

    outputs = np.tile(constant(y, TASK), (len(y), 1))

    assert set(probabilities(outputs, "ordinal").argmax(axis=1)) == {2}
    assert evaluate(outputs, y, TASK)["kappa"] == 0


def test_grades_are_judged_by_kappa_unless_somebody_says_so():
    assert default_metric([Y], TASK) == "kappa"
    assert known_metric("quadratic_kappa", "ordinal") == "kappa"
    assert "kappa" not in metrics_of("cross_entropy")


@pytest.mark.parametrize("together", ["probability", "logit"])
def test_several_models_of_grades_answer_as_several_of_classes_do(together):
    as_grades = answer(OUTPUTS, "ordinal", together)
    as_classes = answer(by_class(OUTPUTS, "ordinal"), "cross_entropy", together)

    np.testing.assert_allclose(probabilities(as_grades, "ordinal"), softmax(as_classes, axis=-1), atol=1e-12)
    members = [torch.nn.Linear(3, 3).double() for _ in range(3)]
    x = torch.tensor(OUTPUTS[0])
    said = Ensemble(members, "ordinal", together)(x).detach().numpy()
    each = np.stack([member(x).detach().numpy() for member in members])
    np.testing.assert_allclose(said, answer(each, "ordinal", together), atol=1e-10)


def test_models_that_agree_on_grades_have_no_spread():
    differ = spread(OUTPUTS, "ordinal")

    np.testing.assert_allclose(spread(np.stack([OUTPUTS[0]] * 3), "ordinal"), 0, atol=1e-12)
    assert (differ[1] > 0).all()


def test_what_sites_tell_in_sums_is_what_all_samples_together_show():
    sums = [held_out_sums(OUTPUTS[0][part], Y[part], TASK) for part in (slice(0, 30), slice(30, 80))]

    whole = metrics_of_sums({name: sums[0][name] + sums[1][name] for name in sums[0]}, TASK)

    expected = evaluate(OUTPUTS[0], Y, TASK)
    for metric in ("kappa", "mae", "accuracy", "balanced_accuracy", "brier", "loss"):
        assert whole[metric] == pytest.approx(expected[metric])
    assert whole["auc"] == pytest.approx(expected["auc"], abs=0.02)


def test_classes_without_an_order_are_told_no_kappa():
    task = Task("t", (3,), 4)

    assert "kappa" not in metrics_of_sums(held_out_sums(by_class(OUTPUTS[0], "ordinal"), Y, task), task)
