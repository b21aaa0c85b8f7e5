"""The likelihoods of regressions, and what a site sums for a step of Newton's method: nothing else has to leave it.

A family has K linear predictors, eta = x B' + offset, for samples x (n, p) whose last column is 1. Its parameters
theta (P,) are the rows of B (K, p), or the one slope that all predictors share (ordinal, hazards) and K intercepts.
Loss, gradient and Hessian of a sum over samples are sums over sites.
Source: McCullagh and Nelder 1989; McCullagh 1980 (ordinal); Prentice and Gloeckler 1978 (hazards).
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy.special import expit, gammaln, log_expit, logsumexp, softmax

LARGE = 2.0**28  # the loss of a step that no finite number has: it is taken back
CONVERGED, MOST_STEPS = 1e-10, 100  # of what is fitted at home
lower_half_of = cache(np.tril_indices)  # which takes longer than the sums of a small site

Given = np.ndarray | None  # an array, where there is one
Derivatives = tuple[np.ndarray, np.ndarray, np.ndarray]  # by eta: (n,), (n, K), (n, K, K)


class Rows(NamedTuple):
    """Samples of one site: ``x`` (n, p) with a last column of ones, ``y``, ``weight`` (n,), ``offset`` (n, K)."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    offset: np.ndarray


class Sums(NamedTuple):
    """What sites add up: the samples' ``weight``, ``loss`` (-log-likelihood), ``gradient`` (P,), ``hessian`` (P, P)."""

    weight: float
    loss: float
    gradient: np.ndarray
    hessian: np.ndarray


class Family(NamedTuple):
    """A likelihood: ``derivatives`` of the loss of eta (n, K) and y; ``shared``: one slope for all K predictors."""

    derivatives: Callable[[np.ndarray, np.ndarray], Derivatives]
    shared: bool = False


def _squares(eta: np.ndarray, y: np.ndarray) -> Derivatives:
    residual = eta - y.reshape(eta.shape)
    return (residual**2).sum(axis=1) / 2, residual, np.ones((*eta.shape, 1))


def _logistic(eta: np.ndarray, y: np.ndarray) -> Derivatives:
    p, y = expit(eta), y.reshape(eta.shape)
    return (np.logaddexp(0, eta) - y * eta)[:, 0], p - y, (p * (1 - p))[..., None]


def _softmax(eta: np.ndarray, y: np.ndarray) -> Derivatives:
    p, chosen = softmax(eta, axis=1), np.eye(eta.shape[1])[y.astype(np.int64)]
    curve = p[:, :, None] * (np.eye(eta.shape[1]) - p[:, None, :])
    return logsumexp(eta, axis=1) - (eta * chosen).sum(axis=1), p - chosen, curve


def _poisson(eta: np.ndarray, y: np.ndarray) -> Derivatives:
    mean, y = np.exp(eta), y.reshape(eta.shape)
    return (mean - y * eta + gammaln(y + 1))[:, 0], mean - y, mean[..., None]


def _ordinal(eta: np.ndarray, y: np.ndarray) -> Derivatives:
    """Of grades 0..K, where eta are the log-odds of being above each grade but the highest, so they fall."""
    n, grades = eta.shape
    each, grade = np.arange(n), y.astype(np.int64)
    padded = np.concatenate([np.full((n, 1), np.inf), eta, np.full((n, 1), -np.inf)], axis=1)
    upper, lower = padded[each, grade], padded[each, grade + 1]  # P = s(upper) - s(lower)
    gap = upper - lower
    share = 1 / np.expm1(np.minimum(gap, 700))
    value = -(log_expit(upper) + log_expit(-lower) + np.log1p(-np.exp(-gap)))
    slope, curve = np.zeros((n, grades + 2)), np.zeros((n, grades + 2, grades + 2))
    slope[each, grade], slope[each, grade + 1] = -(expit(-upper) + share), expit(lower) + share
    both = share * (1 + share)
    curve[each, grade, grade] = expit(upper) * expit(-upper) + both
    curve[each, grade + 1, grade + 1] = expit(lower) * expit(-lower) + both
    curve[each, grade, grade + 1] = curve[each, grade + 1, grade] = -both
    return value, slope[:, 1:-1], curve[:, 1:-1, 1:-1]


