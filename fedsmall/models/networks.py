"""The networks, layers that every engine treats alike, and outputs of several models together."""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedsmall.data.federation import Task
from fedsmall.data.outcomes import LABELS, ORDINAL
from fedsmall.evaluation import outputs as in_numpy
from fedsmall.parts import NORM


def has_spread(shape: Sequence[int]) -> bool:
    """Whether a batch of shape (samples, channels, *map) has more than one value in a channel."""
    return math.prod([shape[0], *shape[2:]]) > 1


class _Forgiving(nn.modules.batchnorm._BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        """Normalise with the batch where it has spread, with the running statistics where it has none."""
        if not self.training or has_spread(input.shape):
            return super().forward(input)
        mean, var = self.running_mean, self.running_var
        if mean is None or var is None:  # nothing was ever counted: the value itself is the best guess of the mean
            mean, var = torch.zeros_like(input[0].flatten()), torch.ones_like(input[0].flatten())
        return F.batch_norm(input, mean, var, self.weight, self.bias, False, 0.0, self.eps)


FORGIVING: dict[type[nn.Module], type[nn.Module]] = {  # torch's layers, and the same for small batches
    plain: type(plain.__name__, (_Forgiving, plain), {}) for plain in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
}


def forgive_small_batches(model: nn.Module) -> nn.Module:
    """Make every batch normalisation of ``model`` one of :data:`FORGIVING`, in place; returns the model."""
    for module in model.modules():
        if type(module) in FORGIVING:
            module.__class__ = FORGIVING[type(module)]
    return model


def frozen_layers(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that have parameters, all of them frozen, by their names in a model called ``name``."""
    trains = {parameter.requires_grad for parameter in model.parameters()}
    if trains == {False}:
        yield name, model
    elif trains == {False, True}:
        for child, part in model.named_children():
            yield from frozen_layers(part, f"{name}.{child}" if name else child)


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


def training_mode(model: nn.Module) -> nn.Module:
    """The model in training mode, except for its frozen layers; the model itself."""
    model.train()
    for _, layer in frozen_layers(model):
        layer.eval()
    return model


Norm = Callable[[int], nn.Module]
FEW = 4  # output positions up to which a product of matrices is faster than a convolution (CPU, torch 2.13)
NARROW = 64  # the same for the numbers under a kernel
HIDDEN = {"digits": (64, 32), "breast_cancer": (32, 16), "synthetic": (50, 20)}  # the widths of perceptrons
CHANNELS_PER_GROUP = 16  # Wu & He 2018, table 3: within half a point of the best


def norm_layer(kind: str, batch: Norm = nn.BatchNorm2d) -> Norm:
    """The layer that normalises a given number of channels: "batch", or "group" (which knows no running statistics)."""
    if kind == "batch":
        return batch
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
    """A stem (7 x 7 and a max pool for "imagenet", else 3 x 3), stages of basic blocks, mean, linear layer."""

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
        kernel, stride, padding = (7, 2, 3) if wide else (3, 1, 1)
        self.conv1 = nn.Conv2d(channels, widths[0], kernel, stride, padding, bias=False)
        self.bn1 = layer(widths[0])
        self.relu = nn.ReLU()
        self.maxpool: nn.Module = nn.MaxPool2d(3, 2, padding=1) if wide else nn.Identity()
        self.stages = len(widths)
        before = widths[0]
        for stage, width in enumerate(widths):
            first = BasicBlock(before, width, 1 if stage == 0 else 2, layer)
            rest = [BasicBlock(width, width, 1, layer) for _ in range(blocks - 1)]
            self.add_module(f"layer{stage + 1}", nn.Sequential(first, *rest))
            before = width
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(before, outputs)
        for module in self.modules():  # He et al. 2015, as torchvision does it; the linear layer keeps torch's default
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """(samples, channels, height, width) -> (samples, outputs)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(self.avgpool(x).flatten(1))  # type: ignore[no-any-return]


def linear(task: Task) -> nn.Module:
    """One linear layer over all the numbers of a sample."""
    return nn.Sequential(*_flat(task), nn.Linear(_size(task), task.outputs))


def mlp(task: Task, *, hidden: Sequence[int] | None = None, dropout: float = 0.0) -> nn.Module:
    """Linear layers of widths ``hidden`` with ReLU, as one plain ``nn.Sequential``."""
    widths = HIDDEN.get(task.name, (64, 32)) if hidden is None else hidden
    if not isinstance(widths, Sequence) or not all(isinstance(width, int) and width > 0 for width in widths):
        raise ValueError(f"hidden is a number of units for each layer, at least 1, as in [64, 32]; got {widths}")
    layers, before = _flat(task), _size(task)
    for width in widths:
        layers += [nn.Linear(before, width), nn.ReLU(), *_dropout(dropout)]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, task.outputs))


