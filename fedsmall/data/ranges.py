"""Features scaled by public ranges that the scenario states, so that no sum over patients has to leave a site."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedsmall.data.sources.pool import Pool
from fedsmall.errors import PlanError

YES_OR_NO = "="  # in the name of a feature made of a category, "sex=f": its range is 0 to 1


def within_ranges(pool: Pool, ranges: Mapping[str, Sequence[float]] | Sequence[float]) -> Pool:
    """``pool`` whose features are to be scaled by their ranges, with nothing left to agree on between sites.

    ``ranges`` gives [lowest, highest] by the feature's name, or one such pair for all features. A value outside counts
    as the nearest end (:class:`fedsmall.data.preparation.Ranges`). A number that is predicted has a range by its name,
    too; it is scaled by that, and not cut.

    Raises PlanError for a feature without a range, a range of no such feature, and one that is none.
    """
    if not pool.standardise:
        raise PlanError("ranges are for features that are scaled; this task's are not. Leave ranges out")
    shape = next(iter(pool.train.values())).x.shape[1:]
    outcome = pool.outcome
    if outcome is not None and outcome.kind == "survival" and outcome.agrees:
        raise PlanError(f"beside ranges say cuts = [...], or sites tell sums of {outcome.name!r} to agree on intervals")
    if outcome is not None and outcome.kind == "amount" and isinstance(ranges, Mapping):
        if outcome.name not in ranges:
            raise PlanError(f"ranges says nothing of {outcome.name}, which is predicted; give [lowest, highest]")
        outcome = outcome.model_copy(update={"stated": _pair(outcome.name, ranges[outcome.name])})
        ranges = {name: ends for name, ends in ranges.items() if name != outcome.name}
    return replace(pool, ranges=_ends(pool.feature_names, shape, ranges), standardise=False, outcome=outcome)


def _ends(names: Sequence[str], shape: tuple[int, ...], ranges: Any) -> tuple[np.ndarray, np.ndarray]:
    if not isinstance(ranges, Mapping):
        pair = _pair("ranges", ranges)
        return np.full(shape, pair[0]), np.full(shape, pair[1])
    if not names:
        raise PlanError("these features have no names; give one range for all: ranges = [0.0, 1.0]")
    if unknown := sorted(set(ranges) - set(names)):
        raise PlanError(f"ranges names {unknown[0]!r}, which is no feature of this task: {', '.join(names)}")
    without = [name for name in names if name not in ranges and YES_OR_NO not in name]
    if without:
        raise PlanError(f"ranges says nothing of {', '.join(without)}; give [lowest, highest] for each")
    pairs = np.array([_pair(name, ranges.get(name, (0.0, 1.0))) for name in names])  # (features, 2)
    return pairs[:, 0], pairs[:, 1]


def _pair(name: str, ends: Any) -> tuple[float, float]:
    good = isinstance(ends, Sequence) and len(ends) == 2 and all(isinstance(end, int | float) for end in ends)
    if not good or not -np.inf < ends[0] < ends[1] < np.inf:
        raise PlanError(f"the range of {name} is [lowest, highest], as in [0, 120]; got {ends!r}")
    return float(ends[0]), float(ends[1])
