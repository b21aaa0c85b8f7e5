"""How far a statistic of given predictions would move with other test samples: resamples of those that there are."""

from collections.abc import Callable

import numpy as np

from fedsmall.evaluation.clinical import DRAWS, Estimate

Statistic = Callable[..., float]


def resampled(statistic: Statistic, *arrays: np.ndarray, draws: int = DRAWS) -> Estimate:
    """A statistic of ``arrays``, which share their first axis, with its percentile interval over resamples of that.

    Resamples for which the statistic is not defined (NaN) are left out; where it is for none, there is no interval.
    """
    rng = np.random.default_rng(0)  # its own: the interval of given predictions is one, whoever asks
    samples = len(arrays[0])
    found = []
    for _ in range(draws):
        drawn = rng.integers(samples, size=samples)
        found.append(statistic(*(array[drawn] for array in arrays)))
    low, high = np.nanpercentile(found, [2.5, 97.5]) if not np.isnan(found).all() else (np.nan, np.nan)
    return Estimate(float(statistic(*arrays)), float(low), float(high))
