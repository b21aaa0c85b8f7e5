"""Class weights that real sites agree on, over a consortium of real processes."""

import json

import numpy as np
import pytest

from examples.loopback import LoopbackConsortium
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.scenario import build

pytestmark = pytest.mark.slow

OPEN = "least_sites = 2\nleast_blur = 0\nmost_read = 1000\nleast_batch = 1\nsealed = false\n"


def test_sites_agree_on_balanced_weights_and_train_as_a_simulation_does(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("w")  # the path of a socket may not be long
    folder = tmp_path / "tables"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("bonn", "essen"):
        rows = [f"{x + (k % 4 == 0):.4f},{'ill' if k % 4 == 0 else 'well'}" for k, x in enumerate(rng.normal(size=64))]
        (folder / f"{name}.csv").write_text("\n".join(["marker,outcome", *rows]))
    task = {"csv": str(folder), "label": "outcome", "classes": ["well", "ill"]}
    scenario = build(
        {
            "name": "weights",
            "task": task,
            "partition": {"natural": "file"},
            "model": "linear",
            "rounds": 4,
            "recipe": {"class_weights": "balanced"},
            "method": [{"name": "FedAvg", "privacy": {"blur": 0.0}}],
        }
    )
    plan: Plan = scenario.plans()[0]
    simulated = run_plan(plan, build_federation(plan), "cohort")

    with LoopbackConsortium(tmp_path, {name: folder / f"{name}.csv" for name in ("bonn", "essen")}, OPEN) as live:
        own = plan.model_copy(update={"task": {**task, "csv": "table.csv"}})
        outcome = live.finish("weights", live.start("weights", own))
        weights = json.loads((live.home("weights") / "class_weights.json").read_text())
        from safetensors.numpy import load_file

        model = load_file(live.home("weights") / "model.safetensors")

    assert outcome["comm_rounds"] == 4
    assert weights == pytest.approx([48 / (2 * 36), 48 / (2 * 12)])
    for name, array in simulated.model.items():
        assert np.allclose(model[name], array, atol=1e-6)
