"""A plan that cannot end well is refused before a site trains."""

import numpy as np

from fedsmall.aggregation.aggregate import check_aggregator, is_buffer
from fedsmall.aggregation.combiners import combiner_for
from fedsmall.compositions import check_composition
from fedsmall.errors import PlanError
from fedsmall.federation import Federation, Task
from fedsmall.models.own_models import SHARED_PART, check_own_models, has_own_models
from fedsmall.models.registry import initial_model
from fedsmall.models.shared_part import agreed_part
from fedsmall.plan import Plan
from fedsmall.privacy import check_private
from fedsmall.schedule import contacts_of


def check_plan(plan: Plan, task: Task, sites: int) -> None:
    """Raise PlanError, in one line that says what to do, if ``sites`` sites cannot run the plan on ``task``."""
    method = plan.method
    check_own_models(plan, sites)
    if method.family != "federated":
        return
    check_composition(plan)
    check_aggregator(method.aggregator, sites, parameter_count(plan, task), method.weighted, method.aggregator_options)
    combiner_for(plan)  # which knows its own settings
    if method.privacy is not None:
        check_private(plan, leaving_contacts(plan), [name for name in initial_model(plan, task) if is_buffer(name)])
    if method.server == "none" and method.server_options:
        raise PlanError(f"Method {method.label!r} has server_options, and no server optimizer that would read them.")
    if method.fraction < 1 and method.permute_every and round(method.fraction * sites) < 1:
        raise PlanError(f"A fraction of {method.fraction} of {sites} sites is no site at all. Raise the fraction.")


def check_run(plan: Plan, federation: Federation) -> None:
    """As :func:`check_plan`, for a simulation: here every site's targets and held-out samples are known as well."""
    check_plan(plan, federation.task, len(federation.names))
    tasks = federation.tasks
    if has_own_models(plan):
        agreed_part(plan, tasks)
        for site, held_out in zip(federation.names, federation.held_out, strict=False):
            if not len(federation.test if held_out is None else held_out):
                raise PlanError(f"{site} holds out no sample, and no other site can judge its model; give it more.")
    elif len(lengths := sorted({task.outputs for task in tasks})) > 1:
        raise PlanError(
            f"Sites want targets of {lengths[0]} and of {lengths[-1]} numbers, which no one model has; give them "
            f"models of their own: model = {SHARED_PART!r}."
        )


def leaving_contacts(plan: Plan) -> int:
    """How many times models leave the sites in the whole run."""
    return len(contacts_of(plan))


def parameter_count(plan: Plan, task: Task) -> int:
    """How many float parameters the plan's model has for this task."""
    model = initial_model(plan, task)
    return sum(a.size for name, a in model.items() if np.issubdtype(a.dtype, np.floating) and not is_buffer(name))
