"""Tasks by name, and the federation that a plan describes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedsmall import standardise
from fedsmall.federation import Federation, Samples, Task
from fedsmall.partition import partition
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.sources import embedded
from fedsmall.sources.pool import Part, Pool

TASKS: dict[str, Callable[[int], Pool]] = {
    "breast_cancer": embedded.breast_cancer,
    "digits": embedded.digits,
    "synthetic": embedded.synthetic,
}
HELD_OUT = 0.25


def build_federation(plan: Plan, data_root: Path | None = None) -> Federation:
    """The sites of ``plan`` and their samples, the same bits every time for the same :attr:`Plan.data_key`."""
    name = plan.task if isinstance(plan.task, str) else str(plan.task["name"])
    pool = TASKS[name](plan.seed)
    task = Task(
        name,
        pool.train.x.shape[1:],
        len(pool.class_names),
        pool.loss,
        pool.metrics,
        pool.class_names,
        pool.feature_names,
    )
    train, test = pool.train, pool.test
    if test is None:
        kept, held = hold_out(train.y, HELD_OUT, rng_for(plan.seed, "held-out"))
        train, test = train[kept], train[held]
    shares = partition(train.y, plan.partition, plan.sites, plan.samples_per_site, rng_for(plan.seed, "partition"))
    parts = [train[share] for share in shares]
    scaling = None
    if pool.standardise:
        scaling = standardise.agree([standardise.sums(part.x, floor=1) for part in parts])
    names = tuple(f"site-{index:03d}" for index in range(len(parts)))
    samples = tuple(_samples(part, scaling, plan.dtype) for part in parts)
    return Federation(task, names, samples, _samples(test, scaling, plan.dtype), held_out=(None,) * len(names))


def hold_out(y: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Indices to train on and indices held out, ``share`` of every class, each in the order of the samples."""
    held = []
    for label in np.unique(y):
        members = rng.permutation(np.flatnonzero(y == label))
        held.append(members[: round(share * len(members))])
    out = np.sort(np.concatenate(held)) if held else np.arange(0)
    return np.setdiff1d(np.arange(len(y)), out), out


def _samples(part: Part, scaling: standardise.Scaling | None, dtype: str) -> Samples:
    x = part.x if scaling is None else standardise.apply(scaling, part.x)
    return Samples(np.ascontiguousarray(x, dtype=dtype), part.y.astype(np.int64))
