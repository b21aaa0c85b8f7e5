from hashlib import blake2b

import numpy as np
import pytest
import torch
from pandas import DataFrame, concat

from fedsmall import run
from fedsmall.errors import PlanError
from fedsmall.methods import METHODS, method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import run_plan, threads_for
from fedsmall.travel.journey import journey
from tests.sim.engines.on_ray import on_ray


def plan_of(name="FedDC", **changes):
    settings = {"aggregate_every": 4} if METHODS[name].parts.get("aggregate_every") else {}
    defaults = {
        "name": "test",
        "task": "breast_cancer",
        "sites": 6,
        "samples_per_site": 4,
        "rounds": 10,
        "method": method(name, **settings),
        "recipe": Recipe(lr=0.05),
    }
    return Plan(**(defaults | changes))


def digest(model):
    hasher = blake2b()
    for name, array in model.items():
        hasher.update(name.encode() + array.tobytes())
    return hasher.hexdigest()


EARLY = ("Radon", "XGB", "Ridge", "Posterior")  # have their say at once or need another number of sites
FEDERATED = [name for name in METHODS if "family" not in METHODS[name].parts]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FEDERATED if not any(word in name for word in EARLY)])
def test_a_method_learns_and_repeats_to_the_bit(name):
    plan = plan_of(name, rounds=24, evaluate_every=12)
    federation = build_federation(plan)

    first = run_plan(plan, federation, "inprocess")
    second = run_plan(plan, federation, "inprocess")

    assert digest(first.model) == digest(second.model)
    assert [evaluation.t for evaluation in first.evaluations][-1] == 24
    assert first.evaluations[-1].common["accuracy"] > 0.7
    assert first.evaluations[-1].sites["accuracy_mean"] > 0.5
    samples = [len(site) for site in federation.train]
    assert first.client_updates == sum(len(at) * comm_round.rounds for comm_round, at in journey(plan, 6, samples))


def test_standalone_has_no_common_model_and_sends_nothing():
    plan = plan_of("Standalone", evaluate_every=5)

    record = run_plan(plan, build_federation(plan), "inprocess")

    assert record.model is None
    assert record.bytes_sent == 0
    assert record.comm_rounds == 0
    assert [(e.t, e.common) for e in record.evaluations] == [(5, None), (10, None)]


def test_central_is_one_site_with_all_samples():
    plan = plan_of("Central", evaluate_every=5)

    record = run_plan(plan, build_federation(plan), "inprocess")

    assert record.bytes_sent == 0
    assert record.client_updates == 10
    assert record.evaluations[-1].common["accuracy"] > 0.5


@pytest.mark.thorough
def test_evaluating_changes_no_bit_of_the_model():
    seldom, often = plan_of(evaluate_every=None), plan_of(evaluate_every=1)

    models = [run_plan(plan, build_federation(plan), "inprocess").model for plan in (seldom, often)]

    assert digest(models[0]) == digest(models[1])


@pytest.mark.thorough
@pytest.mark.parametrize("recipe", [Recipe(optimizer="adam", lr=0.01), Recipe(lr=0.05, momentum=0.9)])
def test_moments_travel_with_their_model_and_resetting_them_is_another_run(recipe):
    travelling = plan_of(recipe=recipe)
    resetting = plan_of(recipe=recipe.model_copy(update={"optimizer_state": "reset"}))

    models = [run_plan(plan, build_federation(plan), "inprocess").model for plan in (travelling, resetting)]

    assert digest(models[0]) != digest(models[1])


def test_independent_initial_models_differ_from_site_to_site():
    plan = plan_of(initial_models="independent", rounds=1, method=method("FedAvg"), recipe=Recipe(lr=1e-9))

    record = run_plan(plan, build_federation(plan), "inprocess")
    per_site = record.evaluations[-1].sites["per_site"]["loss"]

    assert len(set(np.round(per_site, 6))) > 1


def test_an_unknown_engine_is_named_with_the_nearest():
    plan = plan_of()

    with pytest.raises(PlanError, match="Did you mean 'inprocess'"):
        run_plan(plan, build_federation(plan), "inproces")


@pytest.mark.slow
@on_ray
@pytest.mark.parametrize("name", ["FedDC", "FedAvg"])
def test_ray_and_this_process_give_the_same_bits(name):
    plan = plan_of(name, recipe=Recipe(optimizer="adam", lr=0.01, batch=2, local_epochs=1))
    federation = build_federation(plan)

    here = run_plan(plan, federation, "inprocess")
    there = run_plan(plan, federation, "ray", options={"cpus": 2})

    assert digest(here.model) == digest(there.model)
    assert here.bytes_sent == there.bytes_sent


@pytest.mark.slow
@on_ray
@pytest.mark.parametrize("as_table", [False, True])
def test_arrays_and_tables_of_python_train_on_ray_with_the_same_bits(as_table):
    rng = np.random.default_rng(0)
    sites = {name: (rng.normal(size=(20, 4)), np.arange(20) % 2) for name in ("essen", "graz", "ulm")}
    frames = [DataFrame(x, columns=list("wxyz")).assign(site=name, ill=y) for name, (x, y) in sites.items()]
    given = {"data": concat(frames), "label": "ill", "site": "site"} if as_table else {"sites": sites}
    settings = {"methods": ["FedDC"], "rounds": 4, "seeds": [0], "model": "linear", "progress": False}

    here, there = (run(**given, engine=engine, **settings).models for engine in ("inprocess", "ray"))

    assert [digest(model) for model in here.values()] == [digest(model) for model in there.values()]


@pytest.mark.thorough
def test_privacy_clips_and_noises_what_leaves_and_reports_what_it_cost():
    privacy = {"clip": 0.5, "noise": 1.0}
    private = plan_of(method=method("FedDC", aggregate_every=4, privacy=privacy))
    open_plan = plan_of()
    federation = build_federation(private)

    records = [run_plan(plan, federation, "inprocess") for plan in (private, open_plan)]
    looked = run_plan(private.model_copy(update={"evaluate_every": 1}), federation, "inprocess")

    assert digest(records[0].model) != digest(records[1].model)
    assert records[0].privacy["releases"] == records[0].comm_rounds == 10
    assert records[0].privacy["epsilon"] > 1
    assert records[1].privacy == {}
    assert digest(looked.model) == digest(records[0].model)


def test_a_budget_that_the_plan_would_overspend_is_refused_before_a_site_trains():
    privacy = {"clip": 0.5, "noise": 1.0, "budget": 1.0}
    plan = plan_of(method=method("FedDC", aggregate_every=4, privacy=privacy))

    with pytest.raises(PlanError, match="more than the budget of 1"):
        run_plan(plan, build_federation(plan), "inprocess")


@pytest.mark.parametrize(("path", "threads"), [("mlp", 1), ("kernel", 1), ("vmap", 1), ("conv", 2), ("loop", 2)])
def test_only_convolutions_take_more_than_one_thread(path, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(2)

    with threads_for(path):
        within = torch.get_num_threads()
    after = torch.get_num_threads()
    torch.set_num_threads(before)

    assert (within, after) == (threads, 2)
