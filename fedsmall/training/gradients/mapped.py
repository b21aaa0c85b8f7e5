"""Any small model: torch.func.vmap over the gradient of one model's loss."""

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fedsmall.models.layers import training_mode
from fedsmall.training.gradients.batch import Batch
from fedsmall.training.gradients.losses import Loss
from fedsmall.training.stack import Tensors

LARGEST = 60_000  # parameters; above, the loop is faster
SLOW = (nn.Conv1d, nn.Conv2d, nn.Conv3d)  # vmap turns them into unfused grouped convolutions, slower than the loop


class MappedGradients:
    """The gradients of a model whose layers need no knowledge of the batch, all models mapped over at once."""

    path = "vmap"
    pads = True
    chunk: int | None = None

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        """``model`` as :func:`~fedsmall.training.gradients.prepare.prepared` gives it; ValueError for another."""
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
