"""Models of times until an event."""

import math

import numpy as np
import torch
from torch import Tensor, nn

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


def proportional(task: Task) -> nn.Module:
    """The proportional model; ValueError for a task that is no time until an event."""
    if task.kind != "times":
        raise ValueError("it predicts times until an event: task = {csv = ..., time = ..., event = ...}; use linear")
    return Proportional(int(np.prod(task.input_shape)), task.outputs)
