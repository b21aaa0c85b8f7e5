"""How sure many models are of the right answer for records of their own choice each."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedsmall.data.outcomes import ORDINAL, kind_of
from fedsmall.federation import Task
from fedsmall.plan import Plan
from fedsmall.training.batches import taken
from fedsmall.training.frozen_body import halves
from fedsmall.training.gradients.losses import LOSSES
from fedsmall.training.gradients.mlp import forward, layers_of
from fedsmall.training.stack import Rows, Tensors

CACHE_BYTES = 2 * 2**20  # what the models that are judged at a time may take, and their records

Outputs = Callable[[Tensors, Tensor], Tensor]  # models and (models, records, ...): (models, records, outputs)


class Confidence:
    """Judges models on the records ``x`` (records, ...) with targets ``y``, which it holds."""

    def __init__(self, plan: Plan, task: Task, x: np.ndarray, y: np.ndarray, device: str = "cpu") -> None:
        cut = halves(plan, task)
        model, x = cut.head.to(device).eval(), cut.seen(np.asarray(x, dtype=plan.dtype))
        self._outputs, self._loss, self._device = outputs_of(model), task.loss, device
        self._x = torch.from_numpy(x).to(device)
        self._y = torch.from_numpy(np.asarray(y)).to(device)

    def __call__(self, models: Tensors, records: np.ndarray) -> np.ndarray:
        """What model k says of the records ``records[k]``, (models, few) numbers: (models, few) float32.

        For classes, the logit of the right one against all others together; for numbers, minus the mean error.
        """
        each = Rows(models).bytes_per_row + 4 * records.shape[1] * self._x[:1].numel()
        size, index = max(1, CACHE_BYTES // each), torch.from_numpy(records).to(self._device)
        with torch.no_grad():
            parts = [self._part(models, index, slice(k, k + size)) for k in range(0, len(records), size)]
        return np.asarray(torch.cat(parts).numpy())

    def _part(self, models: Tensors, index: Tensor, rows: slice) -> Tensor:
        outputs = self._outputs({name: tensor[rows] for name, tensor in models.items()}, taken(self._x, index[rows]))
        return sureness(outputs, taken(self._y, index[rows]), self._loss).to("cpu", torch.float32)


def outputs_of(model: nn.Module) -> Outputs:
    """The outputs of many models of one kind, each on records of its own; linear layers as stacked products."""
    try:
        layers = [layer for layer in layers_of(model) if layer.kind != "dropout"]
    except ValueError:  # no chain of linear layers
        return vmap(lambda state, x: functional_call(model, state, (x,)))

    def stacked(state: Tensors, x: Tensor) -> Tensor:
        x = x.flatten(2)
        for layer in layers:
            x = forward(layer, state, x, {})
        return x

    return stacked


def sureness(outputs: Tensor, y: Tensor, loss: str) -> Tensor:
    """The scores of outputs (..., outputs) for targets ``y`` (...), scaled as LiRA's: the logit of the confidence."""
    if kind_of(loss) in ("times", "labels"):
        return -LOSSES[loss].value(outputs, y)
    if kind_of(loss) == "numbers":
        return -(outputs.reshape(y.shape) - y).abs().flatten(2).mean(-1)
    if loss == ORDINAL:
        surprise = LOSSES[loss].value(outputs, y)
        return -surprise - torch.log(-torch.expm1(-surprise.clamp_min(1e-30)))
    if outputs.shape[-1] == 1:
        return outputs[..., 0] * (2.0 * y - 1.0)
    right = outputs.gather(-1, y[..., None])[..., 0]
    others = outputs.scatter(-1, y[..., None], -torch.inf).logsumexp(-1)
    return right - others
