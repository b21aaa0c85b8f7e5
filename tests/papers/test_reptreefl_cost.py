"""What replica trees cost: as much as the models they are made of, and no more."""

import time
import tracemalloc

import numpy as np
import pytest
import torch

from fedsmall.data.federation import Samples, Task
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.training.trees import cohort_for
from fedsmall.wire import ModelState

pytestmark = pytest.mark.slow
TASK = Task("images", (1, 28, 28), 2)


def plan_of(model: str, **tree) -> Plan:
    return Plan(
        name="cost",
        task="images",
        model=model,
        model_options={"norm": "batch"},
        rounds=4,
        recipe=Recipe(lr=0.005, batch=20, local_epochs=2),
        method=method("RepTreeFL", tree=tree),
    )


def site(samples: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    return Samples(rng.normal(size=(samples, 1, 28, 28)).astype("float32"), rng.integers(0, 2, samples))


class Trial:
    """Sites that train on the per-site path, one round after another, on the clock of the processor."""

    def __init__(self, plan: Plan, sites: int, samples: int) -> None:
        data = [site(samples, k) for k in range(sites)]
        self.sites, self.t = sites, 0
        self.cohort = cohort_for(plan, TASK, [f"site-{k}" for k in range(sites)], data, path="loop")
        self.stack = self.cohort.stack([ModelState(initial_model(plan, TASK))] * sites)
        self.round()

    def round(self) -> float:
        self.t += 1
        started = time.process_time()
        self.cohort.train(self.stack, range(self.sites), self.t, 1)
        return time.process_time() - started


@pytest.mark.alone
def test_twelve_resnets_in_trees_train_within_a_tenth_of_twelve_times_one():
    torch.set_num_threads(1)
    one = Trial(plan_of("resnet10_cropped", depth=0), 1, 80)
    twelve = Trial(plan_of("resnet10_cropped", depth=1, drop=0.0), 3, 80)

    # in turns, so that whatever else the machine does slows both
    pairs = [(sum(one.round() for _ in range(4)) / 4, twelve.round()) for _ in range(3)]

    assert min(many / single for single, many in pairs) < 1.1 * 12


def test_a_tree_of_depth_three_trains_forty_models_and_keeps_one():
    plan = plan_of("cnn", depth=3, fanout=3, drop=0.1)
    tracemalloc.start()
    cohort = cohort_for(plan, TASK, ["site"], [site(30, 0)])
    stack = cohort.stack([ModelState(initial_model(plan, TASK))])

    cohort.train(stack, [0], 1, 1)

    print(f"40 models of the cnn: {tracemalloc.get_traced_memory()[1] / 2**20:.0f} MB of numpy at the most")
    assert len(stack) == 1
    assert all(np.isfinite(array).all() for array in stack.model_state(0).model.values())
