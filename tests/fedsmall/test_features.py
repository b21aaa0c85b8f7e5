"""What goes together in a plan: every row of the table is switched on by an example, alone and beside every other."""

import re
from typing import Any

import pytest

from fedsmall.aggregation.aggregate import AGGREGATORS
from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.features import FEATURES, Property, check_features, conflicts, refused_partners
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import among, check_plan
from fedsmall.sim.engines.run import run_plan

SITES = 12
TASK = Task("breast_cancer", (30,), 2)
IMAGES = {"task": "digits", "model": "cnn"}
TREE = {"fanout": 2, "depth": 1}
FOLDS = {"routes": SITES + 1}
ROUTES = {"validate": {"routes": 2}, "groups": 2}
TRAVELS = {"permute_every": 1, "aggregate_every": 2}
NOISE = {"clip": 1.0, "noise": 1.0}
EXAMPLES: dict[str, dict[str, Any]] = {
    "alone": {"family": "standalone"},
    "pooled": {"family": "central"},
    "handed on": TRAVELS,
    "at random rounds": {**TRAVELS, "random_schedule": True},
    "gossip": {"topology": "gossip"},
    "ring": {"topology": "ring"},
    "regions": {"regions": 2},
    "divergence": {"divergence": 1.0},
    "groups": {"groups": 2},
    "routes": ROUTES,
    "folds of samples": {"validate": FOLDS},
    "fraction": {"fraction": 0.5},
    "models": {"models": 6},
    "cyclic": {"route": "cyclic"},
    "independent": {"initial_models": "independent"},
    "median": {"aggregator": "median"},
    "trimmed mean": {"aggregator": "trimmed_mean"},
    "geometric median": {"aggregator": "geometric_median"},
    "Krum": {"aggregator": "krum"},
    "weighted": {"weighted": True},
    "FedAdam": {"server": "adam"},
    "ema": {"ema": 0.5},
    "snapshots": {"snapshots": 2},
    "stop": {"stop": {"patience": 2, "hold_out": 0.2}},
    "stop by routes": {"stop": {"patience": 2}, **ROUTES},
    "hospital intercepts": {"intercepts": "hospital"},
    "FedProx": {"rule": "proximal", "proximal_mu": 0.1},
    "SCAFFOLD": {"rule": "scaffold", "server": "scaffold"},
    "SCAFFOLD I": {"rule": "scaffold", "server": "scaffold", "scaffold_option": 1},
    "FedDyn": {"rule": "feddyn", "server": "feddyn", "feddyn_alpha": 0.01},
    "weighted FedDyn": {"rule": "feddyn", "server": "feddyn", "feddyn_alpha": 0.01, "weighted": True},
    "FedNova": {"server": "fednova"},
    "trees": {"tree": TREE},
    "trees at the server": {"tree": {**TREE, "fold_at": "server"}},
    "trees that travel": {"tree": {**TREE, "travel": "trees"}},
    "boosting": {"boosting": {}, "gate": False},
    "histograms": {"boosting": {"histogram": True}, "gate": False},
    "regression": {"regression": {}, "gate": False},
    "own models": {"model": "shared_part", "model_options": {"sites": ["mlp"] * SITES, "shared": ["0"]}},
    "Adam": {"optimizer": "adam"},
    "Adam that stays": {"optimizer": "adam", "optimizer_state": "stay"},
    "Adam anew": {"optimizer": "adam", "optimizer_state": "reset"},
    "momentum": {"momentum": 0.5},
    "momentum that stays": {"momentum": 0.5, "optimizer_state": "stay"},
    "momentum anew": {"momentum": 0.5, "optimizer_state": "reset"},
    "epochs": {"local_epochs": 1},
    "balanced": {"class_weights": "balanced"},
    "augmented": {**IMAGES, "augment": ["flip"]},
    "half": {"wire": "half"},
    "int8": {"wire": "int8"},
    "top": {"wire": "top10%"},
    "clip": {"privacy": NOISE},
    "exposure": {"privacy": {"exposure": 1.0}},
    "blur": {"privacy": {"blur": 1.0}},
    "open": {"privacy": {"blur": 0.0}},
    "patients": {"privacy": {"level": "patient", **NOISE, "lot": 4}},
    "sealed": {"privacy": {"sealed": True}, **TRAVELS},
    "secure": {"privacy": {"secure": True}},
    "sealed and secure": {"privacy": {"sealed": True, "secure": True}, **TRAVELS},
}
OF_NUMBERS = (  # what is refused for how many there are, how often, or for the task
    *("Krum that bears", "A secure sum takes", "boosts trees", "sums over all sites", "has one at its end alone"),
    *("one after every average", "routes need a model each"),
)


