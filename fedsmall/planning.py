"""A plan that cannot end well is refused before a site trains."""

import numpy as np

from fedsmall.aggregate import check_aggregator, is_buffer
from fedsmall.errors import PlanError
from fedsmall.federation import Task
from fedsmall.models import initial_model
from fedsmall.plan import Plan


def check_plan(plan: Plan, task: Task, sites: int) -> None:
    """Raise PlanError, in one line that says what to do, if ``sites`` sites cannot run the plan on ``task``."""
    method = plan.method
    if method.family != "federated":
        return
    if method.server in ("none", "scaffold", "feddyn"):
        count = parameter_count(plan, task)
        check_aggregator(method.aggregator, sites, count, method.weighted, method.aggregator_options)
    if method.server == "none" and method.server_options:
        raise PlanError(f"Method {method.label!r} has server_options, and no server optimizer that would read them.")
    if method.fraction < 1 and method.permute_every and round(method.fraction * sites) < 1:
        raise PlanError(f"A fraction of {method.fraction} of {sites} sites is no site at all. Raise the fraction.")


def parameter_count(plan: Plan, task: Task) -> int:
    """How many float parameters the plan's model has for this task."""
    model = initial_model(plan, task)
    return sum(a.size for name, a in model.items() if np.issubdtype(a.dtype, np.floating) and not is_buffer(name))
