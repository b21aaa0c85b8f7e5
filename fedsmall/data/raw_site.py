"""One site's samples as they were read, and the sums that it tells of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsmall.data.federation import Samples, Task
from fedsmall.data.preparation import Preparation
from fedsmall.data.sources.pool import Part
from fedsmall.data.standardise import COUNT_FLOOR, Scaling, Sums, agree, patients_with
from fedsmall.data.standardise import sums as sums_of
from fedsmall.errors import PlanError
from fedsmall.plan import Plan


@dataclass(frozen=True)
class RawSite:
    """The samples of one site as they were read, split into those to train on and those held out.

    ``floor`` is the least number of patients in a reported sum; ``kept_back`` are for early stopping alone.
    """

    name: str
    task: Task
    train: Part
    held_out: Part | None
    preparation: Preparation
    floor: int = COUNT_FLOOR
    notes: tuple[str, ...] = ()
    kept_back: Part | None = None

    @property
    def scaled(self) -> bool:
        """Whether the task's features, or its targets, are scaled by what the sites agree on."""
        return self.preparation.agrees

    @property
    def summed_values(self) -> np.ndarray:
        """The values of which the site reports sums, a column for each feature and for its target: (samples, ...)."""
        return self.preparation.summed_values(self.train.x, self.train.y)

    @property
    def summed_names(self) -> tuple[str, ...]:
        """The names of those columns; none where features have none."""
        outcome, features = self.preparation.outcome, self.task.feature_names if self.preparation.scaled else ()
        target = (outcome.name,) if outcome is not None and outcome.agrees else ()
        return (*features, *target) if features or not self.preparation.scaled else ()

    def sums(self) -> Sums | None:
        """What this site tells of its training samples for the scaling; ``None`` where nothing is scaled."""
        return sums_of(self.summed_values, self.floor, self.train.patients) if self.scaled else None

    def class_sums(self) -> Sums:
        """What this site tells of the classes of its training samples, for weights."""
        return class_sums(self.train.y, self.task.classes, self.floor, self.train.patients)

    def withheld(self) -> tuple[str, ...]:
        """The features (and target) of which this site tells nothing, for it has fewer than ``floor`` values there."""
        sums = self.sums()
        if sums is None or not self.summed_names:
            return ()
        return tuple(name for name, count in zip(self.summed_names, sums.count, strict=True) if count == 0)

    def learns(self, scaling: Scaling | None) -> Task:
        """The task with what the sites agreed on of its targets."""
        return task_with(self.task, self.preparation.with_scaling(scaling))

    def samples(self, scaling: Scaling | None) -> tuple[Samples, Samples | None]:
        """The samples to train on and those held out, as a model takes them."""
        prepared = self.preparation.with_scaling(scaling)
        return ready(self.train, prepared), None if self.held_out is None else ready(self.held_out, prepared)

    def samples_kept_back(self, scaling: Scaling | None) -> Samples | None:
        """The samples that tell when to stop, as a model takes them; None where the plan asks for none."""
        return None if self.kept_back is None else ready(self.kept_back, self.preparation.with_scaling(scaling))


def agreed(sites: Sequence[RawSite]) -> Scaling | None:
    """The scaling that the sites agree on, in the order of their names; ``None`` where nothing is scaled."""
    reported = [site.sums() for site in sorted(sites, key=lambda site: site.name)]
    known = [sums for sums in reported if sums is not None]
    return agree(known) if known else None


def task_with(task: Task, preparation: Preparation) -> Task:
    """The task with what is agreed in a preparation: the unit of a number, the intervals of a time."""
    outcome = preparation.outcome
    return task if outcome is None else replace(task, **outcome.known)


def ready(part: Part, preparation: Preparation) -> Samples:
    """Samples as a model takes them, classes as 64-bit integers, numbers in the scale of training."""
    targets = part.y if preparation.outcome is None else preparation.outcome.targets(part.y)
    y = targets.astype(np.int64 if targets.dtype.kind in "iub" else preparation.dtype)
    return Samples(preparation.inputs(part.x), y, patients=part.patients, groups=part.groups)


BALANCED = "balanced"


def one_hot(y: np.ndarray, classes: int) -> np.ndarray:
    """A column of 0 and 1 for each class, (samples, classes) in float64."""
    return np.asarray(np.eye(classes)[y])


def class_sums(y: np.ndarray, classes: int, floor: int, patients: np.ndarray | None = None) -> Sums:
    """What a site may tell of its classes: sums of :func:`one_hot`; nothing of a class of few patients."""
    hot = one_hot(y, classes)
    sums = sums_of(hot, floor, patients)
    counts = [patients_with(hot == value, patients) for value in (1, 0)]
    few = np.any([(count > 0) & (count < floor) for count in counts], axis=0)
    return Sums(*(np.where(few, 0.0, values) for values in (sums.count, sums.total, sums.squares)))


def agreed_weights(sites: Sequence[Sums], task: Task) -> tuple[float, ...]:
    """The weight of every class, 1 / (classes * its share); PlanError for a class of which nobody tells."""
    shares = agree(sites).mean
    for label, share in enumerate(shares):
        if share <= 0:
            name = task.class_names[label] if label < len(task.class_names) else str(label)
            raise PlanError(
                f"class_weights = {BALANCED!r}: no site may tell how many of class {name!r} it has, or none has any; "
                "give numbers, as in class_weights = [1.0, 3.0]"
            )
    return tuple(float(weight) for weight in shares.sum() / (len(shares) * shares))


def with_weights(plan: Plan, weights: Sequence[float]) -> Plan:
    """The plan with these numbers in place of the word; any other plan as it is."""
    if plan.recipe.class_weights != BALANCED:
        return plan
    return plan.model_copy(update={"recipe": plan.recipe.model_copy(update={"class_weights": tuple(weights)})})
