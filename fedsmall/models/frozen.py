"""What of a model does not train: its frozen part is built alike everywhere, and travels nowhere.

A parameter with ``requires_grad_(False)`` is frozen. Where all parameters of a layer (or of a block) are, its buffers
are too and it works as in evaluation: BatchNorm takes its running statistics, and dropout drops nothing. Every place
builds the same frozen arrays from the scenario, out of a file of weights or the stream of the common initial model.
"""

from collections.abc import Iterator

from torch import Tensor, nn


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
