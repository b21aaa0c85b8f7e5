"""What outputs say of classes that have an order, in torch; :mod:`fedsmall.evaluation.grades` explains it."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cumulative(outputs: Tensor) -> Tensor:
    """The log-odds of being above each grade but the highest, falling: shaped as ``outputs``, (..., grades - 1)."""
    steps = -F.logsigmoid(-outputs[..., 1:])  # softplus, which ONNX Runtime does not have in float64
    return outputs[..., :1] - F.pad(torch.cumsum(steps, -1), (1, 0))


def log_shares(outputs: Tensor) -> Tensor:
    """The logarithms of the grades' probabilities: (..., grades - 1) -> (..., grades)."""
    odds = cumulative(outputs)
    passed, ahead = F.pad(F.logsigmoid(odds), (1, 0)), F.pad(F.logsigmoid(-odds), (0, 1))
    return passed + ahead + F.pad(F.logsigmoid(outputs[..., 1:]), (1, 1))


def outputs_of(logs: Tensor) -> Tensor:
    """The outputs that give grades these logarithms of probabilities, to a constant: the other way."""
    logs = F.log_softmax(logs, -1)
    below = torch.logcumsumexp(logs, -1)
    above = torch.logcumsumexp(logs.flip(-1), -1).flip(-1)
    return torch.cat([above[..., 1:2] - logs[..., :1], logs[..., 1:-1] - below[..., :-2] - above[..., 2:]], -1)
