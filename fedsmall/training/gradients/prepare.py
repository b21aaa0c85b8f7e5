"""A model made ready for training from handed-in numbers: its dropout takes masks, its BatchNorm small batches."""

import copy

import torch
from torch import Tensor, nn

from fedsmall.models.layers import forgive_small_batches, training_mode


class MaskedDropout(nn.Module):
    """Dropout that multiplies by a mask from outside, so that every path sees the same numbers; none in eval mode."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability
        self.mask: Tensor
        self.register_buffer("mask", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The input times the mask."""
        return x * self.mask if self.training else x


def prepared(model: nn.Module) -> nn.Module:
    """A copy of the model, in training mode but for what is frozen, whose arrays keep their names."""
    model = training_mode(forgive_small_batches(copy.deepcopy(model)))
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                setattr(parent, name, MaskedDropout(child.p).train(child.training))
    return model


def dropout_shapes(model: nn.Module, x: Tensor) -> dict[str, tuple[int, ...]]:
    """The shape that each dropout layer of a prepared model sees for one sample, found by passing ``x`` (1, ...)."""
    shapes: dict[str, tuple[int, ...]] = {}
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, MaskedDropout)}
    if not layers:
        return shapes
    handles = [
        layer.register_forward_pre_hook(lambda _, args, name=name: shapes.update({name: tuple(args[0].shape[1:])}))
        for name, layer in layers.items()
    ]
    with torch.no_grad():
        model.eval()(x)
    training_mode(model)
    for handle in handles:
        handle.remove()
    return shapes
