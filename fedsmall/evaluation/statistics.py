"""What a handful of runs can say: intervals, paired comparisons, corrections, verdicts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

CHANCE = 0.05  # of a wrong verdict anywhere in a table

Scale = Literal["plain", "share", "gain", "positive", "change"]


class Link(NamedTuple):
    """A scale without ends on which an interval is made: there, its slope, and back."""

    there: Callable[[float], float]
    slope: Callable[[float], float]
    back: Callable[[float], float]


LINKS: dict[str, Link] = {
    "plain": Link(lambda x: x, lambda x: 1.0, lambda z: z),
    "share": Link(lambda x: float(special.logit(x)), lambda x: 1 / (x * (1 - x)), lambda z: float(special.expit(z))),
    "gain": Link(lambda x: float(np.arctanh(x)), lambda x: 1 / (1 - x * x), lambda z: float(np.tanh(z))),
    "positive": Link(lambda x: float(np.log(x)), lambda x: 1 / x, lambda z: float(np.exp(min(z, 700.0)))),
    "change": Link(lambda x: float(np.log1p(x)), lambda x: 1 / (1 + x), lambda z: float(np.expm1(min(z, 700.0)))),
}
ENDS: dict[str, tuple[float, ...]] = {"share": (0.0, 1.0), "gain": (-1.0, 1.0), "positive": (0.0,), "change": (-1.0,)}


@dataclass(frozen=True)
class Shared:
    """What runs have in common, so that they are correlated.

    ``overlap``: the share of a run's test patients that another is judged on too, where each draws its own. Of one test
    set ``error`` is the standard error that its patients leave in the mean (infinite: not known, no interval), with
    ``freedom`` degrees. ``patients`` is how many one run is judged by.
    """

    overlap: float = 0.0
    error: float = 0.0
    freedom: float = np.inf
    patients: int | None = None


NOTHING = Shared()


@dataclass(frozen=True)
class Interval:
    """A mean over ``n`` runs and the ends of its confidence interval, NaN where one run shows no spread.

    ``freedom``: Student's degrees, where they are not ``n`` - 1.
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
        if comparisons <= 1 or np.isnan(self.width) or self.flat:
            return self
        link = LINKS[self.scale]
        known = (link.there(self.high) - link.there(self.low)) / 2
        freedom = self.n - 1 if self.freedom is None else self.freedom
        reach = known * t_quantile(1 - CHANCE / comparisons, freedom) / t_quantile(1 - CHANCE, freedom)
        return _around(self.mean, reach, self.n, self.scale, self.freedom)

    def contains(self, value: float) -> bool:
        """Whether ``value`` lies between the ends; an interval of unknown width contains nothing."""
        return self.low <= value <= self.high


def interval(
    values: Sequence[float] | np.ndarray, level: float = 0.95, scale: Scale = "plain", shared: Shared = NOTHING
) -> Interval:
    """The mean and its Student-t interval at ``level``, widened by what runs have ``shared`` (:func:`error_of`).

    It is made on the ``scale``'s link (delta method) and brought back, so it cannot leave the ends; Wilson's where all
    runs are at an end of a share. ValueError without a value, or where one is not finite.
    """
    sample = finite(values)
    n, mean = len(sample), float(sample.mean())
    if mean in ENDS.get(scale, ()):
        low, high = mean, mean
        if scale == "share" and shared.patients:
            from scipy.stats import binomtest  # takes its time

            tested = binomtest(round(mean * shared.patients), shared.patients)
            low, high = map(float, tested.proportion_ci(level, "wilson"))
        return Interval(mean, low, high, n, scale)
    error, freedom = error_of(sample, shared)
    if not np.isfinite(error):
        return Interval(mean, float("nan"), float("nan"), n, scale)
    if no_spread(error, mean) and scale != "plain":
        return Interval(mean, mean, mean, n, scale)
    reach = t_quantile(level, freedom) * error * LINKS[scale].slope(mean)
    return _around(mean, reach, n, scale, None if freedom == n - 1 else freedom)


def change(
    a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray, level: float = 0.95, shared: Shared = NOTHING
) -> Interval:
    """By what share ``a`` is larger than ``b``, both positive, run by run: the mean of the ratios' logarithms."""
    mean = interval(np.log(finite(a)) - np.log(finite(b)), level, shared=shared)
    back = LINKS["change"].back
    return Interval(back(mean.mean), back(mean.low), back(mean.high), mean.n, "change", mean.freedom)


def error_of(sample: np.ndarray, shared: Shared = NOTHING) -> tuple[float, float]:
    """The standard error of the mean of runs and its degrees of freedom; infinite where it cannot be known.

    Overlapping runs are correlated by as much (Nadeau and Bengio 2003); one test set adds its error (Satterthwaite).
    """
    n, of_patients = len(sample), shared.error**2
    if n == 1 and not shared.error:
        return np.inf, 0.0
    of_seeds = float(sample.var(ddof=1)) * (1 / n + shared.overlap / (1 - shared.overlap)) if n > 1 else 0.0
    error = float(np.sqrt(of_seeds + of_patients))
    if not shared.error or not np.isfinite(of_patients):
        return error, n - 1
    parts = (of_seeds**2 / (n - 1) if n > 1 else 0.0) + of_patients**2 / shared.freedom
    return error, float((of_seeds + of_patients) ** 2 / parts) if parts else np.inf


