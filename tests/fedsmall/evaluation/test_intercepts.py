"""Hospital intercepts: equal to independent optima, 0 where a hospital is like the others, finite where it is small."""

import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_expit, log_softmax

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.evaluation.intercepts import check_intercepts, fit_intercept
from fedsmall.evaluation.outputs import log_shares
from fedsmall.evaluation.survival import loss_of

RNG = np.random.default_rng(0)


def optimum(loss, n: int):
    """The least of a penalised loss of n numbers, by another method."""
    return minimize(loss, np.zeros(n), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13, "maxiter": 9999}).x


@pytest.mark.parametrize("n", [1, 2, 3, 40])
@pytest.mark.parametrize("penalty", [0.3, 1.0])
def test_of_one_output_it_is_the_one_dimensional_optimum(n, penalty):
    outputs, y = RNG.normal(size=(n, 1)) * 2, RNG.integers(0, 2, n)

    found = fit_intercept(outputs, y, "logistic", penalty)[0]

    def loss(c):
        return -(log_expit(outputs[:, 0] + c) * y + log_expit(-outputs[:, 0] - c) * (1 - y)).sum() + penalty / 2 * c * c

    assert found == pytest.approx(minimize_scalar(loss, tol=1e-12).x, abs=1e-6)


def test_two_outputs_move_apart_by_one_number():
    outputs, y = RNG.normal(size=(9, 2)), RNG.integers(0, 2, 9)

    found = fit_intercept(outputs, y, "cross_entropy")

    def loss(c):
        return -log_softmax(outputs + np.array([-c / 2, c / 2]), axis=1)[np.arange(9), y].sum() + c * c / 4

    assert found.sum() == pytest.approx(0, abs=1e-12)
    assert found[1] - found[0] == pytest.approx(minimize_scalar(loss, tol=1e-12).x, abs=1e-6)


def test_of_three_classes_grades_and_labels_it_is_the_joint_optimum():
    outputs, y = RNG.normal(size=(20, 3)), RNG.integers(0, 3, 20)
    several = (RNG.random((20, 3)) < [0.1, 0.5, 0.9]).astype(int)

    softmax, grades = fit_intercept(outputs, y, "cross_entropy"), fit_intercept(outputs[:, :2], y, "ordinal")
    labels = fit_intercept(outputs, several, "binary_cross_entropy")

    def of_classes(c):
        return -log_softmax(outputs + c, axis=1)[np.arange(20), y].sum() + c @ c / 2

    def of_grades(c):
        return -log_shares(outputs[:, :2] + np.array([c, 0.0]))[np.arange(20), y].sum() + c * c / 2

    assert softmax == pytest.approx(optimum(of_classes, 3), abs=1e-5)
    assert grades == pytest.approx([minimize_scalar(of_grades, tol=1e-12).x, 0.0], abs=1e-6)
    assert labels == pytest.approx([fit_intercept(outputs[:, [k]], several[:, k], "logistic")[0] for k in range(3)])


def test_of_a_number_it_is_the_shrunken_mean_residual():
    outputs, y = RNG.normal(size=(4, 1)), RNG.normal(size=(4, 1))

    assert fit_intercept(outputs, y, "mse")[0] == pytest.approx((y - outputs).sum() / (4 + 1))


def test_a_hospital_like_the_others_has_none_on_average_and_one_unlike_them_has():
    eta = RNG.normal(size=(400, 30, 1))
    like, ill = (RNG.random((400, 30)) < expit(eta[..., 0] + shift) for shift in (0.0, 2.0))

    alike = np.array([fit_intercept(o, y, "logistic")[0] for o, y in zip(eta, like, strict=True)])
    unlike = np.array([fit_intercept(o, y, "logistic")[0] for o, y in zip(eta, ill, strict=True)])

    assert abs(alike.mean()) < 3 * alike.std() / 20  # of 400 hospitals
    assert unlike.mean() > 1.2


@pytest.mark.parametrize("n", [0, 1, 2, 3, 500])
def test_one_class_alone_has_a_finite_one_to_its_side(n):
    found = fit_intercept(np.zeros((n, 2)), np.ones(n, dtype=int), "cross_entropy")

    assert np.isfinite(found).all()
    assert (found[1] > found[0]) == (n > 0)


def test_far_outputs_do_not_lead_newton_astray():
    outputs, y = np.full((50, 1), -30.0), np.ones(50, dtype=int)

    found = fit_intercept(outputs, y, "logistic")[0]

    assert 50 * (expit(found - 30) - 1) + found == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("n", [1, 2, 3, 40])
def test_of_times_one_number_shifts_all_intervals_to_the_optimum(n):
    outputs = RNG.normal(size=(n, 4))
    y = np.stack([RNG.integers(0, 4, n), RNG.integers(0, 2, n), np.ones(n), np.ones(n)], axis=1).astype(float)

    found = fit_intercept(outputs, y, "hazard")

    def loss(c):
        return n * loss_of(outputs[None] + c, y)[0] + c * c / 2

    assert found == pytest.approx([minimize_scalar(loss, tol=1e-12).x], abs=1e-6)


@pytest.mark.parametrize("loss", ["hinge", "l1", "huber"])
def test_other_losses_are_refused_in_one_line(loss):
    with pytest.raises(PlanError, match=f"this one is {loss}"):
        check_intercepts(Task("t", (2,), 1, loss))
