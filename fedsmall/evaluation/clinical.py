"""What a clinician asks of predictions, each with its uncertainty."""

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from fedsmall.evaluation.metrics import area, average_precision, counts_from_above, mid_ranks, r2_scores
from fedsmall.evaluation.statistics import Scale
from fedsmall.plan import Plan

BINS = 10
EDGES = np.linspace(0, 1, BINS + 1)[1:-1]
DRAWS = 500
NEWTON = 25  # steps
Z95 = float(special.ndtri(0.975))
Whose = np.ndarray | None  # the patient of each sample, (samples,); None where each has one


class Estimate(NamedTuple):
    """A number with its 95% interval, NaN where there is none; ``hits`` of ``of`` where it is a share of samples."""

    value: float
    low: float
    high: float
    hits: int = 0
    of: int = 0


class Curve(NamedTuple):
    """Points of a curve: x and y at thresholds from high to low."""

    x: np.ndarray
    y: np.ndarray
    thresholds: np.ndarray


class AtThreshold(NamedTuple):
    """Who is called what from a threshold on: counts, and the four shares with Wilson's intervals."""

    threshold: float
    true_positive: int
    false_positive: int
    false_negative: int
    true_negative: int
    sensitivity: Estimate
    specificity: Estimate
    ppv: Estimate
    npv: Estimate


class Bin(NamedTuple):
    """A tenth of the scale of probabilities: how many samples are in it, what was predicted, and what was so."""

    samples: int
    predicted: float
    observed: Estimate


def wilson(hits: int, of: int, worth: float | None = None) -> Estimate:
    """A share and its interval, which stays between 0 and 1; NaN for a share of none. Source: Wilson 1927.

    ``worth`` is how many independent samples they are worth, where they are of fewer patients.
    """
    if of == 0:
        return Estimate(float("nan"), float("nan"), float("nan"), 0, 0)
    share, square, n = hits / of, Z95**2, of if worth is None else worth
    middle = (share + square / (2 * n)) / (1 + square / n)
    reach = Z95 * float(np.sqrt(share * (1 - share) / n + square / (4 * n**2))) / (1 + square / n)
    return Estimate(share, max(0.0, min(middle - reach, share)), min(1.0, max(middle + reach, share)), hits, of)


def share_of(hits: np.ndarray, of: np.ndarray, whose: Whose = None) -> Estimate:
    """The share that ``hits`` are among ``of``, both masks (samples,), with Wilson's interval.

    Samples of patients are worth as many independent ones as the variance between patients says (Rao and Scott 1992).
    """
    hit, all_of = int((hits & of).sum()), int(of.sum())
    if whose is None or not all_of:
        return wilson(hit, all_of)
    share = hit / all_of
    between, patients = _between(hits[of] - share, whose[of])
    return wilson(hit, all_of, min(all_of, share * (1 - share) * all_of**2 / between) if between else patients)


def _between(apart: np.ndarray, whose: np.ndarray) -> tuple[float, int]:
    """The variance of the sum of deviations ``apart``, (samples,), between patients, and how many these are."""
    sums = np.bincount(np.unique(whose, return_inverse=True)[1], apart)
    return float(sums @ sums) * len(sums) / max(len(sums) - 1, 1), len(sums)


def at_threshold(p: np.ndarray, positive: np.ndarray, threshold: float, whose: Whose = None) -> AtThreshold:
    """Counts and shares where everybody with a probability of ``threshold`` or more is called positive."""
    called = p >= threshold
    sensitivity, specificity = share_of(called, positive, whose), share_of(~called, ~positive, whose)
    ppv, npv = share_of(positive, called, whose), share_of(~positive, ~called, whose)
    cells = ppv.hits, ppv.of - ppv.hits, npv.of - npv.hits, npv.hits
    return AtThreshold(threshold, *cells, sensitivity, specificity, ppv, npv)


def of_counts(threshold: float, tp: int, fp: int, fn: int, tn: int) -> AtThreshold:
    """The shares of so many true and false positives and negatives, in the order of their names."""
    shares = wilson(tp, tp + fn), wilson(tn, tn + fp), wilson(tp, tp + fp), wilson(tn, tn + fn)
    return AtThreshold(threshold, tp, fp, fn, tn, *shares)


def roc(p: np.ndarray, positive: np.ndarray) -> Curve:
    """False positive rate (x) and sensitivity (y) at every probability that occurs, from nobody to everybody."""
    values, hits, false = counts_from_above(p, positive)
    return Curve(
        np.append(0.0, false / max(int((~positive).sum()), 1)),
        np.append(0.0, hits / max(int(positive.sum()), 1)),
        np.append(np.inf, values),
    )


