"""Layers with ``requires_grad_(False)``: they stand still, compute as in evaluation, and nobody is sent them."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.models.networks import frozen_names, training_mode
from fedsmall.models.registry import build_model, build_network, completed, frozen_arrays, initial_model
from fedsmall.plan import Plan
from fedsmall.sim import run
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.training.cohort import Cohort
from fedsmall.training.gradients.layers import halves
from fedsmall.wire import ModelState
from tests import only_quick
from tests.fedsmall.training.cohorts import IMAGES, TABLE, plan_for, samples_for
from tests.sim.engines.on_ray import on_ray

HERE = "tests.fedsmall.training.test_frozen"


def frozen_body(task: Task) -> nn.Module:
    """A convolution with BatchNorm and dropout, all frozen, under a linear head."""
    body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)).requires_grad_(False)
    body[1].running_mean = torch.linspace(-1, 1, 4)
    return nn.Sequential(body, nn.Flatten(), nn.Linear(4 * 36, task.outputs))


def frozen_middle(task: Task) -> nn.Module:
    """What is frozen lies behind a layer that trains, so that it cannot be worked out beforehand."""
    middle = nn.Linear(7, 5).requires_grad_(False)
    return nn.Sequential(nn.Linear(6, 7), nn.ReLU(), middle, nn.ReLU(), nn.Linear(5, task.outputs))


def frozen_bias(task: Task) -> nn.Module:
    model = nn.Linear(6, task.outputs)
    model.bias.requires_grad_(False)
    return nn.Sequential(model)


def all_frozen(task: Task) -> nn.Module:
    return nn.Linear(6, task.outputs).requires_grad_(False)


CASES = [(frozen_body, IMAGES), (frozen_middle, TABLE), (frozen_bias, TABLE)]
named = pytest.mark.parametrize(("model", "task"), CASES, ids=lambda case: getattr(case, "__name__", ""))


def _plan(model: Any, rounds: int = 50, **recipe: Any) -> Plan:
    return plan_for(f"{HERE}:{model.__name__}", {}, rounds=rounds, **recipe)


def _by_torch(plan: Plan, task: Task, samples: Any) -> nn.Module:
    """The oracle: torch's own SGD over the whole model, frozen layers in eval mode, full batches."""
    model = training_mode(build_network(plan, task).double())
    free = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(free, lr=plan.recipe.lr)
    x, y = torch.from_numpy(samples.x), torch.from_numpy(samples.y)
    for _ in range(plan.rounds):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@named
def test_what_is_free_trains_as_torch_trains_it_and_what_is_frozen_stays(model: Any, task: Task) -> None:
    plan = _plan(model, lr=0.1, local_steps=1, batch=None)
    names, samples = samples_for(task, [6, 6])
    cohort = Cohort(plan, task, names, samples)
    stack = cohort.stack([ModelState(initial_model(plan, task, name)) for name in names])

    cohort.train(stack, [0, 1], plan.rounds, plan.rounds)

    for row, mine in enumerate(samples):
        whole = completed(plan, task, stack.model_state(row).model)
        oracle = _by_torch(plan, task, mine).state_dict()
        assert set(whole) == set(oracle)
        for name, array in whole.items():
            np.testing.assert_allclose(array, oracle[name].numpy(), atol=1e-10, err_msg=name)
    moved = [name for name, array in initial_model(plan, task).items() if (array != whole[name]).any()]
    assert moved == list(initial_model(plan, task))


def test_a_head_behind_a_frozen_body_is_a_linear_model() -> None:
    plan = _plan(frozen_body)

    cohort = Cohort(plan, IMAGES, *samples_for(IMAGES, [4]))

    assert cohort.path == "mlp"
    assert list(initial_model(plan, IMAGES)) == ["2.weight", "2.bias"]


def test_features_are_the_same_bits_in_any_company() -> None:
    seen = halves(_plan(frozen_body), IMAGES).seen
    x = samples_for(IMAGES, [9])[1][0].x

    together = seen(x)

    assert together.shape == (9, 4, 6, 6) or together.shape == (9, 144)
    np.testing.assert_array_equal(together[[4]], seen(x[4:5]))


@pytest.mark.parametrize("path", ["loop", "vmap"])
@named
def test_paths_agree(model: Any, task: Task, path: str) -> None:
    plan = _plan(model, rounds=3, lr=0.1, local_steps=2, batch=2)
    names, samples = samples_for(task, [5, 4])
    ends = []
    for way in ("loop", path, "auto"):
        cohort = Cohort(plan, task, names, samples, path=way)
        stack = cohort.stack([ModelState(initial_model(plan, task, name)) for name in names])
        cohort.train(stack, [0, 1], 3, 3)
        ends.append({name: tensor.numpy() for name, tensor in stack.state.items()})
    for name, array in ends[0].items():
        for other in ends[1:]:
            np.testing.assert_allclose(array, other[name], atol=1e-12, err_msg=name)


def test_sites_that_start_apart_have_one_frozen_body() -> None:
    plan = _plan(frozen_body).model_copy(update={"initial_models": "independent"})

    one, other = (initial_model(plan, IMAGES, name) for name in ("essen", "graz"))

    assert (one["2.weight"] != other["2.weight"]).any()
    assert set(frozen_arrays(plan, IMAGES)) == frozen_names(build_network(plan, IMAGES))
    assert not set(one) & set(frozen_arrays(plan, IMAGES))


def test_a_model_of_which_nothing_trains_is_refused() -> None:
    with pytest.raises(PlanError, match=r"every layer of model .* is frozen; leave one free to train"):
        build_model(f"{HERE}:all_frozen", TABLE, {}, np.random.default_rng(0))


@on_ray
@pytest.mark.parametrize("engine", ["cohort", "inprocess", pytest.param("ray", marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", only_quick(["FedDC"], ["FedDC", "SCAFFOLD", "FedAdam", "RepTreeFL"]))
def test_a_frozen_body_is_in_no_message_and_in_the_package(engine: str, method: str, monkeypatch: Any) -> None:
    sent: set[str] = set()
    answer = InProcessGrid._answer

    def seen(self: InProcessGrid, order: Any) -> Any:
        reply = answer(self, order)
        for message in (order, reply):
            sent.update(name for record in message.content.array_records.values() for name in record)
        return reply

    monkeypatch.setattr(InProcessGrid, "_answer", seen)
    rng = np.random.default_rng(0)
    sites = {name: (rng.normal(size=(8, 1, 8, 8)), np.arange(8) % 3) for name in ("essen", "graz", "ulm")}
    options = {"aggregate_every": 10} if method == "FedDC" else {}

    result = run(
        sites=sites,
        methods=[{"name": method, **options}],
        model=f"{HERE}:frozen_body",
        rounds=50 if method == "FedDC" else 4,
        engine=engine,
        recipe={"lr": 0.05, "local_steps": 1},
        seeds=[3],
    )

    plan = result.run.done[0].plan
    body = build_network(plan, IMAGES).state_dict()
    held = result.model.state_dict()
    for name in frozen_names(build_network(plan, IMAGES)):
        np.testing.assert_array_equal(held[name].numpy(), body[name].numpy())
    assert (held["2.weight"] != body["2.weight"]).any()
    assert bool(sent) == (engine == "inprocess")
    assert {name.split("/")[-1] for name in sent} <= {"2.weight", "2.bias", "step"}
