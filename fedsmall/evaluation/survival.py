"""Metrics of models of times until an event, many models at once; tests hold them to scikit-survival's.

``survival`` (..., samples, intervals) are probabilities of surviving each interval, ``cuts`` their ends, ``time``
(samples,) the last observation and ``event`` (samples,) whether the event ended it.
"""

from collections.abc import Collection

import numpy as np

TIED = 1e-8  # risks that differ by less, in units of the horizon, are one (scikit-survival's tolerance)


def mean_time(survival: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """The restricted mean survival time, up to the last cut: (...,) (Royston and Parmar 2013)."""
    curve = np.concatenate([np.ones_like(survival[..., :1]), survival], axis=-1)
    widths = np.diff(cuts, prepend=0.0)
    return np.asarray(((curve[..., 1:] + curve[..., :-1]) / 2 * widths).sum(axis=-1))


def concordance(survival: np.ndarray, cuts: np.ndarray, time: np.ndarray, event: np.ndarray) -> np.ndarray:
    """The share of pairs in which who had the event first has the shorter mean time (Harrell et al. 1996).

    A pair counts where the earlier time is that of an event; equal risks count half. NaN where no pair counts.
    """
    happened = event > 0
    first = happened[:, None] & ((time[:, None] < time) | ((time[:, None] == time) & ~happened))  # (samples, samples)
    pairs = np.nonzero(first)
    if not len(pairs[0]):
        return np.full(len(survival), np.nan)
    mean = mean_time(survival, cuts) / cuts[-1]  # (models, samples)
    apart = mean[:, pairs[1]] - mean[:, pairs[0]]  # (models, pairs)
    right = (apart > TIED).mean(axis=1) + (np.abs(apart) <= TIED).mean(axis=1) / 2
    return np.where(np.isfinite(apart).all(axis=1), right, np.nan)


def kaplan_meier(time: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The times that occur, ascending, and the share that comes through each (Kaplan and Meier 1958)."""
    times = np.unique(time)
    at_risk = (time[:, None] >= times).sum(axis=0)
    return times, np.cumprod(1 - ((time[:, None] == times) & (event[:, None] > 0)).sum(axis=0) / at_risk)


def censoring_curve(time: np.ndarray, event: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The times that occur, and the share not lost by each: Kaplan and Meier's, events and losses swapped."""
    times = np.unique(time)
    at_time = time[:, None] == times
    ended = (at_time & (event[:, None] > 0)).sum(axis=0)
    at_risk = (time[:, None] >= times).sum(axis=0) - ended
    lost = (at_time & (event[:, None] <= 0)).sum(axis=0)
    return times, np.cumprod(1 - lost / np.maximum(at_risk, 1))


def at(steps: tuple[np.ndarray, np.ndarray], when: np.ndarray) -> np.ndarray:
    """The value of a curve of steps at times ``when``; 1 before the first."""
    place = np.searchsorted(steps[0], when, side="right")
    return np.asarray(np.concatenate([[1.0], steps[1]])[place])


def brier_scores(
    survival: np.ndarray, cuts: np.ndarray, time: np.ndarray, event: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The cuts at which it can be judged, (some,), and the squared error of the curves there, (models, some).

    Censoring is made up for by inverse probability weights, before the last time alone (Graf et al. 1999).
    """
    seen = censoring_curve(time, event)
    judged = (cuts < time.max()) & (at(seen, cuts) > 0)
    at_time, at_cuts = at(seen, time), at(seen, cuts[judged])  # (samples,), (some,)
    over = (time[:, None] <= cuts[judged]) & (event[:, None] > 0)  # (samples, some)
    weight_over = over / np.where(at_time > 0, at_time, np.inf)[:, None]
    weight_on = (time[:, None] > cuts[judged]) / at_cuts
    curves = survival[..., judged]  # (models, samples, some)
    return cuts[judged], np.asarray((curves**2 * weight_over + (1 - curves) ** 2 * weight_on).mean(axis=-2))


def integrated_brier(survival: np.ndarray, cuts: np.ndarray, time: np.ndarray, event: np.ndarray) -> np.ndarray:
    """The mean of :func:`brier_scores` over time, between the first and the last cut that can be judged: (models,)."""
    when, scores = brier_scores(survival, cuts, time, event)
    if not len(when):
        return np.full(len(survival), np.nan)
    if len(when) == 1:
        return scores[:, 0]
    return np.asarray(np.trapezoid(scores, when, axis=-1) / (when[-1] - when[0]))


def metrics_of(
    asked: Collection[str], survival: np.ndarray, cuts: np.ndarray, time: np.ndarray, event: np.ndarray
) -> dict[str, np.ndarray]:
    """The metrics ``asked`` of "c_index" and "ibs", (models,) each."""
    ways = {"c_index": concordance, "ibs": integrated_brier}
    return {name: way(survival, cuts, time, event) for name, way in ways.items() if name in asked}


def through_and_event(y: np.ndarray, intervals: int) -> tuple[np.ndarray, np.ndarray]:
    """Of targets (samples, 2 or more): the intervals come through, and those an event ended, (samples, intervals)."""
    place = np.arange(intervals)
    return place < y[:, :1], (place == y[:, :1]) * y[:, 1:2]


def loss_of(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean negative log-likelihood: log-odds (models, samples, intervals), targets (samples, 4) -> (models,)."""
    through, event = through_and_event(y, outputs.shape[-1])
    losses = np.logaddexp(0, outputs) * through + np.logaddexp(0, -outputs) * event
    return np.asarray(losses.sum(axis=-1).mean(axis=-1))


def interval_log_odds(y: np.ndarray, intervals: int) -> np.ndarray:
    """The log-odds of the event in each interval, of targets (samples, 4), one half added to each side."""
    through, event = through_and_event(y, intervals)
    return np.asarray(np.log((event.sum(axis=0) + 0.5) / (through.sum(axis=0) + 0.5)))
