"""A mean over runs and its confidence interval, which cannot leave what its numbers can be."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy import special, stats

CHANCE = 0.05  # of a wrong verdict anywhere in a table

Scale = Literal["plain", "share", "gain", "positive"]


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
}
ENDS: dict[str, tuple[float, ...]] = {"share": (0.0, 1.0), "gain": (-1.0, 1.0), "positive": (0.0,)}


@dataclass(frozen=True)
class Interval:
    """A mean over ``n`` runs and the two ends of its confidence interval, NaN where one run shows no spread.

    ``scale`` says what the ends cannot leave: 0 and 1 for a "share" such as an accuracy, -1 and 1 for a "gain", the
    difference of two shares, and 0 for a "positive" number such as a loss.
    """

    mean: float
    low: float
    high: float
    n: int
    scale: Scale = "plain"

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
        reach = known * t_quantile(1 - CHANCE / comparisons, self.n) / t_quantile(1 - CHANCE, self.n)
        return _around(self.mean, reach, self.n, self.scale)

    def contains(self, value: float) -> bool:
        """Whether ``value`` lies between the ends; an interval of unknown width contains nothing."""
        return self.low <= value <= self.high


def interval(values: Sequence[float] | np.ndarray, level: float = 0.95, scale: Scale = "plain") -> Interval:
    """The mean and its Student-t interval at ``level``: exact for normal runs, and close from about ten runs otherwise.

    On another ``scale`` than the plain one the interval is made where there are no ends (the logit of a share, the
    inverse hyperbolic tangent of a gain, the logarithm of a positive number), with the standard error that the mean has
    there (delta method), and brought back: it cannot leave the ends, and where it is narrow it is the plain one.

    Raises ValueError without a value, or when one is not finite: a diverged run must not vanish in an average.
    """
    sample = finite(values)
    n, mean = len(sample), float(sample.mean())
    if n == 1:
        return Interval(mean, float("nan"), float("nan"), 1, scale)
    error = float(sample.std(ddof=1)) / np.sqrt(n)
    if no_spread(error, mean) or mean in ENDS.get(scale, ()):
        reach = t_quantile(level, n) * error if scale == "plain" else 0.0
        return Interval(mean, float(mean - reach), float(mean + reach), n, scale)
    return _around(mean, t_quantile(level, n) * error * LINKS[scale].slope(mean), n, scale)


def _around(mean: float, reach: float, n: int, scale: Scale) -> Interval:
    """The interval of half-width ``reach`` on the scale without ends."""
    link = LINKS[scale]
    return Interval(mean, link.back(link.there(mean) - reach), link.back(link.there(mean) + reach), n, scale)


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
    return float(stats.t.ppf((1 + level) / 2, n - 1))
