"""The network of a package as a torch module: built by its name, given its weights, in eval mode."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from fedsmall.errors import PlanError
from fedsmall.evaluation.ensembles import members_of
from fedsmall.federation import Task
from fedsmall.models.ensemble import Ensemble
from fedsmall.models.registry import build_model, is_pretrained
from fedsmall.package.record import Architecture, Package
from fedsmall.randomness import rng_for


def network(package: Package, weights: Mapping[str, np.ndarray]) -> nn.Module:
    """The package's network with its ``weights``."""
    return build(package.architecture, package.learns, weights, package.preparation.dtype)


def build(design: Architecture, task: Task, weights: Mapping[str, np.ndarray], dtype: str) -> nn.Module:
    """The network of that ``design`` for ``task`` with ``weights``; several that answer together are one module.

    Raises PlanError where the weights are not those of the architecture.
    """
    built, options = [], dict(design.options)
    if is_pretrained(design.model):  # whose weights come with the package, and whose layers are done training
        options = {}
    for arrays in members_of(weights, design.members is not None):
        model = build_model(design.model, task, options, rng_for(0, "model"))  # its numbers are replaced
        if dtype == "float64":
            model = model.double()
        try:
            model.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
        except RuntimeError:
            raise PlanError(f"the weights are not those of the model {design.model!r} with its options") from None
        built.append(model)
    return (Ensemble(built, task.loss, design.together) if design.members is not None else built[0]).eval()
