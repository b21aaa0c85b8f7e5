"""Whatever a run does, it does where it is told: on a second device here, and on a GPU where torch sees one."""

import pytest
import torch

from fedsmall.clients import client_app
from fedsmall.errors import PlanError
from fedsmall.models.registry import initial_model
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.ray import gpu_share
from fedsmall.sim.engines.run import ENGINES, run_plan, versions
from fedsmall.training import cuda_graphs
from fedsmall.training import device as devices
from fedsmall.training.trees import cohort_for
from tests.fedsmall.training.second_device import second_device
from tests.sim.engines.devices import RUNS, WITHIN, run_on
from tests.sim.engines.harness import (
    ADAM,
    assert_alike,
    assert_equal_bits,
    batched,
    federation_of,
    loop_of,
    plan_of,
)
from tests.sim.engines.on_ray import on_ray

REPLAYED_WITHIN = {"models of their own": 1e-13}  # which no GPU repeats to the bit


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS)
def test_no_operation_mixes_devices_and_the_numbers_are_those_of_the_cpu(run: str) -> None:
    here = run_on("cpu", run)

    with second_device() as place:
        there = run_on(place, run)

    assert_alike(here, there, WITHIN.get(run, 0))


@pytest.mark.thorough
def test_a_client_trains_and_judges_on_its_own_device(monkeypatch) -> None:
    plan = plan_of("SCAFFOLD", {"aggregate_every": 2}, rounds=4)
    here = loop_of(plan).run()

    with second_device() as place:
        monkeypatch.setattr(client_app, "cohort_for", lambda *args, **how: cohort_for(*args, **how | {"device": place}))
        client_app._cohorts.clear()
        there = loop_of(plan).run()
        devices = {trainer.device for _, trainer in client_app._cohorts.values()}
        client_app._cohorts.clear()

    assert devices == {place}
    assert_equal_bits(here.model, there.model)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_refuses_a_device_that_is_not_here(engine: str) -> None:
    plan = plan_of()

    with pytest.raises(PlanError, match='device = "cuda:9": not here; this machine has cpu'):
        run_plan(plan, build_federation(plan), engine, options={"device": "cuda:9"})


@pytest.mark.parametrize("engine", ["cohort", "inprocess"])
def test_a_record_says_where_its_models_trained(engine: str) -> None:
    plan = plan_of(rounds=1)

    record = run_plan(plan, build_federation(plan), engine, options={"device": "auto"})

    assert record.device == "cpu"  # too small a model to be worth a GPU


def test_a_record_names_the_cuda_of_a_torch_that_has_one(monkeypatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    assert versions()["cuda"] == "13.0"


def test_a_node_is_told_its_device_by_its_config_or_its_environment(monkeypatch) -> None:
    asked: list[str] = []

    def noting(*args, device, **how):
        asked.append(device)
        return cohort_for(*args, **how)

    monkeypatch.setattr(client_app, "cohort_for", noting)
    plan = plan_of(rounds=1)
    for variable, words in (("", None), ("auto", None), ("auto", {"device": "cpu"})):
        monkeypatch.setenv(client_app.DEVICE_VARIABLE, variable) if variable else None
        client_app._cohorts.clear()
        run_plan(plan, build_federation(plan), "inprocess", options=words) if words else loop_of(plan).run()

    assert asked == ["cpu"] * 5 + ["auto"] * 5 + ["cpu"] * 5


def test_ray_gives_an_actor_its_part_of_a_gpu() -> None:
    assert gpu_share(torch.device("cpu")) == 0
    assert gpu_share(torch.device("cuda")) == 0.25
    with pytest.raises(PlanError, match='say device = "cuda" in place of "cuda:1"'):
        gpu_share(torch.device("cuda:1"))


def test_a_run_that_no_memory_holds_is_refused_before_it_is_taken(monkeypatch):
    plan = plan_of("FedDC", sites=4, recipe=ADAM)
    federation = federation_of(plan)
    bytes_each = (
        3 * 8 * sum(array.size for array in initial_model(plan, federation.task).values())
    )  # weights, two moments
    monkeypatch.setattr(devices, "room_of", lambda device: 4 * bytes_each)
    batched(plan)
    monkeypatch.setattr(devices, "room_of", lambda device: 4 * bytes_each - 1)

    with pytest.raises(PlanError, match=r"4 models of .* MB, moments included, take .* GB, and cpu has"):
        batched(plan)


def test_models_that_travel_in_few_are_counted_and_not_the_sites(monkeypatch):
    plan = plan_of("TravellingModel", {}, sites=4)
    federation = federation_of(plan)
    one = 8 * sum(array.size for array in initial_model(plan, federation.task).values())
    monkeypatch.setattr(devices, "room_of", lambda device: one)

    batched(plan)


# -- where torch sees a GPU: `make test-gpu` --------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("run", RUNS)
def test_a_gpu_gives_the_numbers_of_the_cpu_in_float64(run: str) -> None:
    assert_alike(run_on("cpu", run), run_on("cuda", run), 1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("run", ["FedDC", "moments that travel", "convolutions", "BatchNorm", "trees that travel"])
def test_a_gpu_gives_the_same_bits_twice(run: str) -> None:
    assert_equal_bits(run_on("cuda", run).model, run_on("cuda", run).model)


@pytest.mark.gpu
@pytest.mark.parametrize("run", RUNS)
def test_steps_that_are_replayed_give_the_bits_of_steps_that_are_not(run: str, monkeypatch) -> None:
    monkeypatch.setattr(cuda_graphs, "RECORDED_AFTER", 10**9)
    plain = run_on("cuda", run)
    monkeypatch.setattr(cuda_graphs, "RECORDED_AFTER", 1)
    replayed = run_on("cuda", run)

    assert_alike(plain, replayed, REPLAYED_WITHIN.get(run, 0))


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ["cohort", "inprocess"])
def test_an_engine_trains_on_a_gpu_and_says_so(engine: str) -> None:
    plan = plan_of(recipe=ADAM)
    federation = build_federation(plan)

    here, there = (run_plan(plan, federation, engine, options={"device": device}) for device in ("cpu", "cuda"))

    assert there.device == f"cuda:0 ({torch.cuda.get_device_name(0)})"
    for name, array in here.model.items():
        assert there.model[name] == pytest.approx(array, abs=1e-9)


@pytest.mark.gpu
@pytest.mark.slow
@on_ray
def test_ray_trains_on_a_gpu() -> None:
    plan = plan_of(sites=10, rounds=4)
    federation = build_federation(plan)

    here = run_plan(plan, federation, "inprocess")
    there = run_plan(plan, federation, "ray", options={"device": "cuda", "cpus": 4})

    for name, array in here.model.items():
        assert there.model[name] == pytest.approx(array, abs=1e-9)