def _hazard(eta: np.ndarray, y: np.ndarray) -> Derivatives:
    """Of times until an event in K intervals; y (n, 2 or more): intervals survived, and the event in the next.

    exp(eta) is the hazard's integral over an interval: Cox's model of times that are known by their interval.
    """
    place, amount = np.arange(eta.shape[1]), np.exp(eta)
    event, through = (place == y[:, :1]) * y[:, 1:2], place < y[:, :1]
    odds = amount / np.expm1(amount)  # the slope of -log(1 - exp(-amount)) by eta
    value = (through * amount - event * np.log(-np.expm1(-amount))).sum(axis=1)
    curve = through * amount + event * odds * (amount + odds - 1)
    return value, through * amount - event * odds, curve[..., None] * np.eye(eta.shape[1])


FAMILIES = {
    "linear": Family(_squares),
    "logistic": Family(_logistic),
    "softmax": Family(_softmax),
    "ordinal": Family(_ordinal, shared=True),
    "poisson": Family(_poisson),
    "hazard": Family(_hazard, shared=True),
    "cox": Family(_hazard, shared=True),  # its sums are those of fedsmall.extensions.regression.cox
}


def coefficients(family: str, theta: np.ndarray, columns: int, predictors: int) -> np.ndarray:
    """B (K, p) of parameters ``theta`` (P,), for so many ``columns`` p, the constant among them; Cox's has none."""
    if not FAMILIES[family].shared:
        return theta.reshape(predictors, columns)
    own = np.zeros(predictors) if family == "cox" else theta[columns - 1 :]
    return np.column_stack([np.tile(theta[: columns - 1], (predictors, 1)), own])


def parameters(family: str, columns: int, predictors: int) -> int:
    """P, the number of parameters."""
    if family == "cox":
        return columns - 1
    return columns - 1 + predictors if FAMILIES[family].shared else columns * predictors


def penalised(family: str, columns: int, predictors: int) -> np.ndarray:
    """Which parameters a ridge penalty is on, (P,) of 0 and 1: slopes, not intercepts."""
    if FAMILIES[family].shared:
        return np.repeat([1.0, 0.0], [columns - 1, predictors])[: parameters(family, columns, predictors)]
    return np.tile(np.repeat([1.0, 0.0], [columns - 1, 1]), predictors)


def start(family: str, columns: int, predictors: int) -> np.ndarray:
    """Parameters to begin with, (P,): zero, but for intercepts of grades, which must fall, and of hazards."""
    theta = np.zeros(parameters(family, columns, predictors))
    if family == "ordinal":
        theta[-predictors:] = -np.arange(predictors) + (predictors - 1) / 2
    if family == "hazard":
        theta[-predictors:] = -np.log(predictors)  # as if the event came to equally many in every interval
    return theta


def sums_at(family: str, theta: np.ndarray, rows: Rows, inverse: Given = None, is_curved: bool = True) -> Sums:
    """What these rows add to the sums at ``theta`` (P,); without a Hessian, (0, 0), unless ``is_curved``.

    ``inverse`` (P, P) of the Hessian makes it Firth's ("logistic"). What is not finite has loss :data:`LARGE`.
    """
    eta = _predictors(family, theta, rows)
    with np.errstate(all="ignore"):  # of a step that is far too long
        value, slope, curve = FAMILIES[family].derivatives(eta, rows.y)
        if inverse is not None:  # Firth 1993; Heinze and Schemper 2002: a sample is 1 + h of them, h of either class
            h = (curve[:, 0, 0] * np.einsum("np,pq,nq->n", rows.x, inverse, rows.x))[:, None]
            slope, curve = slope + h * (expit(eta) - 0.5), curve * (1 + h[..., None])
        slope, curve = slope * rows.weight[:, None], curve * rows.weight[:, None, None]
        by_b, shared = slope.T @ rows.x, FAMILIES[family].shared
        gradient = np.concatenate([by_b[:, :-1].sum(axis=0), by_b[:, -1]]) if shared else by_b.ravel()
        hessian = _crossed(family, rows.x, curve) if is_curved else np.zeros((0, 0))
    sums = Sums(float(rows.weight.sum()), float(rows.weight @ value), gradient, hessian)
    if not (all(np.isfinite(part).all() for part in sums) and sums.loss < LARGE):
        return Sums(sums.weight, LARGE, *(np.zeros(np.shape(part)) for part in sums[2:]))
    return sums