def precision_recall(p: np.ndarray, positive: np.ndarray) -> Curve:
    """Recall (x) and precision (y) at every probability that occurs, from the highest to everybody."""
    values, hits, false = counts_from_above(p, positive)
    return Curve(hits / max(int(positive.sum()), 1), hits / (hits + false), values)


def auc(p: np.ndarray, positive: np.ndarray, whose: Whose = None) -> Estimate:
    """The area under the ROC curve with DeLong's standard error (1988), its interval on the scale of the logit.

    Of patients with several samples it is Obuchowski's (1997); of classes told apart Wilson's; NaN if one is missing.
    """
    good, bad = p[positive], p[~positive]
    if not len(good) or not len(bad):
        return Estimate(float("nan"), float("nan"), float("nan"))
    rank_all, rank_good, rank_bad = mid_ranks(p), mid_ranks(good), mid_ranks(bad)
    of_good = (rank_all[positive] - rank_good) / len(bad)  # the share of the others below each positive sample
    of_bad = 1 - (rank_all[~positive] - rank_bad) / len(good)
    value = float(of_good.mean())
    variances = [values.var(ddof=1) / len(values) if len(values) > 1 else 0.25 for values in (of_good, of_bad)]
    few = min(len(good), len(bad))
    if whose is not None:
        apart = np.empty(len(p))
        apart[positive], apart[~positive] = (of_good - value) / len(good), (of_bad - value) / len(bad)
        variances, few = [_between(apart, whose)[0]], min(len(set(whose[mask])) for mask in (positive, ~positive))
    error = float(np.sqrt(sum(variances)))
    if value in (0.0, 1.0) or error == 0:
        return Estimate(value, *wilson(round(value * few), few)[1:3])
    reach = Z95 * error / (value * (1 - value))
    middle = float(special.logit(value))
    return Estimate(value, float(special.expit(middle - reach)), float(special.expit(middle + reach)))


