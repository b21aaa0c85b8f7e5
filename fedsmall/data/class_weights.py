"""Class weights that are agreed: a rare class counts as much as a common one, and no site tells small counts.

A site tells, for every class, how many of its training samples are of it, through the same sums as for the scaling; of
a class of which it has fewer than ``floor`` samples, or all but so few, it tells nothing. From all sites' sums everyone
gets the same weights.
"""

from collections.abc import Sequence

import numpy as np

from fedsmall.data import standardise
from fedsmall.data.standardise import Sums
from fedsmall.errors import PlanError
from fedsmall.federation import Task
from fedsmall.plan import Plan

BALANCED = "balanced"


def one_hot(y: np.ndarray, classes: int) -> np.ndarray:
    """A column of 0 and 1 for each class, (samples, classes) in float64."""
    return np.asarray(np.eye(classes)[y])


def class_sums(y: np.ndarray, classes: int, floor: int, patients: np.ndarray | None = None) -> Sums:
    """What a site may tell of its classes: sums of :func:`one_hot`, each class a feature.

    Where ``patients``, (samples,), says whose each sample is, classes are small that have few patients.
    """
    hot = one_hot(y, classes)
    sums = standardise.sums(hot, floor, patients)
    counts = [standardise.patients_with(hot == each, patients) for each in (1, 0)]
    few = np.any([(count > 0) & (count < floor) for count in counts], axis=0)
    return Sums(*(np.where(few, 0.0, values) for values in (sums.count, sums.total, sums.squares)))


def agreed_weights(sites: Sequence[Sums], task: Task) -> tuple[float, ...]:
    """The weight of every class: 1 / (classes * its share), by what the sites tell in the order of their names.

    Raises PlanError for a class of which no site may tell anything, or that none has.
    """
    shares = standardise.agree(sites).mean
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
