"""What outputs of classes in their order mean, and of several models together, in torch."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import functional

from fedsmall.data.outcomes import LABELS, ORDINAL


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


class Ensemble(nn.Module):
    """Models that answer together, as :func:`fedsmall.evaluation.outputs.answer` does with arrays."""

    def __init__(self, members: Sequence[nn.Module], loss: str, together: str = "probability") -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.loss, self.together = loss, together

    def forward(self, x: Tensor) -> Tensor:
        """(samples, outputs), of the same meaning as those of one member."""
        outputs = torch.stack([member(x) for member in self.members])
        if len(self.members) == 1:
            return outputs[0]
        if self.loss == "cross_entropy":
            return self._mean(functional.log_softmax(outputs, dim=-1))
        if self.loss == ORDINAL:
            return outputs_of(self._mean(log_shares(outputs)))
        if self.loss in ("logistic", *LABELS) and self.together == "probability":
            # the log-odds of the mean, from the logarithms of both classes' probabilities
            return torch.logsumexp(functional.logsigmoid(outputs), 0) - torch.logsumexp(
                functional.logsigmoid(-outputs), 0
            )
        return outputs.mean(dim=0)

    def _mean(self, shares: Tensor) -> Tensor:
        if self.together == "logit":
            return shares.mean(dim=0)
        return torch.logsumexp(shares, dim=0) - math.log(len(self.members))
