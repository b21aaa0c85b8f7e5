"""Hospitals that want graphs of different resolutions and share the layers that they have in common."""

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.graph_data import hospitals
from fedsmall.methods import method
from fedsmall.mixed import SHARED_PART
from fedsmall.plan import Plan, Recipe
from sim.mixed import run_mixed

SMALL, LARGE = f"{__name__}:small", f"{__name__}:large"
REGIONS = (12, 12, 16, 16)


def small(task):
    from fedsmall.graphs import g1

    return g1(task, widths=(6, 12))


def large(task):
    from fedsmall.graphs import g2

    return g2(task, widths=(6, 12, 16))


def plan_of(name: str, **parts) -> Plan:
    return Plan(
        name="graphs",
        task="connectomes",
        model=SHARED_PART,
        model_options={"sites": [SMALL, SMALL, LARGE, LARGE], "shared": ["conv1", "norm1", "conv2", "norm2"]},
        sites=4,
        rounds=2,
        recipe=Recipe(lr=0.1, batch=5, local_epochs=1),
        method=method(name, **parts),
    )


@pytest.fixture(scope="module")
def federation():
    return hospitals(plan_of("FedAvg"), REGIONS, subjects=32)


def test_every_subject_is_at_one_hospital_and_wants_its_resolution(federation):
    assert [samples.y.shape[1] for samples in federation.train] == [66, 66, 120, 120]
    assert sum(map(len, (*federation.train, *federation.held_out))) == 32
    rows = np.concatenate([samples.x for samples in (*federation.train, *federation.held_out)])
    assert len(np.unique(rows[:, 0])) == 32


@pytest.mark.parametrize("name", ["FedAvg", "FedDyn", "FedDC", "RepFL", "RepTreeFL"])
def test_hospitals_with_different_networks_learn_together(federation, name):
    parts = {"tree": {"fanout": 2, "drop": 0.2}} if name.startswith("Rep") else {}

    outcome = run_mixed(plan_of(name, **parts), federation)

    last = outcome.evaluations[-1]
    assert outcome.model is not None
    assert {key.split(".")[0] for key in outcome.model} == {"conv1", "norm1", "conv2", "norm2"}
    assert len(last.sites["per_site"]["mae"]) == 4
    assert set(last.extra["held_out"]) == set(federation.names)
    assert np.isfinite(last.sites["mae_mean"])


def test_sharing_layers_moves_them_to_the_same_place_at_all_hospitals(federation):
    together, alone = (run_mixed(plan_of(name), federation) for name in ("FedAvg", "Standalone"))

    assert together.model is not None
    assert alone.model is None
    assert together.bytes_sent > 0 == alone.bytes_sent


@pytest.mark.parametrize(
    ("change", "message"),
    [({"model": "mlp", "model_options": {}}, "is one for all sites"), ({}, "needs samples held out")],
)
def test_a_run_that_could_not_be_judged_is_refused(federation, change, message):
    from dataclasses import replace

    plan = plan_of("FedAvg").model_copy(update=change)
    given = federation if change else replace(federation, held_out=(None,) * 4)

    with pytest.raises(PlanError, match=message):
        run_mixed(plan, given)
