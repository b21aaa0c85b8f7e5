import re
import tomllib

import pytest

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.planning.validation import check_plan
from fedsmall.sim.runs.scenario import as_toml, assign, build, load, of_plan, overlay, scenarios, value_of
from tests import ROOT
from tests.sim.runs.scenarios import SMALL, write

TABLE = tomllib.loads(SMALL)


def test_the_scenario_is_a_plan_for_each_seed_and_method_in_order():
    plans = build(TABLE).plans()

    assert [(plan.seed, plan.method.label) for plan in plans] == [
        (seed, label)
        for seed in (0, 1)
        for label in ("Standalone", "FedAvg, b = 3", "FedAvg, b = 1", "FedDC", "Central")
    ]


def test_every_key_of_the_contract_reaches_the_plan():
    table = {
        "name": "all",
        "task": {"csv": "a.csv", "label": "y"},
        "model": "mlp",
        "model_options": {"hidden": [3]},
        "sites": 3,
        "samples_per_site": 2,
        "partition": {"dirichlet": 0.3},
        "rounds": 7,
        "seeds": [4],
        "evaluate_every": 5,
        "initial_models": "independent",
        "dtype": "float64",
        "folds": 2,
        "recipe": {"optimizer": "adam", "lr": 0.001, "batch": 10, "local_steps": 2},
        "method": [{"name": "FedDC", "permute_every": 1, "aggregate_every": 200}],
    }

    first, second = build(table).plans()

    shown = first.model_dump()
    for key in set(table) - {"seeds", "recipe", "method"}:
        assert shown[key] == table[key], key
    assert first.recipe.model_dump(exclude_defaults=True) == table["recipe"]
    assert (first.method.permute_every, first.method.aggregate_every) == (1, 200)
    assert (first.seed, first.fold, second.fold) == (4, 0, 1)


def test_a_device_is_no_part_of_a_plan():
    here, there = (build({**TABLE, "device": device}) for device in ("cpu", "cuda"))

    assert (here.device, there.device) == ("cpu", "cuda")
    assert here.plans() == there.plans()


def test_a_route_seed_is_that_of_every_seed_and_is_written_down():
    asked = build({**TABLE, "route_seed": 7})

    assert {plan.travel_seed for plan in asked.plans()} == {7}
    assert b"route_seed = 7" in as_toml(asked)
    assert b"route_seed" not in as_toml(build(TABLE))
    assert of_plan(asked.plans()[0]).plans() == [asked.plans()[0]]


def test_the_page_on_privacy_shows_a_scenario_of_hidden_models():
    page = (ROOT / "docs" / "privacy.md").read_text(encoding="utf-8")
    (shown,) = [part for part in re.findall(r"```toml\n(.*?)```", page, re.DOTALL) if "sealed" in part]

    (plan,) = build({"name": "x", "task": "breast_cancer", "sites": 5, **tomllib.loads(shown)}).plans()

    check_plan(plan, Task("t", (30,), 2), 5)
    assert plan.method.hidden
    assert plan.travel_seed == 7


def test_plans_of_one_seed_share_their_data_and_those_of_two_do_not():
    plans = build(TABLE).plans()

    assert len({plan.data_key for plan in plans[:5]}) == 1
    assert plans[0].data_key != plans[5].data_key


def test_a_method_may_have_a_recipe_of_its_own():
    plans = build(TABLE).plans()

    assert [plan.recipe.lr for plan in plans[:5]] == [0.05, 0.05, 0.05, 0.1, 0.05]


def test_own_epochs_replace_common_steps_and_the_other_way():
    assert overlay({"local_steps": 3, "lr": 1.0}, {"local_epochs": 2}) == {"lr": 1.0, "local_epochs": 2}
    assert overlay({"local_epochs": 3}, {"local_steps": 2}) == {"local_steps": 2}


def test_set_reaches_any_key_with_toml_values():
    table = TABLE
    for setting in ("rounds=9", "seeds=[7]", "recipe.lr=0.5", "engine=ray", "method.FedDC.aggregate_every=2",
                    "method.FedDC.recipe.lr=0.2", "method.0.label=alone", 'task={npz = "x.npz"}'):  # fmt: skip
        table = assign(table, setting)

    scenario = build(table)
    feddc = scenario.plan(3, 7)

    assert (scenario.rounds, scenario.seeds, scenario.recipe.lr, scenario.engine) == (9, (7,), 0.5, "ray")
    assert (feddc.method.aggregate_every, feddc.recipe.lr) == (2, 0.2)
    assert scenario.plan(0, 7).method.label == "alone"
    assert scenario.task == {"npz": "x.npz"}
    assert TABLE["rounds"] == 6


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("0.1", 0.1), ("true", True), ("[0, 1]", [0, 1]), ("word", "word"), ('"1"', "1")]
)
def test_values_are_toml_or_words(text, value):
    assert value_of(text) == value


