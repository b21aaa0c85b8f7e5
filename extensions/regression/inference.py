"""What sums over sites tell of coefficients: standard errors, intervals, p-values, tests, and meta-analysis.

All of it is computed from sums, so that it is that of the pooled samples, and no site's own estimate is needed: a
meta-analysis of sites' own estimates (b_s with variance v_s) takes two sums.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

from fedsmall.extensions.regression.newton import Setup, State, free_directions, penalty_of, solve

MOST, FREE = 1e6, 2.0**-6  # a variance; how far below 0, of the largest, it is kept where samples determine nothing
UNBOUNDED = 100.0  # standard errors above which the likelihood has no maximum that is finite: separated classes


class Table(NamedTuple):
    """Of each coefficient, (P,): estimate, standard error, the ends of its interval, and the p-value of its being 0.

    ``unit`` is that of the number predicted, by which all but p were multiplied.
    """

    estimate: np.ndarray
    error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p: np.ndarray
    unit: float = 1.0

    def times(self, unit: float) -> "Table":
        """The same in the ``unit`` of the number predicted."""
        estimate, error, low, high = (unit * part for part in self[:4])
        return Table(estimate, error, low, high, self.p, unit)

    @property
    def undetermined(self) -> np.ndarray:
        """Which coefficients samples do not determine: of columns without values, or where classes are separated."""
        return np.asarray(~((self.error > 0) & (self.error < UNBOUNDED * self.unit)))

    @property
    def ratios(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Odds, rate or hazard ratios with the ends of their intervals."""
        low, ratio, high = np.exp(np.clip((self.low, self.estimate, self.high), -700, 700))
        return ratio, low, high


def wald(estimate: np.ndarray, covariance: np.ndarray, freedom: float = np.inf, level: float = 0.95) -> Table:
    """Wald's intervals and tests; with ``freedom`` Student's t in place of the normal distribution."""
    error = np.sqrt(np.clip(np.diag(covariance), 0, None))
    reach = stats.t.ppf((1 + level) / 2, freedom) * error
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stats.t.sf(np.abs(estimate / error), freedom)
    return Table(estimate, error, estimate - reach, estimate + reach, p)


def covariance_of(setup: Setup, state: State, place: int) -> tuple[np.ndarray, float]:
    """The covariance (P, P) of the model of penalty number ``place``, and the degrees of freedom of its tests.

    Under a penalty, errors are those of the posterior for which it is the prior, as its intervals cover better than the
    estimator's own (Nychka 1988; Wood 2006). Robust ones allow patients of a site, or samples of a patient, to be
    alike, and want some 30 of those (Liang and Zeger 1986; corrected as Stata and statsmodels do).
    """
    weight, bread = state.weight[place], inverse(setup, state.hessian[place] + np.diag(penalty_of(setup, place)))
    used = float((bread * state.hessian[place]).sum())  # effective parameters
    if setup.robust:
        meat, clusters = state.meat[place, :-1, :-1], state.meat[place, -1, -1]
        factor = clusters / max(clusters - 1, 1) * (weight - 1) / max(weight - used, 1)
        return bread @ meat @ bread * factor, np.inf
    if setup.family != "linear":
        return bread, np.inf
    freedom = max(weight - used, 1.0)
    return bread * 2 * state.loss[place] / freedom, freedom


def with_free(setup: Setup, state: State, place: int, covariance: np.ndarray) -> np.ndarray:
    """A ``covariance`` as a model keeps it: bounded, and below 0 in directions that samples do not determine."""
    if setup.penalties[place]:  # which determines all
        return np.asarray(np.clip(covariance, -MOST, MOST))
    values, vectors = np.linalg.eigh(covariance)
    if values[-1] > MOST:
        covariance = vectors * np.minimum(values, MOST) @ vectors.T
    return np.asarray(covariance - _below(covariance) * free_directions(setup, state.hessian[place]))


def without_free(kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The covariance that :func:`with_free` kept, and the directions that samples do not determine, (P, directions)."""
    values, vectors = np.linalg.eigh(kept)
    is_free = values < -_below(kept) / 2
    directions = vectors[:, is_free]
    return kept - directions * values[is_free] @ directions.T, directions


def _below(covariance: np.ndarray) -> float:
    return FREE * min(float(np.diag(covariance).max()), UNBOUNDED**2)


def inverse(setup: Setup, matrix: np.ndarray) -> np.ndarray:
    """The inverse of a Hessian (P, P), or where directions are free, one that holds for what is estimable."""
    return solve(setup, matrix, np.eye(len(matrix)))


class Fitted(NamedTuple):
    """A fit without a penalty: its ``loss``, the ``slopes`` that are determined; of a number the weight of samples."""

    loss: float
    slopes: int
    weight: float | None = None


def likelihood_ratio(fit: Fitted, nested: Fitted) -> tuple[float, float]:
    """Wilks' statistic and p-value of a ``fit`` against one ``nested`` in it; of a number its variance is estimated."""
    gained = nested.loss - fit.loss
    statistic = 2 * gained if fit.weight is None else fit.weight * float(np.log(nested.loss / fit.loss))
    return statistic, float(stats.chi2.sf(statistic, fit.slopes - nested.slopes))


class Pooled(NamedTuple):
    """Estimates put together: by ``fixed`` and by ``random`` effects; ``tau2``, Cochran's ``q`` and ``i2``: (P,)."""

    fixed: Table
    random: Table
    tau2: np.ndarray
    q: np.ndarray
    i2: np.ndarray


def effect_sums(estimate: np.ndarray, variance: np.ndarray, tau2: np.ndarray | float = 0.0) -> np.ndarray:
    """What a site adds to a meta-analysis, (5, P); nothing for an estimate of which the variance is not finite.

    Without ``tau2`` for the first sum, with that of :func:`between_sites` for the second.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        w = np.where(np.isfinite(variance) & (variance > 0), 1 / (variance + tau2), 0.0)
    b = np.where(w > 0, estimate, 0.0)
    return np.stack([w, w**2, w * b, w * b**2, (w > 0).astype(np.float64)])


def between_sites(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cochran's Q and the variance between sites, from the first sum, (P,) each (DerSimonian and Laird 1986)."""
    w, w2, wb, wb2, count = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.nan_to_num(wb2 - wb**2 / w)
        tau2 = np.nan_to_num((q - (count - 1)) / (w - w2 / w))
    return q, np.clip(tau2, 0, None)


def meta_analysis(first: np.ndarray, second: np.ndarray) -> Pooled:
    """Fixed and random effects from both sums of :func:`effect_sums`; NaN where no site has an estimate."""
    q, tau2 = between_sites(first)
    with np.errstate(divide="ignore", invalid="ignore"):
        fixed, random = (wald(wb / w, np.diag(1 / w)) for w, _, wb, _, _ in (first, second))
        i2 = np.clip(np.nan_to_num(1 - (first[4] - 1) / q), 0, 1)
    return Pooled(fixed, random, tau2, q, i2)
