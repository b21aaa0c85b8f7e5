"""Layers that every engine treats alike: batch norms that stand small batches, and what is frozen."""

from collections.abc import Iterator, Sequence

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


def frozen_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that have parameters, all of them frozen, by their names."""
    yield from _frozen_layers("", model)


def _frozen_layers(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    parameters = list(module.parameters())
    if not parameters or all(parameter.requires_grad for parameter in parameters):
        return
    if not any(parameter.requires_grad for parameter in parameters):
        yield name, module
        return
    for child, part in module.named_children():
        yield from _frozen_layers(f"{name}.{child}" if name else child, part)


def frozen_names(model: nn.Module) -> frozenset[str]:
    """The names in ``state_dict`` of what does not train: frozen parameters, and the buffers of frozen layers."""
    names = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for prefix, layer in frozen_layers(model):
        names |= {f"{prefix}.{name}" if prefix else name for name in layer.state_dict()}
    return frozenset(names)


def trainable_state(model: nn.Module) -> dict[str, Tensor]:
    """What of ``state_dict`` trains, in its order: what travels."""
    frozen = frozen_names(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name not in frozen}


def frozen_state(model: nn.Module) -> dict[str, Tensor]:
    """What of ``state_dict`` does not train, in its order."""
    frozen = frozen_names(model)
    return {name: tensor for name, tensor in model.state_dict().items() if name in frozen}


def training_mode(model: nn.Module) -> nn.Module:
    """The model in training mode, except for its frozen layers; the model itself."""
    model.train()
    for _, layer in frozen_layers(model):
        layer.eval()
    return model
