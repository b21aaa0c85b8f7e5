import numpy as np
import pytest

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import LOWER_IS_BETTER
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.runs.scenario import build
from fedsmall.sim.tuning.grid import grid
from fedsmall.sim.tuning.search import (
    FOLDS,
    REGRET,
    Try,
    by_routes,
    choose,
    inner,
    judged_by,
    load,
    measure_of,
    save,
    search,
    signed,
    spaced_rates,
    unit_of,
    with_rates,
)


def tries(scores, label="FedDC"):
    """Tries of one method: ``scores`` maps a rate to its scores, one a seed."""
    return [Try(label, lr, seed, 0, score) for lr, row in scores.items() for seed, score in enumerate(row)]


def federation(sites, samples):
    parts = [
        Samples(np.full((samples, 1), 100.0 * k) + np.arange(samples)[:, None], np.zeros(samples)) for k in range(sites)
    ]
    test = Samples(np.full((5, 1), -1.0), np.zeros(5))
    names = tuple(f"s{k:02d}" for k in range(sites))
    return Federation(Task("t", (1,), 2), names, tuple(parts), test, held_out=(None,) * sites, extra=(("more", test),))


def test_the_best_mean_is_chosen():
    found = choose(tries({0.01: [0.5, 0.6], 0.1: [0.8, 0.9], 1.0: [0.1, 0.2]}))

    assert found["FedDC"].lr == 0.1
    assert not found["FedDC"].at_the_edge


def test_a_tie_goes_to_the_smaller_rate():
    found = choose(tries({0.01: [0.8, 0.9], 0.1: [0.8, 0.9]}))

    assert found["FedDC"].lr == 0.01


def test_a_shortfall_within_one_standard_error_is_a_tie_and_a_steady_one_is_not():
    noisy = tries({0.01: [0.80, 0.90, 0.86, 0.84], 0.1: [0.90, 0.80, 0.87, 0.85]})
    steady = tries({0.01: [0.80, 0.81, 0.80, 0.81], 0.1: [0.82, 0.83, 0.82, 0.83]})

    assert choose(noisy)["FedDC"].lr == 0.01
    assert choose(steady)["FedDC"].lr == 0.1


def test_a_tie_never_goes_to_the_larger_rate():
    found = choose(tries({0.1: [0.9, 0.9], 1.0: [0.89, 0.9]}))

    assert found["FedDC"].lr == 0.1


def test_regret_is_large_where_seeds_disagree_and_none_where_they_agree():
    rates = [0.01, 0.03, 0.1, 0.3]
    unsure = choose(tries({0.01: [0.5, 0.5, 0.5], 0.03: [0.9, 0.3, 0.6], 0.1: [0.4, 0.95, 0.55]}))
    sure = choose(tries({lr: [0.5 + 0.1 * k + 0.01 * s for s in range(3)] for k, lr in enumerate(rates)}))

    assert unsure["FedDC"].regret > REGRET
    assert sure["FedDC"].regret == pytest.approx(0, abs=1e-9)


def test_more_seeds_make_a_choice_stable():
    def regret(seeds):
        rng = np.random.default_rng(1)
        return choose(tries({lr: list(rng.normal(mean, 0.1, seeds)) for lr, mean in ((0.1, 0.6), (0.3, 0.7))}))[
            "FedDC"
        ].regret

    assert regret(100) < REGRET < regret(3)


def test_one_seed_is_never_stable():
    assert choose(tries({0.1: [0.9], 0.3: [0.5]}))["FedDC"].regret == float("inf")


def test_every_method_has_its_own_choice():
    found = choose(tries({0.1: [0.9, 0.8], 0.3: [0.5, 0.6]}) + tries({0.1: [0.1, 0.2], 0.3: [0.5, 0.6]}, "FedAvg"))

    assert {label: choice.lr for label, choice in found.items()} == {"FedDC": 0.1, "FedAvg": 0.3}
    assert all(choice.at_the_edge for choice in found.values())


def test_left_out_sites_are_all_sites_once_and_never_trained_on():
    whole = federation(sites=10, samples=3)

    parts = [inner(whole, fold, 4, np.random.default_rng(0)) for fold in range(4)]

    judged = np.concatenate([part.test.x for part in parts]).ravel()
    assert sorted(judged) == sorted(np.concatenate([s.x for s in whole.train]).ravel())
    for part in parts:
        trained = np.concatenate([samples.x for samples in part.train]).ravel()
        assert not set(trained) & set(part.test.x.ravel())
        assert len(part.names) == len(part.train) == len(part.held_out)


