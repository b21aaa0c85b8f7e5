"""From the arrays of a run's folder back to a torch model."""

from typing import TYPE_CHECKING, Any

from fedsmall.errors import PlanError
from fedsmall.federation import Task
from fedsmall.models.own_models import has_own_models
from fedsmall.models.registry import build_model
from fedsmall.randomness import rng_for
from sim.report.tables import reference_of
from sim.runs.folder import PlanRun, Run

if TYPE_CHECKING:
    from torch.nn import Module


def common_model(run: Run) -> "Module":
    """The common model of the run's main method with its first seed, in eval mode; PlanError where it has none."""
    main = run.scenario.reference or reference_of([one.plan.method for one in run.done])
    for one in sorted(run.done, key=lambda one: one.label != main):
        if run.model_of(one) is not None:
            return module(run, one)
    raise PlanError("no method of this run ends with a common model")


def module(run: Run, one: PlanRun) -> "Module":
    """The common model of one plan as a torch module in eval mode; PlanError where sites share only a part of one."""
    import torch

    if has_own_models(one.plan):
        raise PlanError("sites have models of their own here; `models` holds the arrays of the layers that they share")

    fields: dict[str, Any] = {name: _frozen(value) for name, value in run.about["task"].items()}
    task = Task(**fields)
    built = build_model(one.plan.model, task, one.plan.model_options, rng_for(one.plan.seed, "model"))
    arrays = run.model_of(one) or {}
    built.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
    return built.eval()


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
