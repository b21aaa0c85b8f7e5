"""The cohort engine does what the message-by-message engines do, to the tolerance of its arithmetic."""

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from clients.client_app import app
from clients.site_data import give_federation
from fedsmall.federation import Federation
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan, Privacy, Recipe
from fedsmall.tasks import build_federation
from fedsmall.training.stack import Rows
from fedsmall.training.trees import cohort_for
from sim.engines.cohort import CohortGrid
from sim.engines.evaluation import CentralEvaluator
from sim.engines.inprocess import InProcessGrid
from sim.engines.row_record import RowRecord
from strategies.build import strategy_for
from strategies.daisy_chain import DaisyChain
from strategies.server.run_loop import Outcome, RunLoop

METHODS = [
    ("FedDC", {"permute_every": 1, "aggregate_every": 4}),
    ("FedAvg", {"aggregate_every": 1}),
    ("DaisyChain", {}),
    ("FedProx", {"aggregate_every": 3, "proximal_mu": 0.5}),
    ("FedAdam", {"aggregate_every": 2}),
    ("FedMedian", {"aggregate_every": 3}),
    ("Standalone", {}),
]
ADAM = Recipe(optimizer="adam", lr=0.01, batch=2, local_epochs=1)
RESET = ADAM.model_copy(update={"optimizer_state": "reset"})
CASES = [(name, settings, Recipe(lr=0.05)) for name, settings in METHODS]
CASES += [(*METHODS[0], ADAM), (*METHODS[0], RESET), (*METHODS[1], ADAM), (*METHODS[3], RESET)]


def plan_of(name: str = "FedDC", settings: dict[str, Any] | None = None, **changes: Any) -> Plan:
    defaults = {
        "name": "test",
        "task": "breast_cancer",
        "sites": 5,
        "samples_per_site": 4,
        "rounds": 9,
        "dtype": "float64",
        "model_options": {"hidden": [6]},
        "method": method(name, **(settings or {})),
        "recipe": Recipe(lr=0.05),
    }
    return Plan(**(defaults | changes))


def federation_of(plan: Plan) -> Federation:
    federation = build_federation(plan)
    return federation.pooled() if plan.method.family == "central" else federation


def run(plan: Plan, walks: bool = True, engine: str = "cohort") -> tuple[Outcome, DaisyChain]:
    federation = federation_of(plan)
    cohort = cohort_for(plan, federation.task, federation.names, federation.train)
    if engine == "cohort":
        grid = CohortGrid(plan, federation, cohort)
        if not walks:
            grid.walk = lambda *_: 0
    else:
        give_federation(plan, federation)
        grid = InProcessGrid(app, len(federation.names))
    strategy = strategy_for(plan)
    evaluator = CentralEvaluator(plan, federation, cohort)
    conductor = RunLoop(strategy, grid, plan, lambda site: initial_model(plan, federation.task, site), evaluator)
    return conductor.run(), strategy


def assert_alike(one: Outcome, other: Outcome, atol: float) -> None:
    assert (one.model is None) == (other.model is None)
    for name, array in (one.model or {}).items():
        np.testing.assert_allclose(array, other.model[name], rtol=0, atol=atol)
    assert (one.contacts, one.bytes_sent, one.client_updates) == (
        other.contacts,
        other.bytes_sent,
        other.client_updates,
    )
    assert len(one.evaluations) == len(other.evaluations)
    for mine, theirs in zip(one.evaluations, other.evaluations, strict=True):
        assert mine.t == theirs.t
        assert mine.sites.get("loss_mean") == pytest.approx(theirs.sites.get("loss_mean"), abs=1e-9)
        assert (mine.common or {}) == pytest.approx(theirs.common or {}, abs=1e-9)


@pytest.mark.parametrize(("name", "settings", "recipe"), CASES)
def test_the_cohort_engine_is_the_client_called_site_by_site(
    name: str, settings: dict[str, Any], recipe: Recipe
) -> None:
    plan = plan_of(name, settings, recipe=recipe, evaluate_every=4)

    batched, _ = run(plan)
    by_messages, _ = run(plan, engine="inprocess")

    assert_alike(batched, by_messages, 1e-9)


@pytest.mark.parametrize(("name", "settings", "recipe"), CASES)
def test_a_walk_is_the_messages_that_it_leaves_out(name: str, settings: dict[str, Any], recipe: Recipe) -> None:
    plan = plan_of(name, settings, recipe=recipe, evaluate_every=5, initial_models="independent")

    walked, after_walk = run(plan)
    messages, after_messages = run(plan, walks=False)

    assert_alike(walked, messages, 1e-12)
    assert after_walk.events == after_messages.events
    assert sorted(after_walk.slots) == sorted(after_messages.slots)
    for site, seen in after_walk.seen.items():
        other = after_messages.seen[site]
        assert (seen.examples, seen.steps) == (other.examples, other.steps)
        for key, array in seen.model.items():
            np.testing.assert_allclose(array.numpy(), other.model[key].numpy(), rtol=0, atol=1e-12)


def test_the_same_seed_gives_the_same_bits() -> None:
    plan = plan_of(recipe=ADAM, dtype="float32")

    first, second = run(plan)[0], run(plan)[0]

    for name, array in first.model.items():
        assert array.tobytes() == second.model[name].tobytes()


def test_what_leaves_is_clipped_and_noised_as_each_site_would_do_it() -> None:
    plan = plan_of()
    private = plan.method.model_copy(update={"privacy": Privacy(clip=0.1, noise=0.5)})
    plan = plan.model_copy(update={"method": private})

    assert_alike(run(plan)[0], run(plan, engine="inprocess")[0], 1e-9)


def test_a_tree_at_every_site_trains_as_at_the_sites() -> None:
    plan = plan_of("RepTreeFL", {"aggregate_every": 2}, samples_per_site=8)

    assert_alike(run(plan)[0], run(plan, engine="inprocess")[0], 1e-9)


def test_central_training_is_a_cohort_of_one() -> None:
    plan = plan_of("Central", evaluate_every=3)

    assert_alike(run(plan)[0], run(plan, engine="inprocess")[0], 1e-9)


def rows_of_two() -> Rows:
    import torch

    return Rows({"w": torch.arange(6.0).reshape(2, 3), "n": torch.tensor([4, 5])})


def test_a_record_of_a_row_reads_like_any_record() -> None:
    record = RowRecord(rows_of_two(), 1)
    plain = ArrayRecord({"w": Array(np.array([3, 4, 5], dtype="float32")), "n": Array(np.asarray(5))})

    assert record == plain
    assert list(record) == ["w", "n"]
    assert record["w"].data == plain["w"].data
    assert record["n"].numpy() == 5
    assert len(record) == 2


def test_whoever_changes_what_was_read_changes_no_model() -> None:
    rows = rows_of_two()
    read = RowRecord(rows, 0)["w"].numpy()

    read[:] = 9.0

    assert rows.tensors["w"][0].tolist() == [0.0, 1.0, 2.0]


def test_a_record_that_was_written_to_stands_for_no_row_any_more() -> None:
    record = RowRecord(rows_of_two(), 0)
    assert hasattr(record, "stack_row")

    record["w"] = Array(np.zeros(3, dtype="float32"))

    assert not hasattr(record, "stack_row")
    assert record["w"].numpy().tolist() == [0.0, 0.0, 0.0]
    assert record["n"].numpy() == 4
