"""Many models into one: functions on stacked arrays, and the table that names them.

An aggregator takes models (models, parameters) in float64, in the sites' order, and returns (parameters,).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from fedsmall.aggregation.radon import check_radon, radon
from fedsmall.entry_points import Registry
from fedsmall.errors import PlanError
from fedsmall.wire import Arrays, is_buffer, split_vector

_BLOCK = 2**16  # numbers that a coordinatewise aggregator holds in float64 at once: 512 KiB


def mean(points: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """The mean, every model with the same say or with ``weights`` (models,), for example their samples."""
    return np.asarray(np.einsum("m,mp->p", _shares(len(points), weights), points))


def median(points: np.ndarray) -> np.ndarray:
    """The median of every coordinate; half of the models may be absurd (Yin et al. 2018, Definition 1)."""
    ordered, middle = np.sort(points, axis=0), len(points) // 2  # np.median takes three times as long
    return np.asarray((ordered[middle] + ordered[-1 - middle]) / 2)


def trimmed_mean(points: np.ndarray, trim: float = 0.2) -> np.ndarray:
    """The mean of every coordinate without its floor(trim * models) smallest and as many largest values.

    With less than 1 / trim models nothing is cut. The default is that of Flower's FedTrimmedAvg. Raises ValueError for
    a ``trim`` outside [0, 0.5). Source: Yin et al. 2018, Definition 2, where it is called beta.
    """
    if not 0 <= trim < 0.5:
        raise ValueError(f"trim is the share cut at either end, from 0 to below 0.5; got {trim}")
    cut = int(trim * len(points))
    return np.asarray(np.sort(points, axis=0)[cut : len(points) - cut].mean(axis=0))


def geometric_median(
    points: np.ndarray, weights: np.ndarray | None = None, smoothing: float = 1e-9, steps: float = 1000
) -> np.ndarray:
    """The point with the least (weighted) sum of Euclidean distances to the models, by Weiszfeld's iteration.

    Half of the weight may be absurd. A model that is that point is found exactly; else a distance counts as at least
    ``smoothing`` times the typical one, so that the iteration may pass through a model.

    Source: Pillutla et al. 2022, Algorithm 2. Departures: smoothing relative to the spread, a start at the coordinate
    median, and iterating to convergence (``steps`` at most), where they stop after three steps.
    """
    shares, start = _shares(len(points), weights), median(points)
    offsets = points - start
    is_short = offsets.shape[1] <= len(offsets)  # else the distances stand in as many coordinates as there are models
    rows = offsets if is_short else np.transpose(np.linalg.qr(offsets.T, mode="r"))
    medoid = _median_among(rows, shares)
    if medoid is not None:
        return np.array(points[medoid])
    distances = np.linalg.norm(rows, axis=1)
    spread = np.quantile(distances[distances > 0], 0.5, method="lower")  # the mean of two could be half absurd
    pulls, point = shares, np.zeros(rows.shape[1])
    for _ in range(int(steps)):
        pulls = shares / np.maximum(distances, smoothing * spread)
        before, point = point, mean(rows, pulls)
        if np.linalg.norm(point - before) <= 1e-12 * spread:
            break
        distances = np.linalg.norm(rows - point, axis=1)
    return np.asarray(start + mean(offsets, pulls))


def krum(points: np.ndarray, byzantine: float | None = None, keep: float = 1) -> np.ndarray:
    """The model with the least sum of squared distances to its nearest others; the mean of the best ``keep`` of them.

    ``byzantine`` is the number f of absurd models to bear, by default the most possible; a model's nearest are the
    models - f - 2 closest. Equal scores go to the first in order. Raises ValueError unless there are 2 f + 3 models or
    more, and at least ``keep``. Source: Blanchard et al. 2017, section 4; ``keep`` above 1 is their Multi-Krum.
    """
    models = len(points)
    borne = max(0, (models - 3) // 2) if byzantine is None else int(byzantine)
    if borne < 0 or models < 2 * borne + 3:
        raise ValueError(
            f"Krum that bears {borne} absurd models takes at least 2 * {borne} + 3 = {2 * borne + 3} models; "
            f"got {models}. Set byzantine from 0 to (models - 3) / 2, or use the median"
        )
    if not 1 <= keep <= models:
        raise ValueError(f"keep is a number of models, from 1 to {models}; got {keep}")
    from scipy.spatial.distance import cdist

    nearest = np.sort(cdist(points, points, "sqeuclidean"), axis=1)[:, 1 : models - borne - 1]  # itself comes first
    best = np.argsort(nearest.sum(axis=1), kind="stable")[: int(keep)]
    return mean(points[np.sort(best)])


@dataclass(frozen=True)
class Aggregator:
    """A row of the table: the function, and what may be asked of it."""

    combine: Callable[..., np.ndarray]
    options: tuple[str, ...] = ()
    weighted: bool = False  # heeds weights; the others give every model the same say
    coordinatewise: bool = False  # may be worked block by block
    draws: bool = False  # wants a generator

    def __call__(
        self,
        points: np.ndarray,
        weights: np.ndarray | None = None,
        rng: np.random.Generator | None = None,
        options: Mapping[str, float] | None = None,
    ) -> np.ndarray:
        """The aggregate of ``points`` (models, parameters); ``rng`` matters only to an aggregator that draws.

        Raises ValueError for weights that it would not heed, and for a generator that it lacks.
        """
        if weights is not None and not self.weighted:
            raise ValueError(f"{self.combine.__name__} gives every model the same say; leave the weights out")
        if self.draws and rng is None:
            raise ValueError(f"{self.combine.__name__} draws the order of the models; pass a generator as rng")
        extra = ({"weights": weights} if self.weighted else {}) | ({"rng": rng} if self.draws else {})
        return self.combine(points, **extra, **(options or {}))


OURS: dict[str, Aggregator] = {
    "mean": Aggregator(mean, weighted=True, coordinatewise=True),
    "median": Aggregator(median, coordinatewise=True),
    "trimmed_mean": Aggregator(trimmed_mean, ("trim",), coordinatewise=True),
    "geometric_median": Aggregator(geometric_median, ("smoothing", "steps"), weighted=True),
    "krum": Aggregator(krum, ("byzantine", "keep")),
    "radon": Aggregator(radon, draws=True),
}
AGGREGATORS: Mapping[str, Aggregator] = Registry("fedsmall.aggregators", OURS)


def aggregate(
    stack: Arrays,
    aggregator: str,
    weights: np.ndarray | None = None,
    options: Mapping[str, float] | None = None,
    rng: np.random.Generator | None = None,
) -> Arrays:
    """One model out of a stack {name: (models, ...)}: {name: (...)}, in the dtypes and the order of names given.

    Float parameters go through ``aggregator`` (a name of :data:`AGGREGATORS`) with its ``options``, as one vector where
    it looks at whole models. Running statistics are averaged; integer buffers are those of one model.

    Raises PlanError for an unknown name or option, ValueError where the aggregator cannot work on so few models.
    """
    settings = dict(options or {})
    chosen = _find(aggregator, settings)
    combine = partial(chosen, weights=weights, rng=rng, options=settings)
    floats = {name: rows for name, rows in stack.items() if np.issubdtype(rows.dtype, np.floating)}
    parameters = {name: rows for name, rows in floats.items() if not is_buffer(name)}
    combined = _one_by_one(combine, parameters) if chosen.coordinatewise else _as_one_vector(combine, parameters)
    statistics = {name: rows for name, rows in floats.items() if is_buffer(name)}
    combined |= _one_by_one(partial(mean, weights=weights), statistics)
    return {name: combined[name] if name in combined else _carry_counter(rows) for name, rows in stack.items()}


def check_aggregator(aggregator: str, models: int, parameters: int, options: Mapping[str, float] | None = None) -> None:
    """Check, without data, that so many models of that many float parameters can be aggregated so.

    Raises PlanError that names what does not fit: name, option, or too few models.
    """
    settings = dict(options or {})
    chosen = _find(aggregator, settings)
    try:
        if chosen.draws:
            check_radon(models, parameters)
        else:
            chosen(np.zeros((models, 1)), options=settings)  # too few models or a wrong option show on any numbers
    except ValueError as error:
        raise PlanError(str(error)) from None


def _find(aggregator: str, options: Mapping[str, float]) -> Aggregator:
    if aggregator not in AGGREGATORS:
        raise PlanError(f"there is no aggregator {aggregator!r}; known are {', '.join(AGGREGATORS)}")
    chosen = AGGREGATORS[aggregator]
    for option in options:
        if option not in chosen.options:
            known = " and ".join(chosen.options) or "none"
            raise PlanError(f"the aggregator {aggregator} has no option {option!r}; its options: {known}")
    return chosen


def _shares(models: int, weights: np.ndarray | None) -> np.ndarray:
    if weights is None:
        return np.full(models, 1 / models)
    given = np.asarray(weights, dtype=np.float64)
    if given.shape != (models,) or not np.isfinite(given).all() or given.min() < 0 or given.sum() == 0:
        raise ValueError(f"weights are {models} finite numbers from 0 on, not all zero; got {given.tolist()}")
    return np.asarray(given / given.sum())


def _median_among(rows: np.ndarray, shares: np.ndarray) -> int | None:
    """The row that is the geometric median, if one is: the others, pulling with their shares, cannot move it."""
    from scipy.spatial.distance import cdist

    distances = cdist(rows, rows)
    medoid = int(np.argmin(distances @ shares))
    away = distances[medoid] > 0
    directions = (rows[away] - rows[medoid]) / distances[medoid, away, None]
    # clearly less than it weighs: with equality, as for two models, other points are as good and the middle is fairer
    held = np.linalg.norm(shares[away] @ directions) < (1 - 1e-9) * shares[~away].sum()
    return medoid if held else None


def _one_by_one(combine: Callable[[np.ndarray], np.ndarray], stack: Arrays) -> Arrays:
    results = {}
    for name, rows in stack.items():
        columns = rows.reshape(len(rows), -1)
        result = np.empty(columns.shape[1], rows.dtype)
        width = max(1, _BLOCK // len(rows))
        for start in range(0, len(result), width):
            block = slice(start, start + width)
            result[block] = combine(columns[:, block].astype(np.float64))
        results[name] = result.reshape(rows.shape[1:])
    return results


def _as_one_vector(combine: Callable[[np.ndarray], np.ndarray], stack: Arrays) -> Arrays:
    """All arrays as one vector for each model, (models, parameters), and back."""
    if not stack:
        return {}
    columns = [rows.reshape(len(rows), -1) for rows in stack.values()]
    vector = combine(np.concatenate(columns, axis=1, dtype=np.float64))
    made = split_vector(vector, {name: rows.shape[1:] for name, rows in stack.items()})
    return {name: array.astype(stack[name].dtype) for name, array in made.items()}


def _carry_counter(rows: np.ndarray) -> np.ndarray:
    """The first row that holds the largest value: counters are never averaged."""
    largest = rows.reshape(len(rows), -1).max(axis=1) if rows.size else np.zeros(len(rows))
    return np.array(rows[np.argmax(largest)])
