"""What a run says of the classes of its data: how many each site has, and what each counts in the loss."""

from collections.abc import Sequence

import numpy as np

from fedsmall.data.raw_site import BALANCED, agreed_weights
from fedsmall.federation import Federation, Samples
from fedsmall.plan import Plan

MANY_SITES = 500  # of more, nobody reads how many of each class they have


def class_counts(federation: Federation) -> dict[str, dict[str, list[int]]]:
    """How many of each class every site trains on and holds out; nothing for numbers, or for very many sites."""
    task, held = federation.task, federation.held_out or (None,) * len(federation.names)
    if task.kind != "classes" or len(federation.names) > MANY_SITES:
        return {}
    return {
        name: {"train": _counted(train, task.classes), "held_out": _counted(out, task.classes)}
        for name, train, out in zip(federation.names, federation.train, held, strict=True)
    }


def weights_told(plans: Sequence[Plan], federation: Federation) -> list[str]:
    """One line with the class weights that the sites agree on, where a plan asks for them."""
    if all(plan.recipe.class_weights != BALANCED for plan in plans):
        return []
    weights = agreed_weights(federation.class_sums, federation.task)
    names = federation.task.class_names or range(len(weights))
    each = ", ".join(f"{name} {weight:.3g}" for name, weight in zip(names, weights, strict=False))
    return [f"class weights agreed from the sites' counts (first seed): {each}"]


def _counted(samples: Samples | None, classes: int) -> list[int]:
    return [] if samples is None else np.bincount(samples.y, minlength=classes).tolist()