def test_files_of_a_task_are_found_beside_the_scenario(tmp_path):
    (tmp_path / "mine.csv").write_text("a,y\n1,0\n")
    path = write(tmp_path, SMALL.replace('"breast_cancer"', '{csv = "mine.csv", label = "y"}'))

    assert load(path).task == {"csv": str(tmp_path / "mine.csv"), "label": "y"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"roundz": 3}, "unknown key 'roundz'. Did you mean 'rounds'?"),
        ({"rounds": 0}, "rounds: should be at least 1 (got 0)"),
        ({"seeds": []}, "seeds = [0, 1, 2]"),
        ({"seeds": 3}, "seeds = [0, 1, 2]"),
        ({"seeds": [1, 1]}, "a seed is listed twice"),
        ({"recipe": {"learn_rate": 1}}, "unknown key 'recipe.learn_rate'"),
        ({"recipe": {"momentun": 1}}, "Did you mean 'momentum'?"),
        ({"recipe": {"lr": -1}}, "recipe.lr: should be greater than 0 (got -1)"),
        ({"recipe": {"local_steps": 1, "local_epochs": 1}}, "local_steps or local_epochs, not both"),
        ({"method": [{"name": "FedDD"}]}, "There is no method 'FedDD'. Did you mean 'FedDC'?"),
        ({"method": [{"name": "FedDC", "permute_evry": 1}]}, "Did you mean 'permute_every'?"),
        ({"method": [{"name": "FedDC", "permute_every": 0}]}, "permute_every: should be at least"),
        ({"method": [{"name": "FedDC", "aggregate_every": 0}]}, "aggregate_every: should be at least"),
        ({"method": [{"name": "FedDC", "recipe": 3}]}, "recipe is a table"),
        ({"method": [{"name": "FedDC", "recipe": {"momentun": 1}}]}, "Did you mean 'momentum'?"),
        ({"method": []}, "a table [[method]]"),
        ({"method": [{"label": "x"}]}, "method 1 of the scenario has no name"),
        ({"method": [{"name": "FedAvg"}, {"name": "FedAvg"}]}, "two methods are called 'FedAvg'"),
        ({"reference": "FedDD"}, "no method has the label 'FedDD'. Did you mean 'FedDC'?"),
    ],
)
def test_a_wrong_value_is_named_in_one_line(change, words):
    with pytest.raises(PlanError) as refused:
        build({**TABLE, **change})

    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("rounds", "--set takes key=value"),
        ("method.FedDD.label=x", "no entry is called 'FedDD'. Did you mean 'FedDC'?"),
        ("rounds.x=1", "is no key here"),
        ("method.9.label=x", "no entry is called '9'"),
    ],
)
def test_a_setting_that_reaches_nothing_is_refused(setting, words):
    with pytest.raises(PlanError, match=r".") as refused:
        assign(TABLE, setting)

    assert words in str(refused.value)


@pytest.mark.parametrize("path", scenarios().values(), ids=scenarios().keys())
def test_every_scenario_that_comes_along_can_be_planned(path):
    scenario = load(path)

    assert scenario.plans()
    assert scenario.about


@pytest.mark.parametrize("name", ["demo_digits", "demo_breast_cancer"])
def test_the_demo_holds_averaging_with_equal_traffic_and_equal_period(name):
    methods = [plan.method for plan in load(scenarios()[name]).plans()[:7]]
    feddc = next(method for method in methods if method.name == "FedDC")
    periods = {method.aggregate_every for method in methods if method.name == "FedAvg"}

    assert periods == {1, feddc.aggregate_every}
    assert {method.name for method in methods} == {"Standalone", "FedAvg", "FedProx", "DaisyChain", "FedDC", "Central"}


@pytest.mark.parametrize("name", sorted(scenarios()))
def test_the_scenario_of_a_plan_is_of_that_plan_alone(name):
    for plan in load(scenarios()[name]).plans():
        again = build(tomllib.loads(as_toml(of_plan(plan, "why")).decode()))

        assert again.about == "why"
        assert again.plans()[plan.fold] == plan


def test_an_option_of_a_model_that_is_none_is_left_out_of_the_file():
    asked = build({**TABLE, "model_options": {"hidden": None, "norm": "batch"}})

    assert tomllib.loads(as_toml(asked).decode())["model_options"] == {"norm": "batch"}
