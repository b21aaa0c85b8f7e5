"""One poisoned site of twenty costs little, and ends no run."""

import numpy as np
import pytest

from examples.poisoned_sites import SCHEDULES, outcome, plan_of
from fedsmall.errors import ReplyError


@pytest.mark.thorough
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("aggregator", ["mean", "median"])
def test_with_the_gate_a_scaled_model_costs_less_than_five_points(schedule, aggregator):
    plan = plan_of(schedule, aggregator, 20.0, rounds=20)

    honest, nothing = outcome(plan, "none")

    assert nothing == 0
    for attack in ("scaled x1e3", "scaled x1e30"):
        poisoned, events = outcome(plan, attack)
        assert abs(honest["accuracy"] - poisoned["accuracy"]) < 5
        assert events


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_without_the_gate_it_ends_the_run_or_spoils_the_model(schedule):
    plan = plan_of(schedule, "mean", False, rounds=40)

    try:
        accuracy = outcome(plan, "scaled x1e30")[0]["accuracy"]
    except ReplyError:
        accuracy = np.nan

    assert not accuracy > 80
