"""Models of one risk, and a level for each interval of time or each step between grades."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsmall.evaluation.grades import outputs_of
from fedsmall.federation import Task


class Proportional(nn.Module):
    """A linear risk that is one for all intervals, and a level for each interval: (..., features) -> (..., intervals).

    As many numbers as features and intervals together, where a linear layer has their product. Source: Cox 1972,
    section 6, the logistic model for grouped times; Singer and Willett 1993.
    """

    def __init__(self, features: int, intervals: int) -> None:
        super().__init__()
        self.risk = nn.Linear(features, 1, bias=False)
        # as if the event came to equally many in every interval and to some never: far from even odds
        self.levels = nn.Parameter(torch.full((intervals,), -math.log(intervals)))

    def forward(self, x: Tensor) -> Tensor:
        """The log-odds of the event in each interval."""
        risk: Tensor = self.risk(x.flatten(1))
        return risk + self.levels


class ProportionalOdds(nn.Module):
    """One risk for all grades, and the steps between grades the same for all: (..., features) -> (..., grades - 1).

    ``body`` are the widths of layers with ReLU before the risk; none make it linear. Outputs are those of
    :mod:`fedsmall.evaluation.grades`. Source: McCullagh 1980, "Regression models for ordinal data".
    """

    def __init__(self, features: int, grades: int, body: Sequence[int] = ()) -> None:
        super().__init__()
        ends = list(pairwise([features, *body]))
        self.body = nn.Sequential(*(layer for end in ends for layer in (nn.Linear(*end), nn.ReLU())))
        self.risk = nn.Linear([features, *body][-1], 1, bias=False)
        self.levels = nn.Parameter(torch.from_numpy(outputs_of(np.zeros(grades))).float())  # equally many of each

    def forward(self, x: Tensor) -> Tensor:
        """The log-odds of being above the lowest grade, and the steps behind it."""
        risk: Tensor = self.risk(self.body(x.flatten(1)))
        return F.pad(risk, (0, len(self.levels) - 1)) + self.levels


def proportional(task: Task, *, hidden: Sequence[int] = ()) -> nn.Module:
    """The proportional model; ValueError for a task of neither times until an event nor classes in their order."""
    if task.ordered:
        return ProportionalOdds(int(np.prod(task.input_shape)), task.classes, hidden)
    if task.kind != "times":
        raise ValueError(
            "it predicts times until an event, task = {csv = ..., time = ..., event = ...}, or grades, {csv = ..., "
            "target = ..., order = [...]}; use linear"
        )
    if len(hidden):
        raise ValueError("hidden layers are for grades; its risk of an event is linear")
    return Proportional(int(np.prod(task.input_shape)), task.outputs)
