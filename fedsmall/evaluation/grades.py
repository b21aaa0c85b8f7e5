"""Classes that have an order: what outputs of a cumulative logit say, and what is worth how much.

K grades have K - 1 outputs. The first is the log-odds of being above the lowest grade; every further one says, through
its softplus, by how much the log-odds of being above the next grade are lower. So the log-odds fall from grade to grade
whatever the outputs are, and the probabilities of the grades, which are their differences, are never below 0.

Source: McCullagh 1980, "Regression models for ordinal data" (proportional odds, where the steps are the same for all
patients). Where we depart: a network may make a step longer for one patient than for another.
"""

import numpy as np
from scipy.special import log_expit


def cumulative(outputs: np.ndarray) -> np.ndarray:
    """The log-odds of being above each grade but the highest, falling: (..., grades - 1), as outputs are; float64."""
    outputs = np.asarray(outputs, dtype=np.float64)
    steps = np.cumsum(np.logaddexp(0, outputs[..., 1:]), axis=-1)
    return np.concatenate([outputs[..., :1], outputs[..., :1] - steps], axis=-1)


def log_shares(outputs: np.ndarray) -> np.ndarray:
    """The logarithms of the grades' probabilities, (..., grades) in float64, of ``outputs`` (..., grades - 1).

    A grade between two has p = s(step) s(log-odds before) s(-log-odds behind) with s the logistic function: no
    difference of two close numbers.
    """
    outputs, odds = np.asarray(outputs, dtype=np.float64), cumulative(outputs)
    none = np.zeros_like(odds[..., :1])
    between = [none, log_expit(outputs[..., 1:]), none]
    return np.asarray(
        np.concatenate([none, log_expit(odds)], axis=-1)
        + np.concatenate([log_expit(-odds), none], axis=-1)
        + np.concatenate(between, axis=-1)
    )


def outputs_of(logs: np.ndarray) -> np.ndarray:
    """The outputs of which :func:`log_shares` is ``logs``, to a constant: (..., grades) -> (..., grades - 1)."""
    logs = logs - np.logaddexp.reduce(logs, axis=-1, keepdims=True)
    below = np.logaddexp.accumulate(logs, axis=-1)  # of this grade or a lower one
    above = np.flip(np.logaddexp.accumulate(np.flip(logs, axis=-1), axis=-1), axis=-1)  # of this grade or a higher one
    first = above[..., 1:2] - logs[..., :1]
    return np.asarray(np.concatenate([first, logs[..., 1:-1] - below[..., :-2] - above[..., 2:]], axis=-1))


def loss_of(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean negative log-likelihood of each model: (models, samples, grades - 1) and (samples,) -> (models,)."""
    of_truth = np.take_along_axis(log_shares(outputs), y[None, :, None], axis=2)[..., 0]
    return np.asarray(-of_truth.mean(axis=1))


def kappa_of(table: np.ndarray) -> np.ndarray:
    """Cohen's kappa with quadratic weights, of how many are called what: (models, truth, called) -> (models,).

    1 where all are called right, 0 for what the shares of truth and of calls alone would give: so 0, too, for who calls
    all alike. NaN where all are of one grade and called so. Source: Cohen 1968, "Weighted kappa".
    """
    table = np.asarray(table, dtype=np.float64)
    place = np.arange(table.shape[-1])
    apart = (place[:, None] - place) ** 2
    count = table.sum(axis=(1, 2))
    by_chance = table.sum(axis=2)[:, :, None] * table.sum(axis=1)[:, None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(1 - (apart * table).sum(axis=(1, 2)) * count / (apart * by_chance).sum(axis=(1, 2)))


def kappa(named: np.ndarray, true: np.ndarray) -> float:
    """That of one model, of the grades that it ``named`` and the ``true`` ones, (samples,) each."""
    grades = int(max(named.max(), true.max())) + 1
    return float(kappa_of(np.bincount(true * grades + named, minlength=grades**2).reshape(1, grades, grades))[0])


def distance_of(table: np.ndarray) -> np.ndarray:
    """The mean number of grades between truth and call: (models, truth, called) -> (models,)."""
    place = np.arange(table.shape[-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(place[:, None] - place) * table
        return np.asarray(apart.sum(axis=(1, 2)) / table.sum(axis=(1, 2)))
