"""Partitions: which samples of one data set go to which site.

Every function takes the classes ``y`` of all samples and returns one array of indices per site; none twice.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedsmall.errors import PlanError

Shares = list[np.ndarray]


def partition(
    y: np.ndarray, spec: str | dict[str, Any], sites: int | None, per_site: int | None, rng: np.random.Generator
) -> Shares:
    """The samples of every site: one array of indices into ``y`` each, by a scenario's ``partition`` value."""
    kind, value = ("iid", None) if spec == "iid" else next(iter(dict(spec).items()))
    if kind == "sizes" and not isinstance(value, str):
        return by_sizes(len(y), value, rng)
    if sites is None:
        raise PlanError("this task has no sites of its own: say how many, sites = 10")
    need_at_most(len(y), sites * (per_site or 1))
    if kind == "iid":
        return iid(len(y), sites, per_site, rng)
    raise PlanError(f"no partition is called {kind!r}")


def need_at_most(available: int, asked: int) -> None:
    """Raise PlanError, with both numbers, where more samples are asked for than there are."""
    if asked > available:
        raise PlanError(f"the sites ask for {asked} training samples and there are {available}; ask for fewer")


def iid(available: int, sites: int, per_site: int | None, rng: np.random.Generator) -> Shares:
    """Samples at random: ``per_site`` each, or all of them in shares that differ by one at most."""
    order = rng.permutation(available)
    return np.array_split(order if per_site is None else order[: sites * per_site], sites)


def by_sizes(available: int, sizes: Sequence[int], rng: np.random.Generator) -> Shares:
    """Samples at random, ``sizes[i]`` of them at site i."""
    need_at_most(available, sum(sizes))
    return np.split(rng.permutation(available)[: sum(sizes)], np.cumsum(sizes)[:-1])
