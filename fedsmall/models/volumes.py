"""A small network for volumes of three dimensions."""

from collections.abc import Sequence

from torch import nn

from fedsmall.federation import Task
from fedsmall.models.norms import BatchNorm3d
from fedsmall.models.resnets import norm_layer


def cnn3d(task: Task, *, widths: Sequence[int] = (16, 32), norm: str = "group", dropout: float = 0.0) -> nn.Module:
    """Convolution 3 x 3 x 3, norm, ReLU and pooling for each of ``widths``, then means over what is left and a layer.

    One plain ``nn.Sequential``; its size does not depend on that of the volumes: 14,466 parameters for grey ones and
    two classes. ``norm`` is "group" (the default, for sites of a few volumes) or "batch".

    Raises ValueError for samples that are no volumes, or too small for the poolings.
    """
    if len(task.input_shape) != 4:
        raise ValueError(f"it takes volumes, and a sample has shape {task.input_shape}; use cnn for images")
    channels, *sides = task.input_shape
    if not widths or min(widths) < 1:
        raise ValueError(f"widths are the channels of its convolutions, as in [16, 32]; got {list(widths)}")
    if min(sides) < 2 ** len(widths):
        least = 2 ** len(widths)
        raise ValueError(f"{len(widths)} poolings need sides of at least {least}; these are {_times(sides)}")
    layers: list[nn.Module] = []
    for before, after in zip((channels, *widths), widths, strict=False):
        normed = BatchNorm3d(after) if norm == "batch" else norm_layer(norm)(after)
        layers += [nn.Conv3d(before, after, 3, padding=1), normed, nn.ReLU(), nn.MaxPool3d(2)]
    dropped = [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), *dropped, nn.Linear(widths[-1], task.outputs))


def _times(sides: Sequence[int]) -> str:
    return " x ".join(map(str, sides))
