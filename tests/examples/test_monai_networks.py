"""A network of MONAI as a model of one's own trains as any other does, where MONAI is installed."""

from typing import Any

import numpy as np
import pytest

from examples.monai_networks import HERE, cost
from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.sim.engines.run import run_plan

RNG = np.random.default_rng(0)


def samples(count: int, shape: tuple[int, ...]) -> Samples:
    return Samples(RNG.normal(size=(count, *shape)), np.arange(count) % 2)


def test_a_cost_counts_what_a_network_has() -> None:
    told = cost("cnn", {"norm": "batch"}, (1, 8, 8))

    assert (told.parameters, told.buffers) == (32 * 9 + 32 + 64 * 32 * 9 + 64 + 2 * 96 + 64 * 4 * 2 + 2, 6)
    assert told.step_s > 0


@pytest.mark.parametrize(("options", "shape"), [({"norm": "batch"}, (1, 64, 64)), ({"norm": "group"}, (1, 32, 32, 32))])
def test_a_densenet_of_monai_trains_alike_on_two_engines(options: dict[str, Any], shape: tuple[int, ...]) -> None:
    pytest.importorskip("monai")
    plan = Plan(
        name="x",
        task="scans",
        model=f"{HERE}:densenet121",
        model_options=options,
        rounds=2,
        recipe=Recipe(lr=0.0001),
        method=method("FedAvg"),
        dtype="float64",
    )
    task = Task("scans", shape, 2, metrics=("accuracy", "loss"))
    held = Federation(task, ("bonn", "essen"), (samples(4, shape), samples(3, shape)), samples(2, shape))

    one, other = (run_plan(plan, held, engine).model for engine in ("cohort", "inprocess"))

    assert one is not None
    assert other is not None
    assert any(name.endswith("running_var") for name in one) == (options["norm"] == "batch")
    start = initial_model(plan, task)
    for name, array in one.items():
        np.testing.assert_allclose(array, other[name], rtol=0, atol=1e-9, err_msg=name)
    moved = [name for name in one if "running" in name or name.endswith("out.weight")]
    assert all(np.abs(one[name] - start[name]).max() > 0 for name in moved)
    assert moved
