"""The strategies by their names, under Flower's own loop: the same bits as the methods of the same names."""

import re

import pytest
from flwr.app import ConfigRecord

import strategies
from fedsmall.clients.client_app import app
from fedsmall.clients.site_data import give_federation
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe, Tree
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies import SCAFFOLD, Averaging, DaisyChain, FedDC, FedDyn, FedNova, RadonMachine, RepTreeFL
from fedsmall.strategies.records import to_arrays, to_record
from fedsmall.travel.schedule import Schedule
from fedsmall.wire import PLAN
from tests import ROOT
from tests.strategies.test_other_apps import Heard, template_app
from tests.strategies.toy import weights

COMM_ROUNDS = 3
TREE = Tree(fanout=2)
NAMED = {
    "SCAFFOLD": (SCAFFOLD, "SCAFFOLD", {}),
    "FedNova": (FedNova, "FedNova", {}),
    "FedDyn": (FedDyn, "FedDyn", {}),
    "RepTreeFL": (lambda: RepTreeFL(TREE), "RepTreeFL", {"tree": TREE}),
    "RadonMachine": (RadonMachine, "RadonMachine", {}),
    "Averaging": (Averaging, "FedAvg", {}),
    "FedDC": (lambda: FedDC(1, 2), "FedDC", {"permute_every": 1, "aggregate_every": 2}),
}


def plan_of(name: str, comm_rounds: int = COMM_ROUNDS, sites: int = 5, **parts) -> Plan:
    period = parts.get("aggregate_every", 1)
    return Plan(
        name="named",
        task="breast_cancer",
        model="linear",
        sites=sites,
        samples_per_site=3,
        rounds=comm_rounds if parts.get("permute_every") else comm_rounds * period,
        dtype="float64",
        recipe=Recipe(lr=0.05, batch=3, local_steps=2),
        method=method(name, **{"aggregate_every": 1, **parts}),
    )


def sites_for(name: str) -> int:
    return 64 if name == "RadonMachine" else 5  # the Radon number of a model with 62 parameters


def both(strategy: DaisyChain, plan: Plan):
    """The models of Flower's own loop and of our run loop, and what the sites said in Flower's."""
    federation = build_federation(plan)
    give_federation(plan, federation)
    grid = InProcessGrid(app, len(federation.names))
    comm_rounds = len(list(strategy.schedule.comm_rounds(plan.rounds)))
    config = ConfigRecord({PLAN: plan.model_dump_json(exclude_defaults=True)})
    start = to_record(initial_model(plan, federation.task))
    flowers = strategy.start(grid, start, num_rounds=comm_rounds, train_config=config)
    assert not grid.tracebacks
    return to_arrays(flowers.arrays), run_plan(plan, federation, "inprocess").model, flowers


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


@pytest.mark.thorough
@pytest.mark.parametrize("name", NAMED)
def test_under_flowers_own_loop_a_strategy_is_the_method_of_its_name_to_the_bit(name):
    strategy, called, parts = NAMED[name]
    plan = plan_of(called, sites=sites_for(name), **parts)

    flowers, ours, result = both(strategy(), plan)

    assert same(flowers, ours)
    assert all(told["train-loss"] > 0 for told in result.train_metrics_clientapp.values())


@pytest.mark.thorough
@pytest.mark.parametrize("name", [name for name in NAMED if name != "FedDC"])
def test_within_a_daisy_chain_a_strategy_has_that_chains_periods_to_the_bit(name):
    strategy, called, parts = NAMED[name]
    plan = plan_of(called, sites=sites_for(name), **parts, aggregate_every=2)

    flowers, ours, _ = both(DaisyChain(strategy(), Schedule(aggregate_every=2)), plan)

    assert same(flowers, ours)
    assert not same(
        flowers, run_plan(plan_of(called, sites=sites_for(name), **parts), build_federation(plan), "cohort").model
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["Averaging", "RadonMachine", "RepTreeFL"])
def test_a_daisy_chain_around_a_strategy_that_may_travel_is_the_method_with_both_periods(name):
    strategy, called, parts = NAMED[name]
    both_periods = {"permute_every": 1, "aggregate_every": 2}
    plan = plan_of(called, comm_rounds=4, sites=sites_for(name), **parts, **both_periods)

    flowers, ours, _ = both(DaisyChain(strategy(), Schedule(**both_periods)), plan)

    assert same(flowers, ours)


def test_the_strategies_are_those_that_the_tutorial_names():
    section = (ROOT / "docs" / "tutorials" / "flower-app.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)\(", section, re.MULTILINE)

    assert sorted([*listed, "Tree"]) == sorted(strategies.__all__)
    assert "`RepTreeFL(Tree(fanout=3))`" in section


@pytest.mark.parametrize("strategy", [SCAFFOLD, FedNova, FedDyn, RepTreeFL, lambda: RepTreeFL(Tree(fold_at="server"))])
@pytest.mark.parametrize("around", [lambda inner: inner, lambda inner: DaisyChain(inner, Schedule(aggregate_every=2))])
def test_a_strategy_with_a_half_at_the_sites_starts_with_no_clients_that_lack_it(strategy, around):
    grid = Heard(template_app(), 2)

    with pytest.raises(PlanError, match=r"has a half at the sites, which fedsmall's own clients do") as refused:
        around(strategy()).start(grid, weights(0.0), num_rounds=2)

    assert "\n" not in str(refused.value)
    assert grid.kinds == ()


def test_nor_with_a_plan_of_another_method():
    grid, plan = Heard(template_app(), 2), plan_of("FedAvg")

    with pytest.raises(PlanError, match="FedDyn has a half at the sites"):
        FedDyn().start(grid, weights(0.0), train_config=ConfigRecord({PLAN: plan.model_dump_json()}))

    assert grid.kinds == ()


def test_a_radon_machine_of_too_few_sites_is_refused_before_they_train():
    grid = Heard(template_app(), 2)

    with pytest.raises(PlanError, match=r"takes at least r = parameters \+ 2 = 3 models; this run has 2"):
        RadonMachine().start(grid, weights(0.0), num_rounds=2)

    assert grid.kinds == ()
