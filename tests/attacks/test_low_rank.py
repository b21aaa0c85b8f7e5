"""A whole batch from one honest update, where units outnumber patients (SPEAR); noise of any kind ends it."""

import numpy as np
import pytest

from fedsmall.clients.self_check import _read_in, read_low_rank
from fedsmall.models.registry import initial_model
from fedsmall.planning.tasks import build_federation
from fedsmall.privacy.reading import records_read
from fedsmall.research.attacks.crafted import distances_to_records
from fedsmall.training.trainer import Phase, TrainInput
from fedsmall.training.trees import cohort_for
from fedsmall.wire import ModelState
from tests.extensions.audit.worlds import plan_of


def read(batch: int, task: str = "digits", steps: int = 1, **privacy: float) -> int:
    """How many of a site's patients are read to 1% from its first update, in which all are in every batch."""
    recipe = {"lr": 0.1, "batch": batch, "local_steps": steps}
    settings = {"aggregate_every": 1, "privacy": privacy or {"blur": 0.0}}
    plan = plan_of("FedAvg", settings, task=task, model_options={"hidden": [64]}, recipe=recipe, sites=3)
    federation = build_federation(plan.model_copy(update={"samples_per_site": batch}))
    samples = federation.train[0]
    start = initial_model(plan, federation.task)
    cohort = cohort_for(plan, federation.task, ["site"], [samples])
    stack = cohort.stack([ModelState(start)])
    cohort.walk(stack, [Phase(np.array([0]), 1, 1)], TrainInput())
    sent = stack.model_state(0).model
    found = read_low_rank(start, sent, next(iter(start)).removesuffix(".weight"), np.random.default_rng(0))
    return int((distances_to_records(found, samples.x) <= 0.01).sum())


@pytest.mark.parametrize("batch", [2, 8])
def test_a_batch_without_noise_is_read_nearly_whole(batch):
    assert read(batch) >= batch - 1


def test_several_steps_on_the_same_patients_are_read_alike():
    assert read(4, steps=3) >= 3


def test_a_batch_of_many_is_not_read_so():
    assert read(32) == 0


@pytest.mark.parametrize("batch", [2, 4])
def test_noise_of_an_exposure_leaves_nothing_of_low_rank(batch):
    assert read(batch, exposure=1.0) == 0


@pytest.mark.parametrize(("noise", "count"), [(0.0, 5), (0.01, 0)])
def test_a_station_finds_by_rank_whom_no_division_gives_away(noise, count):
    """Every unit sees several patients: of five no unit's quotient, nor that of two, is a record."""
    rng = np.random.default_rng(0)
    x, slopes = rng.standard_normal((5, 6)), rng.standard_normal((90, 5)) * (rng.random((90, 5)) < 0.6)
    slopes[(slopes != 0).sum(axis=1) < 3] = 0
    start = {"0.weight": np.zeros((90, 6)), "0.bias": np.zeros(90)}
    sent = {"0.weight": slopes @ x + noise * rng.standard_normal((90, 6)), "0.bias": slopes.sum(axis=1)}

    assert not records_read(start, sent, x).any()
    assert _read_in("0", start, sent, x, 0.01).sum() == count


def test_a_layer_without_a_bias_is_not_read_by_its_rank():
    start, sent = ({"0.weight": number * np.ones((4, 3))} for number in (0, 1))

    assert read_low_rank(start, sent, "0", np.random.default_rng(0)).shape == (0, 3)