def _around(mean: float, reach: float, n: int, scale: Scale, freedom: float | None = None) -> Interval:
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


def t_quantile(level: float, freedom: float) -> float:
    """The two-sided Student-t factor."""
    return float(special.stdtrit(freedom, (1 + level) / 2))


EXACT_UP_TO = 16  # 2**16 sign patterns of the paired differences are still listed one by one
SIGN_DRAWS = 20_000
ENOUGH = 5  # fewer seeds have no verdict: their spread is known to a factor of three at best


@dataclass(frozen=True)
class Comparison:
    """Method a minus method b over common seeds."""

    difference: Interval
    p_value: float
    test: str

    def corrected_p(self, comparisons: int = 1) -> float:
        """The p-value as one of ``comparisons`` (Bonferroni)."""
        return min(1.0, comparisons * self.p_value)

    @property
    def can_decide(self) -> bool:
        """Whether these runs allow of a verdict: ``ENOUGH`` seeds, which differ, and patients who are accounted for."""
        return self.difference.n >= ENOUGH and self.difference.width > 0 and not self.difference.flat

    @property
    def is_of_one_test_set(self) -> bool:
        """Whether several seeds share one test set, and what its patients leave open is not known: no verdict."""
        return self.difference.n > 1 and bool(np.isnan(self.difference.width))

    def decides(self, comparisons: int = 1) -> bool:
        """Whether the interval, corrected for ``comparisons``, leaves out zero."""
        return self.can_decide and not self.difference.corrected(comparisons).contains(0.0)


def paired(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    level: float = 0.95,
    test: Literal["permutation", "t"] = "permutation",
    scale: Scale = "plain",
    shared: Shared = NOTHING,
) -> Comparison:
    """Method ``a`` minus method ``b``, run by run: row i of both must come from the same seed.

    On the scale "change" it is by what share ``a`` is larger. The test "t" has the p-value of the interval;
    "permutation" flips signs, exactly up to ``EXACT_UP_TO`` seeds. ValueError for unequal numbers.
    """
    first, second = finite(a), finite(b)
    if len(first) != len(second):
        raise ValueError(f"paired runs need equal numbers of seeds; a has {len(first)}, b has {len(second)}")
    differences = first - second
    if test == "t":
        p_value = _student(np.log(first) - np.log(second) if scale == "change" else differences, scale, shared)
    else:
        p_value = _sign_flips(differences)
    gap = change(first, second, level, shared) if scale == "change" else interval(differences, level, scale, shared)
    return Comparison(gap, p_value, test)


def by_patients(lead: Comparison, alone: Interval) -> Comparison:
    """A ``lead`` on a constant, the same in all runs, by the patients of the share ``alone``, where that is 0 or 1.

    By Clopper and Pearson's bound, which a correction widens as it does Student's t of nine degrees.
    """
    if alone.flat or alone.mean not in ENDS["share"]:
        return lead
    mean, patients = lead.difference.mean, t_quantile(0.95, np.inf) ** 2 * (1 / alone.width - 1)  # Wilson's interval
    reach = 1 - 0.025 ** (1 / patients)
    p_value = float(2 * special.stdtr(9, -abs(mean) / reach * t_quantile(0.95, 9)))
    return Comparison(Interval(mean, mean - reach, mean + reach, alone.n, freedom=9), p_value, "t")


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """P-values corrected for their number, in the order given (Holm 1979): valid under any dependence."""
    raw = np.asarray(p_values, dtype=np.float64)
    if raw.size and not np.all((raw >= 0) & (raw <= 1)):
        raise ValueError(f"p-values lie between 0 and 1; got {raw.tolist()}")
    order = np.argsort(raw, kind="stable")
    scaled = raw[order] * np.arange(raw.size, 0, -1)
    corrected = np.empty_like(raw)
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected


def _student(differences: np.ndarray, scale: Scale, shared: Shared) -> float:
    mean = float(differences.mean())
    error, freedom = error_of(differences, shared)
    if len(differences) == 1 or mean == 0 or not np.isfinite(error):
        return 1.0
    if no_spread(error, mean):
        return 0.0
    link = LINKS["plain" if scale == "change" else scale]  # logarithms of ratios are there already
    return float(2 * special.stdtr(freedom, -abs(link.there(mean)) / (error * link.slope(mean))))


def _sign_flips(differences: np.ndarray) -> float:
    n = len(differences)
    if n == 1:
        return 1.0
    draws = 2**n if n <= EXACT_UP_TO else SIGN_DRAWS
    rng = np.random.default_rng(0)  # its own: the p-value of given runs is one number, whoever asks and how often
    scaled = differences / (np.abs(differences).max() or 1.0)
    from scipy.stats import permutation_test  # takes its time

    def rounded_mean(values: np.ndarray, axis: int) -> np.ndarray:  # equal means differ in their last bits
        return np.asarray(np.round(np.mean(values, axis=axis), 12))

    flips = permutation_test((scaled,), rounded_mean, permutation_type="samples", n_resamples=draws, rng=rng)
    return float(flips.pvalue)
