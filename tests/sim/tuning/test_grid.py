import pytest

from fedsmall.errors import PlanError
from fedsmall.sim.runs.scenario import build
from fedsmall.sim.tuning.grid import grid, settings_in
from fedsmall.sim.tuning.search import Try

TABLE = {
    "name": "small",
    "task": "breast_cancer",
    "sites": 8,
    "samples_per_site": 4,
    "rounds": 20,
    "method": [
        {"name": "FedDC", "permute_every": 1, "aggregate_every": 10},
        {"name": "FedProx", "aggregate_every": 5, "proximal_mu": 0.1, "label": "prox"},
        {"name": "Standalone"},
    ],
}
PERIODS = {"aggregate_every": (10, 2)}


def tries(scores, lr=0.1):
    """A row of scores, one a seed, for each label."""
    return [Try(label, lr, seed, 0, score) for label, row in scores.items() for seed, score in enumerate(row)]


def test_a_method_is_tried_with_each_value_of_the_keys_that_its_table_has():
    made = grid(build(TABLE), {**PERIODS, "proximal_mu": (0.1, 1)})

    methods = [plan.method for plan in made.scenario.plans()]
    assert [(m.label, m.aggregate_every, m.proximal_mu) for m in methods if m.name != "Standalone"] == [
        ("FedDC, aggregate_every = 10", 10, 0.0),
        ("FedDC, aggregate_every = 2", 2, 0.0),
        ("prox, aggregate_every = 10, proximal_mu = 0.1", 10, 0.1),
        ("prox, aggregate_every = 10, proximal_mu = 1", 10, 1.0),
        ("prox, aggregate_every = 2, proximal_mu = 0.1", 2, 0.1),
        ("prox, aggregate_every = 2, proximal_mu = 1", 2, 1.0),
    ]
    assert methods[-1].label == "Standalone"


def test_a_key_of_a_table_is_tried_and_the_strictest_that_costs_nothing_is_taken():
    private = {"name": "FedAvg", "aggregate_every": 1, "privacy": {"exposure": 1.0, "sealed": True, "secure": True}}

    made = grid(build(TABLE | {"method": [private]}), settings_in(["privacy.exposure=0.1,1,10"]))
    labels = [plan.method.label for plan in made.scenario.plans()]
    scores = tries(dict(zip(labels, ([0.5, 0.52, 0.51], [0.9, 0.91, 0.89], [0.9, 0.91, 0.9]), strict=True)))
    chosen = made.with_taken(scores).plans()[0].privacy

    assert labels == [f"FedAvg, privacy.exposure = {exposure}" for exposure in ("0.1", "1", "10")]
    assert (chosen.exposure, chosen.sealed, chosen.secure) == (1.0, True, True)


def test_the_best_setting_is_taken_with_its_own_rate_and_written():
    made = grid(build(TABLE), PERIODS)
    told = tries({"Standalone": [0.5, 0.5], "prox, aggregate_every = 10": [0.7, 0.7]})
    told += tries({"FedDC, aggregate_every = 10": [0.6, 0.6], "prox, aggregate_every = 2": [0.6, 0.6]})
    told += tries({"FedDC, aggregate_every = 2": [0.5, 0.5]}) + tries({"FedDC, aggregate_every = 2": [0.9, 0.9]}, 0.3)

    assert made.taken(told) == {
        "FedDC": ({"aggregate_every": 2}, 0.3),
        "prox": ({"aggregate_every": 10}, 0.1),
        "Standalone": ({}, 0.1),
    }
    plans = made.with_taken(told).plans()
    assert [(p.method.label, p.method.aggregate_every, p.recipe.lr) for p in plans[:2]] == [
        ("FedDC", 2, 0.3),
        ("prox", 10, 0.1),
    ]
    assert plans[1].method.proximal_mu == 0.1


@pytest.mark.parametrize(("order", "taken"), [((10, 2), 10), ((2, 10), 2)])
def test_of_settings_that_are_not_shown_to_differ_the_first_is_taken(order, taken):
    made = grid(build(TABLE), {"aggregate_every": order})
    scores = {label: [0.8, 0.9, 0.7] if "= 10" in label else [0.9, 0.7, 0.81] for label in made.of}

    assert made.taken(tries(scores))["FedDC"] == ({"aggregate_every": taken}, 0.1)


def test_a_key_that_no_method_sets_is_one_line():
    with pytest.raises(PlanError, match="--try eta: no method of the scenario sets it"):
        grid(build(TABLE), {"eta": (1,)})


def test_a_key_of_a_regression_alone_is_tried_by_none():
    ridge = {"name": "Ridge", "regression": {"penalty": 1.0}}
    with pytest.raises(PlanError, match=r"--try regression\.penalty: no method of the scenario sets it"):
        grid(build({**TABLE, "method": [*TABLE["method"], ridge]}), {"regression.penalty": (1, 2)})


def test_a_value_that_is_none_is_refused_as_in_a_scenario():
    with pytest.raises(PlanError, match="aggregate_every"):
        grid(build(TABLE), {"aggregate_every": (0,)})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("aggregate_every=50,10,50", {"aggregate_every": (50, 10)}),
        ("proximal_mu=0.1,1", {"proximal_mu": (0.1, 1)}),
        ("aggregator=mean,median", {"aggregator": ("mean", "median")}),
    ],
)
def test_values_are_read(text, found):
    assert settings_in([text]) == found


@pytest.mark.parametrize("text", ["aggregate_every", "=3", ".b=3", "aggregate_every="])
def test_what_names_no_key_and_values_is_one_line(text):
    with pytest.raises(PlanError, match="--try takes a key of a method and its values"):
        settings_in([text])


def test_a_method_that_boosts_is_tried_with_depths_and_numbers_of_trees_that_its_rounds_allow():
    table = {
        **TABLE,
        "rounds": 130,
        "method": [{"name": "FedHistogramXGB", "boosting": {"l2": 2.0}}, {"name": "FedAvg"}],
    }
    made = grid(build(table), {})
    label = "FedHistogramXGB, depth = 3, trees = 40"

    tried = [plan.method.boosting for plan in made.scenario.plans()][:-1]
    scores = {name: [0.9 if name == label else 0.1] * 3 for name in made.of}
    taken = made.with_taken(tries(scores)).plans()

    assert [(b.depth, b.trees, b.l2) for b in tried] == [(1, 40, 2.0), (1, 70, 2.0), (1, 100, 2.0), (3, 40, 2.0)]
    assert (taken[0].method.boosting.depth, taken[0].method.boosting.trees) == (3, 40)
    assert (taken[0].recipe.lr, taken[1].recipe.lr) == (build(table).plans()[0].recipe.lr, 0.1)
    few = grid(build({**table, "rounds": 20}), {}).scenario.plans()[:-1]
    assert [(plan.method.boosting.depth, plan.method.boosting.trees) for plan in few] == [(1, None), (3, None)]
