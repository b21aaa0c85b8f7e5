"""Networks that somebody has trained on many other images: torchvision's by their names, with a new last layer.

``model = "torchvision:resnet18"`` with the options

- ``weights``: ``"DEFAULT"`` (torchvision's own, downloaded where they are not there yet), or a .safetensors file of the
  network's ``state_dict``; every site reads its own copy, and the handshake compares what is frozen of it.
- ``sha256``: of that file, so that a hospital without internet knows that it holds the right one.
- ``train``: ``"all"``, ``"last_block"`` (the last stage with convolutions, and all behind it), ``"head"`` (the new last
  layer alone), or a list of layers by torchvision's names. The rest is frozen.

Grey images become three equal channels, and all are scaled from -1 to 1 to ImageNet's mean and spread.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from fedsmall.data.federation import Task
from fedsmall.data.sources.files import locate
from fedsmall.data.sources.public import import_torchvision
from fedsmall.errors import DataError, PlanError, as_data_error
from fedsmall.methods import check_known

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's channels, from 0 to 1
TRAIN = ("all", "last_block", "head")
LEARNS = (nn.Conv2d, nn.Linear)


def torchvision_network(
    name: str, task: Task, *, weights: str | None = None, sha256: str | None = None, train: str | Sequence[str] = "all"
) -> nn.Module:
    """The network of torchvision called ``name``, from its weights if given, with a new last layer for ``task``.

    Raises PlanError for what is not there, DataError for weights that cannot be had or are another network's.
    """
    if len(task.input_shape) != 3 or task.input_shape[0] not in (1, 3):
        raise ValueError(f"it takes grey or coloured images, and a sample has shape {task.input_shape}")
    if weights is None and train != "all":
        raise PlanError(f'train = {train!r} freezes layers that nobody has trained; give weights = "DEFAULT" or a file')
    if sha256 is not None and weights in (None, "DEFAULT"):
        raise PlanError('sha256 is that of a file: weights = "resnet18.safetensors"')
    network = _network(name, weights, sha256)
    head = _head(name, network)
    before = network.get_submodule(head)
    parent, _, attribute = head.rpartition(".")
    assert isinstance(before, nn.Linear)
    setattr(network.get_submodule(parent), attribute, nn.Linear(before.in_features, task.outputs))
    if train != "all":
        free = [head, *_free_layers(network, head, train)]
        network.requires_grad_(False)
        for layer in free:
            network.get_submodule(layer).requires_grad_(True)
    return nn.Sequential(OrderedDict(rescale=_rescale(task.input_shape[0]), network=network))


def _network(name: str, weights: str | None, sha256: str | None) -> nn.Module:
    library = import_torchvision().models
    known = library.list_models(module=library)
    check_known(name, known, f"torchvision has no network {name!r} for classes")
    if weights is None:
        drawn: nn.Module = library.get_model(name)
        return drawn
    state = _default(name) if weights == "DEFAULT" else _read(str(locate(weights, None)), sha256)
    with torch.device("meta"):  # nothing is drawn for what is read
        network: nn.Module = library.get_model(name, weights=None)
    head = _head(name, network)
    wanted = {key: tensor.shape for key, tensor in network.state_dict().items() if not key.startswith(f"{head}.")}
    odd = [key for key, shape in wanted.items() if key not in state or state[key].shape != shape]
    if odd:
        raise DataError(
            f"the weights are not those of {name}: {len(odd)} of its {len(wanted)} arrays are not in the file or have "
            f"another shape, {odd[0]!r} first"
        )
    network.load_state_dict({key: state[key].clone() for key in wanted}, strict=False, assign=True)
    return network


@lru_cache(maxsize=2)
def _default(name: str) -> dict[str, Tensor]:
    try:
        state: dict[str, Tensor] = import_torchvision().models.get_model(name, weights="DEFAULT").state_dict()
    except OSError:  # a URLError is one
        raise DataError(
            f"torchvision's weights of {name} are not on this machine and could not be downloaded; give a file of "
            f'them: weights = "{name}.safetensors" (docs/data.md says how to make it elsewhere)'
        ) from None
    return state


@lru_cache(maxsize=2)
def _read(path: str, sha256: str | None) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    name = Path(path).name
    with as_data_error(
        f"{name}: no weights can be read from it; it must be a .safetensors file", OSError, SafetensorError
    ):
        content = Path(path).read_bytes()
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256.lower():  # which it is leaves no site
            raise DataError(f"{name}: its sha256 is not that of the scenario, {sha256}; fetch the file again")
        return load(content)


def _head(name: str, network: nn.Module) -> str:
    layers: list[str] = [key for key, layer in network.named_modules() if isinstance(layer, LEARNS)]
    if not layers or not isinstance(network.get_submodule(layers[-1]), nn.Linear):
        raise PlanError(f"the last layer of {name} is not linear, so it cannot be replaced; use another network")
    return layers[-1]


def _free_layers(network: nn.Module, head: str, train: str | Sequence[str]) -> Sequence[str]:
    if isinstance(train, str):
        check_known(train, TRAIN, f"train is one of {', '.join(TRAIN)}, or a list of layers")
        return [] if train == "head" else _last_block(network, head)
    known = [name for name, _ in network.named_modules() if name]
    for layer in train:
        check_known(layer, known, f"train names {layer!r}, which is no layer")
    return train


def _last_block(network: nn.Module, head: str, within: str = "") -> list[str]:
    around = network.get_submodule(within)
    names = [f"{within}.{name}" if within else name for name, _ in around.named_children()]
    trunk = [name for name in names if not f"{head}.".startswith(f"{name}.")]
    learning = [name for name in trunk if any(isinstance(m, LEARNS) for m in network.get_submodule(name).modules())]
    if len(learning) == 1 and isinstance(network.get_submodule(learning[0]), nn.Sequential):
        return _last_block(network, head, learning[0])
    return trunk[trunk.index(learning[-1]) :]


def _rescale(channels: int) -> nn.Conv2d:
    layer = nn.Conv2d(channels, 3, 1).requires_grad_(False)
    mean, spread = torch.tensor(MEAN), torch.tensor(SPREAD)
    scale = (0.5 / spread)[:, None] if channels == 1 else torch.diag(0.5 / spread)  # (3, channels)
    layer.weight.copy_(scale[..., None, None])
    layer.bias.copy_((0.5 - mean) / spread)  # type: ignore[union-attr]
    return layer
