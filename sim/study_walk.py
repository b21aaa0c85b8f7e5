"""A short simulation of plain averaging and daisy-chaining: what the study runs tens of thousands of times.

The same mathematics as every engine, to rounding (a test holds it to them), without strategies, messages and metrics:
Algorithm 1 of Kamp et al. 2023 on a stack of models, read from top to bottom.
"""

import numpy as np
from torch import Tensor

from fedsmall.cohort import Cohort, Leg
from fedsmall.errors import PlanError
from fedsmall.federation import Federation
from fedsmall.models import initial_model
from fedsmall.plan import Plan
from fedsmall.schedule import Action, Schedule, permutation
from fedsmall.stack import Stack
from fedsmall.travel import Traveller


def final_accuracy(plan: Plan, federation: Federation) -> float:
    """The accuracy on the test samples of the common model with which a run ends; 0 where it is not finite.

    Raises PlanError for a method that is more than a schedule and a mean.
    """
    cohort = Cohort(plan, federation.task, federation.names, federation.train)
    outputs = cohort.predict(final_models(plan, federation, cohort).rows(slice(0, 1)), federation.test.x)[0]
    if not np.isfinite(outputs).all():
        return 0.0
    return float(np.mean(outputs.argmax(axis=-1) == federation.test.y))


def final_models(plan: Plan, federation: Federation, cohort: Cohort) -> Stack:
    """The sites' models after the last aggregation, which has made them equal."""
    _check_plain(plan)
    names = federation.names
    stack = cohort.stack([Traveller(initial_model(plan, federation.task, name)) for name in names])
    where = np.arange(len(names))  # row k is at site where[k]
    legs: list[Leg] = []
    schedule = Schedule(plan.method.permute_every, plan.method.aggregate_every)
    for contact in schedule.contacts(plan.rounds):
        legs.append(Leg(where, contact.t, contact.rounds))
        if contact.action is Action.AGGREGATE:
            cohort.walk(stack, legs)
            _average(stack)
            legs = []
        else:
            route = permutation(plan.seed, contact.t, names)
            where = np.array([names.index(route[name]) for name in names])[where]
    return stack


def _average(stack: Stack) -> None:
    """Every model becomes the mean of all; moments stay where they are, counters keep their largest value."""
    for tensor in stack.state.values():
        tensor.copy_(_mean(tensor))


def _mean(tensor: Tensor) -> Tensor:
    return tensor.double().mean(0).to(tensor.dtype) if tensor.is_floating_point() else tensor.amax(0)


def _check_plain(plan: Plan) -> None:
    method = plan.method
    plain = method.model_copy(update={"permute_every": None, "aggregate_every": None, "name": "", "label": ""})
    if plain != type(method)(name="") or plan.method.family != "federated":
        raise PlanError(f"the short simulation knows schedules and the mean only; {method.label!r} is more than that")