def brier(p: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """The mean squared distance of the probabilities (..., samples) from what was so."""
    return np.asarray(((p - positive) ** 2).mean(axis=-1))


def calibration(p: np.ndarray, positive: np.ndarray, whose: Whose = None) -> list[Bin]:
    """The bins of equal width that hold samples, from low to high probability; an edge belongs to the lower one."""
    place = np.searchsorted(EDGES, p)
    return [
        Bin(int(in_bin.sum()), float(p[in_bin].mean()), share_of(positive, in_bin, whose))
        for in_bin in (place == number for number in range(BINS))
        if in_bin.any()
    ]


def calibration_error(p: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """ECE: the mean distance of predicted from observed over the bins, by their samples (Naeini et al. 2015)."""
    place = np.searchsorted(EDGES, p)
    apart = [np.where(place == number, p - positive, 0.0).sum(axis=-1) for number in range(BINS)]
    return np.asarray(np.abs(apart).sum(axis=0) / p.shape[-1])


def recalibration_intercept(p: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """The intercept at a slope of 1 of the truth over the logit of ``p`` (..., samples); 0 is ideal.

    NaN, as the slope, where it has no end: one class, perfect separation, equal probabilities. Sources: Cox 1958; Van
    Calster et al. 2019.
    """
    x = _logits(p)
    return _maximum(np.ones_like(x)[..., None, :], x, positive)[..., 0]


def recalibration_slope(p: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """The slope of the truth over the logit of ``p`` (..., samples); 1 is ideal."""
    return _intercept_and_slope(p, positive)[..., -1]


def can_recalibrate(plan: Plan, loss: str, classes: int) -> bool:
    """Whether there are probabilities of two classes without an order, and no hospital's intercept beside them."""
    return classes == 2 and loss in ("cross_entropy", "logistic") and not plan.method.keeps_intercepts


def recalibration_of(p: np.ndarray, positive: np.ndarray) -> tuple[float, float] | None:
    """The intercept and the slope that recalibrate ``p`` (samples,); None where there are none, or no slope above 0."""
    intercept, slope = (float(number) for number in _intercept_and_slope(p, positive))
    return (intercept, slope) if slope > 0 else None


def recalibrate(p: np.ndarray, intercept: float, slope: float) -> np.ndarray:
    """The probabilities ``p`` with log-odds times ``slope``, plus ``intercept``."""
    return np.asarray(special.expit(intercept + slope * _logits(p)))


def _intercept_and_slope(p: np.ndarray, positive: np.ndarray) -> np.ndarray:
    x = _logits(p)
    return _maximum(np.stack([np.ones_like(x), x], axis=-2), np.zeros_like(x), positive)


def _logits(p: np.ndarray) -> np.ndarray:
    return np.asarray(special.logit(np.clip(p, 1e-9, 1 - 1e-9)))


def _maximum(x: np.ndarray, offset: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """Coefficients (..., columns) of logistic regressions on ``x`` (..., columns, samples) by Newton; NaN for none."""
    weights = np.zeros(x.shape[:-1])
    going, lost = np.ones(x.shape[:-2], dtype=bool), np.zeros(x.shape[:-2], dtype=bool)
    for _ in range(NEWTON):
        some, truth = x[going], np.broadcast_to(positive, offset.shape)[going]
        with np.errstate(over="ignore"):  # far out it is 0
            q = 1 / (1 + np.exp(-offset[going] - (weights[going][..., None, :] @ some)[..., 0, :]))
        curvature = (some * (q * (1 - q))[..., None, :]) @ np.swapaxes(some, -1, -2)
        flat = ~(np.linalg.cond(curvature) < 1 / np.finfo(float).eps ** 0.75)
        curvature[flat] = np.eye(x.shape[-2])
        step = np.where(flat[..., None], 0, np.linalg.solve(curvature, some @ (truth - q)[..., None])[..., 0])
        weights[going] += step
        lost[going] = flat
        going[going] = ~flat & (np.abs(step).max(axis=-1) >= 1e-9)
        if not going.any():
            break
    return np.where((going | lost)[..., None], np.nan, weights)


def net_benefit(p: np.ndarray, positive: np.ndarray) -> Curve:
    """The decision curve: x are thresholds, y true positives less false ones at the threshold's odds, each patient.

    Source: Vickers and Elkin 2006.
    """
    cuts = np.linspace(0.01, 0.99, 99)
    called = p[None, :] >= cuts[:, None]  # (thresholds, samples)
    hits, alarms = (called & positive).mean(axis=1), (called & ~positive).mean(axis=1)
    return Curve(cuts, hits - alarms * cuts / (1 - cuts), cuts)


VALUES: dict[str, Callable[[np.ndarray, np.ndarray], Any]] = {
    "ROC-AUC": area,
    "average precision": average_precision,
    "Brier score": brier,
    "calibration error (ECE)": calibration_error,
    "calibration intercept": recalibration_intercept,
    "calibration slope": recalibration_slope,
}
SCALES: dict[str, Scale] = {"calibration intercept": "plain", "calibration slope": "plain"}  # others are shares


def estimates_of(p: np.ndarray, positive: np.ndarray, whose: Whose = None) -> dict[str, Estimate]:
    """All :data:`VALUES` with their intervals: DeLong's of the AUC, else a bootstrap's within the classes."""
    names = [name for name in VALUES if name != "ROC-AUC"]
    values = [VALUES[name] for name in names]
    found = bootstrap_intervals(values, p, positive, within=positive, at_once=True, whose=whose)
    return {"ROC-AUC": auc(p, positive, whose)} | dict(zip(names, found, strict=True))


def mean_absolute_error(predicted: np.ndarray, true: np.ndarray) -> float:
    """The mean distance of what was ``predicted`` (samples,) from what was ``true`` (samples,)."""
    return float(np.abs(predicted - true).mean())


def mean_error(predicted: np.ndarray, true: np.ndarray) -> float:
    """By how much predictions are too large on average (calibration in the large)."""
    return float((predicted - true).mean())


def calibration_slope(predicted: np.ndarray, true: np.ndarray) -> float:
    """The slope of truth over prediction, NaN where all are equal (Van Calster et al. 2019)."""
    around = predicted - predicted.mean()
    spread = float((around**2).sum())
    return float((around * true).sum() / spread) if spread > 1e-12 * float((predicted**2).sum()) else float("nan")


NUMBER_STATISTICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {  # what a report shows of one model
    "mean absolute error": mean_absolute_error,
    "root mean squared error": lambda predicted, true: float(np.sqrt(((predicted - true) ** 2).mean())),
    "R2": lambda predicted, true: float(r2_scores((predicted - true)[None, :, None], true[:, None])[0]),
    "mean error (predicted minus true)": mean_error,
    "calibration slope": calibration_slope,
}


Statistic = Callable[..., Any]
AT_ONCE = 2**16  # samples of resamples that are held together


def bootstrap_intervals(
    statistics: Sequence[Statistic],
    *arrays: np.ndarray,
    within: np.ndarray | None = None,
    at_once: bool = False,
    whose: Whose = None,
) -> list[Estimate]:
    """Statistics of ``arrays``, which share their first axis, each with its percentile interval over resamples of that.

    Where ``within``, (samples,), divides them in two, each part is resampled by itself; patients, where samples are
    ``whose``, as a whole and without parts. ``at_once``: statistics take resamples together, (resamples, samples).
    """
    rng = np.random.default_rng(0)  # its own: the interval of given predictions is one, whoever asks
    parts = [np.arange(len(arrays[0]))] if within is None else [np.flatnonzero(within), np.flatnonzero(~within)]
    drawn = (np.concatenate([rng.choice(rows, len(rows)) for rows in parts if len(rows)]) for _ in range(DRAWS))
    few = max(1, AT_ONCE // max(1, len(arrays[0]))) if at_once else 1  # resamples that are held together
    if whose is not None:
        of = [np.flatnonzero(whose == patient) for patient in np.unique(whose)]
        drawn = (np.concatenate([of[k] for k in rng.integers(len(of), size=len(of))]) for _ in range(DRAWS))
        few = 1  # for they have unequally many samples
    values: list[list[np.ndarray]] = [[] for _ in statistics]
    while some := [*islice(drawn, few)]:
        taken = [array[np.stack(some) if at_once else some[0]] for array in arrays]
        for statistic, of_one in zip(statistics, values, strict=True):
            of_one.append(statistic(*taken))
    found = []
    for statistic, of_one in zip(statistics, values, strict=True):
        known = np.hstack(of_one)
        low, high = np.nanpercentile(known, [2.5, 97.5]) if not np.isnan(known).all() else (np.nan, np.nan)
        found.append(Estimate(float(statistic(*arrays)), float(low), float(high)))
    return found


HALF, INSIDE = 0.5, (np.finfo(float).tiny, 1 - 2.0**-53)  # even odds; what a threshold may be
SENSITIVITY = 0.9  # of the threshold that is found beside the best one, where a plan does not say


def thresholds_of(plan: Plan, p: np.ndarray, positive: np.ndarray) -> dict[str, float]:
    """The thresholds that are told of a plan's model, by the way they were found: "youden", and by a "sensitivity"."""
    if not positive.any() or positive.all():
        return {}
    asked = plan.threshold
    wanted = asked["sensitivity"] if isinstance(asked, dict) else SENSITIVITY
    found = {"youden": best_threshold(p, positive), "sensitivity": least_sensitivity(p, positive, wanted)}
    return {way: threshold for way, threshold in found.items() if threshold is not None}


def chosen_threshold(plan: Plan, thresholds: Mapping[str, float]) -> tuple[float, str] | None:
    """The threshold that a plan asks for and how it was found, of those ``found``; None where it leaves that open.

    Even odds, and why, where it was not found.
    """
    asked = plan.threshold
    if isinstance(asked, float):
        return asked, "given in the scenario"
    if asked is None:
        return None
    way = "sensitivity" if isinstance(asked, dict) else "youden"
    how = f"sensitivity {asked['sensitivity']:g}" if isinstance(asked, dict) else "Youden's index"
    if way not in thresholds:
        return HALF, f"even odds: too few samples that the model had not seen for {how}"
    return thresholds[way], f"{how} on samples that the model had not seen"


def best_threshold(p: np.ndarray, positive: np.ndarray) -> float:
    """The threshold with the largest sensitivity + specificity - 1 (Youden 1950), mid-gap; the lowest of several."""
    values, hits, false = counts_from_above(p, positive)
    gains = hits / max(hits[-1], 1) - false / max(false[-1], 1)
    best = np.flatnonzero(gains >= gains.max() - 1e-12)[-1]
    return _middle(values, int(best))


def least_sensitivity(p: np.ndarray, positive: np.ndarray, wanted: float) -> float | None:
    """The highest threshold that calls at least the share ``wanted`` of other positive samples positive, on average.

    For that it calls ``wanted * (n + 1)`` of these n positive ones so: the next one's place among them is any with the
    same chance (Vovk et al. 2005, "Algorithmic Learning in a Random World"). None where n is too small.
    """
    values, hits, _ = counts_from_above(p, positive)
    enough = np.flatnonzero(hits >= wanted * (hits[-1] + 1) - 1e-9)
    return _middle(values, int(enough[0])) if len(enough) else None


def _middle(values: np.ndarray, place: int) -> float:
    below = values[place + 1] if place + 1 < len(values) else 0.0
    return float(np.clip((values[place] + below) / 2, *INSIDE))
