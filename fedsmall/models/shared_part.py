"""The layers that sites with models of their own have in common: the one model that travels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.models.own_models import Kind, is_shared, kind_of, kinds_of, plan_of_kind, shared_layers
from fedsmall.models.registry import build_model, initial_model
from fedsmall.plan import Plan
from fedsmall.wire import Arrays


def shared_part(task: Task, *, sites: Sequence[str | Mapping[str, Any]], shared: Sequence[str]) -> nn.Module:
    """The layers of the first site's model that travel, as a model that computes nothing."""
    kind = kind_of(sites[0])
    rng = np.random.default_rng(int(torch.randint(2**62, ()).item()))
    model = build_model(kind.model, task, kind.options, rng)
    names = list(model.state_dict())
    if not any(is_shared(name, shared) for name in names):
        raise _nothing_shared(shared, kind, names)
    for name in names:
        if not is_shared(name, shared):
            module, _, attribute = name.rpartition(".")
            delattr(model.get_submodule(module), attribute)
    return model


def agreed_part(plan: Plan, tasks: Sequence[Task]) -> Arrays:
    """The shared part's arrays, alike in the models of all sites, whose ``tasks`` are in the order of their names.

    Raises PlanError where ``shared`` matches nothing of a model, or an array has another shape at another site.
    """
    parts: list[tuple[Kind, Task, Arrays]] = []
    for kind, task in zip(kinds_of(plan), tasks, strict=True):
        if not any((kind, task) == known[:2] for known in parts):
            parts.append((kind, task, _part_of(plan, kind, task)))
    (first_kind, _, first), *others = parts
    for kind, _, part in others:
        for name in sorted(first.keys() | part.keys()):
            shape, other_shape = (p[name].shape if name in p else "nothing" for p in (first, part))
            if shape != other_shape:
                raise PlanError(
                    f"Shared array {name!r} is {shape} in {first_kind.model!r} "
                    f"and {other_shape} in {kind.model!r}; share less."
                )
    return first


def _part_of(plan: Plan, kind: Kind, task: Task) -> Arrays:
    shared = shared_layers(plan)
    model = initial_model(plan_of_kind(plan, kind), task)
    part = {name: array for name, array in model.items() if is_shared(name, shared)}
    if not part:
        raise _nothing_shared(shared, kind, list(model))
    return part


def _nothing_shared(shared: Sequence[str], kind: Kind, names: Sequence[str]) -> PlanError:
    arrays = ", ".join(names)
    return PlanError(f"shared = {list(shared)} matches none of the arrays of {kind.model!r}, which are {arrays}.")
