"""Several labels at once: what models of them are worth, held to scikit-learn."""

import numpy as np
import pytest
import torch
from scipy.special import expit, logit
from sklearn.metrics import accuracy_score, average_precision_score, f1_score, hamming_loss, log_loss, roc_auc_score

from fedsmall.data.federation import Task
from fedsmall.evaluation.baselines import constant
from fedsmall.evaluation.metrics import OF_LABELS, default_metric, evaluate, evaluate_many, f1_of, tally
from fedsmall.evaluation.outputs import answer, spread
from fedsmall.evaluation.site_sums import held_out_shapes, held_out_sums, judged_at_home, metrics_of_sums
from fedsmall.models.networks import Ensemble

RNG = np.random.default_rng(4)
NAMES = ("edema", "effusion", "mass")
TASK = Task("t", (3,), 3, "binary_cross_entropy", OF_LABELS, labels=NAMES)
OUTPUTS = 2 * RNG.normal(size=(4, 90, 3))
Y = (RNG.random((90, 3)) < (0.5, 0.2, 0.35)).astype(float)


def test_metrics_are_those_of_scikit_learn():
    found = evaluate_many(OUTPUTS, Y, TASK)

    for model, outputs in enumerate(OUTPUTS):
        p, called = expit(outputs), outputs > 0
        assert found["auc"][model] == pytest.approx(roc_auc_score(Y, p, average="macro"))
        assert found["average_precision"][model] == pytest.approx(average_precision_score(Y, p, average="macro"))
        assert found["macro_f1"][model] == pytest.approx(f1_score(Y, called, average="macro"))
        assert found["subset_accuracy"][model] == pytest.approx(accuracy_score(Y, called))
        assert found["label_accuracy"][model] == pytest.approx(1 - hamming_loss(Y, called))
        assert found["brier"][model] == pytest.approx(((p - Y) ** 2).mean())
        each = [log_loss(Y[:, label], p[:, label]) for label in range(3)]
        assert found["loss"][model] == pytest.approx(np.mean(each))


def test_each_label_is_told_by_itself():
    table = tally(OUTPUTS, Y)

    assert table.shape == (4, 3, 2, 2)
    assert (table.sum(axis=(2, 3)) == 90).all()
    np.testing.assert_allclose(f1_of(table)[0], f1_score(Y, OUTPUTS[0] > 0, average=None))


def test_a_label_that_nobody_has_is_left_out_of_means():
    y = Y.copy()
    y[:, 1] = 0

    found = evaluate(OUTPUTS[0], y, TASK)

    known = roc_auc_score(y[:, [0, 2]], OUTPUTS[0][:, [0, 2]], average="macro")
    assert found["auc"] == pytest.approx(known)
    nowhere = np.full((90, 1), -1.0)
    assert np.isnan(f1_of(tally(nowhere[None], np.zeros((90, 1))))).all()


def test_the_trivial_prediction_is_the_share_of_each_label():
    outputs = constant(Y, TASK)

    np.testing.assert_allclose(expit(outputs), (Y.sum(axis=0) + 1) / (len(Y) + 2))
    assert evaluate(np.tile(outputs, (90, 1)), Y, TASK)["auc"] == 0.5
    assert default_metric([Y], TASK) == "auc"


@pytest.mark.parametrize("together", ["probability", "logit"])
def test_models_answer_together_for_each_label(together):
    said = answer(OUTPUTS, TASK.loss, together)

    mean = logit(expit(OUTPUTS).mean(axis=0)) if together == "probability" else OUTPUTS.mean(axis=0)
    np.testing.assert_allclose(said, mean)
    members = [torch.nn.Linear(3, 3).double() for _ in range(2)]
    x = torch.tensor(OUTPUTS[0])
    each = np.stack([member(x).detach().numpy() for member in members])
    np.testing.assert_allclose(
        Ensemble(members, TASK.loss, together)(x).detach(), answer(each, TASK.loss, together), atol=1e-12
    )


def test_the_spread_of_labels_is_the_mean_of_theirs():
    deviation, information = spread(OUTPUTS, TASK.loss)

    np.testing.assert_allclose(deviation, expit(OUTPUTS).std(axis=0).mean(axis=1))
    assert (information > 0).all()


def test_what_sites_tell_in_sums_is_what_all_samples_together_show():
    sums = [held_out_sums(OUTPUTS[0][part], Y[part], TASK) for part in (slice(0, 30), slice(30, 90))]
    assert {name: np.shape(array) for name, array in sums[0].items()} == held_out_shapes(TASK)

    whole = metrics_of_sums({name: sums[0][name] + sums[1][name] for name in sums[0]}, TASK)

    expected = evaluate(OUTPUTS[0], Y, TASK)
    for metric in ("loss", "brier", "subset_accuracy", "label_accuracy", "macro_f1"):
        assert whole[metric] == pytest.approx(expected[metric])
    assert whole["auc"] == pytest.approx(expected["auc"], abs=0.02)


def test_two_labels_are_not_taken_for_two_classes():
    task = Task("t", (3,), 2, "binary_cross_entropy", OF_LABELS, labels=NAMES[:2])
    told = {site: held_out_sums(OUTPUTS[0][:, :2], Y[:, :2], task) for site in "ab"}

    judged = judged_at_home(told, task)

    assert "auc" not in judged["together"]
    alone = [roc_auc_score(Y[:, k], OUTPUTS[0][:, k]) for k in range(2)]
    assert [each["auc"] for each in judged["together"]["each"]] == pytest.approx(alone, abs=0.02)
    f1 = f1_score(Y[:, :2], OUTPUTS[0][:, :2] > 0, average=None)
    assert [each["f1"] for each in judged["together"]["each"]] == pytest.approx(f1)
    assert [each["there"] for each in judged["together"]["each"]] == (2 * Y[:, :2].sum(axis=0)).tolist()
    assert len(judged["together"]["roc"]) == 2
    expected = roc_auc_score(Y[:, :2], OUTPUTS[0][:, :2], average="macro")
    assert judged["together"]["metrics"]["auc"] == pytest.approx(expected, abs=0.02)


def test_outputs_that_are_no_numbers_know_nothing():
    found = metrics_of_sums(held_out_sums(np.full((90, 3), np.nan), Y, TASK), TASK)

    assert found["auc"] == 0.5
    assert found["loss"] == pytest.approx(np.log(2))


def test_sums_lie_in_memory_as_the_wire_takes_them():
    told = held_out_sums(OUTPUTS[0], Y, TASK)

    assert all(array.flags.c_contiguous for array in told.values())
