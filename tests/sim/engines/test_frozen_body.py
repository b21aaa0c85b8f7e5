"""A frozen body stands still on every engine and at real sites, and is in what they leave."""

from pathlib import Path
from typing import Any

import numpy as np

from fedsmall.methods import method
from fedsmall.models.frozen import frozen_names
from fedsmall.models.registry import common_model, completed
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.tasks import build_federation
from sim.engines.run import run_plan
from tests.sim.engines.test_outcomes import over_real_sites

BODY = "tests.fedsmall.training.test_frozen:frozen_body"
HEAD = {"2.weight", "2.bias"}


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


def test_real_sites_programs_send_a_head_and_hold_the_whole(tmp_path: Path, monkeypatch: Any) -> None:
    plan = plan_of()
    federation = build_federation(plan)

    real = over_real_sites(plan, federation, tmp_path, monkeypatch)

    here = run_plan(plan, federation, "inprocess").model
    assert here is not None
    assert real.model is not None
    assert set(real.model) == HEAD
    whole, body = completed(plan, federation.task, real.model), common_model(plan, federation.task)
    for name, array in whole.items():
        np.testing.assert_array_equal(array, here[name], err_msg=name)
    for name in frozen_names(body):
        np.testing.assert_array_equal(whole[name], body.state_dict()[name].numpy(), err_msg=name)
