"""One model after another through autograd: slow, readable, and the specification of every other path."""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedsmall.models.layers import training_mode
from fedsmall.training.gradients.batch import Batch
from fedsmall.training.gradients.losses import Loss
from fedsmall.training.stack import Tensors


class LoopGradients:
    """The gradients of any model, one model at a time; images in channels-last order."""

    path = "loop"
    pads = False
    chunk: int | None = 1

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        """``model`` as :func:`fedsmall.training.gradients.prepare.prepared` gives it."""
        self._model = model
        self._loss = loss

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
            outputs = [
                functional_call(self._model, _row(parameters | buffers, k), (_channels_last(x),)) for k in range(models)
            ]
        training_mode(self._model)
        return torch.stack(outputs)

    def _one(self, parameters: Tensors, buffers: Tensors, batch: Batch, row: int) -> tuple[Tensor, Tensors]:
        mine = {name: tensor[row].detach().requires_grad_() for name, tensor in parameters.items()}
        masks = {f"{name}.mask": mask[row] for name, mask in batch.masks.items()}
        with torch.enable_grad():
            outputs = functional_call(self._model, mine | _row(buffers, row) | masks, (_channels_last(batch.x[row]),))
            loss = self._loss.value(outputs, batch.y[row]).mean()
        gradients = torch.autograd.grad(loss, list(mine.values()), allow_unused=True, materialize_grads=True)
        return outputs.detach(), dict(zip(mine, gradients, strict=True))


def _rows(tensors: list[Tensor]) -> Tensor:
    """The tensors as rows of one; a single one, which is the rule with large models, is not copied."""
    return tensors[0][None] if len(tensors) == 1 else torch.stack(tensors)


def _row(tensors: Tensors, row: int) -> Tensors:
    return {name: tensor[row] for name, tensor in tensors.items()}


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
