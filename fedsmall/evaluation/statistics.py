"""What a handful of runs can say: intervals, paired comparisons, corrections, verdicts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
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


EXACT_UP_TO = 16  # 2**16 sign patterns of the paired differences are still listed one by one
SIGN_DRAWS = 20_000
ENOUGH = 5  # fewer seeds have no verdict: their spread is known to a factor of three at best


@dataclass(frozen=True)
class Comparison:
    """Method a minus method b over common seeds: the mean difference, its interval, and the p-value of ``test``.

    ``of_samples`` is the p-value of the same difference by the finite number of test samples, where that was asked for.
    """

    difference: Interval
    p_value: float
    test: str
    of_samples: float | None = None

    def corrected_p(self, comparisons: int = 1) -> float:
        """The p-value as one of ``comparisons`` (Bonferroni): the larger of the seeds' and the test samples'."""
        return min(1.0, comparisons * max(self.p_value, self.of_samples or 0.0))

    @property
    def can_decide(self) -> bool:
        """Whether these runs allow of a verdict: ``ENOUGH`` seeds, which differ, and patients who are accounted for."""
        return self.difference.n >= ENOUGH and self.difference.width > 0 and not self.difference.flat

    @property
    def is_of_one_test_set(self) -> bool:
        """Whether several seeds share one test set, and what its patients leave open is not known: no verdict."""
        return self.difference.n > 1 and bool(np.isnan(self.difference.width))

    def decides(self, comparisons: int = 1) -> bool:
        """Whether one method is the better one: the interval, corrected for ``comparisons``, leaves out zero.

        With the test "t" that is the same as a corrected p below .05. Fewer than ``ENOUGH`` seeds, and differences
        without any spread, decide nothing; nor do too few test samples, where they were asked.
        """
        corrected = self.difference.corrected(comparisons)
        enough = self.of_samples is None or comparisons * self.of_samples < CHANCE
        return self.can_decide and enough and not corrected.contains(0.0)


@dataclass(frozen=True)
class Verdict:
    """A measured number beside a published one: one word, and one sentence why."""

    word: Literal["agrees", "differs", "undecided", "not comparable"]
    why: str


def paired(
    a: Sequence[float] | np.ndarray,
    b: Sequence[float] | np.ndarray,
    level: float = 0.95,
    test: Literal["permutation", "wilcoxon", "t"] = "permutation",
    rng: np.random.Generator | None = None,
    scale: Scale = "plain",
    shared: Shared = NOTHING,
) -> Comparison:
    """Method ``a`` minus method ``b``, run by run: row i of both must come from the same seed.

    On the scale "change" it is by what share ``a`` is larger than ``b``. What the runs have ``shared`` counts in the
    interval and in the p-value of the test "t", which is the one to take where they share patients.

    The p-value of the test "t" is that of the interval: below .05 where, and only where, the interval leaves zero out.
    The smallest one that either other test can give over n seeds is 2 / 2**n (:func:`smallest_p`): below six seeds no
    difference, however clear, reaches .05. Raises ValueError when the two do not have the same number of values.
    """
    first, second = finite(a), finite(b)
    if len(first) != len(second):
        raise ValueError(f"paired runs need equal numbers of seeds; a has {len(first)}, b has {len(second)}")
    differences = first - second
    if test == "t":
        p_value = _student(np.log(first) - np.log(second) if scale == "change" else differences, scale, shared)
    else:
        p_value = _sign_flips(differences, rng) if test == "permutation" else _signed_ranks(differences)
    gap = change(first, second, level, shared) if scale == "change" else interval(differences, level, scale, shared)
    return Comparison(gap, p_value, test)


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The p-values corrected for their number, in the order given: rejecting those <= .05 errs anywhere in at most 5%.

    Source: Holm 1979; valid under any dependence between the tests, and never weaker than Bonferroni.
    """
    raw = np.asarray(p_values, dtype=np.float64)
    if raw.size and not np.all((raw >= 0) & (raw <= 1)):
        raise ValueError(f"p-values lie between 0 and 1; got {raw.tolist()}")
    order = np.argsort(raw, kind="stable")
    scaled = raw[order] * np.arange(raw.size, 0, -1)
    corrected = np.empty_like(raw)
    corrected[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return corrected


def smallest_p(runs: int, comparisons: int = 1) -> float:
    """The smallest p-value of the sign-flip test over ``runs`` differences, corrected for ``comparisons`` (Holm).

    No difference, however clear, can have a smaller one; above .05 such runs cannot decide.
    """
    patterns = 2**runs if runs <= EXACT_UP_TO else SIGN_DRAWS + 1
    return min(1.0, comparisons * 2 / patterns)


def runs_to_decide(comparisons: int = 1) -> int:
    """The fewest runs whose differences can reach .05 after the correction for ``comparisons``."""
    return next(runs for runs in count(1) if smallest_p(runs, comparisons) <= 0.05)


def seeds_for_width(sd: float, width: float, level: float = 0.95, most: int = 100_000) -> int:
    """The fewest seeds whose interval is expected to be narrower than ``width``, when runs have deviation ``sd``."""
    if width <= 0:
        raise ValueError(f"an interval cannot be narrower than {width}; give a positive width")
    for n in range(2, most + 1):
        if 2 * t_quantile(level, n) * sd / np.sqrt(n) < width:
            return n
    raise ValueError(f"more than {most} seeds would be needed for an interval narrower than {width} at sd {sd}")


def verdict(
    measured: Interval,
    published: float,
    spread: float | None = None,
    margin: float = 0.02,
    published_runs: int = 3,
    comparisons: int = 1,
) -> Verdict:
    """Whether a measured mean agrees with a published one to within ``margin``, as one of ``comparisons`` verdicts.

    ``spread`` is the standard deviation over the ``published_runs`` runs behind the published mean, where it was
    printed; without it the published number is taken as exact, which the sentence says. Agreement is shown, not
    presumed: the whole interval of the difference, corrected (Bonferroni), must lie within the margin, and for
    "differs" wholly outside it.
    """
    if np.isnan(measured.width):
        return Verdict("undecided", "one run shows no spread")
    reach = measured.corrected(comparisons).width / 2
    if spread is not None:
        factor = t_quantile(1 - 0.05 / comparisons, published_runs)
        reach = float(np.hypot(reach, factor * spread / np.sqrt(published_runs)))
    off = measured.mean - published
    low, high = off - reach, off + reach
    why = f"{off:+.3f} [{low:+.3f}, {high:+.3f}]" + ("" if spread is not None else ", no spread published")
    if -margin <= low and high <= margin:
        return Verdict("agrees", why)
    if low > margin or high < -margin:
        return Verdict("differs", why)
    return Verdict("undecided", f"{why}: the interval crosses the margin of {margin:g}")


def verdict_on_difference(difference: Interval, claimed: float) -> Verdict:
    """Whether a claimed difference between two methods shows: undecided where the interval is wider than the claim.

    Where several claims are judged, ``difference`` is to be :meth:`Interval.corrected` for their number.
    """
    if np.isnan(difference.width) or difference.width >= abs(claimed):
        return Verdict("undecided", f"the interval is not narrower than the claimed {claimed:+.3f}")
    if difference.contains(claimed):
        return Verdict("agrees", "the interval holds the claimed difference and not zero")
    if difference.contains(0.0):
        return Verdict("differs", "the interval holds zero and not the claimed difference")
    if np.sign(difference.mean) != np.sign(claimed):
        return Verdict("differs", "the sign is the opposite one")
    size = "larger" if abs(difference.mean) > abs(claimed) else "smaller"
    return Verdict("differs", f"the sign holds, the difference is {size}")


def _student(differences: np.ndarray, scale: Scale, shared: Shared) -> float:
    """The chance at which the interval of the differences, on its scale, begins to hold zero; 1 for one difference."""
    mean = float(differences.mean())
    error, freedom = error_of(differences, shared)
    if len(differences) == 1 or mean == 0 or not np.isfinite(error):
        return 1.0
    if no_spread(error, mean):
        return 0.0
    link = LINKS["plain" if scale == "change" else scale]  # logarithms of ratios are there already
    return float(2 * stats.t.sf(abs(link.there(mean)) / (error * link.slope(mean)), freedom))


def _sign_flips(differences: np.ndarray, rng: np.random.Generator | None) -> float:
    """The share of sign patterns whose mean is as far from zero as the one seen: exact up to ``EXACT_UP_TO`` seeds."""
    n = len(differences)
    if n == 1:
        return 1.0
    draws = 2**n if n <= EXACT_UP_TO else SIGN_DRAWS
    # Its own fixed generator: the p-value of given runs is one number, whoever asks and however often.
    rng = rng or np.random.default_rng(0)
    scaled = differences / (np.abs(differences).max() or 1.0)
    flips = stats.permutation_test((scaled,), _rounded_mean, permutation_type="samples", n_resamples=draws, rng=rng)
    return float(flips.pvalue)


def _rounded_mean(values: np.ndarray, axis: int) -> np.ndarray:
    """The mean without its last bits, in which equal ones differ: scipy forgives only a share of the one seen."""
    return np.asarray(np.round(np.mean(values, axis=axis), 12))


def _signed_ranks(differences: np.ndarray) -> float:
    """Wilcoxon's signed-rank test, two-sided; zeros are ranked and then dropped (Pratt 1959)."""
    if np.all(differences == 0):
        return 1.0
    return float(stats.wilcoxon(differences, zero_method="pratt").pvalue)