def scores_at(family: str, theta: np.ndarray, rows: Rows) -> np.ndarray:
    """Each sample's part of the gradient at ``theta`` (P,): (n, P)."""
    eta = _predictors(family, theta, rows)
    with np.errstate(all="ignore"):
        slope = FAMILIES[family].derivatives(eta, rows.y)[1] * rows.weight[:, None]
    if FAMILIES[family].shared:
        return np.concatenate([slope.sum(axis=1, keepdims=True) * rows.x[:, :-1], slope], axis=1)
    return np.asarray((slope[:, :, None] * rows.x[:, None]).reshape(len(eta), -1))


def _predictors(family: str, theta: np.ndarray, rows: Rows) -> np.ndarray:
    """The linear predictors of each sample at ``theta`` (P,): (n, K)."""
    b = coefficients(family, theta, rows.x.shape[1], rows.offset.shape[1])
    return np.asarray(rows.x @ b.T + rows.offset)


def _crossed(family: str, x: np.ndarray, curve: np.ndarray) -> np.ndarray:
    """The Hessian (P, P) of curvatures by eta (n, K, K)."""
    predictors, columns = curve.shape[1], x.shape[1]
    if FAMILIES[family].shared:
        slopes, rest = x[:, :-1], curve.sum(axis=2)
        cross = rest.T @ slopes
        return np.block([[(slopes * rest.sum(axis=1)[:, None]).T @ slopes, cross.T], [cross, curve.sum(axis=0)]])
    made = np.empty((predictors, columns, predictors, columns))
    for k, m in zip(*lower_half_of(predictors), strict=True):
        made[k, :, m] = made[m, :, k] = (x * curve[:, [k], m]).T @ x
    return made.reshape(predictors * columns, predictors * columns)


def profiled_sums(
    family: str, theta: np.ndarray, rows: Rows, penalty: float | None, inverse: Given = None, is_curved: bool = True
) -> tuple[Sums, np.ndarray]:
    """The sums at ``theta`` where the site has an intercept of its own, and this, (K,) or (1,) for a shared slope.

    The intercept maximises the site's likelihood less ``penalty`` / 2 times its square, for theta as it is, and does
    not leave. Newton's steps from such profiles end where those of all parameters do (Murphy and van der Vaart 2000).
    Without a ``penalty`` it has none, and the sums are those of :func:`sums_at`.
    """
    if penalty is None:
        return sums_at(family, theta, rows, inverse, is_curved), np.zeros(1)
    own = intercepts(family, rows.x.shape[1], rows.offset.shape[1])
    shift = fit_intercept(family, theta, rows, penalty)
    sums = sums_at(family, theta + own @ shift, rows, is_curved=is_curved)
    sums = sums._replace(loss=sums.loss + penalty / 2 * float(shift @ shift))
    if is_curved:
        cross, inner = sums.hessian @ own, own.T @ sums.hessian @ own + penalty * np.eye(len(shift))
        sums = sums._replace(hessian=sums.hessian - cross @ np.linalg.pinv(inner, hermitian=True) @ cross.T)
    return sums, shift


def intercepts(family: str, columns: int, predictors: int) -> np.ndarray:
    """What a site's own intercept adds to theta, (P, K), or (P, 1) for a shared slope."""
    if FAMILIES[family].shared:
        return np.repeat([0.0, 1.0], [columns - 1, predictors])[:, None]
    return np.kron(np.eye(predictors), np.eye(columns)[:, -1:])


def fit_intercept(family: str, theta: np.ndarray, rows: Rows, penalty: float) -> np.ndarray:
    """A site's own intercept, (K,) or (1,), by Newton's method at home, for ``theta`` (P,) as it is."""
    fixed = rows._replace(x=rows.x[:, -1:], offset=_predictors(family, theta, rows))
    own = intercepts(family, 1, rows.offset.shape[1])
    shift, step, last = np.zeros(own.shape[1]), np.zeros(own.shape[1]), np.inf
    for _ in range(MOST_STEPS):
        sums = sums_at(family, own @ (shift + step), fixed)
        loss = sums.loss + penalty / 2 * float((shift + step) @ (shift + step))
        if loss > last + CONVERGED:
            step = step / 2
            continue
        shift, last = shift + step, loss
        curve = own.T @ sums.hessian @ own + penalty * np.eye(len(shift))
        step = -np.linalg.pinv(curve, hermitian=True) @ (own.T @ sums.gradient + penalty * shift)
        if np.abs(step).max() < CONVERGED:
            break
    return np.asarray(shift)
