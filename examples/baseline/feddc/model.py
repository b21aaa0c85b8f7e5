"""The networks: ResNet-18 for images of 32 x 32, as in the paper, and a small one for a machine without a GPU."""

import torch
from torch import nn
from torch.nn.functional import relu

CLASSES = 10


def make_model(name: str, seed: int) -> nn.Module:
    """A network by its name, with first weights that depend on the seed alone."""
    torch.manual_seed(seed)
    if name == "cnn":
        body = [*_pooled(3, 16), *_pooled(16, 32), *_pooled(32, 64)]
        return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))
    if name != "resnet18":
        raise ValueError(f"model is resnet18 or cnn, not {name!r}")
    blocks, before = list[nn.Module](), 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(before, width, stride), Block(width, width, 1)]
        before = width
    stem = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))


class Block(nn.Module):
    """Two convolutions beside a way that leaves them out (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)])
        is_same = stride == 1 and inputs == outputs
        around = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.around: nn.Module = nn.Identity() if is_same else around

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, outputs, height / stride, width / stride)."""
        inner = self.norms[1](self.second(relu(self.norms[0](self.first(x)))))
        return relu(inner + self.around(x))


def _pooled(inputs: int, outputs: int) -> list[nn.Module]:
    return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU(), nn.MaxPool2d(2)]
