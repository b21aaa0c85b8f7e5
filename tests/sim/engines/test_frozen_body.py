"""A frozen body stands still on every engine and at real sites, and is in what they leave."""

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from torch import nn

from fedsmall.clients.runs import RUNS, run_folder
from fedsmall.data.federation import Task, task_from
from fedsmall.extensions.audit.own_site import hold_against
from fedsmall.methods import method
from fedsmall.models.networks import frozen_names
from fedsmall.models.registry import build_network, completed
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import run_plan
from tests.sim.consortium.real_run import files, real_run
from tests.sim.consortium.real_run import plan_of as real_plan_of
from tests.sim.engines.on_ray import on_ray
from tests.sim.engines.test_outcomes import over_real_sites

HERE = "tests.sim.engines.test_frozen_body"
BODY = "tests.fedsmall.training.test_frozen:frozen_body"
HEAD = {"2.weight", "2.bias"}


def frozen_table(task: Task) -> nn.Module:
    """Features of a table that nobody trains, under a linear head."""
    body = nn.Sequential(nn.Linear(*task.input_shape, 8), nn.BatchNorm1d(8), nn.Tanh()).requires_grad_(False)
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(8, task.outputs)))


def plan_of(rounds: int = 8) -> Plan:
    return Plan(
        name="test",
        task="digits",
        model=BODY,
        sites=5,
        samples_per_site=8,
        test=20,
        rounds=rounds,
        recipe=Recipe(lr=0.05, batch=4, local_steps=2),
        method=method("FedDC", permute_every=1, aggregate_every=4),
    )


@pytest.mark.thorough
def test_real_sites_programs_send_a_head_and_hold_the_whole(tmp_path: Path, monkeypatch: Any) -> None:
    plan = plan_of()
    federation = build_federation(plan)

    real = over_real_sites(plan, federation, tmp_path, monkeypatch)

    here = run_plan(plan, federation, "inprocess").model
    assert here is not None
    assert real.model is not None
    assert set(real.model) == HEAD
    whole, body = completed(plan, federation.task, real.model), build_network(plan, federation.task)
    for name, array in whole.items():
        np.testing.assert_array_equal(array, here[name], err_msg=name)
    for name in frozen_names(body):
        np.testing.assert_array_equal(whole[name], body.state_dict()[name].numpy(), err_msg=name)


@on_ray
@pytest.mark.slow
def test_ray_has_the_bits_of_this_process() -> None:
    plan = plan_of()
    federation = build_federation(plan)

    here, there = (run_plan(plan, federation, engine).model for engine in ("inprocess", "ray"))

    assert here is not None
    assert there is not None
    assert set(there) == set(build_network(plan, federation.task).state_dict())
    for name, array in here.items():
        np.testing.assert_array_equal(array, there[name], err_msg=name)


@pytest.mark.thorough
def test_the_folder_of_a_real_run_has_the_whole_model(tmp_path: Path, monkeypatch: Any) -> None:
    plan = real_plan_of(f'model="{HERE}:frozen_table"', "model_options={}")

    home = real_run(tmp_path, plan, monkeypatch, policy=f'functions = ["{HERE}:frozen_table"]\n')

    task = task_from(json.loads((home / "outcome.json").read_text())["task"])
    body = build_network(plan, task).state_dict()
    (package,) = (home / "packages").iterdir()
    for path in (home / "model.safetensors", package / "model.safetensors"):
        held = load_file(path)
        assert list(sorted(held)) == sorted(body)
        for name in frozen_names(build_network(plan, task)):
            np.testing.assert_array_equal(held[name], body[name].numpy(), err_msg=name)
        assert (held["head.weight"] != body["head.weight"].numpy()).any()
    data = files(tmp_path)["bonn"]
    assert hold_against(run_folder(tmp_path / "bonn" / RUNS, "trial"), "bonn", data).trained > 0
