"""Radon points: an aggregate deep inside a cloud of models, which a few bad models cannot drag away.

Any r = d + 2 points in d dimensions split into two parts whose convex hulls meet; a point in both is a Radon point.
Repeated on the results it approaches a centre point, and the chance of a bad result falls doubly exponentially in the
height (Clarkson et al. 1996, "Approximating center points with iterative Radon points"; Kamp et al. 2017, "Effective
parallelisation for machine learning"; with daisy-chaining Kamp et al. 2023, section 5).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedsmall.errors import PlanError

_CHUNK = 2**20  # numbers in the matrices that are factored at once: 8 MiB


def radon_point(points: np.ndarray) -> np.ndarray:
    """A Radon point of every set of r = d + 2 points; it exists for any set, duplicates and collinear ones included.

    ``points`` has shape (..., d + 2, d), the result (..., d). The signs of a null vector of the lifted points (x, 1)
    are the two parts: the last column of the orthogonal factor of a QR decomposition, orthogonal to all columns
    whatever their rank, at a third of an SVD's cost. Works in float64 and returns the dtype given.

    Raises ValueError when the number of points is not d + 2.
    """
    *_, models, parameters = points.shape
    if models != parameters + 2:
        raise ValueError(
            f"a Radon point in {parameters} dimensions takes exactly {parameters + 2} points; got {models}"
        )
    given = points.astype(np.float64)
    centre = np.median(given, axis=-2, keepdims=True)  # (..., 1, d): exact for equal points, deaf to absurd ones
    offsets = _farthest_first(given - centre)  # (..., r, d)
    null = _null_vector(offsets)  # (..., r)
    # of the two parts take the one without the farthest point: its rounding error is the smaller
    weights = np.maximum(np.where(null[..., :1] > 0, -null, null), 0)
    combined = np.einsum("...r,...rd->...d", weights, offsets) / weights.sum(axis=-1, keepdims=True)
    return np.asarray(centre[..., 0, :] + combined, dtype=_float_dtype(points))


def iterated_radon_point(points: np.ndarray, height: int) -> np.ndarray:
    """The Radon point of Radon points, taken ``height`` times.

    ``points`` has shape (r**height, d) with r = d + 2, the result (d,). Groups are consecutive rows, so shuffle first
    if the order carries meaning. Works in float64 and returns the dtype given. Raises ValueError when the number of
    points is not r**height. Source: Clarkson et al. 1996; used as the aggregate in Kamp et al. 2023, section 5.
    """
    models, parameters = points.shape
    r = parameters + 2
    if models != r**height:
        raise ValueError(
            f"a Radon point of height {height} in {parameters} dimensions takes exactly "
            f"{r}**{height} = {r**height} points; got {models}"
        )
    level = points.astype(np.float64)
    for _ in range(height):
        level = radon_point(level.reshape(-1, r, parameters))
    return np.asarray(level[0], dtype=_float_dtype(points))


@dataclass(frozen=True)
class Filling:
    """How ``models`` models of ``parameters`` numbers each fill the places of an iterated Radon point."""

    models: int
    parameters: int

    @property
    def radon_number(self) -> int:
        """r, the points that one Radon point takes: parameters + 2."""
        return self.parameters + 2

    @cached_property
    def height(self) -> int:
        """h, the smallest height at which every model has a place."""
        height = 1
        while self.radon_number**height < self.models:
            height += 1
        return height

    @property
    def places(self) -> int:
        """r**h."""
        return int(self.radon_number**self.height)

    def draw(self, rng: np.random.Generator) -> np.ndarray:
        """The model in every place, shape (places,); every r places in a row are a group, and hold r different models.

        Passes over all models, each in a fresh random order, fill the places: every model comes floor(places / models)
        or one more times. Where a group straddles two passes, the models that are in it already move back in the second
        (Clarkson et al. 1996 draw without such care; with r**h models this is their algorithm on a random order).
        """
        passes = [rng.permutation(self.models)]
        for done in range(self.models, self.places, self.models):
            begun = done % self.radon_number
            passes.append(_reorder(rng.permutation(self.models), passes[-1], begun, self.radon_number - begun))
        return np.concatenate(passes)[: self.places]

    def __str__(self) -> str:
        often, left = divmod(self.places, self.models)
        words = {1: "once", 2: "twice"}
        exactly = words.get(often, f"{often} times")
        times = f"{words.get(often, often)} or {words.get(often + 1, f'{often + 1} times')}" if left else exactly
        power = f"{self.radon_number}**{self.height} = {self.places}"
        return (
            f"Radon point of height {self.height} with r = {self.radon_number}: {power} places, "
            f"each of the {self.models} models in them {times}"
        )


def check_radon(models: int, parameters: int) -> Filling:
    """How that many models fill an iterated Radon point. Raises PlanError for fewer than parameters + 2."""
    filling = Filling(models, parameters)
    if models < filling.radon_number:
        most = f"at most {models - 2} parameter{'s' * (models > 3)}"
        size = most if models > 2 else "even one parameter takes three models"
        raise PlanError(
            f"Radon aggregation of a {parameters}-parameter model takes at least r = parameters + 2 = "
            f"{filling.radon_number} models; this run has {models}. "
            f"Use a smaller model ({size}), more sites, or another robust aggregator such as geometric_median"
        )
    return filling


def radon(points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The iterated Radon point of any number of models from r on.

    ``points`` has shape (models, parameters), the result (parameters,). With r**h models each is used once, with any
    other number as :class:`Filling` says; ``rng`` draws the order. Works in float64. PlanError for too few models.
    """
    filling = check_radon(*points.shape)
    groups = filling.draw(rng).reshape(-1, filling.radon_number)  # (groups, r)
    chunks = np.array_split(groups, -(-groups.size * filling.radon_number // _CHUNK))
    firsts = np.concatenate([radon_point(points[chunk].astype(np.float64)) for chunk in chunks])  # (groups, parameters)
    return iterated_radon_point(firsts, filling.height - 1).astype(_float_dtype(points))


def _reorder(models: np.ndarray, before: np.ndarray, begun: int, missing: int) -> np.ndarray:
    taken = before[len(before) - begun :]
    front = models[~np.isin(models, taken)][:missing]
    return np.concatenate([front, models[~np.isin(models, front)]])


def _farthest_first(offsets: np.ndarray) -> np.ndarray:
    """The points of every set, (..., r, d), in the order of their largest coordinate."""
    order = np.argsort(-np.abs(offsets).max(axis=-1, initial=0), axis=-1, kind="stable")
    return np.take_along_axis(offsets, order[..., None], axis=-2)


def _null_vector(offsets: np.ndarray) -> np.ndarray:
    """Weights of unit norm, (..., r), under which offsets (..., r, d) sum to zero, and which sum to zero themselves.

    With large rows and columns first a QR's rounding is small against each row (Cox and Higham 1998): none blurs any.
    """
    order = np.argsort(-np.abs(offsets).max(axis=-2), axis=-1, kind="stable")
    sorted_columns = np.take_along_axis(offsets, order[..., None, :], axis=-1)
    lifted = np.concatenate([sorted_columns, np.ones((*offsets.shape[:-1], 1))], axis=-1)  # (..., r, d + 1)
    return np.linalg.qr(lifted, mode="complete").Q[..., -1]


def _float_dtype(array: np.ndarray) -> np.dtype:
    return array.dtype if np.issubdtype(array.dtype, np.floating) else np.dtype(np.float64)
