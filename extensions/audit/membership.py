"""Membership inference: from what an attacker sees of a patient in many runs, whether the patient was in the data.

The attacker plays shadow runs in which he knows who was in. What he sees of a patient in a run is a row of numbers; a
new row's score is its log likelihood ratio (LiRA) between rows with the patient and without. Both clouds have the
patient's spread, as far as it is known, and the correlations of all patients, so that a handful of runs is enough: a
linear discriminant. Each half of the runs teaches the scores of the other.

The lower bound on epsilon is from one run in which every candidate was in by the toss of a coin. Under (epsilon,
delta)-differential privacy no guesser is right more often than a coin of bias e^epsilon / (e^epsilon + 1), but for
delta; more right guesses refute the epsilon. The bound never proves a claim.

Sources: Carlini et al. 2022, "Membership inference attacks from first principles" (LiRA); the linear discriminant over
many views is ours. Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", Theorem 5.2.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import exp
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import binom

Z95 = 1.959964
RATES = (0.01, 0.001)  # false alarms
DRAWS = 200
RIDGE = 0.02
PRIOR = 10.0  # runs that the spread over all units is worth, beside a unit's own
LEAST_RUNS = 8


@dataclass(frozen=True)
class Estimate:
    """A number, and the two ends of its 95% interval."""

    value: float
    low: float
    high: float

    @property
    def width(self) -> float:
        """The distance between the two ends."""
        return self.high - self.low


class Leak(NamedTuple):
    """``auc``: the chance that a member scores above another; ``found``: members found at each of :data:`RATES`."""

    auc: Estimate
    found: tuple[Estimate, ...]


class _Clouds(NamedTuple):
    """What shadow runs teach, (units, features), ``shift`` between two clouds; ``correlation`` (features, features)."""

    middle: np.ndarray
    scale: np.ndarray
    shift: np.ndarray
    correlation: np.ndarray


def scores(seen: np.ndarray, members: np.ndarray) -> np.ndarray:
    """The log likelihood ratio of every unit in every run, (runs, units); zero where nothing was seen.

    ``seen`` (runs, units, features) is what is seen of a candidate, perhaps by one party, NaN for what never is;
    ``members`` (runs, units) of bool says who was in. Raises ValueError below :data:`LEAST_RUNS` runs.
    """
    runs = len(members)
    if runs < LEAST_RUNS:
        raise ValueError(f"membership takes at least {LEAST_RUNS} runs to teach and to try the attack; got {runs}")
    is_seen = np.isfinite(seen).any(axis=0)  # (units, features)
    rows = np.where(np.isfinite(seen), seen, 0.0)
    out = np.zeros(members.shape)
    halves = np.arange(runs) < runs // 2, np.arange(runs) >= runs // 2
    for teach, tried in (halves, halves[::-1]):
        clouds = _clouds(rows[teach], members[teach], is_seen)
        weights = _weights(clouds, is_seen)
        out[tried] = np.einsum("ruf,uf->ru", (rows[tried] - clouds.middle) / clouds.scale, weights)
    return out


def _clouds(rows: np.ndarray, members: np.ndarray, is_seen: np.ndarray) -> _Clouds:
    inside = members[..., None].astype(np.float64)  # (runs, units, 1)
    with_it, without = inside.sum(0), (1 - inside).sum(0)  # (units, 1)
    mean_in = (rows * inside).sum(0) / np.maximum(with_it, 1)
    mean_out = (rows * (1 - inside)).sum(0) / np.maximum(without, 1)
    rest = (rows - np.where(inside > 0, mean_in, mean_out)) * is_seen
    squares = np.square(rest).sum(0)  # (units, features)
    pooled = squares.sum(0) / np.maximum(is_seen.sum(0) * max(len(rows) - 2, 1), 1)
    variance = (PRIOR * pooled + squares) / (PRIOR + max(len(rows) - 2, 0))
    scale = np.sqrt(np.maximum(variance, 1e-12))
    both = (with_it > 0) & (without > 0) & is_seen
    noise = 1 / np.maximum(with_it, 1) + 1 / np.maximum(without, 1) + 0 * scale
    shift = _shrink(np.where(both, (mean_in - mean_out) / scale, 0.0), noise, both)
    middle = np.where(both, (mean_in + mean_out) / 2, rows.mean(0))
    flat = (rest / scale).reshape(-1, rest.shape[-1])
    pairs = is_seen.T.astype(np.float64) @ is_seen * max(len(rest) - 2, 1)
    correlation = np.asarray(flat.T @ flat / np.maximum(pairs, 1.0))
    return _Clouds(middle, scale, np.where(is_seen, shift, 0.0), correlation)


def _shrink(shift: np.ndarray, noise: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Each unit's shift drawn towards that of all units, the more the less is known of it, by two deviations at most.

    Source: Efron & Morris 1972, "Limiting the risk of Bayes and empirical Bayes estimators".
    """
    count = np.maximum(known.sum(0), 1)
    mean = np.where(known, shift, 0.0).sum(0) / count
    spread = np.maximum(np.where(known, (shift - mean) ** 2 - noise, 0.0).sum(0) / count, 0.0)
    drawn = mean + spread / np.maximum(spread + noise, 1e-30) * (shift - mean)
    reach = 2 * np.sqrt(noise)
    return np.asarray(np.where(known, np.clip(drawn, shift - reach, shift + reach), mean))


