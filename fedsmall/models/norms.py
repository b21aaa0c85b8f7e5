"""Batch normalisation that also stands a batch in which a channel has a single value.

A site may hold one sample, and a deep network shrinks a small image to a 1 x 1 map: then a channel of a batch has one
value, its variance is nothing, and torch refuses ("Expected more than 1 value per channel"). Here such a batch is
normalised with the running statistics, as in evaluation, and leaves them as they are; every other batch is treated as
torch treats it. :func:`has_spread` is the rule, for engines that compute the same thing in another way.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def has_spread(shape: Sequence[int]) -> bool:
    """Whether a batch of shape (samples, channels, *map) has more than one value in a channel."""
    values = shape[0]
    for length in shape[2:]:
        values *= length
    return values > 1


class _Forgiving(nn.modules.batchnorm._BatchNorm):
    """What the two classes below share; a mixin that replaces ``forward``."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise with the batch where it has spread, with the running statistics where it has none."""
        if not self.training or has_spread(input.shape):
            return super().forward(input)
        mean, var = self.running_mean, self.running_var
        if mean is None or var is None:  # nothing was ever counted: the value itself is the best guess of the mean
            mean, var = torch.zeros_like(input[0].flatten()), torch.ones_like(input[0].flatten())
        return F.batch_norm(input, mean, var, self.weight, self.bias, False, 0.0, self.eps)


class BatchNorm1d(_Forgiving, nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` for small batches."""


class BatchNorm2d(_Forgiving, nn.BatchNorm2d):
    """``torch.nn.BatchNorm2d`` for small batches."""


class BatchNorm3d(_Forgiving, nn.BatchNorm3d):
    """``torch.nn.BatchNorm3d`` for small batches."""


_FORGIVING: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: BatchNorm1d,
    nn.BatchNorm2d: BatchNorm2d,
    nn.BatchNorm3d: BatchNorm3d,
}


def forgive_small_batches(model: nn.Module) -> nn.Module:
    """Make every batch normalisation of ``model`` one of the above, in place; returns the model."""
    for module in model.modules():
        if type(module) in _FORGIVING:
            module.__class__ = _FORGIVING[type(module)]
    return model
