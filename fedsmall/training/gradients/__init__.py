"""Loss and gradient of K models at once: one interface, several ways, chosen by layer types and size."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedsmall.errors import PlanError
from fedsmall.models.networks import training_mode
from fedsmall.training.gradients.losses import LOSSES, Batch, Gradients, Loss, mean_loss, weighted
from fedsmall.training.gradients.mlp import ClippedMlp, MlpGradients, clipped
from fedsmall.training.gradients.packed import PackedGradients
from fedsmall.training.stack import Tensors, rows_of

__all__ = [
    "LOSSES",
    "PATHS",
    "Batch",
    "ClippedMlp",
    "Gradients",
    "MlpGradients",
    "choose",
    "clipped",
    "mean_loss",
    "weighted",
]


class LoopGradients(Gradients):
    """The gradients of any model, one model at a time; images in channels-last order."""

    path, pads, chunk = "loop", False, 1

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self._model, self._loss = model, loss

    def __call__(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outputs and gradients of every model in turn; batches must be unpadded."""
        rows = [self._one(parameters, buffers, batch, row) for row in range(len(batch.x))]
        outputs = _rows([outputs for outputs, _ in rows])
        return outputs, {name: _rows([gradients[name] for _, gradients in rows]) for name in parameters}

    def predict(self, parameters: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """The outputs of every model in turn."""
        models = len(next(iter(parameters.values())))
        self._model.eval()
        with torch.no_grad():
            rows = (rows_of(parameters | buffers, k) for k in range(models))
            outputs = [functional_call(self._model, row, (_channels_last(x),)) for row in rows]
        training_mode(self._model)
        return torch.stack(outputs)

    def _one(self, parameters: Tensors, buffers: Tensors, batch: Batch, row: int) -> tuple[Tensor, Tensors]:
        model = {name: tensor[row].detach().requires_grad_() for name, tensor in parameters.items()}
        masks = {f"{name}.mask": mask[row] for name, mask in batch.masks.items()}
        with torch.enable_grad():
            arrays = model | rows_of(buffers, row) | masks
            outputs = functional_call(self._model, arrays, (_channels_last(batch.x[row]),))
            loss = self._loss.value(outputs, batch.y[row]).mean()
        gradients = torch.autograd.grad(loss, list(model.values()), allow_unused=True, materialize_grads=True)
        return outputs.detach(), dict(zip(model, gradients, strict=True))


def _rows(tensors: list[Tensor]) -> Tensor:
    """The tensors as rows of one; a single one, the rule with large models, is not copied."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


LARGEST = 60_000  # parameters; above, the loop is faster
SLOW = (nn.Conv1d, nn.Conv2d, nn.Conv3d)  # vmap turns them into unfused grouped convolutions, slower than the loop


class MappedGradients(Gradients):
    """The gradients of a model whose layers need no knowledge of the batch, all models mapped over at once."""

    path = "vmap"

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        for name, layer in model.named_modules():
            if isinstance(layer, _BatchNorm) and layer.training:
                raise ValueError(f"layer {name} ({type(layer).__name__}) changes its buffers, which vmap cannot follow")
        self._model, self._loss = model, loss

    def __call__(self, parameters: Tensors, buffers: Tensors, batch: Batch) -> tuple[Tensor, Tensors]:
        """The outputs and gradients of all models."""
        samples = batch.x.shape[1]
        weight = batch.x.new_full(batch.x.shape[:2], 1 / samples) if batch.weight is None else batch.weight
        masks = {f"{name}.mask": mask for name, mask in batch.masks.items()}
        gradients, outputs = vmap(grad(self._one, has_aux=True))(parameters, buffers | masks, batch.x, batch.y, weight)
        return outputs, gradients

    def predict(self, parameters: Tensors, buffers: Tensors, x: Tensor) -> Tensor:
        """The outputs of all models."""
        self._model.eval()
        outputs: Tensor = vmap(lambda state: functional_call(self._model, state, (x,)))(parameters | buffers)
        training_mode(self._model)
        return outputs

    def _one(self, parameters: Tensors, rest: Tensors, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        outputs = functional_call(self._model, parameters | rest, (x,))
        return torch.dot(self._loss.value(outputs, y), weight), outputs


PATHS: dict[str, Callable[[nn.Module, Loss], Gradients]] = {
    "mlp": MlpGradients,
    "conv": PackedGradients,
    "vmap": MappedGradients,
    "loop": LoopGradients,
}

WIDEST = 1_000_000  # parameters; above, packed convolutions are slower than the loop (0.6 at 4.9 million)


def choose(model: nn.Module, loss: Loss, path: str = "auto") -> Gradients:
    """The way for a prepared model: the fastest that fits, or the one named by ``path``.

    A model that no batched path fits takes the loop, with one warning. PlanError for a ``path`` that does not fit.
    """
    if path == "auto":
        return _automatic(model, loss)
    if path not in PATHS:
        raise PlanError(f'path is one of {", ".join(["auto", *PATHS])}; got "{path}"')
    try:
        return PATHS[path](model, loss)
    except ValueError as reason:
        raise PlanError(f'path = "{path}" does not fit this model: {reason}; use path = "auto"') from reason


def _automatic(model: nn.Module, loss: Loss) -> Gradients:
    parameters = sum(tensor.numel() for tensor in model.parameters())
    if parameters > WIDEST or any(isinstance(layer, nn.Conv3d) for layer in model.modules()):
        return LoopGradients(model, loss)  # volumes too are faster one model at a time
    against: dict[str, str] = {}
    for path in ("mlp", "conv", "vmap"):
        try:
            if path == "vmap":
                _check_worth(model, parameters)
            return PATHS[path](model, loss)
        except ValueError as reason:
            against[path] = str(reason)
    warnings.warn(f"this model trains one site at a time: {against['conv']}; {against['vmap']}", stacklevel=4)
    return LoopGradients(model, loss)


def _check_worth(model: nn.Module, parameters: int) -> None:
    for name, layer in model.named_modules():
        if isinstance(layer, SLOW):
            raise ValueError(f"layer {name} ({type(layer).__name__}) is slower under vmap than one model at a time")
    if parameters > LARGEST:
        raise ValueError(f"vmap is slower than the loop above {LARGEST} parameters; this model has {parameters}")