@pytest.mark.parametrize("sites", [1, 4, 30])
def test_test_samples_are_never_seen_by_a_search(sites):
    whole = federation(sites=sites, samples=6)

    for fold in range(4):
        part = inner(whole, fold, 4, np.random.default_rng(0))
        assert not np.any(part.test.x == -1.0)
        assert part.extra == ()


def test_few_sites_all_train_and_keep_back_their_share():
    whole = federation(sites=4, samples=8)

    part = inner(whole, 0, 4, np.random.default_rng(0))

    assert part.names == whole.names
    assert [len(samples) for samples in part.train] == [6] * 4
    assert len(part.test) == 8


def test_where_a_method_needs_all_sites_each_keeps_back_its_share():
    table = {"name": "t", "task": "gbsg2", "model": "proportional", "sites": 20, "samples_per_site": 20, "rounds": 1}
    methods = [{"name": "FedDC+Radon", "aggregate_every": 1}, {"name": "FedAvg"}]

    tries = search(build({**table, "method": methods}), (0.1,), by="folds", most_seeds=1)  # 18 numbers: of 20 models

    assert [(one.label, one.fold) for one in tries] == [
        (label, fold) for fold in range(4) for label in ("FedDC+Radon", "FedAvg")
    ]


def test_a_site_of_one_sample_keeps_it():
    whole = federation(sites=3, samples=1)

    assert [len(s) for s in inner(whole, 0, 4, np.random.default_rng(0)).train] == [1, 1, 1]


def test_a_search_is_read_back_as_it_was_written(tmp_path):
    made = {"": tries({0.1: [0.5, 0.25]}), "8": tries({0.3: [0.75]}, "FedAvg, equal period")}

    save(tmp_path / "s.csv", made)

    assert load(tmp_path / "s.csv") == made


def test_labels_with_quotes_commas_and_lines_survive_a_search(tmp_path):
    label = 'FedDC, "b" = 10,\nlr, 2'
    made = {"a, b": tries({0.1: [0.5, 0.25]}, label)}

    save(tmp_path / "s.csv", made)

    assert load(tmp_path / "s.csv") == made


def test_rates_are_even_in_their_logarithm_or_drawn_and_named_by_a_seed():
    assert spaced_rates(0.01, 1, 3) == (0.01, 0.1, 1.0)
    drawn = spaced_rates(0.01, 1, 5, seed=3)
    assert drawn == spaced_rates(0.01, 1, 5, seed=3) != spaced_rates(0.01, 1, 5, seed=4)
    assert list(drawn) == sorted(drawn)
    assert drawn[0] >= 0.01
    with pytest.raises(PlanError, match="positive"):
        spaced_rates(0, 1, 3)


def test_each_method_gets_its_own_rate_and_keeps_the_rest():
    scenario = build(
        {
            "name": "s",
            "task": "digits",
            "sites": 4,
            "recipe": {"lr": 0.5, "momentum": 0.9},
            "method": [
                {"name": "FedDC"},
                {"name": "FedAvg", "label": "rare", "recipe": {"batch": 2}},
                {"name": "Central"},
            ],
        }
    )

    recipes = [plan.recipe for plan in with_rates(scenario, {"FedDC": 0.1, "rare": 0.03}).plans()]

    assert [recipe.lr for recipe in recipes] == [0.1, 0.03, 0.5]
    assert [recipe.batch for recipe in recipes] == [None, 2, None]
    assert {recipe.momentum for recipe in recipes} == {0.9}


BY_ROUTES = {
    "name": "s", "task": "breast_cancer", "sites": 8, "samples_per_site": 6, "rounds": 40, "seeds": [0],
    "model": "linear", "method": [{"name": "FedAvg"}, {"name": "FedDC", "aggregate_every": 4}, {"name": "Central"}],
}  # fmt: skip


