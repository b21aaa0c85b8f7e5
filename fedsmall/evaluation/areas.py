"""How well scores put the samples of one class before the others, whatever the threshold."""

import numpy as np
from scipy.stats import rankdata


def average_precision(scores: np.ndarray, positive: np.ndarray) -> float:
    """The precision at every threshold, weighted by what recall gains there; ties share one threshold. NaN for none."""
    total = int(positive.sum())
    if not total or not np.isfinite(scores).all():
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    hits = np.cumsum(positive[order])[ends]
    return float((np.diff(hits, prepend=0) / total * hits / (ends + 1)).sum())


def area(scores: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """The area under the ROC curve by ranks (Mann and Whitney 1947), ties half: (models, samples) -> (models,)."""
    good, bad = int(positive.sum()), int((~positive).sum())
    if not good or not bad:
        return np.full(len(scores), np.nan)
    ranks = rankdata(scores, axis=1)  # (models, samples)
    areas = (ranks[:, positive].sum(axis=1) - good * (good + 1) / 2) / (good * bad)
    return np.where(np.isfinite(scores).all(axis=1), areas, np.nan)


def known_mean(values: np.ndarray) -> np.ndarray:
    """The mean over the classes for which a value is defined: (models, classes) -> (models,)."""
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)
