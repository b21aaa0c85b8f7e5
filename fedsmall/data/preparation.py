"""What happens to a row until a model takes it, as one record: it is trained with, kept beside the model, used again.

A row becomes numbers (its form), numbers are cut to public ranges or scaled as the sites agreed, a missing one becomes
the middle, and all become the model's dtype. Training and prediction call the same functions of the same record.
"""

from typing import Any, Literal

import numpy as np

from fedsmall.data import standardise
from fedsmall.data.forms import Columns, Form, Numbers, Pixels
from fedsmall.data.outcomes import Outcome
from fedsmall.data.sources.pool import Pool
from fedsmall.data.standardise import Scaling
from fedsmall.parts import Frozen

FAR = 5.0  # standard deviations from the mean at which a value is worth a note
Row = tuple[float, ...]


class Ranges(Frozen):
    """Public ends of every feature, (features,): ``low`` and ``high``."""

    low: Row
    high: Row

    def apply(self, x: np.ndarray) -> np.ndarray:
        """``x`` (samples, *shape), cut to its range and brought to mean 0 and spread 1 of what fills it; NaN stays."""
        low, high = (np.array(end).reshape(x.shape[1:]) for end in (self.low, self.high))
        scaled: np.ndarray = (np.clip(x, low, high) - (low + high) / 2) / ((high - low) / np.sqrt(12))
        return scaled

    def outside(self, x: np.ndarray) -> np.ndarray:
        """Which values of ``x`` (samples, *shape) are beyond the ends."""
        low, high = (np.array(end).reshape(x.shape[1:]) for end in (self.low, self.high))
        return np.asarray((x < low) | (x > high))


class Agreed(Frozen):
    """The scaling on which the sites agreed, (features,): ``mean`` and ``scale``."""

    mean: Row
    scale: Row

    def scaling(self, shape: tuple[int, ...]) -> Scaling:
        """The same as arrays of ``shape``."""
        return Scaling(np.array(self.mean).reshape(shape), np.array(self.scale).reshape(shape))


class Preparation(Frozen):
    """From rows as they were read to what a model takes.

    ``shape`` is that of one sample. ``ranges`` are public, ``agreed`` is what the sites worked out together: no feature
    has both. ``scaled`` says whether there is anything to agree on of features. ``outcome`` is what is predicted, where
    that is no class.
    """

    form: Form
    shape: tuple[int, ...]
    scaled: bool = False
    ranges: Ranges | None = None
    agreed: Agreed | None = None
    dtype: Literal["float32", "float64"] = "float32"
    outcome: Outcome | None = None

    @property
    def agrees(self) -> bool:
        """Whether there is anything on which sites have to agree, of features or of what is predicted."""
        return self.scaled or (self.outcome is not None and self.outcome.agrees)

    def told(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Of what a site tells sums, (samples, numbers): of its features where they are scaled, and of its outcome."""
        outcome = [self.outcome.told(y)] if self.outcome is not None and self.outcome.agrees else []
        if not outcome:
            return x
        return np.concatenate([*([x.reshape(len(x), -1)] if self.scaled else []), *outcome], axis=1)

    def with_scaling(self, scaling: Scaling | None) -> "Preparation":
        """The same once the sites have agreed."""
        if scaling is None:
            return self
        mean, scale = scaling.mean.ravel().tolist(), scaling.scale.ravel().tolist()
        update: dict[str, Any] = {}
        if self.outcome is not None and self.outcome.agrees:
            update["outcome"] = self.outcome.with_scaling(mean.pop(), scale.pop())  # it comes after the features
        if self.scaled:
            update["agreed"] = Agreed(mean=tuple(mean), scale=tuple(scale))
        return self.model_copy(update=update)

    def inputs(self, x: np.ndarray) -> np.ndarray:
        """``x`` (samples, *shape) as a model takes it: images from -1 to 1, features scaled, nothing missing."""
        if isinstance(self.form, Pixels):
            ready = self.form.scaled(x)
        elif x.dtype == np.uint8:
            ready = (x / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
        else:
            ready = self.ranges.apply(x) if self.ranges is not None else x
            if self.agreed is not None:
                ready = standardise.apply(self.agreed.scaling(x.shape[1:]), ready)
            # scaled by ranges, a missing value is the middle of its range
            ready = np.where(np.isnan(ready), 0.0, ready)
        return np.ascontiguousarray(ready, dtype=self.dtype)

    def unusual(self, x: np.ndarray) -> np.ndarray:
        """Which values of ``x`` (samples, *shape) are far from those that a model was trained on: (samples, *shape).

        That is outside the public ranges, or far from the agreed mean. No smallest or largest value is kept for it,
        which would be a patient's. Features made of categories are never unusual.
        """
        if self.ranges is not None:
            return self.ranges.outside(x)
        if self.agreed is None:
            return np.zeros(x.shape, dtype=bool)
        scaling = self.agreed.scaling(x.shape[1:])
        with np.errstate(invalid="ignore"):
            far = np.abs(x - scaling.mean) > FAR * scaling.scale
        return np.asarray(far & ~self._made_of_categories(x.shape[1:]))

    def _made_of_categories(self, shape: tuple[int, ...]) -> np.ndarray:
        if not isinstance(self.form, Columns):
            return np.zeros(shape, dtype=bool)
        listed = {column: len(values) for column, values in self.form.categories.items()}
        counts = [listed.get(column, 1) for column in self.form.columns]
        return np.repeat([column in listed for column in self.form.columns], counts)


def preparation_of(pool: Pool, dtype: Literal["float32", "float64"]) -> Preparation:
    """What the samples of a pool go through, before its sites have agreed on anything."""
    x = pool.train[min(pool.train)].x
    ends = [tuple(np.asarray(end, dtype=np.float64).ravel().tolist()) for end in pool.ranges or ()]
    ranges = Ranges(low=ends[0], high=ends[1]) if ends else None
    return Preparation(
        form=form_of(pool),
        shape=x.shape[1:],
        scaled=pool.standardise,
        ranges=ranges,
        dtype=dtype,
        outcome=pool.outcome,
    )


def form_of(pool: Pool) -> Columns | Pixels | Numbers:
    """What a row of a pool is: what its source says, or else what its samples look like."""
    if pool.form is not None:
        return pool.form
    x = pool.train[min(pool.train)].x
    if x.dtype == np.uint8 and x.ndim == 4 and x.shape[1] in (1, 3):
        return Pixels(channels=x.shape[1], size=(x.shape[2], x.shape[3]))
    if x.ndim == 2 and len(pool.feature_names) == x.shape[1]:
        return Columns(columns=pool.feature_names)
    return Numbers()