@pytest.mark.thorough
def test_by_routes_no_site_is_left_out_and_how_long_to_train_is_chosen_as_well():
    found = search(build(BY_ROUTES), (0.001, 0.1, 30.0), by="routes", most_seeds=2)

    counted = {label: sum(each.label == label for each in found) for label in ("FedAvg", "FedDC", "Central")}
    assert counted == {"FedAvg": 2 * 3, "FedDC": 2 * 3, "Central": 2 * 3 * FOLDS}  # it cannot travel
    choices = choose(found)
    assert choices["FedAvg"].lr == choices["FedDC"].lr == 0.1
    assert choices["FedAvg"].rounds > 20
    rounds = {each.rounds for each in found if each.label == "FedDC"}
    assert rounds <= {4 * k for k in range(1, 11)}  # after averages, where there is something to judge
    assert {each.rounds for each in found if (each.label, each.lr) == ("FedAvg", 30.0)} <= set(range(1, 40))
    assert choices["Central"].rounds == 0


def test_a_search_by_routes_sees_all_sites_and_ignores_patience(monkeypatch):
    patient = BY_ROUTES | {"method": [{"name": "FedAvg", "validate": {"routes": 4}, "stop": {"patience": 1}}]}
    federation = build_federation(build(patient).plan(0, 1000))

    plan = by_routes(build(patient).plan(0, 1000), federation)

    assert (plan.method.validation.routes, plan.stop) == (4, None)
    assert (plan.evaluate_every, judged_by(build(patient)), judged_by(build(BY_ROUTES))) == (2, "routes", "folds")
    groups = build(BY_ROUTES | {"method": [{"name": "TravellingGroups", "groups": 4}]}).plan(0, 0)
    assert by_routes(groups, federation).method.validation.routes == 4
    prox = build(BY_ROUTES | {"method": [{"name": "FedProx"}]}).plan(0, 0)
    assert by_routes(prox, federation) is None


def test_a_search_by_folds_judges_on_left_out_sites_what_travels_by_routes_too():
    scenario = build(BY_ROUTES | {"method": [{"name": "FedAvg", "validate": {"routes": 3}}], "rounds": 4})

    found = search(scenario, (0.1,), by="folds", most_seeds=1)

    assert len(found) == FOLDS
    assert all(0 <= each.score <= 1 and each.rounds == 0 for each in found)


def test_a_search_is_by_folds_or_by_routes():
    with pytest.raises(PlanError, match="judges by folds or by routes, not by 'luck'"):
        search(build(BY_ROUTES), (0.1,), by="luck")
    with pytest.raises(PlanError, match=r"there is no 'acuracy' for this task\. Did you mean 'accuracy'"):
        search(build(BY_ROUTES | {"rounds": 2}), (0.1,), by="routes", metric="acuracy")


@pytest.mark.parametrize(
    ("metric", "said"), [("mae", "there is no 'mae' for this task"), ("accurracy", "Did you mean 'accuracy'")]
)
def test_a_metric_that_no_rate_can_be_chosen_by_is_refused(metric, said):
    keys = {"name": "s", "task": "breast_cancer", "sites": 4, "samples_per_site": 4, "rounds": 1, "seeds": [0]}
    scenario = build({**keys, "method": [{"name": "FedAvg"}]})

    with pytest.raises(PlanError, match=said):
        search(scenario, (0.1,), metric=metric)


SMALL = {"name": "s", "sites": 4, "samples_per_site": 12, "rounds": 10, "seeds": [0], "method": [{"name": "FedAvg"}]}


@pytest.mark.parametrize(
    ("keys", "metric", "measure"),
    [
        ({"task": "diabetes"}, None, "mae"),
        ({"task": "diabetes"}, "r2", "r2"),
        ({"task": "diabetes_grades"}, None, "kappa"),
        ({"task": "breast_cancer"}, "loss", "loss"),
    ],
)
def test_a_search_takes_the_rate_that_is_best_by_the_measure_asked_for_or_the_scenarios_or_the_tasks(
    keys, metric, measure
):
    scenario = build(SMALL | keys | {"model": "linear"})

    found = search(scenario, (1e-6, 0.1), metric=metric, most_seeds=1)

    assert measure_of(scenario, None, metric) == measure
    choice = choose(found, measure)["FedAvg"]
    assert choice.lr == 0.1
    assert all((one.score <= 0) == (measure in LOWER_IS_BETTER) for one in found if one.lr == 0.1)
    worth = {rate: score.mean for rate, score in choice.scores.items()}
    assert worth[0.1] == (min if measure in LOWER_IS_BETTER else max)(worth.values())


