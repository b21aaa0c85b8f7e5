"""What a handful of seeds can say: intervals, paired comparisons, corrections, and verdicts on published numbers.

Runs of one seed share data, partition and initial model across methods, so methods are compared by their differences
seed by seed (paired). The unit is the seed: the interval speaks of further seeds of the same experiment, nothing wider.
What the finite number of test samples adds is in :mod:`fedsmall.evaluation.test_samples`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np
from scipy import stats

from fedsmall.evaluation.intervals import (
    CHANCE,
    LINKS,
    NOTHING,
    Interval,
    Scale,
    Shared,
    change,
    error_of,
    finite,
    interval,
    no_spread,
    t_quantile,
)

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
