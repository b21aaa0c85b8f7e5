"""A hospital's own intercept: numbers that it adds to the outputs of a global model, fitted at home, never sent."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import expit, logsumexp, softmax

from fedsmall.data.federation import Task
from fedsmall.data.outcomes import LABELS, ORDINAL
from fedsmall.errors import PlanError
from fedsmall.evaluation.outputs import cumulative, log_shares
from fedsmall.evaluation.survival import through_and_event

PENALTY = 1.0  # on half the square of each number, as that of a regression's intercepts
CONVERGED, MOST_STEPS, HALVINGS = 1e-10, 100, 40


class Derivatives(NamedTuple):
    """The loss of all samples, its gradient (K,) and Hessian (K, K) by what is added to K outputs, or K = 1 to all."""

    loss: float
    gradient: np.ndarray
    hessian: np.ndarray


def _softmax(outputs: np.ndarray, y: np.ndarray) -> Derivatives:
    p, chosen = softmax(outputs, axis=1), np.eye(outputs.shape[1])[y.astype(np.int64)]
    loss = float((logsumexp(outputs, axis=1) - (outputs * chosen).sum(axis=1)).sum())
    return Derivatives(loss, (p - chosen).sum(axis=0), np.diag(p.sum(axis=0)) - p.T @ p)


def _logistic(outputs: np.ndarray, y: np.ndarray) -> Derivatives:
    p, y = expit(outputs), y.reshape(outputs.shape)
    loss = float((np.logaddexp(0, outputs) - y * outputs).sum())
    return Derivatives(loss, (p - y).sum(axis=0), np.diag((p * (1 - p)).sum(axis=0)))


def _hazard(outputs: np.ndarray, y: np.ndarray) -> Derivatives:
    """Of times: one number shifts the log-odds of the event in every interval that a patient begins."""
    through, event = through_and_event(y, outputs.shape[1])
    begun, p = through + event, expit(outputs)
    loss = float((begun * np.logaddexp(0, outputs) - event * outputs).sum())
    return Derivatives(loss, np.array([(begun * p - event).sum()]), np.array([[(begun * p * (1 - p)).sum()]]))


def _ordinal(outputs: np.ndarray, y: np.ndarray) -> Derivatives:
    """Of grades: the first output shifts the log-odds of all of them, the others are steps and stay."""
    each, grade, ends = np.arange(len(y)), y.astype(np.int64), np.full((len(y), 1), np.inf)
    above = expit(np.concatenate([ends, cumulative(outputs), -ends], axis=1))
    upper, lower = above[each, grade], above[each, grade + 1]
    gradient, hessian = np.zeros(outputs.shape[1]), np.zeros((outputs.shape[1], outputs.shape[1]))
    gradient[0] = (upper + lower - 1).sum()
    hessian[0, 0] = (upper * (1 - upper) + lower * (1 - lower)).sum()
    return Derivatives(-float(log_shares(outputs)[each, grade].sum()), gradient, hessian)


def _squares(outputs: np.ndarray, y: np.ndarray) -> Derivatives:
    residual = outputs - y.reshape(outputs.shape)
    return Derivatives(float((residual**2).sum() / 2), residual.sum(axis=0), len(y) * np.eye(outputs.shape[1]))


OF_LOSS: dict[str, Callable[[np.ndarray, np.ndarray], Derivatives]] = {
    "cross_entropy": _softmax,
    "logistic": _logistic,
    ORDINAL: _ordinal,
    "mse": _squares,
    "hazard": _hazard,
    **dict.fromkeys(LABELS, _logistic),
}


def check_intercepts(task: Task) -> None:
    """Raise PlanError for a task of which no intercept is fitted."""
    if task.loss not in OF_LOSS:
        raise PlanError(f'intercepts = "hospital" is for the losses {", ".join(OF_LOSS)}, and this one is {task.loss}.')


def fit_intercept(outputs: np.ndarray, y: np.ndarray, loss: str, penalty: float = PENALTY) -> np.ndarray:
    """What a hospital adds to the ``outputs`` (samples, K) of a model, (K,) or (1,), by its training patients' ``y``.

    It minimises the sum of their losses plus ``penalty`` / 2 times its square: 0 for no patient, and finite where all
    are of one class. Newton's method, a step halved until the sum falls. Of classes with an output each the numbers add
    up to 0. Source: Steyerberg et al. 2004, recalibration in the large.
    """
    outputs, derivatives = np.asarray(outputs, dtype=np.float64), OF_LOSS[loss]

    def at(shift: np.ndarray) -> Derivatives:
        found = derivatives(outputs + shift, y)
        square, ridge = penalty / 2 * float(shift @ shift), penalty * np.eye(len(shift))
        return Derivatives(found.loss + square, found.gradient + penalty * shift, found.hessian + ridge)

    shift = np.zeros_like(derivatives(outputs, y).gradient)
    for _ in range(MOST_STEPS):
        now = at(shift)
        step = -np.linalg.solve(now.hessian, now.gradient)
        for _ in range(HALVINGS):
            if at(shift + step).loss <= now.loss:
                break
            step = step / 2
        shift = shift + step
        if np.abs(step).max() < CONVERGED:
            break
    return np.asarray(shift)
