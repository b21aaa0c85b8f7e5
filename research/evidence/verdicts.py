"""Verdicts on published numbers and claims, and how many runs it takes for one."""

from dataclasses import dataclass
from itertools import count
from typing import Literal

import numpy as np

from fedsmall.evaluation.statistics import EXACT_UP_TO, SIGN_DRAWS, Interval, t_quantile


@dataclass(frozen=True)
class Verdict:
    """A measured number beside a published one: one word, and one sentence why."""

    word: Literal["agrees", "differs", "undecided", "not comparable"]
    why: str


def smallest_p(runs: int, comparisons: int = 1) -> float:
    """The smallest p-value of the sign-flip test over ``runs`` differences, corrected for ``comparisons`` (Holm).

    Above .05 such runs cannot decide.
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
        if 2 * t_quantile(level, n - 1) * sd / np.sqrt(n) < width:
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

    ``spread`` is the standard deviation over the ``published_runs``, where it was printed; without it the published
    number counts as exact. The whole interval of the difference, corrected (Bonferroni), must lie within the margin,
    and for "differs" wholly outside it.
    """
    if np.isnan(measured.width):
        return Verdict("undecided", "one run shows no spread")
    reach = measured.corrected(comparisons).width / 2
    if spread is not None:
        factor = t_quantile(1 - 0.05 / comparisons, published_runs - 1)
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
