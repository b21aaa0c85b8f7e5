import numpy as np
import pytest

from fedsmall.algorithm.daisy_chain import daisy_chain, topology_for
from fedsmall.extensions.audit.federations import batches_of, side_by_side, world_of
from fedsmall.methods import METHODS
from fedsmall.models.registry import initial_model
from fedsmall.training.trees import cohort_for
from fedsmall.travel.schedule import comm_rounds_of
from tests.extensions.audit.worlds import plan_of

ASKED = {name: plan_of(name, dtype="float64") for name in METHODS if METHODS[name].parts.get("aggregator") != "radon"}
ASKED |= {
    "a fraction": plan_of(settings={"fraction": 0.5, "aggregate_every": 3}, dtype="float64"),
    "noise": plan_of(settings={"privacy": {"clip": 0.1, "noise": 1.0}, "aggregate_every": 3}, dtype="float64"),
    "blur": plan_of(settings={"privacy": {"blur": 1.0}, "aggregate_every": 3}, dtype="float64"),
    "patients": plan_of(
        settings={"privacy": {"level": "patient", "clip": 1.0, "noise": 1.0, "lot": 2}, "aggregate_every": 3},
        dtype="float64",
    ),
    "patients' epsilon": plan_of(
        settings={"privacy": {"level": "patient", "clip": 1.0, "epsilon": 3.0, "lot": 2}, "aggregate_every": 3},
        dtype="float64",
    ),
    "momentum": plan_of(dtype="float64", recipe={"lr": 0.05, "momentum": 0.9}),
    "batches": plan_of(dtype="float64", recipe={"lr": 0.05, "batch": 2, "local_epochs": 2}),
    "models of their own": plan_of(dtype="float64", initial_models="independent"),
    "weights": plan_of("FedAvg", {"weighted": True, "aggregate_every": 2}, dtype="float64"),
    "trees of several kinds": plan_of("RepFL", {"tree": {"fanout": [1, 2, 3, 1]}}, dtype="float64"),
}
ASKED = {
    name: plan
    for name, plan in ASKED.items()
    if name != "Central" and plan.method.trains_networks and not plan.method.is_ensemble
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ASKED)
def test_every_federation_is_the_one_that_the_engine_runs(name):
    plan = ASKED[name]
    world = world_of(plan)
    members = np.stack([world.coins(run) for run in range(3)])
    steps = list(_kept(side_by_side(plan, world, members)))

    for run, row in enumerate(members):
        names = [f"{run:05d}/{site}" for site in world.names]
        trainer = cohort_for(plan, world.task, names, world.samples(row))

        def initial(site):
            return initial_model(plan, world.task, site and site.partition("/")[2])

        moments = daisy_chain(topology_for(plan, trainer, initial), comm_rounds_of(plan), lambda comm_round: True)
        for result, step in zip(moments, steps, strict=True):
            assert result.comm_round == step.comm_round
            order = run * len(step.at) + np.argsort(step.at)
            for array, expected in result.models().items():
                np.testing.assert_allclose(step.sent[array][order], expected, atol=1e-9)
            assert (result.global_model is None) == (not step.global_models)
            for array, expected in (result.global_model or {}).items():
                np.testing.assert_allclose(step.global_models[array][run], expected, atol=1e-9)


def _kept(steps):
    """Steps whose models stay what they are when the walk goes on."""
    for step in steps:
        yield step._replace(sent={name: tensor.clone() for name, tensor in step.sent.items()})


def test_federations_are_cut_so_that_their_models_fit():
    members = np.zeros((10, 4), dtype=bool)

    assert [len(part) for part in batches_of(members, models=5, parameters=100, most=1600)] == [3, 3, 3, 1]
    assert [len(part) for part in batches_of(members, models=5, parameters=100, most=10)] == [1] * 10
