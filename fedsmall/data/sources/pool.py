"""What a source gives: the samples of a task as they were read, before they are dealt to sites or scaled."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from fedsmall.data.forms import Columns, Numbers, Pixels
from fedsmall.errors import DataError

NOWHERE = ""  # the key of a source that has no sites of its own


@dataclass(frozen=True)
class Part:
    """Samples as they were read.

    ``x`` has shape (samples, *input_shape): uint8 for images, float64 otherwise, NaN where a value is missing.
    ``y`` has shape (samples,) with classes 0, 1, ..., or (samples, *target_shape) in floats for regression.
    ``patients``, (samples,) of whole numbers, says whose each sample is, where a patient may have several. ``groups``
    are the names of the samples' subgroups, (samples,), by the column that divides them.
    """

    x: np.ndarray
    y: np.ndarray
    patients: np.ndarray | None = None
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of samples."""
        return len(self.y)

    def __getitem__(self, rows: np.ndarray) -> "Part":
        """The samples at the indices ``rows``, in that order."""
        whose = None if self.patients is None else self.patients[rows]
        return Part(self.x[rows], self.y[rows], whose, {column: names[rows] for column, names in self.groups.items()})


@dataclass(frozen=True)
class Pool:
    """All samples of a source, and what must be known of them to make a task.

    ``train`` and ``test`` hold samples by the name of their site, under the empty name where the source has no sites of
    its own; where ``test`` has no entry, samples are held out of the training ones. ``standardise`` says whether the
    features are brought to mean 0 and spread 1 over the sites (images never are). ``keep_unused`` asks that official
    training samples which no site was given be kept as a further test set. ``form`` says what a row was before it was a
    sample, where the samples do not say it themselves; ``ranges`` are public ends of every feature, (low, high).
    """

    train: dict[str, Part]
    class_names: tuple[str, ...] = ()
    test: dict[str, Part] = field(default_factory=dict)
    feature_names: tuple[str, ...] = ()
    standardise: bool = False
    keep_unused: bool = False
    loss: str = "cross_entropy"
    notes: tuple[str, ...] = ()
    form: Columns | Pixels | Numbers | None = None
    ranges: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def natural(self) -> bool:
        """Whether the source has sites of its own."""
        return NOWHERE not in self.train


def join(parts: Iterable[Part]) -> Part:
    """The samples of all parts, one after the other; DataError where their shapes differ."""
    parts = list(parts)
    for what in ("x", "y"):
        shapes = sorted({getattr(part, what).shape[1:] for part in parts})
        if len(shapes) > 1:
            called = "samples" if what == "x" else "targets"
            raise DataError(f"{called} of shapes {shapes[0]} and {shapes[1]} cannot go into one model; make them equal")
    held = [part.patients for part in parts if part.patients is not None]
    patients = np.concatenate(held) if len(held) == len(parts) else None
    groups = {column: np.concatenate([part.groups[column] for part in parts]) for column in parts[0].groups}
    return Part(
        np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]), patients, groups
    )
