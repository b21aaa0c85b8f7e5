"""Residual networks (He et al. 2016) of basic blocks, with the parameter names of torchvision's."""

from collections.abc import Callable, Sequence
from typing import Literal

from torch import Tensor, nn

from fedsmall.models.norms import BatchNorm2d
from fedsmall.parts import NORM

Norm = Callable[[int], nn.Module]
CHANNELS_PER_GROUP = 16  # Wu & He 2018, table 3: within half a point of the best


def norm_layer(kind: str) -> Norm:
    """The layer that normalises a given number of channels: "batch", or "group" (which knows no running statistics)."""
    if kind == "batch":
        return BatchNorm2d
    if kind == "group":
        return lambda channels: nn.GroupNorm(max(1, channels // CHANNELS_PER_GROUP), channels)
    raise ValueError(f'norm is "batch" or "group"; this model asks for {kind!r}')


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut, which is a 1 x 1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = norm(outputs)
        self.relu = nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(samples, inputs, height, width) -> (samples, outputs, height / stride, width / stride)."""
        shortcut = x if self.downsample is None else self.downsample(x)
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + shortcut)  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """A stem, stages of ``blocks`` basic blocks each, the mean over the map, and one linear layer.

    ``stem`` "imagenet" is a 7 x 7 convolution of stride 2 and a max pool (torchvision's), "cifar" a 3 x 3 convolution.
    """

    def __init__(
        self,
        channels: int,
        outputs: int,
        widths: Sequence[int] = (64, 128, 256, 512),
        blocks: int = 2,
        stem: Literal["imagenet", "cifar"] = "imagenet",
        norm: str = NORM,
    ) -> None:
        super().__init__()
        if stem not in ("imagenet", "cifar"):
            raise ValueError(f'stem is "imagenet" or "cifar"; this model asks for {stem!r}')
        layer = norm_layer(norm)
        wide = stem == "imagenet"
        self.conv1 = nn.Conv2d(
            channels, widths[0], 7 if wide else 3, 2 if wide else 1, padding=3 if wide else 1, bias=False
        )
        self.bn1 = layer(widths[0])
        self.relu = nn.ReLU()
        self.maxpool: nn.Module = nn.MaxPool2d(3, 2, padding=1) if wide else nn.Identity()
        self.stages = len(widths)
        before = widths[0]
        for stage, width in enumerate(widths):
            self.add_module(f"layer{stage + 1}", _stage(before, width, blocks, 1 if stage == 0 else 2, layer))
            before = width
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, outputs)
        _initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        """(samples, channels, height, width) -> (samples, outputs)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def _stage(inputs: int, outputs: int, blocks: int, stride: int, norm: Norm) -> nn.Sequential:
    first = BasicBlock(inputs, outputs, stride, norm)
    return nn.Sequential(first, *(BasicBlock(outputs, outputs, 1, norm) for _ in range(blocks - 1)))


def _initialise(model: nn.Module) -> None:
    """He et al. 2015, as torchvision does it; the linear layer keeps torch's default."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
