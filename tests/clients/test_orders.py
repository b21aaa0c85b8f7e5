"""A site holds every order to what its run was at the first, and to its policy, whoever sends it."""

import time
from threading import Timer

import numpy as np
import pytest

from fedsmall.audit_log import verify
from fedsmall.clients.consent import IS_PAUSED, pause, unpause
from fedsmall.clients.data_process import DataProcess
from fedsmall.parts import Recipe
from fedsmall.planning.run_sheet import SITES
from fedsmall.sim.consortium import sample_data
from fedsmall.wire import BALANCE, PLAN, ROUND, ROUNDS, VALIDATE, WAITS
from tests.clients.test_data_process import AS_IT_IS, NAMES, config, order, plan, refused, same, scaled

OTHER_PLAN = "the plan is another than that that this run's sites received"
OTHER_SITES = "the order is for other sites than those with which this run began"
EVERY_KIND = ("roll", "scaling", "train", "evaluate", VALIDATE, BALANCE)
SIZES = {"csv": "hospital.csv", "target": "mean radius", "features": ["mean texture"]}
LONG = Recipe(lr=0.05, batch=8, local_steps=300_000)  # half a minute and more


@pytest.fixture
def station(tmp_path):
    paths = {name: tmp_path / f"{name}.csv" for name in NAMES}
    sample_data.write(list(paths.values()))
    (tmp_path / "policy.toml").write_text(AS_IT_IS)
    return DataProcess("essen", paths["essen"], tmp_path / "home", tmp_path / "policy.toml")


def anew(station):
    """The same site with its program started again."""
    return DataProcess(station.name, station.data, station.home, station.policy_file)


def test_no_more_local_rounds_are_trained_than_the_plan_has_there(station):
    model = scaled(station)

    for rounds in (2, 2000, 10**9, 0, -3):
        said = refused(station, "train", order(1, rounds), model)
        assert f"the order asks for {rounds} rounds, where the plan has 1" in said


@pytest.mark.parametrize("kind", ["train", "evaluate", VALIDATE])
def test_no_order_is_of_a_round_after_which_the_plan_has_no_comm_round(station, kind):
    model = scaled(station)

    for t in (5, 10**6, -3):
        assert f"the plan has no communication round after round {t}" in refused(station, kind, order(t), model)


def test_a_comm_round_between_those_of_the_plan_is_none(station):
    seldom = plan(permute_every=2, aggregate_every=4)
    model = scaled(station, seldom)

    assert "no communication round after round 1" in refused(station, "train", order(1, 1, the_plan=seldom), model)
    assert "where the plan has 2" in refused(station, "train", order(2, 1, the_plan=seldom), model)
    assert "error" not in station.answer("train", order(2, 2, the_plan=seldom), model)[0]


@pytest.mark.parametrize("key", [ROUND, ROUNDS])
def test_a_round_that_is_no_whole_number_is_refused(station, key):
    model = scaled(station)

    for number in ("1", 1.0, True, [1], None):
        said = refused(station, "train", order(1) | {key: number}, model)
        assert f"the order's '{key}' is not a whole number" in said


@pytest.mark.parametrize("again", [False, True])
def test_another_plan_is_refused_in_a_run_though_the_station_was_started_again(station, again):
    model = scaled(station)
    other = order(1) | {PLAN: plan().model_copy(update={"recipe": Recipe(lr=9.0, batch=8)}).model_dump_json()}
    asked = anew(station) if again else station

    assert all(OTHER_PLAN in refused(asked, kind, other, model) for kind in EVERY_KIND)


@pytest.mark.parametrize("sites", [NAMES[:2], [*NAMES, "zzz"], ["bonn", "essen", "zzz"]])
def test_other_sites_are_refused_in_a_run(station, sites):
    station.policy_file.write_text(AS_IT_IS + "least_sites = 2\n")
    model = scaled(station)

    assert all(OTHER_SITES in refused(station, kind, order(1) | {SITES: sites}, model) for kind in EVERY_KIND)


def test_class_weights_become_numbers_once_and_a_resumed_run_calls_the_roll_as_at_first(station):
    balanced = plan().model_copy(update={"recipe": Recipe(lr=0.05, batch=8, class_weights="balanced")})
    agreed, other = (
        balanced.model_copy(update={"recipe": Recipe(lr=0.05, batch=8, class_weights=weights)})
        for weights in [(0.5, 1.5), (0.1, 9.0)]
    )
    model = scaled(station, balanced)

    assert "error" not in station.answer("train", order(1, the_plan=agreed), model)[0]
    assert OTHER_PLAN in refused(station, "train", order(2, the_plan=other), model)
    assert OTHER_PLAN in refused(station, "roll", config(other))
    assert "error" not in anew(station).answer("roll", config(balanced), {})[0]
    assert OTHER_PLAN in refused(anew(station), "train", order(2, the_plan=balanced), model)
    assert "error" not in anew(station).answer("train", order(2, the_plan=agreed), model)[0]


