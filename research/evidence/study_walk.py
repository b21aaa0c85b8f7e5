"""A short simulation of plain averaging and daisy-chaining, which the study runs tens of thousands of times.

The same mathematics as every engine, to rounding (a test checks it), without metrics and records. Several federations,
one a seed, run side by side in one stack, for a few small models do not fill a processor.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from fedsmall.algorithm.daisy_chain import stretches
from fedsmall.data.federation import Federation
from fedsmall.errors import PlanError
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.training.cohort import Cohort
from fedsmall.training.stack import Stack
from fedsmall.training.trainer import Phase, TrainInput
from fedsmall.travel.journey import move_on
from fedsmall.travel.schedule import CommRound, comm_rounds_of
from fedsmall.wire import ModelState


class Side(NamedTuple):
    """One of the federations that run side by side; ``rows`` are its models in the stack, in the order of its sites."""

    plan: Plan
    federation: Federation
    rows: slice


def final_accuracies(plans: Sequence[Plan], federations: Sequence[Federation]) -> list[float]:
    """The accuracy, on its own test samples, of the global model with which each run ends; 0 where it is not finite.

    The plans differ in their seeds only. Batches are drawn from the first plan's streams under names of their own, so
    that where batches are drawn at all, a run beside others is another sample of the same experiment as a run alone.
    Raises PlanError for a method that is more than a schedule and a mean.
    """
    cohort, stack, sides = side_by_side(plans, federations)
    train(cohort, stack, sides)
    accuracies = []
    for side in sides:
        test = side.federation.test
        outputs = cohort.predict(stack.rows(slice(side.rows.start, side.rows.start + 1)), test.x)[0]
        right = outputs.argmax(axis=-1) == test.y
        accuracies.append(float(right.mean()) if np.isfinite(outputs).all() else 0.0)
    return accuracies


def side_by_side(plans: Sequence[Plan], federations: Sequence[Federation]) -> tuple[Cohort, Stack, list[Side]]:
    """The training core of all federations together, their initial models, and who has which rows."""
    sides, stop = [], 0
    for plan, federation in zip(plans, federations, strict=True):
        _check_plain(plan)
        start, stop = stop, stop + len(federation.names)
        sides.append(Side(plan, federation, slice(start, stop)))
    task = federations[0].task
    alone = len(sides) == 1
    names = [name if alone else f"{side.plan.seed}/{name}" for side in sides for name in side.federation.names]
    cohort = Cohort(plans[0], task, names, [samples for federation in federations for samples in federation.train])
    states = [ModelState(initial_model(side.plan, task, name)) for side in sides for name in side.federation.names]
    return cohort, cohort.stack(states), sides


def train(cohort: Cohort, stack: Stack, sides: Sequence[Side]) -> None:
    """Train in place until the last aggregation, which makes the models of each side equal."""
    at = np.arange(len(stack))  # row k is at site at[k]
    for stretch in stretches(comm_rounds_of(sides[0].plan), lambda comm_round: False):
        phases = []
        for comm_round in stretch:
            phases.append(Phase(at, comm_round.t, comm_round.rounds))
            at = np.concatenate([_moved(side, at, comm_round) for side in sides])
        cohort.walk(stack, phases, TrainInput())
        _average(stack, sides)


def _moved(side: Side, at: np.ndarray, comm_round: CommRound) -> np.ndarray:
    first, sites = side.rows.start, len(side.federation.names)
    rows: np.ndarray = move_on(side.plan, sites, at[side.rows] - first, comm_round, comm_round) + first
    return rows


def _average(stack: Stack, sides: Sequence[Side]) -> None:
    """Every model of a side becomes their mean; moments stay where they are, counters keep their largest value."""
    for tensor in stack.state.values():
        for side in sides:
            tensor[side.rows] = _mean(tensor[side.rows])


def _mean(tensor: Tensor) -> Tensor:
    return tensor.double().mean(0).to(tensor.dtype) if tensor.is_floating_point() else tensor.amax(0)


def _check_plain(plan: Plan) -> None:
    method = plan.method
    plain = method.model_copy(update={"permute_every": None, "aggregate_every": None, "name": "", "label": ""})
    if plain != type(method)(name="") or plan.method.family != "federated":
        raise PlanError(f"the short simulation knows schedules and the mean only; {method.label!r} is more than that")
