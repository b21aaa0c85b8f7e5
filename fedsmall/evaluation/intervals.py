"""A mean over runs and its confidence interval, which cannot leave what its numbers can be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy import special, stats

CHANCE = 0.05  # of a wrong verdict anywhere in a table

Scale = Literal["plain", "share", "gain", "positive", "change"]


class Link(NamedTuple):
    """A scale without ends on which an interval is made: there, its slope, and back."""

    there: Callable[[float], float]
    slope: Callable[[float], float]
    back: Callable[[float], float]


def _same(x: float) -> float:
    return x


LINKS: dict[str, Link] = {
    "plain": Link(_same, lambda x: 1.0, _same),
    "share": Link(lambda x: float(special.logit(x)), lambda x: 1 / (x * (1 - x)), lambda z: float(special.expit(z))),
    "gain": Link(lambda x: float(np.arctanh(x)), lambda x: 1 / (1 - x * x), lambda z: float(np.tanh(z))),
    "positive": Link(lambda x: float(np.log(x)), lambda x: 1 / x, lambda z: float(np.exp(min(z, 700.0)))),
    "change": Link(lambda x: float(np.log1p(x)), lambda x: 1 / (1 + x), lambda z: float(np.expm1(min(z, 700.0)))),
}
ENDS: dict[str, tuple[float, ...]] = {"share": (0.0, 1.0), "gain": (-1.0, 1.0), "positive": (0.0,), "change": (-1.0,)}


@dataclass(frozen=True)
class Shared:
    """What runs have in common, so that many of them say less than as many strangers would.

    ``overlap`` is the share of a run's test patients that another run is judged on too, where each draws its own.
    Where all have one test set, ``error`` is the standard error that its patients leave in the mean, with ``freedom``
    degrees: infinite where it is not known, and then there is no interval. ``patients`` is how many one run is judged
    by.
    """

    overlap: float = 0.0
    error: float = 0.0
    freedom: float = np.inf
    patients: int | None = None


NOTHING = Shared()


@dataclass(frozen=True)
class Interval:
    """A mean over ``n`` runs and the two ends of its confidence interval, NaN where one run shows no spread.

    ``scale`` says what the ends cannot leave: 0 and 1 for a "share" such as an accuracy, -1 and 1 for a "gain", the
    difference of two shares, 0 for a "positive" number such as a loss, and -1 for a "change", the ratio of two such
    less one. ``freedom`` are Student's degrees, where they are not ``n`` - 1.
    """

    mean: float
    low: float
    high: float
    n: int
    scale: Scale = "plain"
    freedom: float | None = None

    @property
    def width(self) -> float:
        """The distance between the two ends."""
        return self.high - self.low

    @property
    def flat(self) -> bool:
        """Whether all of several runs had the same value, but for rounding: there is no spread to speak of."""
        return self.width <= 1e-12 * max(1.0, abs(self.mean))

    def corrected(self, comparisons: int) -> "Interval":
        """This 95% interval, widened so that ``comparisons`` of its kind err anywhere in at most 5% (Bonferroni)."""
        if comparisons <= 1 or np.isnan(self.width):
            return self
        if self.flat:
            return self
        link = LINKS[self.scale]
        known = (link.there(self.high) - link.there(self.low)) / 2
        freedom = self.n - 1 if self.freedom is None else self.freedom
        reach = known * _quantile(1 - CHANCE / comparisons, freedom) / _quantile(1 - CHANCE, freedom)
        return _around(self.mean, reach, self.n, self.scale, self.freedom)

    def contains(self, value: float) -> bool:
        """Whether ``value`` lies between the ends; an interval of unknown width contains nothing."""
        return self.low <= value <= self.high


def interval(
    values: Sequence[float] | np.ndarray, level: float = 0.95, scale: Scale = "plain", shared: Shared = NOTHING
) -> Interval:
    """The mean and its Student-t interval at ``level``: exact for normal runs, and close from about ten runs otherwise.

    On another ``scale`` than the plain one the interval is made where there are no ends (the logit of a share, the
    inverse hyperbolic tangent of a gain, the logarithm of a positive number), with the standard error that the mean has
    there (delta method), and brought back: it cannot leave the ends, and where it is narrow it is the plain one. Where
    all runs are at an end of a share, it is Wilson's for as many patients as one run is judged by.

    What runs have ``shared`` widens it (:func:`error_of`). Raises ValueError without a value, or when one is not
    finite: a diverged run must not vanish in an average.
    """
    sample = finite(values)
    n, mean = len(sample), float(sample.mean())
    if mean in ENDS.get(scale, ()):
        return Interval(mean, *_at_an_end(mean, level, scale, shared), n, scale)
    error, freedom = error_of(sample, shared)
    if not np.isfinite(error):
        return Interval(mean, float("nan"), float("nan"), n, scale)
    if no_spread(error, mean) and scale != "plain":
        return Interval(mean, mean, mean, n, scale)
    reach = _quantile(level, freedom) * error * LINKS[scale].slope(mean)
    return _around(mean, reach, n, scale, None if freedom == n - 1 else freedom)


def change(
    a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, level: float = 0.95, shared: Shared = NOTHING
) -> Interval:
    """By what share ``a`` is larger than ``b``, both positive, run by run: the mean of the ratios' logarithms.

    A run that is off by many orders of magnitude counts by their number; ``shared.error`` is of that mean.
    """
    mean = interval(np.log(finite(a)) - np.log(finite(b)), level, shared=shared)
    back = LINKS["change"].back
    return Interval(back(mean.mean), back(mean.low), back(mean.high), mean.n, "change", mean.freedom)


def error_of(sample: np.ndarray, shared: Shared = NOTHING) -> tuple[float, float]:
    """The standard error of the mean of runs and its degrees of freedom; infinite where it cannot be known.

    Runs whose test patients overlap are correlated by as much (Nadeau and Bengio 2003). To runs on one test set the
    error by its patients is added, the degrees are Satterthwaite's: seeds and patients are crossed. What patients and
    seeds do only together is in both, which errs on the careful side.
    """
    n = len(sample)
    of_seeds = float(sample.var(ddof=1)) * (1 / n + shared.overlap / (1 - shared.overlap)) if n > 1 else 0.0
    of_patients = shared.error**2
    if n == 1 and not shared.error:
        return np.inf, 0.0
    if not shared.error or not np.isfinite(of_patients):
        return float(np.sqrt(of_seeds + of_patients)), n - 1
    parts = (of_seeds**2 / (n - 1) if n > 1 else 0.0) + of_patients**2 / shared.freedom
    freedom = (of_seeds + of_patients) ** 2 / parts if parts else np.inf
    return float(np.sqrt(of_seeds + of_patients)), float(freedom)


def _at_an_end(mean: float, level: float, scale: Scale, shared: Shared) -> tuple[float, float]:
    """The ends of an interval whose runs all have the least or the most that there is."""
    if scale != "share" or not shared.patients:
        return mean, mean
    right = stats.binomtest(round(mean * shared.patients), shared.patients).proportion_ci(level, "wilson")
    return float(right.low), float(right.high)


def _around(mean: float, reach: float, n: int, scale: Scale, freedom: float | None = None) -> Interval:
    """The interval of half-width ``reach`` on the scale without ends."""
    link = LINKS[scale]
    ends = (link.back(link.there(mean) - reach), link.back(link.there(mean) + reach))
    return Interval(mean, *ends, n, scale, freedom)


def no_spread(error: float, mean: float) -> bool:
    """Whether a standard error is nothing but rounding."""
    return error <= 1e-13 * max(1.0, abs(mean))


def finite(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The values as one row of float64; ValueError where there is none, or one is not finite."""
    sample = np.asarray(values, dtype=np.float64).ravel()
    if sample.size == 0:
        raise ValueError("no value to average; a mean takes at least one run")
    if not np.all(np.isfinite(sample)):
        raise ValueError(f"{int(np.sum(~np.isfinite(sample)))} of {sample.size} values are not finite; say so instead")
    return sample


def t_quantile(level: float, n: int) -> float:
    """The two-sided Student-t factor for the mean of ``n`` values."""
    return _quantile(level, n - 1)


def _quantile(level: float, freedom: float) -> float:
    return float(stats.t.ppf((1 + level) / 2, freedom))
