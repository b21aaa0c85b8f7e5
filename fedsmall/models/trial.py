"""A model of a user's own is tried on two samples of nothing before a run, so that what is wrong is said at once."""

import torch

from fedsmall.errors import PlanError
from fedsmall.federation import Task
from fedsmall.models.registry import common_model, is_own
from fedsmall.own_code import own_code
from fedsmall.plan import Plan


def try_model(plan: Plan, task: Task) -> None:
    """Raise PlanError where a model of one's own cannot take the task's samples, or gives other than its outputs."""
    if not is_own(plan.model):
        return
    model = common_model(plan, task).eval()
    what = f"model {plan.model!r}"
    with torch.no_grad(), own_code(f"{what}, given samples of shape {task.input_shape},"):
        outputs = model(torch.zeros(2, *task.input_shape))
    if not isinstance(outputs, torch.Tensor):
        raise PlanError(f"{what} gives {type(outputs).__name__} and not a tensor of outputs")
    if tuple(outputs.shape) != (2, task.outputs):
        raise PlanError(
            f"{what} gives outputs of shape {tuple(outputs.shape)} for 2 samples; this task wants (2, {task.outputs})"
        )
