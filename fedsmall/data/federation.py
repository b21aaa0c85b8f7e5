"""The data of a federation as every engine sees them: one record per site, and what the model is judged on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedsmall.data.outcomes import ORDINAL, Kind, kind_of
from fedsmall.data.preparation import Preparation, Sums
from fedsmall.errors import DataError


@dataclass(frozen=True)
class Samples:
    """The samples of one site, as they were read or ready for the model.

    ``x`` is (samples, *input_shape): as read uint8 for images, else float64 with NaN for a missing value; ready of the
    plan's dtype, standardised, nothing missing. ``y`` (samples,) holds integer classes 0..classes-1, or (samples,
    *target_shape) floats. ``patients`` (samples,) says whose each is, ``groups`` its subgroup, (samples,), by column.
    ``pooled`` is each site's number of samples, where several are pooled. ``digests`` (samples,) are of the row or file
    that each was read from, whatever a plan takes of it, where a source knows that.
    """

    x: np.ndarray
    y: np.ndarray
    patients: np.ndarray | None = None
    groups: Mapping[str, np.ndarray] = field(default_factory=dict)
    pooled: tuple[int, ...] = ()
    digests: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def of_patients(self) -> dict[str, np.ndarray]:
        """The "patients", (samples,), as a run keeps them, where some have several samples; else empty."""
        whose = self.patients
        return {} if whose is None or len(np.unique(whose)) == len(whose) else {"patients": whose}

    def __getitem__(self, rows: np.ndarray) -> "Samples":
        whose, digests = (None if of is None else of[rows] for of in (self.patients, self.digests))
        groups = {column: names[rows] for column, names in self.groups.items()}
        return Samples(self.x[rows], self.y[rows], whose, groups, digests=digests)


def join(parts: Iterable[Samples]) -> Samples:
    """The samples of all parts, one after the other; DataError where their shapes differ."""
    parts = list(parts)
    for what, called in (("x", "samples"), ("y", "targets")):
        shapes = sorted({getattr(part, what).shape[1:] for part in parts})
        if len(shapes) > 1:
            raise DataError(f"{called} of shapes {shapes[0]} and {shapes[1]} cannot go into one model; make them equal")
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    known = ([getattr(part, what) for part in parts] for what in ("patients", "digests"))
    patients, digests = (None if any(of is None for of in each) else np.concatenate(each) for each in known)
    groups = {column: np.concatenate([part.groups[column] for part in parts]) for column in parts[0].groups}
    return Samples(x, y, patients, groups, digests=digests)


@dataclass(frozen=True)
class Task:
    """What is learnt: the shapes, the loss by name and the metrics by name.

    ``loss`` is one of "cross_entropy" (outputs = classes), "logistic" and "hinge" (one output, two classes), "ordinal"
    (classes - 1 outputs, ordered classes), or for numbers "mse", "l1" and "huber". ``input_shape`` is that of one
    sample, (channels, height, width) for images. ``unit`` is (offset, scale) of the number called ``target``, ``cuts``
    the ends of the intervals of a time (loss "hazard"), ``labels`` the names of several (loss "binary_cross_entropy").
    """

    name: str
    input_shape: tuple[int, ...]
    classes: int
    loss: str = "cross_entropy"
    metrics: tuple[str, ...] = ("accuracy",)
    class_names: tuple[str, ...] = ()
    feature_names: tuple[str, ...] = ()
    target: str | None = None
    unit: tuple[float, float] | None = None
    cuts: tuple[float, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """What is predicted: "classes", "numbers", "times" or "labels"."""
        return kind_of(self.loss)

    @property
    def outputs(self) -> int:
        """The width of the model's last layer."""
        if self.loss in ("logistic", "soft_logistic", "hinge"):
            return 1
        return self.classes - 1 if self.ordered else self.classes

    @property
    def ordered(self) -> bool:
        """Whether classes are grades: they have an order, and the model knows it."""
        return self.loss == ORDINAL


def task_from(fields: Mapping[str, Any]) -> Task:
    """The task of fields as JSON holds them: lists become tuples."""
    known: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()}
    return Task(**known)


def task_at(task: Task, y: np.ndarray) -> Task:
    """The task of one site with targets ``y``: where targets are vectors, its own may be longer or shorter."""
    return replace(task, classes=int(np.prod(y.shape[1:]))) if y.ndim > 1 and task.kind == "numbers" else task


@dataclass(frozen=True)
class Federation:
    """All the sites of a simulation, in the order of their names.

    ``held_out`` holds each site's own test samples (a natural partition), else None; ``test`` is the common test set:
    for a natural partition the held-out samples together, none where the sites' targets differ in length.
    ``kept_back`` is each site's validation set for early stopping, ``class_sums`` what it tells of its classes,
    ``extra`` further test sets by name, ``preparation`` what rows went through, ``description`` what they hold.
    """

    task: Task
    names: tuple[str, ...]
    train: tuple[Samples, ...]
    test: Samples
    held_out: tuple[Samples | None, ...] = ()
    extra: tuple[tuple[str, Samples], ...] = ()
    notes: tuple[str, ...] = ()
    preparation: Preparation | None = None
    class_sums: tuple[Sums, ...] = ()
    kept_back: tuple[Samples, ...] = ()
    description: Mapping[str, Any] = field(default_factory=dict)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Each site's own task."""
        return tuple(task_at(self.task, samples.y) for samples in self.train)

    @property
    def test_samples(self) -> int:
        """How many samples models are judged on in all."""
        return len(self.test) or sum(len(held) for held in self.held_out if held is not None)

    def leave_out(self, left: Sequence[np.ndarray]) -> "Federation":
        """The sites without their training samples ``left``, indices by site, on which models are judged instead.

        A site of which nothing else is there takes no part.
        """
        rest = [np.setdiff1d(np.arange(len(own)), rows) for own, rows in zip(self.train, left, strict=True)]
        kept = [place for place, rows in enumerate(rest) if len(rows)]
        test = join(own[rows] for own, rows in zip(self.train, left, strict=True))
        names, train = (tuple(self.names[k] for k in kept), tuple(self.train[k][rest[k]] for k in kept))
        return replace(self, names=names, train=train, test=test, held_out=(None,) * len(kept), extra=())

    def pooled(self) -> "Federation":
        """All data at one site called "central": what privacy forbids, and every method is measured against."""
        train, kept_back = pooled(self.train), (pooled(self.kept_back),) if self.kept_back else ()
        return replace(self, names=("central",), train=(train,), held_out=(), kept_back=kept_back)


def pooled(parts: Sequence[Samples]) -> Samples:
    """The samples of several sites as those of one, which knows how many each gave."""
    counts = tuple(n for samples in parts for n in samples.pooled or (len(samples),))
    return replace(join(parts), groups={}, pooled=counts)