def plan_of(*names: str) -> Plan | None:
    """The plan of some examples together; None where both set the same key: they are no two features."""
    keys: dict[str, Any] = {"aggregate_every": 1}
    for name in names:
        for key, value in EXAMPLES[name].items():
            if key in ("tree", "privacy"):
                value = {**keys.get(key, {}), **value}
            elif key in keys and keys[key] != value and key not in TRAVELS:
                return None
            keys[key] = value
    noises = {"blur", "clip", "exposure"} & {*keys.get("privacy", {})}
    if len(noises) > 1 or (keys.get("groups") == 2 and FOLDS in keys.values()):
        return None
    of_plan = {key: keys.pop(key) for key in list(keys) if key in Plan.model_fields}
    recipe = {key: keys.pop(key) for key in list(keys) if key in Recipe.model_fields}
    return Plan(
        **{"name": "p", "task": "breast_cancer", "model": "mlp", "rounds": 48, "evaluate_every": 4, **of_plan},
        recipe={"lr": 0.01, **recipe},
        method=method("FedAvg", **keys),
    )


def task_of(plan: Plan) -> Task:
    return TASK if plan.task == "breast_cancer" else Task("digits", (1, 8, 8), 10)


def refusal(plan: Plan) -> str:
    """Why a plan is refused; nothing where it is not."""
    try:
        check_plan(plan, task_of(plan), SITES)
    except PlanError as error:
        return str(error)
    return ""


def test_every_row_is_switched_on_by_an_example():
    plans = [plan for name in EXAMPLES if (plan := plan_of(name)) is not None]

    assert [row.name for row in FEATURES if not any(row.is_on(among(plan, SITES)) for plan in plans)] == []


def test_every_property_is_needed_by_some_and_taken_away_by_others():
    needed = {known for row in FEATURES for known in row.needs}
    taken = {known for row in FEATURES for known in row.takes}

    assert needed == taken
    assert all(isinstance(known, Property) and known.name and known.why for known in needed)
    assert [row.name for row in FEATURES if row.needs & row.takes] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_feature_goes_by_itself(name):
    plan = plan_of(name)

    assert plan is not None
    assert not refusal(plan)


@pytest.mark.parametrize("first", EXAMPLES)
def test_two_features_are_refused_if_and_only_if_the_table_says_so_and_both_are_named(first):
    for plan in (plan_of(first, second) for second in EXAMPLES):
        if plan is None:
            continue
        known = among(plan, SITES)
        expected = [
            rf"^{re.escape(needing.spelled(known))} needs .* {re.escape(taking.spelled(known))} takes it"
            for needing, _, taking in conflicts(row for row in FEATURES if row.is_on(known))
        ]

        text = refusal(plan)

        assert "\n" not in text
        if expected:
            assert any(re.search(both, text) for both in expected)
        else:
            assert not text or any(words in text for words in OF_NUMBERS)


def test_two_spellings_of_one_thing_are_equal():
    unheeding = {name for name, row in AGGREGATORS.items() if not row.weighted}

    for name in AGGREGATORS:
        plan = Plan(name="p", task="digits", method=method("FedAvg", aggregator=name, weighted=True))
        if name in unheeding:
            with pytest.raises(PlanError, match=f'weighted needs an aggregator that weighs.*and aggregator = "{name}"'):
                check_features(plan)
        else:
            check_features(plan)


def test_who_goes_with_whom_is_mutual():
    refused = refused_partners()

    assert all(name in refused[other] for name, others in refused.items() for other in others)
    assert "groups" in refused['rule = "scaffold"']
    assert 'optimizer = "adam"' not in refused["groups"]


def test_a_command_says_what_goes_together(fedsmall):
    code, said, _ = fedsmall("plan", "--together")

    assert code == 0
    assert 'rule = "scaffold": not with ' in " ".join(said.split())


@pytest.mark.slow
@pytest.mark.parametrize("first", EXAMPLES)
def test_two_features_that_go_together_run(first):
    for second in list(EXAMPLES)[list(EXAMPLES).index(first) + 1 :]:
        plan = plan_of(first, second)
        if plan is None:
            continue
        changes = {"rounds": 26 if plan.method.validation else 6, "evaluate_every": 2, "sites": SITES}
        plan = plan.model_copy(update={**changes, "samples_per_site": 20 if plan.task == "digits" else 12})
        federation = build_federation(plan)
        if refusal(plan):
            continue
        record = run_plan(plan, federation, "cohort")
        assert record.evaluations, second
