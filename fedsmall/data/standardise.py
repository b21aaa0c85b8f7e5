"""Features are brought to mean 0 and spread 1 by sums over the sites; no value of a patient leaves for it.

Each site sends :func:`sums`, all get the scaling of :func:`agree`, and each applies it (:func:`apply`), where a missing
value becomes the mean. The simulation calls the same functions in the same order, so its bits are those of real sites.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedsmall.exact import exact_sum

COUNT_FLOOR = 5  # a sum over fewer patients says too much about each of them


@dataclass(frozen=True)
class Sums:
    """What one site says of its training samples, (features,) in float64 each."""

    count: np.ndarray
    total: np.ndarray
    squares: np.ndarray


@dataclass(frozen=True)
class Scaling:
    """The agreed ``mean`` and ``scale`` (standard deviation, 1 where there is none), of shape (features,), float64."""

    mean: np.ndarray
    scale: np.ndarray


def sums(x: np.ndarray, floor: int = COUNT_FLOOR, patients: np.ndarray | None = None) -> Sums:
    """The sums of ``x`` (samples, features), where NaN marks a missing value.

    A feature with values of fewer than ``floor`` samples, or ``patients`` (samples,), counts as if the site had none.
    """
    present = ~np.isnan(x)
    count = present.sum(axis=0).astype(np.float64)
    reported = patients_with(present, patients) >= max(floor, 1)
    values = np.where(present & reported, x, 0.0).astype(np.float64)
    return Sums(np.where(reported, count, 0.0), values.sum(axis=0), (values * values).sum(axis=0))


def patients_with(present: np.ndarray, patients: np.ndarray | None) -> np.ndarray:
    """How many patients, or samples where nobody says whose they are, are ``present``, (samples, features), in each."""
    if patients is None:
        return np.asarray(present.sum(axis=0))
    order = np.argsort(patients, kind="stable")
    begins = np.flatnonzero(np.diff(patients[order], prepend=patients.min(initial=0) - 1))
    return np.asarray(np.logical_or.reduceat(present[order], begins).sum(axis=0))


def agree(sites: Sequence[Sums]) -> Scaling:
    """Mean and standard deviation over all sites' samples, each sum rounded once; 0 and 1 where nobody may speak."""
    count = exact_sum([site.count for site in sites])
    known = np.maximum(count, 1.0)
    mean = exact_sum([site.total for site in sites]) / known
    mean_square = exact_sum([site.squares for site in sites]) / known
    variance = np.maximum(mean_square - mean * mean, 0.0)
    # sums of equal values leave a variance of rounding errors: that is no spread
    spread = variance > 1e-12 * np.maximum(mean_square, np.finfo(np.float64).tiny)
    return Scaling(mean, np.where(spread, np.sqrt(variance), 1.0))


def apply(scaling: Scaling, x: np.ndarray) -> np.ndarray:
    """``x`` (samples, features) at mean 0 and spread 1, in float64; a missing value becomes 0, the mean."""
    scaled: np.ndarray = (x - scaling.mean) / scaling.scale
    return np.where(np.isnan(scaled), 0.0, scaled)
