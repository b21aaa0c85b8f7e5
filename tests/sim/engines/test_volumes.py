"""Whole volumes on every engine: the batched one, messages, and real sites' programs, each with files of its own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.handshake import agree_on_task
from fedsmall.strategies.server.site_judges import evaluator_for
from tests.fedsmall.data.pictures.test_volumes import folder
from tests.sim.engines.harness import ByMessages
from tests.sim.engines.stations import Stations

NAMES = ("bonn", "essen", "ulm")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    """Three hospitals with ten volumes each."""
    for name in NAMES:
        folder(tmp_path / "scans" / name)
    task = {"images": str(tmp_path / "scans"), "volume": True, "size": [6, 8, 5], "range": [-50, 400]}
    return Plan(
        name="x",
        task={**task, "classes": ["ill", "well"]},
        partition={"natural": "folder"},
        model="cnn3d",
        model_options={"widths": [4, 8]},
        rounds=4,
        recipe=Recipe(lr=0.05, batch=4, local_steps=2),
        method=method("FedDC", permute_every=1, aggregate_every=2),
        dtype="float64",
    )


def test_the_batched_engine_and_messages_agree(plan: Plan) -> None:
    federation = build_federation(plan)

    one, other = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))

    assert federation.train[0].x.shape[1:] == (1, 6, 8, 5)
    assert one.model is not None
    assert other.model is not None
    start = initial_model(plan, federation.task)
    for name, array in one.model.items():
        np.testing.assert_allclose(array, other.model[name], rtol=0, atol=1e-10)
        assert np.abs(array - start[name]).max() > 1e-4


@pytest.mark.thorough
def test_real_sites_programs_give_the_bits_of_a_simulation(plan: Plan, tmp_path: Path, monkeypatch: Any) -> None:
    plan = plan.model_copy(update={"dtype": "float32"})
    simulated = run_plan(plan, build_federation(plan), "inprocess")
    data = {name: tmp_path / "scans" / name for name in NAMES}

    grid, roster = Stations(tmp_path, NAMES, monkeypatch, data=data), Roster()
    task = agree_on_task(roster, grid, plan)
    judges = evaluator_for(roster, grid, plan)
    start = lambda site: initial_model(plan, task, site)  # noqa: E731
    real = ByMessages(plan, grid, start, judges, in_pieces=False, roster=roster).run()

    assert not real.events
    assert simulated.model is not None
    assert real.model is not None
    for name, array in real.model.items():
        assert array.tobytes() == simulated.model[name].tobytes(), name
