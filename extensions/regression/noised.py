"""Least squares from sums that are noised once, which keeps each patient's privacy in a single exchange.

A row z = (x, 1), where x is cut to length ``clip``, adds r r' and y r to the sums, with r = z / sqrt(clip^2 + 1) and y
between -1 and 1. Off the diagonal r r' counts once, times sqrt 2, so that its length is that of the matrix, at most 1,
and that of both at most sqrt 2: what a patient who is added or removed can change (tested). The Gaussian mechanism
adds noise to every number, and is charged as one step without sampling. All that follows is post-processing.

In a secure sum each site adds 1 / h of the noise's variance, where at least h sites of any sum that decryptors open are
honest (:func:`fedsmall.sealing.masks.honest_in_sum`). All sites have one grid and nothing is rounded after the noise,
so the sum is the rounded sums plus whole multiples; as discrete Gaussians of 2**24 steps add up to one nearly exactly
(Kairouz, Liu & Steinke 2021), it is charged as the same step. A single summand, unmasked, has less noise than that.

Source: Dwork et al. 2014, "Analyze Gauss"; Wang 2018, "Revisiting differentially private linear regression".
"""

from typing import Any

import numpy as np

from fedsmall.plan import Plan
from fedsmall.privacy.discrete_gaussian import add_multiples, widened
from fedsmall.privacy.patient_level import Chance
from fedsmall.sealing.masks import honest_in_sum

SENSITIVITY = np.sqrt(2.0)
EVERYBODY = 10**9  # a lot larger than any site
LEAST_SPREAD = 0.1  # of what is left of the variance of y = -1 and 1, for noise can leave less than nothing


def in_one_exchange(plan: Plan) -> Plan:
    """The plan as privacy counts it: one step of a lot that has every patient of a site."""
    settings = plan.method.regression
    assert settings is not None
    penalty = 0.0 if settings.penalty == "cv" else settings.penalty
    parts: dict[str, Any] = {"regression": settings.model_copy(update={"penalty": penalty})}
    parts["privacy"] = plan.privacy.model_copy(update={"lot": EVERYBODY})
    recipe = plan.recipe.model_copy(update={"local_steps": 1, "local_epochs": None, "batch": None})
    return plan.model_copy(update={"rounds": 1, "recipe": recipe, "method": plan.method.model_copy(update=parts)})


def statistics(x: np.ndarray, y: np.ndarray, clip: float, shares: np.ndarray | float = 1.0) -> np.ndarray:
    """A site's sums before noise, (p (p + 1) / 2 + p,) for x (n, p - 1), y (n,) in [-1, 1] and what rows count (n,)."""
    length = np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
    r = np.concatenate([x * np.minimum(1, clip / length), np.ones((len(x), 1))], axis=1) / np.sqrt(clip**2 + 1)
    lower = np.tril_indices(r.shape[1])
    doubled = np.where(lower[0] == lower[1], 1, SENSITIVITY)
    roots = np.sqrt(shares) * np.ones(len(r))
    r *= roots[:, None]
    return np.concatenate([(r.T @ r)[lower] * doubled, r.T @ (np.clip(y, -1, 1) * roots)])


def share_of(plan: Plan, sites: int) -> float:
    """Which share of the noise's variance each of so many sites adds."""
    return 1 / honest_in_sum(sites) if plan.method.shares_noise else 1.0


def noised(sums: np.ndarray, noise: float, chance: Chance, share: float = 1.0) -> np.ndarray:
    """The sums with noise of ``noise`` times the sensitivity, of whose variance a site adds a ``share``."""
    deviation = widened(SENSITIVITY, noise, len(sums)) * np.sqrt(share)
    return add_multiples(sums, deviation, lambda count, ratio: chance.multiples(count, ratio).numpy())


def fit(sums: np.ndarray, columns: int, clip: float, penalty: float) -> tuple[np.ndarray, float, np.ndarray]:
    """Coefficients (p,) of least squares, what is left of y's variance, and the mean of z times y, from all sums.

    Noise is taken out of the matrix as far as it makes it indefinite. ``columns`` is p, with the constant.
    """
    size, half = clip**2 + 1, columns * (columns + 1) // 2
    lower, matrix = np.tril_indices(columns), np.zeros((columns, columns))
    matrix[lower] = sums[:half] / np.where(lower[0] == lower[1], 1, SENSITIVITY) * size
    values, vectors = np.linalg.eigh(matrix + np.tril(matrix, -1).T)
    matrix, with_y = (vectors * np.clip(values, 0, None)) @ vectors.T, sums[half:] * np.sqrt(size)
    b = np.linalg.solve(matrix + (penalty + 1e-9) * np.eye(columns), with_y)
    count = max(matrix[-1, -1], 1.0)
    left = 1 - float(2 * b @ with_y - b @ matrix @ b) / count
    return b, max(left, LEAST_SPREAD), with_y / count


def log_odds_of(b: np.ndarray, left: float) -> np.ndarray:
    """Coefficients (p,) of the log-odds of y = 1 against -1, from those of least squares.

    Where classes are normal with one covariance, and equally many, these are 2 / (residual variance) times as large.
    """
    return np.asarray(2 * b / left)


def penalty_for(noise: float, columns: int, clip: float, summands: float = 1) -> float:
    """A penalty as large as the noise of so many ``summands`` in the matrix: its expected spectral norm (Wigner's)."""
    return float(2 * noise * np.sqrt(summands * columns) * (clip**2 + 1))