def _weights(clouds: _Clouds, is_seen: np.ndarray) -> np.ndarray:
    """The discriminant of every unit over the features that are seen of it, (units, features)."""
    weights = np.zeros(is_seen.shape)
    patterns, which = np.unique(is_seen, axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns):
        units, features = np.flatnonzero(which.ravel() == number), np.flatnonzero(pattern)
        if not len(features):
            continue
        shared = clouds.correlation[np.ix_(features, features)]
        shared = shared + np.diag(RIDGE * np.diag(shared) + 1e-12)
        weights[np.ix_(units, features)] = np.linalg.solve(shared, clouds.shift[np.ix_(units, features)].T).T
    return weights


def leak(
    scores: np.ndarray, members: np.ndarray, rng: np.random.Generator, candidates: np.ndarray | None = None
) -> Leak:
    """AUC and shares of members found, with intervals by resampling runs and candidates (200 draws of both).

    ``scores`` and ``members`` are (runs, units); ``candidates`` (units,) numbers each unit's; those of one go together.
    """
    runs, units = members.shape
    of_unit = np.arange(units) if candidates is None else np.unique(candidates, return_inverse=True)[1].ravel()
    order = np.argsort(-scores.ravel(), kind="stable")
    ties = np.diff(scores.ravel()[order], append=np.nan) != 0  # the last of each group of equal scores
    inside = members.ravel()[order]
    row, unit = np.divmod(order, units)
    values = [_rates(np.ones(len(order)), inside, ties)]
    for _ in range(DRAWS):
        by_run = np.bincount(rng.integers(runs, size=runs), minlength=runs)
        drawn = rng.integers(of_unit.max() + 1, size=of_unit.max() + 1)
        by_unit = np.bincount(drawn, minlength=of_unit.max() + 1)[of_unit]
        values.append(_rates((by_run[row] * by_unit[unit]).astype(np.float64), inside, ties))
    low, high = np.nanquantile(np.array(values[1:]), (0.025, 0.975), axis=0)
    estimates = [Estimate(*map(float, ends)) for ends in zip(values[0], low, high, strict=True)]
    return Leak(estimates[0], tuple(estimates[1:]))


def area(inside: np.ndarray, outside: np.ndarray) -> Estimate:
    """How well one score tells members (scores ``inside``) from others (``outside``), of a handful each.

    Source: Newcombe 2006, "Confidence intervals for an effect size measure based on the Mann-Whitney statistic" (5).
    """
    pairs = np.sign(np.subtract.outer(inside, outside))
    auc, weight = float((pairs.mean() + 1) / 2), (len(inside) + len(outside)) / 2 - 1

    def outside_of(value: float) -> float:
        spread = 1 + weight * (1 - value) / (2 - value) + weight * value / (1 + value)
        return (auc - value) ** 2 - Z95**2 * value * (1 - value) * spread / (len(inside) * len(outside))

    low = brentq(outside_of, 0.0, auc) if auc > 0 and outside_of(0.0) * outside_of(auc) < 0 else 0.0
    high = brentq(outside_of, auc, 1.0) if auc < 1 and outside_of(auc) * outside_of(1.0) < 0 else 1.0
    return Estimate(auc, float(low), float(high))


def _rates(weight: np.ndarray, inside: np.ndarray, ties: np.ndarray) -> list[float]:
    hits, alarms = np.cumsum(weight * inside), np.cumsum(weight * ~inside)
    if not hits[-1] or not alarms[-1]:
        return [np.nan] * (1 + len(RATES))
    true = np.concatenate([[0.0], hits[ties] / hits[-1]])
    false = np.concatenate([[0.0], alarms[ties] / alarms[-1]])
    auc = float(np.sum(np.diff(false) * (true[1:] + true[:-1]) / 2))
    return [auc, *(float(true[np.searchsorted(false, rate, side="right") - 1]) for rate in RATES)]


GUESSES = 64  # all of 64 right shows epsilon 3.04, and no number of guesses is chosen after a look at the outcome
LEVEL = 0.05
HIGHEST = 32.0  # an epsilon beyond all that is looked for


def lower_bound(scores: np.ndarray, members: np.ndarray, guesses: int = GUESSES, delta: float = 0.0) -> float:
    """The epsilon that the guesses of one run refute at the 5% level; 0 where they refute none.

    ``scores`` (candidates,), above zero for "was in", do not depend on the coins ``members``; the largest are guessed.
    """
    taken = min(guesses, len(scores))
    sure = np.argsort(-np.abs(scores), kind="stable")[:taken]
    right = int(((scores[sure] > 0) == members[sure]).sum())
    return refuted(len(scores), taken, right, delta)


@lru_cache(maxsize=4096)
def refuted(candidates: int, guesses: int, right: int, delta: float = 0.0, level: float = LEVEL) -> float:
    """The largest epsilon under which so many right guesses have a p-value below ``level``; 0 for none."""
    low, high = 0.0, HIGHEST
    if p_value(candidates, guesses, right, low, delta) >= level:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        if p_value(candidates, guesses, right, middle, delta) < level:
            low = middle
        else:
            high = middle
    return low


def p_value(candidates: int, guesses: int, right: int, epsilon: float, delta: float = 0.0) -> float:
    """How probable so many right guesses are, at most, where the run was (epsilon, delta)-private."""
    bias = 1 / (1 + exp(-epsilon))
    beta = float(binom.sf(right - 1, guesses, bias))
    if delta == 0 or right == 0:
        return min(beta, 1.0)
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, bias))
    alpha = float((below / np.arange(1, right + 1)).max())
    return min(beta + 2 * candidates * delta * alpha, 1.0)
