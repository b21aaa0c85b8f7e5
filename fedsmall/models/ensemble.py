"""Several models as one torch module."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedsmall.data.outcomes import LABELS, ORDINAL
from fedsmall.models.grades import log_shares, outputs_of


class Ensemble(nn.Module):
    """Models that answer together, as :func:`fedsmall.evaluation.ensembles.answer` does with arrays.

    ``members`` are modules with equal outputs, ``loss`` the task's and ``together`` the method's word.
    """

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
        """Of logarithms of probabilities, (members, samples, classes), what they come to together."""
        if self.together == "logit":
            return shares.mean(dim=0)
        return torch.logsumexp(shares, dim=0) - math.log(len(self.members))
