"""Dynamic averages in a run: what they are at either end of the bound, what they cost, and what is refused."""

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_plan
from fedsmall.sim.engines.run import run_plan
from tests.sim.engines.harness import (
    RESET,
    assert_equal_bits,
    batched,
    plan_of,
    table,
)
from tests.sim.engines.plans import ALWAYS, BETWEEN, NEVER, STAY, dynamic


@pytest.mark.parametrize(
    ("settings", "changes"),
    [
        ({}, {}),
        ({"weighted": True}, {"partition": {"sizes": "skewed"}}),
        ({}, {"recipe": RESET}),
        ({}, {"recipe": STAY, "dtype": "float32"}),
        ({}, {"task": "digits", "model": "cnn", "model_options": {"norm": "batch"}, "rounds": 3, "sites": 3}),
        ({}, {"sites": 1}),
    ],
)
@pytest.mark.parametrize("every", [1, 2])
def test_where_no_distance_is_allowed_it_is_federated_averaging_to_the_bit(settings, changes, every):
    one, other = (batched(dynamic(bound, every, settings, **changes)) for bound in (ALWAYS, None))

    assert_equal_bits(one.model, other.model)
    assert one.bytes_sent == other.bytes_sent
    assert one.averaged == [(dynamic(None, **changes).sites, True)] * one.comm_rounds
    assert [each.common for each in one.evaluations] == [each.common for each in other.evaluations]


def test_where_every_distance_is_allowed_nothing_is_sent_until_the_last_average():
    one, other = batched(dynamic(NEVER, 2)), batched(dynamic(None, None))

    assert_equal_bits(one.model, other.model)
    assert one.bytes_sent == other.bytes_sent
    assert one.averaged == [(0, False)] * 4 + [(5, True)]


@pytest.mark.parametrize("every", [1, 3])
def test_between_the_two_averages_are_left_out_partial_and_whole_and_bytes_are_those_of_models_sent(every):
    outcome = batched(dynamic(BETWEEN if every == 1 else 0.08, every, rounds=24))

    took, size = [models for models, _ in outcome.averaged], sum(array.nbytes for array in outcome.model.values())
    back = [5 if whole else models for models, whole in outcome.averaged[:-1]]
    assert outcome.bytes_sent == (5 + sum(took) + sum(back)) * size
    assert {"left out" if not models else "whole" if whole else "partial" for models, whole in outcome.averaged} == {
        "left out",
        "partial",
        "whole",
    }


def test_the_common_model_is_the_last_that_all_had():
    outcome = batched(dynamic(BETWEEN, rounds=24, evaluate_every=1))

    worth = [evaluation.common["loss"] for evaluation in outcome.evaluations]
    for before, now, (_, whole) in zip(worth, worth[1:], outcome.averaged[1:], strict=False):
        assert (now == before) == (not whole)


def test_a_site_without_a_finite_model_is_passed_over():
    plan = dynamic(ALWAYS, 2, sites=None, samples_per_site=None)
    federation = table(plan, 4, wild=(1,))

    outcome = batched(plan, federation)

    assert outcome.averaged == [(3, True)] * 5
    assert {event["site"] for event in outcome.events} == {"site-1"}
    assert all(np.isfinite(array).all() for array in outcome.model.values())


def test_the_record_says_how_many_averages_were_left_out():
    plan = dynamic(BETWEEN, rounds=24)

    record = run_plan(plan, build_federation(plan), "cohort")

    assert len(record.averaged) == 24
    assert not record.read


def test_how_often_a_model_is_looked_at_must_be_said():
    plan = plan_of("FedAvg", {"aggregate_every": None, "divergence": 1.0})

    with pytest.raises(PlanError, match="say how many"):
        check_plan(plan, build_federation(plan_of()).task, 5)


@pytest.mark.parametrize("bound", [0, -1.0, float("inf"), float("nan"), "far"])
def test_a_bound_is_a_number_above_nothing(bound):
    with pytest.raises(PlanError, match="divergence"):
        method("FedAvg", divergence=bound)
