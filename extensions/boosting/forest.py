"""A forest as three arrays, so that trees travel, are checked, kept and exported as any other model is.

Trees are (trees, nodes) of full binary trees, the root first, the children of node k at 2 k + 1 and 2 k + 2.
``feature`` is the column that a node asks about, -1 in a leaf, ``cut`` what is below it goes left, ``weight`` what a
leaf adds to the margin. An empty slot is a leaf that adds nothing. Columns, cuts and weights are exact in float32.
"""

import numpy as np
import torch
from torch import Tensor, nn

from fedsmall.data.federation import Task
from fedsmall.parts import Boosting
from fedsmall.plan import Method, Plan

Trees = tuple[Tensor, Tensor, Tensor]  # feature, cut and weight, each (trees, nodes)
NAME = "forest"  # the model's
EDGES, SUMS = "edges", "sums"  # of a forest that is grown from sums over sites: its bins, and what sites count


def boosting_of(plan: Plan) -> Boosting:
    """The settings of a plan that boosts."""
    assert plan.method.boosting is not None
    return plan.method.boosting


def is_joined(method: Method) -> bool:
    """Whether every site adds trees of its own to the global forest, which the server joins."""
    boosting = method.boosting
    return boosting is not None and not boosting.histogram and method.is_federated and method.models is None


def tree_rounds(plan: Plan) -> int:
    """How often the run boosts: once a round; with histograms once in a tree's levels, after a round for bins."""
    boosting = boosting_of(plan)
    most = (plan.rounds - 1) // boosting.depth if boosting.histogram else plan.rounds
    return most if boosting.trees is None else min(boosting.trees, most)


def plan_among(plan: Plan, sites: int) -> Plan:
    """The plan with the forest that so many sites fill."""
    boosting = boosting_of(plan)
    options = {"rounds": tree_rounds(plan), "sites": sites if is_joined(plan.method) else 1, "depth": boosting.depth}
    options |= {"bins": boosting.bins} if boosting.histogram else {}
    return plan.model_copy(update={"model": NAME, "model_options": options})


def learning_rate(plan: Plan) -> float:
    """What a tree's leaves are multiplied by: of trees that sites add at once, each has its share of the rate."""
    return boosting_of(plan).learning_rate / (plan.model_options["sites"] if is_joined(plan.method) else 1)


def forest(task: Task, *, rounds: int, sites: int = 1, depth: int = 3, bins: int = 0) -> nn.Module:
    """An empty forest for the trees of ``rounds`` of each of ``sites``; with ``bins`` for histograms and edges too."""
    return Forest(task, rounds * sites, depth, bins)


class Forest(nn.Module):
    """Trees that answer with the sum of their leaves."""

    def __init__(self, task: Task, rounds: int, depth: int, bins: int) -> None:
        super().__init__()
        self.depth, self.margins, self.outputs = depth, margins_of(task), task.outputs
        shape = rounds * self.margins, 2 ** (depth + 1) - 1
        self.feature = nn.Parameter(torch.full(shape, -1.0))
        self.cut = nn.Parameter(torch.zeros(shape))
        self.weight = nn.Parameter(torch.zeros(shape))
        if bins:
            features, nodes = int(np.prod(task.input_shape)), 2 ** (depth - 1)
            self.register_buffer(EDGES, torch.zeros(features, bins - 1))
            counts = torch.zeros(self.margins, nodes, features, bins, 2, dtype=torch.int64)  # of g and of h
            self.register_buffer(SUMS, counts)

    def forward(self, x: Tensor) -> Tensor:
        """(samples, outputs) of x (samples, features)."""
        return as_outputs(margins((self.feature, self.cut, self.weight), x, self.margins, self.depth), self.outputs)


def margins_of(task: Task) -> int:
    """How many margins a sample has: one for two classes and for a number, else one for each class."""
    return 1 if task.kind == "numbers" or task.classes == 2 else task.classes


def as_outputs(margin: Tensor, outputs: int) -> Tensor:
    """Margins as a network's outputs; of two classes that have an output each, the first one's is 0."""
    return margin if margin.shape[1] == outputs else torch.cat([torch.zeros_like(margin), margin], dim=1)


def margins(trees: Trees, x: Tensor, count: int, depth: int) -> Tensor:
    """The sum of trees' leaves, (samples, count), in the weights' dtype; slot k is of margin k modulo ``count``."""
    feature, cut, weight = trees
    at = places(feature, cut, x, depth)  # (samples, trees)
    leaves = _values_at(weight, at).to(torch.float64)
    return leaves.reshape(leaves.shape[0], leaves.shape[1] // count, count).sum(dim=1).to(weight.dtype)


def places(feature: Tensor, cut: Tensor, x: Tensor, depth: int) -> Tensor:
    """The node of every tree in which each sample ends, (samples, trees). Values are compared in float32."""
    values, cuts = x.to(torch.float32), cut.to(torch.float32)
    at = torch.zeros(x.shape[0], feature.shape[0], dtype=torch.int64)
    for _ in range(depth):
        asked = _values_at(feature, at).to(torch.int64)
        right = torch.gather(values, 1, asked.clamp(min=0)) >= _values_at(cuts, at)
        at = torch.where(asked < 0, at, 2 * at + 1 + right.to(torch.int64))
    return at


def _values_at(slots: Tensor, at: Tensor) -> Tensor:
    """What trees hold, (trees, nodes), at a node of each, (samples, trees)."""
    first = torch.arange(slots.shape[0]) * slots.shape[1]
    return slots.flatten()[at + first]