def cnn(task: Task, *, norm: str = NORM, dropout: float = 0.0) -> nn.Module:
    """The papers' small convolutional network, as one plain ``nn.Sequential``; images of at least 4 x 4."""
    channels, height, width = _image_shape(task)
    if min(height, width) < 4:
        raise ValueError(f"two poolings need images of at least 4 x 4; these are {height} x {width}")
    layers: list[nn.Module] = []
    for before, after in ((channels, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, padding=1), norm_layer(norm)(after), nn.ReLU(), nn.MaxPool2d(2)]
    head = nn.Linear(64 * (height // 4) * (width // 4), task.outputs)
    return nn.Sequential(*layers, nn.Flatten(), *_dropout(dropout), head)


def resnet10(task: Task, *, stem: Any = "imagenet", norm: str = NORM) -> nn.Module:
    """One basic block a stage: 4,900,546 parameters for grey images and two classes (RepTreeFL's model)."""
    return ResNet(_image_shape(task)[0], task.outputs, blocks=1, stem=stem, norm=norm)


def resnet18(task: Task, *, stem: Any = "cifar", norm: str = NORM) -> nn.Module:
    """Two basic blocks a stage; ``stem="imagenet"`` is torchvision's network, weight for weight."""
    return ResNet(_image_shape(task)[0], task.outputs, blocks=2, stem=stem, norm=norm)


def resnet_small(task: Task, *, blocks: int = 2, norm: str = NORM) -> nn.Module:
    """Three stages of 16, 32 and 64 channels behind a 3 x 3 stem."""
    return ResNet(_image_shape(task)[0], task.outputs, (16, 32, 64), blocks, "cifar", norm)


def resnet10_cropped(task: Task, **options: Any) -> nn.Module:
    """The network resnet10 with the same initial weights, for images of the task's size and no other."""
    return cropped(resnet10(task, **options), task.input_shape)


def resnet18_cropped(task: Task, **options: Any) -> nn.Module:
    """The network resnet18 with the same initial weights, for images of the task's size and no other."""
    return cropped(resnet18(task, **options), task.input_shape)


def _image_shape(task: Task) -> tuple[int, int, int]:
    if len(task.input_shape) != 3:
        other = "cnn3d" if len(task.input_shape) == 4 else "linear or mlp"
        raise ValueError(f"it takes images, and a sample has shape {task.input_shape}; use {other}")
    channels, height, width = task.input_shape
    return channels, height, width


def _size(task: Task) -> int:
    return int(np.prod(task.input_shape))


def _flat(task: Task) -> list[nn.Module]:
    return [nn.Flatten()] if len(task.input_shape) > 1 else []


def _dropout(share: float) -> list[nn.Module]:
    return [nn.Dropout(share)] if share else []


def cnn3d(task: Task, *, widths: Sequence[int] = (16, 32), norm: str = "group", dropout: float = 0.0) -> nn.Module:
    """Convolution 3 x 3 x 3, norm, ReLU and pooling for each of ``widths``, then means and a layer."""
    if len(task.input_shape) != 4:
        raise ValueError(f"it takes volumes, and a sample has shape {task.input_shape}; use cnn for images")
    channels, *sides = task.input_shape
    if not widths or min(widths) < 1:
        raise ValueError(f"widths are the channels of its convolutions, as in [16, 32]; got {list(widths)}")
    if min(sides) < 2 ** len(widths):
        least = 2 ** len(widths)
        raise ValueError(
            f"{len(widths)} poolings need sides of at least {least}; these are {' x '.join(map(str, sides))}"
        )
    layers: list[nn.Module] = []
    for before, after in zip((channels, *widths), widths, strict=False):
        normalise = norm_layer(norm, nn.BatchNorm3d)(after)
        layers += [nn.Conv3d(before, after, 3, padding=1), normalise, nn.ReLU(), nn.MaxPool3d(2)]
    head = [nn.AdaptiveAvgPool3d(1), nn.Flatten(), *_dropout(dropout), nn.Linear(widths[-1], task.outputs)]
    return nn.Sequential(*layers, *head)


class Reach(NamedTuple):
    """Which taps of a kernel meet the map along one side, ``first`` to ``end`` - 1, and the padding they still need."""

    first: int
    end: int
    before: int
    after: int


def reach(size: int, kernel: int, stride: int, padding: int) -> Reach:
    """The taps that ever lie on a side of ``size`` pixels; the others only ever meet padding."""
    starts = [place * stride - padding for place in range((size + 2 * padding - kernel) // stride + 1)]
    met = [tap for tap in range(kernel) if any(0 <= start + tap < size for start in starts)]
    first, end = met[0], met[-1] + 1
    return Reach(first, end, max(0, -(starts[0] + first)), max(0, starts[-1] + end - size))


class MatrixConv2d(nn.Conv2d):
    """``nn.Conv2d`` (square, ungrouped) as one product of matrices, for few positions or narrow kernels."""

    def forward(self, input: Tensor) -> Tensor:
        """(samples, inputs, height, width) -> (samples, outputs, height', width')."""
        kernel, stride, padding = self.kernel_size[0], self.stride[0], int(self.padding[0])
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in input.shape[-2:]]
        if sides == [1, 1] and padding == 0:
            under = input[..., :kernel, :kernel].flatten(1)
            return F.linear(under, self.weight.flatten(1), self.bias)[..., None, None]
        seen = F.unfold(input, kernel, padding=padding, stride=stride)  # (samples, numbers, positions)
        product = F.linear(seen.transpose(1, 2), self.weight.flatten(1), self.bias)  # (samples, positions, outputs)
        return product.transpose(1, 2).reshape(len(input), -1, *sides)


def cropped(model: nn.Module, input_shape: tuple[int, ...]) -> nn.Module:
    """The model without the taps that meet no pixel of (channels, height, width) samples, changed in place.

    On maps of 2 x 2 or 1 x 1 most taps of a 3 x 3 kernel meet padding alone: 56% of all parameters of ResNet-10 on
    28 x 28 images. The numbers are the same (without weight decay), the arrays have other shapes.
    """
    layers = {name: layer for name, layer in model.named_modules() if type(layer) is nn.Conv2d and _plain(layer)}
    maps = _maps(model, layers, input_shape)
    for name, layer in layers.items():
        if name in maps:
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, _crop_kernel(layer, maps[name]))
    return model


def _crop_kernel(layer: nn.Conv2d, size: int) -> nn.Conv2d:
    kernel, stride, padding = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
    side = reach(size, kernel, stride, padding)
    if side.before != side.after:  # padding on one side alone is no Conv2d
        side = Reach(0, kernel, padding, padding)
    left = side.end - side.first
    positions = ((size + 2 * side.before - left) // stride + 1) ** 2
    few = positions <= FEW or layer.in_channels * left**2 < NARROW
    kind, has_bias = MatrixConv2d if few else nn.Conv2d, layer.bias is not None
    smaller = kind(layer.in_channels, layer.out_channels, left, stride, side.before, bias=has_bias).to(layer.weight)
    with torch.no_grad():
        smaller.weight.copy_(layer.weight[:, :, side.first : side.end, side.first : side.end])
        if layer.bias is not None and smaller.bias is not None:
            smaller.bias.copy_(layer.bias)
    return smaller


def _maps(model: nn.Module, layers: dict[str, nn.Conv2d], input_shape: tuple[int, ...]) -> dict[str, int]:
    sides: dict[str, int] = {}
    names: dict[nn.Module, str] = {layer: name for name, layer in layers.items()}

    def note(layer: nn.Module, inputs: tuple[Tensor]) -> None:
        if inputs[0].shape[-1] == inputs[0].shape[-2]:
            sides[names[layer]] = inputs[0].shape[-1]

    handles = [layer.register_forward_pre_hook(note) for layer in names]
    training = model.training
    with torch.no_grad():
        model.eval()(torch.zeros(1, *input_shape))
    model.train(training)
    for handle in handles:
        handle.remove()
    return sides


def _plain(layer: nn.Conv2d) -> bool:
    square = all(len(set(pair)) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    return square and not isinstance(layer.padding, str) and layer.groups == 1 and layer.dilation == (1, 1)


class Proportional(nn.Module):
    """One risk for all intervals or grades, behind layers of widths ``body``, and a level for each: -> (..., levels).

    The risk moves all log-odds of the event in an interval (Cox 1972, section 6, the logistic model for grouped times;
    Singer and Willett 1993); of grades the log-odds of being above the lowest, and ``steps`` behind (McCullagh 1980).
    """

    def __init__(self, features: int, levels: Tensor, steps: int = 0, body: Sequence[int] = ()) -> None:
        super().__init__()
        ends = list(pairwise([features, *body]))
        self.body = nn.Sequential(*(layer for end in ends for layer in (nn.Linear(*end), nn.ReLU())))
        self.risk = nn.Linear([features, *body][-1], 1, bias=False)
        self.levels, self.steps = nn.Parameter(levels), steps

    def forward(self, x: Tensor) -> Tensor:
        """(samples, features) -> (samples, levels)."""
        risk: Tensor = self.risk(self.body(x.flatten(1)))
        return F.pad(risk, (0, self.steps)) + self.levels


def proportional(task: Task, *, hidden: Sequence[int] = ()) -> nn.Module:
    """The proportional model; ValueError for a task of neither times until an event nor classes in their order."""
    if task.ordered:
        equally_many = torch.from_numpy(in_numpy.outputs_of(np.zeros(task.classes))).float()
        return Proportional(_size(task), equally_many, len(equally_many) - 1, hidden)
    if task.kind != "times":
        raise ValueError(
            "it predicts times until an event, task = {csv = ..., time = ..., event = ...}, or grades, {csv = ..., "
            "target = ..., order = [...]}; use linear"
        )
    if len(hidden):
        raise ValueError("hidden layers are for grades; its risk of an event is linear")
    # as if the event came to equally many in every interval and to some never: far from even odds
    return Proportional(_size(task), torch.full((task.outputs,), -math.log(task.outputs)))


NETWORKS = (linear, proportional, mlp, cnn, cnn3d, resnet10, resnet18, resnet_small)
CROPPED = (resnet10_cropped, resnet18_cropped)


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
            return self._mean(F.log_softmax(outputs, dim=-1))
        if self.loss == ORDINAL:
            return outputs_of(self._mean(log_shares(outputs)))
        if self.loss in ("logistic", *LABELS) and self.together == "probability":
            # the log-odds of the mean, from the logarithms of both classes' probabilities
            return torch.logsumexp(F.logsigmoid(outputs), 0) - torch.logsumexp(F.logsigmoid(-outputs), 0)
        return outputs.mean(dim=0)

    def _mean(self, shares: Tensor) -> Tensor:
        if self.together == "logit":
            return shares.mean(dim=0)
        return torch.logsumexp(shares, dim=0) - math.log(len(self.members))