def test_an_error_counts_in_the_outcomes_own_unit_and_one_that_is_no_number_is_among_the_worst():
    federation = build_federation(build(SMALL | {"task": "diabetes"}).plan(0, 1000))
    unit = unit_of("mae", federation)

    assert 40 < unit < 120  # the spread of the disease's progression
    assert signed(60.0, "mae", unit) == -60
    assert signed(np.nan, "mae", unit) == signed(1e30, "mae", unit) == pytest.approx(-20 * unit)
    assert signed(np.nan, "r2", 1.0) < signed(-3.0, "r2", 1.0) == -3
    assert signed(np.nan, "kappa", 1.0) < signed(-0.5, "kappa", 1.0)
    assert signed(np.nan, "accuracy", 1.0) == 0


def test_a_search_by_routes_is_by_the_loss_unless_the_scenario_or_somebody_names_another():
    scenario = build(BY_ROUTES)

    assert measure_of(scenario, "routes") == "loss"
    assert measure_of(build(BY_ROUTES | {"metric": "auc"}), "routes") == "auc"
    assert measure_of(build(BY_ROUTES | {"metric": "brier"}), "folds") == "brier"
    assert measure_of(build(BY_ROUTES | {"metric": "auc"}), "folds", "accuracy") == "accuracy"
    assert measure_of(scenario, "folds") == "auc"  # of unequal classes


def test_no_score_is_told_in_an_interval_that_leaves_what_the_measure_can_be():
    shares = choose(tries({0.1: [0.95, 1.0, 1.0]}), "accuracy")["FedDC"].scores[0.1]
    losses = choose(tries({0.1: [-0.01, -0.2, -0.3]}), "loss")["FedDC"].scores[0.1]

    assert 0 <= shares.low < shares.mean < shares.high <= 1
    assert 0 <= losses.low < losses.mean < losses.high
    assert losses.mean == pytest.approx(0.17)


def test_trees_are_tried_at_their_own_rate_alone():
    table = {"name": "x", "task": "breast_cancer", "sites": 4, "samples_per_site": 6, "rounds": 4}
    scenario = build({**table, "method": [{"name": "FedHistogramXGB", "boosting": {"learning_rate": 0.2}}]})

    tries = search(scenario, (0.01, 0.03), metric="loss", most_seeds=1)

    assert {(one.fold, one.lr) for one in tries} == {(fold, 0.2) for fold in range(FOLDS)}
    assert len(tries) == FOLDS
    assert with_rates(scenario, {"FedHistogramXGB": 0.2}) == scenario


def test_a_regression_has_no_rate_either():
    scenario = build({"name": "x", "task": "breast_cancer", "sites": 4, "method": [{"name": "Ridge"}]})

    with pytest.raises(PlanError, match="no method here has one: regressions choose their own penalty"):
        search(scenario, (0.1,))


@pytest.mark.parametrize("keys", [{}, {"aggregate_every": (1, 2)}])
def test_beside_networks_a_regression_is_left_as_it_is(keys):
    table = {"name": "x", "task": "breast_cancer", "sites": 4, "samples_per_site": 6, "rounds": 4}
    scenario = build({**table, "method": [{"name": "Ridge"}, {"name": "FedAvg", "aggregate_every": 2}]})
    whole = grid(scenario, keys)

    tries = search(whole.scenario, (0.01, 0.1), metric="loss", most_seeds=1)
    taken = whole.with_taken(tries)

    assert {one.label for one in tries} == set(whole.of)
    assert taken.method[0] == scenario.method[0]
    assert taken.plans()[1].recipe.lr in (0.01, 0.1)


def test_a_rate_at_which_no_model_stays_finite_is_among_the_worst_and_the_search_goes_on():
    table = {"task": "breast_cancer", "sites": 8, "samples_per_site": 4, "rounds": 5, "name": "wild"}
    scenario = build({**table, "recipe": {"local_steps": 40}, "method": [{"name": "FedAvg"}]})

    tries = search(scenario, [0.1, 1e30], most_seeds=1)

    assert {one.score for one in tries if one.lr == 1e30} == {0.0}
    assert choose(tries)["FedAvg"].lr == 0.1
    assert len(tries) == 2 * 4


def test_a_search_has_as_many_seeds_as_it_is_to_have():
    table = {"task": "breast_cancer", "sites": 8, "samples_per_site": 4, "rounds": 2, "name": "steady"}
    scenario = build({**table, "method": [{"name": "FedAvg"}]})

    assert {one.seed for one in search(scenario, [0.1], least_seeds=3)} == {1000, 1001, 1002}