@pytest.mark.parametrize(
    ("task", "settings", "line"),
    [
        (SIZES, {"recipe": Recipe(class_weights=(0.5, 1.5))}, "class_weights are for classes"),
        (plan().task, {"recipe": Recipe(class_weights=(1.0,))}, "class_weights has 1 numbers"),
        (SIZES, {"threshold": 0.5}, "threshold says who is called positive"),
    ],
)
def test_a_plan_that_no_honest_server_sends_for_such_an_outcome_is_refused_in_a_line(station, task, settings, line):
    crafted = plan().model_copy(update={"task": task, **settings})

    assert line in refused(station, "roll", config(crafted))


def more(model, number):
    return {name: array + np.float32(number) for name, array in model.items()}


def test_a_run_taken_back_is_trained_anew_but_not_without_end(station):
    model = scaled(station)

    for number in range(8):  # twice the plan's four rounds
        assert "error" not in anew(station).answer("train", order(1), more(model, number))[0]

    assert "this run has trained 8 local rounds here" in refused(anew(station), "train", order(2), model)
    assert "error" not in anew(station).answer("train", order(1), more(model, 7))[0]  # the same order costs no more


def test_what_is_trained_anew_counts_against_the_policy(station):
    station.policy_file.write_text(AS_IT_IS + "most_rounds = 4\n")
    model = scaled(station)

    answers = [station.answer("train", order(t), model)[0] for t in (1, 2, 3, 4, 4, 1)]

    assert not any("error" in words for words in answers)
    assert "of at most 4" in refused(station, "train", order(4), more(model, 1))


def test_a_scaling_that_fits_no_feature_is_not_taken(station):
    station.answer("roll", config(plan()), {})
    features = station._read_samples(plan())[0].summed_values.shape[1]
    scaling = {"scaling/mean": np.zeros(features), "scaling/scale": np.ones(features)}
    wrong = [
        scaling | {"scaling/mean": np.full(features, np.nan)},
        scaling | {"scaling/scale": np.zeros(features)},
        {name: array[:1] for name, array in scaling.items()},
        {name: np.ones(10**6) for name in scaling},
        {name: array.astype(np.int64) for name, array in scaling.items()},
        {"scaling/mean": scaling["scaling/mean"]},
    ]

    for came in wrong:
        said = refused(station, "scaling", config(plan()), came)
        assert "the scaling that came is not a mean and a scale above 0" in said
    assert "error" not in station.answer("scaling", config(plan()), scaling)[0]


def test_a_run_has_one_scaling(station):
    model = scaled(station)
    features = station._read_samples(plan())[0].summed_values.shape[1]
    other = {"scaling/mean": np.zeros(features), "scaling/scale": np.ones(features)}
    _, before = station.answer("train", order(1), model)

    assert "another scaling was agreed on in this run before" in refused(
        anew(station), "scaling", config(plan()), other
    )
    assert same(before, anew(station).answer("train", order(1), model)[1])


def long_plan():
    return plan().model_copy(update={"recipe": LONG})


def test_work_that_takes_longer_than_the_policy_allows_is_cut_and_the_next_order_answered(station):
    model = scaled(station, long_plan())
    station.policy_file.write_text(AS_IT_IS + "most_order_minutes = 0.01\n")
    began = time.monotonic()

    said = refused(station, "train", order(1, the_plan=long_plan()), model)

    assert "the order takes longer than the 0.01 minutes that the policy here allows" in said
    assert time.monotonic() - began < 10
    assert station.log.entries()[-1]["event"] == "refused"
    assert verify(station.log.path).fault is None
    assert "error" not in station.answer("evaluate", config(long_plan()), model)[0]


def test_a_pause_cuts_an_order_under_way_and_it_is_asked_for_again(station):
    model = scaled(station, long_plan())
    timer, began = Timer(1.0, pause, [station.home]), time.monotonic()
    timer.start()

    words, leaving = station.answer("train", order(1, the_plan=long_plan()), model)

    assert words == {"error": f"essen: {IS_PAUSED}", "code": WAITS}
    assert leaving == {}
    assert time.monotonic() - began < 10
    timer.join()
    unpause(station.home)
    model = scaled(station, run="short")
    assert "error" not in station.answer("train", order(1, run="short"), model)[0]
