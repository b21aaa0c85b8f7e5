"""Floats under privacy for each patient: the last digits of what leaves must not tell whether a gradient was zero."""

from itertools import product

import numpy as np
import pytest
import torch

from fedsmall.data.federation import Samples, Task
from fedsmall.models.registry import initial_model
from fedsmall.parts import Privacy
from fedsmall.privacy.patient_level import protection_of
from fedsmall.research.attacks.floats import last_digits, step_of
from fedsmall.training.trainer import Indices, Phase, TrainInput
from fedsmall.training.trees import cohort_for
from fedsmall.wire import MODEL, Arrays, ModelState, join, split
from tests.attacks.test_crafted_models import AS_IT_IS, mlp_plan, station_of
from tests.clients.test_data_process import NAMES, files, order, scaled

__all__ = ["files"]  # fixtures
NUMBERS = 768
TYPES = [torch.float32, torch.float64]


def rounded_twice(gradient: float, deviation: float, lr: float, dtype: torch.dtype) -> np.ndarray:
    """What leaves in the place of zeros where noise is a product of floats, added to a gradient."""
    noise = torch.randn(NUMBERS, dtype=torch.float64).to(dtype)
    noise *= torch.tensor([deviation], dtype=dtype)
    return torch.zeros(NUMBERS, dtype=dtype).sub_(noise + gradient, alpha=lr).numpy()


@pytest.mark.parametrize(("deviation", "lr", "dtype"), list(product([1.4, 0.7, 0.013], [1.0, 0.1], TYPES)))
def test_products_of_floats_tell_a_zero_gradient_from_another(deviation, lr, dtype):
    absent = [last_digits(rounded_twice(0.0, deviation, lr, dtype), deviation, lr).off for _ in range(5)]
    present = [last_digits(rounded_twice(0.01 * deviation, deviation, lr, dtype), deviation, lr).off for _ in range(5)]

    assert absent == [0] * 5
    assert min(present) > 0


def test_a_deviation_that_is_a_power_of_two_reaches_every_float():
    assert last_digits(rounded_twice(0.01, 0.5, 1.0, torch.float32), 0.5, 1.0).off == 0


@pytest.mark.parametrize(
    ("numbers", "step"), [([3.0, -4.5], 0.5), ([0.0, 8.0], 8.0), ([2.0**-30, 1.0], 2.0**-30), ([0.0], np.inf)]
)
def test_the_step_of_numbers_is_the_largest_power_of_two_that_divides_all(numbers, step):
    assert step_of(np.array(numbers, np.float32)) == step


def private_plan(**privacy: object):
    promised = Privacy(level="patient", clip=1.0, lot=500, **privacy)
    private = mlp_plan([16], privacy=promised, local_steps=1)
    return private.model_copy(update={"recipe": private.recipe.model_copy(update={"lr": 1.0})})


def zeros(model: Arrays) -> Arrays:
    """Nobody's gradient reaches the first layer."""
    return {name: np.zeros_like(array) for name, array in model.items()}


def zeros_that_let_pass(model: Arrays) -> Arrays:
    """The first layer's weights are the same zeros, and everybody's gradient reaches them."""
    return zeros(model) | {"0.bias": np.ones_like(model["0.bias"]), "2.weight": np.ones_like(model["2.weight"])}


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_the_last_digits_of_a_station_do_not_tell_whether_anybody_moved_a_weight(tmp_path, files, epsilon):
    the_plan = private_plan(epsilon=epsilon)
    station = station_of(tmp_path, files, AS_IT_IS)
    honest = split(scaled(station, the_plan), MODEL)
    left = []
    for t, start in enumerate([zeros(honest), zeros_that_let_pass(honest)], start=1):
        answer, sent = station.answer("train", order(t, the_plan=the_plan), join(**{MODEL: start}))
        assert "error" not in answer
        left.append(split(sent, MODEL)["0.weight"])
    numbers = sum(array.size for array in honest.values())
    deviation = protection_of(the_plan, np.ones(142), NAMES.index("essen"), len(NAMES)).deviation(numbers)

    absent, present = (last_digits(weights, deviation, 1.0) for weights in left)

    assert (absent.off == 0) == (present.off == 0)
    assert absent.step == present.step


TRIALS = 30


@pytest.mark.slow
def test_of_thirty_trials_products_of_floats_tell_all_and_the_grid_tells_none():
    """The attacker calls a patient present where a number is off the grid of products, or the step is another."""
    plan, task = private_plan(epsilon=1.0), Task("digits", (8,), 2, "cross_entropy", ("loss",))
    samples = Samples(np.random.default_rng(0).standard_normal((500, 8)), np.arange(500) % 2)
    cohort = cohort_for(plan, task, ["essen"], [samples], indices=Indices((0,), 1, True))
    model = initial_model(plan, task)
    deviation = protection_of(plan, np.ones(500), 0, 1).deviation(sum(array.size for array in model.values()))

    def left(start: Arrays) -> np.ndarray:
        stack = cohort.stack([ModelState(start)])
        cohort.walk(stack, [Phase(np.array([0]), 1, 1)], TrainInput())
        return stack.parameters["0.weight"][0].numpy() - start["0.weight"]

    by_floats = [
        [last_digits(rounded_twice(g, deviation, 1.0, torch.float32), deviation, 1.0).off for _ in range(TRIALS)]
        for g in (0.0, 0.01 * deviation)
    ]
    on_grid = [
        [last_digits(left(start(model)), deviation, 1.0) for _ in range(TRIALS)]
        for start in (zeros, zeros_that_let_pass)
    ]

    assert (sum(off > 0 for off in by_floats[0]), sum(off > 0 for off in by_floats[1])) == (0, TRIALS)
    for absent, present in zip(zip(*on_grid[0], strict=True), zip(*on_grid[1], strict=True), strict=True):
        above = np.sign(np.subtract.outer(present, absent)).mean()  # 1 or -1 where every present one is told
        assert abs(above) < 0.6  # four standard deviations of chance
    assert len({found.step for found in on_grid[0] + on_grid[1]}) == 1
