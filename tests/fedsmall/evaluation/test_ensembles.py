"""Models that answer together."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax
from torch import nn

from fedsmall.evaluation.outputs import answer, members_of, spread
from fedsmall.models.networks import Ensemble

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "hinge", "l1"])
@pytest.mark.parametrize("together", ["probability", "logit"])
def test_one_member_answers_for_itself_and_equal_ones_as_one(loss: str, together: str) -> None:
    outputs = RNG.standard_normal((1, 7, 1 if loss in ("logistic", "hinge") else 3))

    np.testing.assert_array_equal(answer(outputs, loss, together), outputs[0])
    same = answer(np.repeat(outputs, 4, axis=0), loss, together)
    if loss == "cross_entropy":
        same, outputs = softmax(same, axis=-1), softmax(outputs, axis=-1)
    np.testing.assert_allclose(same, outputs[0], atol=1e-12)


def test_classes_are_told_by_the_mean_of_the_probabilities() -> None:
    outputs = RNG.standard_normal((5, 11, 4)) * 30

    told = softmax(answer(outputs, "cross_entropy"), axis=-1)

    np.testing.assert_allclose(told, softmax(outputs, axis=-1).mean(axis=0), atol=1e-12)


def test_by_logits_a_member_that_is_sure_of_nonsense_has_more_say() -> None:
    outputs = np.array([[[9.0, 0.0]], [[0.0, 1.0]], [[0.0, 1.0]]])

    assert answer(outputs, "cross_entropy", "logit")[0].argmax() == 0
    outputs[1:] *= 2
    assert answer(outputs, "cross_entropy", "logit")[0].argmax() == 0
    assert answer(outputs, "cross_entropy")[0].argmax() == 1


def test_two_classes_with_one_output_are_told_by_the_mean_probability() -> None:
    outputs = RNG.standard_normal((5, 11, 1)) * 3

    np.testing.assert_allclose(expit(answer(outputs, "logistic")), expit(outputs).mean(axis=0), atol=1e-12)


def test_members_that_are_surer_than_numbers_can_say_give_finite_answers() -> None:
    assert np.isfinite(answer(np.full((3, 2, 1), 1e4), "logistic")).all()
    assert np.isfinite(answer(np.full((3, 2, 1), -1e4), "logistic")).all()
    assert np.isfinite(answer(np.array([[[1e4, -1e4]], [[-1e4, 1e4]]]), "cross_entropy")).all()


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic", "hinge", "l1"])
@pytest.mark.parametrize("together", ["probability", "logit"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_torch_module_of_the_members_answers_as_arrays_do(loss: str, together: str, count: int) -> None:
    members = [nn.Linear(3, 1 if loss in ("logistic", "hinge") else 4).double() for _ in range(count)]
    x = torch.from_numpy(RNG.standard_normal((9, 3)) * 20)

    with torch.no_grad():
        outputs = np.stack([member(x).numpy() for member in members])
        told = Ensemble(members, loss, together)(x).numpy()

    np.testing.assert_allclose(told, answer(outputs, loss, together), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_members_are_the_rows_of_the_leading_axis(count: int) -> None:
    stacked = {"w": RNG.standard_normal((count, 2, 3)), "n": np.arange(count)}

    members = members_of(stacked, True)

    assert len(members) == count
    np.testing.assert_array_equal(members[-1]["w"], stacked["w"][-1])
    assert members_of(stacked, False)[0].keys() == stacked.keys()


def test_members_that_agree_do_not_differ_and_members_that_contradict_differ_most() -> None:
    one = np.array([[2.0, -1.0, 0.5]])
    sure = np.array([[[60.0, 0.0]], [[0.0, 60.0]]])

    deviation, information = spread(np.stack([one] * 4), "cross_entropy")
    assert deviation == pytest.approx([0], abs=1e-12)
    assert information == pytest.approx([0], abs=1e-12)

    deviation, information = spread(sure, "cross_entropy")
    assert deviation == pytest.approx([0.5])
    assert information == pytest.approx([np.log(2)])


def test_the_spread_is_that_of_the_probability_of_the_class_they_predict_together() -> None:
    shares = np.array([[0.7, 0.2, 0.1], [0.4, 0.5, 0.1], [0.9, 0.05, 0.05]])  # (members, classes) of one sample

    deviation, information = spread(np.log(shares)[:, None] + 3.0, "cross_entropy")

    mean = shares.mean(axis=0)
    kl = (shares * np.log(shares / mean)).sum(axis=1).mean()  # another way to the mutual information
    assert deviation[0] == pytest.approx(np.std([0.7, 0.4, 0.9]))
    assert information[0] == pytest.approx(kl)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**31))
def test_mutual_information_lies_between_nothing_and_the_logarithm_of_the_members(count: int, seed: int) -> None:
    logits = np.random.default_rng(seed).standard_normal((count, 20, 1)) * 8

    deviation, information = spread(logits, "logistic")
    both = spread(np.concatenate([-logits / 2, logits / 2], axis=-1), "cross_entropy")

    assert (information >= 0).all()
    assert (information <= np.log(count) + 1e-12).all()
    np.testing.assert_allclose(deviation, both[0], atol=1e-12)
    np.testing.assert_allclose(information, both[1], atol=1e-12)


def test_outputs_that_are_no_probabilities_have_a_spread_and_no_information() -> None:
    deviation, information = spread(np.array([[[1.0, 5.0]], [[3.0, 5.0]]]), "l1")

    assert deviation.tolist() == [0.5]
    assert np.isnan(information).all()
