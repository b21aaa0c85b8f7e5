"""The layout of secure sums, which sites and server both know beforehand.

Beside models these are the sums of features and classes before the first communication round, and the metrics of models
on held-out and on unseen samples. All sites take part; those with nothing to tell add zeros.
"""

from collections.abc import Mapping

import numpy as np

from fedsmall.data.federation import Task
from fedsmall.evaluation.site_sums import held_out_shapes
from fedsmall.evaluation.stopping import TELLING, reported_shapes
from fedsmall.plan import Plan
from fedsmall.wire import EXAMPLES, Arrays

SUMS_BEFORE, JUDGED, UNSEEN = "sums", "evaluate", "validate"  # of what a tally is
TOGETHER = "all sites together"  # in place of a site's name, where nobody knows what each has told

Shapes = Mapping[str, tuple[int, ...]]


def judged_shapes(task: Task) -> dict[str, tuple[int, ...]]:
    """What the tally of an evaluation holds, by name.

    "sites" is how many take part, "samples" how many they hold out; "metrics" has for each metric its number of
    samples, and the metric as many times; the rest are the sums of :mod:`fedsmall.evaluation.site_sums`.
    """
    return {TELLING: (), "samples": (), "metrics": (2, len(task.metrics)), **held_out_shapes(task)}


def unseen_shapes(plan: Plan, task: Task) -> dict[str, tuple[int, ...]]:
    """What a tally of unseen samples holds, by name: how many sites tell, and their sums."""
    return {TELLING: (), **reported_shapes(plan, task)}


def evaluation_tally(task: Task, metrics: Mapping[str, float], sums: Arrays) -> Arrays:
    """The tally of one site with its ``metrics`` of so many examples, and ``sums`` at a run's end."""
    samples = float(metrics.get(EXAMPLES, 0))
    values = np.array([float(metrics.get(name, np.nan)) for name in task.metrics])
    known = np.where(np.isfinite(values), samples, 0.0)
    products = np.where(known > 0, known * np.nan_to_num(values), 0.0)
    counts = {TELLING: np.array(float(samples > 0)), "samples": np.array(samples)}
    return {**counts, "metrics": np.stack([known, products]), **sums}


def metrics_of_tally(task: Task, tally: Arrays) -> tuple[dict[str, float], Arrays]:
    """Each metric, the mean over the sites weighed by their held-out samples, and the sums; empty where none told."""
    known, products = tally["metrics"]
    metrics = {name: float(p / n) for name, n, p in zip(task.metrics, known, products, strict=True) if n > 0}
    sums = {name: tally[name] for name in held_out_shapes(task)}
    return metrics, sums if sums["count"] > 0 else {}


def flat(arrays: Mapping[str, np.ndarray], shapes: Shapes) -> np.ndarray:
    """Arrays as one vector in the order of ``shapes``, (numbers,) float64; zeros for those that are not there."""
    pieces = [np.asarray(arrays.get(name, np.zeros(shape)), dtype=np.float64) for name, shape in shapes.items()]
    for piece, (name, shape) in zip(pieces, shapes.items(), strict=True):
        if piece.shape != shape:
            raise ValueError(f"{name!r} is of shape {piece.shape}, and was to be of {shape}")
    return np.concatenate([piece.ravel() for piece in pieces])
