"""Patient-level privacy at a real site: charged before anything leaves, over all runs, and told only once."""

import json

import numpy as np
import pytest

from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.patients import spent_here
from fedsmall.clients.policy import policy_from
from fedsmall.clients.site_log import SiteLog
from fedsmall.errors import PolicyError
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN, SITES
from fedsmall.privacy.patient_level import Charge, epsilon_of, protection_of
from fedsmall.sealing.tables import MEETING
from fedsmall.wire import EXAMPLES, IS_GLOBAL, LOSS, PLAN, ROUND, ROUNDS

NAMES = ["bonn", "essen", "ulm"]
PATIENTS = {"level": "patient", "clip": 1.0, "epsilon": 3.0, "lot": 8}


def plan_of(privacy=PATIENTS, rounds=4, recipe=None, **settings):
    return Plan(
        name="p",
        task={
            "csv": "hospital.csv",
            "label": "outcome",
            "classes": ["no", "yes"],
            "ranges": {"a": [-4.0, 4.0], "b": [-4.0, 4.0]},
        },
        partition={"natural": "file"},
        model="linear",
        rounds=rounds,
        recipe=recipe or Recipe(lr=0.05, local_steps=2),
        method=method("FedDC", **{"permute_every": 1, "aggregate_every": 2, "privacy": privacy} | settings),
    )


def table(path, rows):
    rng = np.random.default_rng(0)
    lines = [f"{a:.4f},{b:.4f},{'yes' if a > 0 else 'no'}" for a, b in rng.normal(size=(rows, 2))]
    path.write_text("\n".join(["a,b,outcome", *lines]) + "\n")
    return path


def station_at(folder, rows=40, policy=""):
    folder.mkdir(exist_ok=True)
    (folder / "policy.toml").write_text(f"check_models = false\n{policy}")
    return DataProcess("essen", table(folder / "essen.csv", rows), folder / "home", folder / "policy.toml")


def config(plan, run="r", **more):
    return {PLAN: plan.model_dump_json(), RUN: run, SITES: NAMES, **more}


def order(plan, t=1, rounds=1, run="r"):
    return config(plan, run, **{ROUND: t, ROUNDS: rounds, IS_GLOBAL: True})


MODEL = {"arrays/0.weight": np.zeros((2, 2), np.float32), "arrays/0.bias": np.zeros(2, np.float32)}


def at(number):
    """A model of which another one is not the same."""
    return {name: array + number for name, array in MODEL.items()}


def trained(station, plan, **more):
    station.answer("roll", config(plan, **{key: more[key] for key in more if key == "run"}), {})
    words, sent = station.answer("train", order(plan, **more), dict(MODEL))
    assert "error" not in words, words
    return words, sent


def test_a_site_charges_its_own_rate_and_noise_before_it_answers(tmp_path):
    station, plan = station_at(tmp_path), plan_of(rounds=6, permute_every=3, aggregate_every=6)
    held = len(station._read_samples(plan)[0].train)
    expected = protection_of(plan, np.ones(held), 1, 3)

    trained(station, plan, t=3, rounds=3)

    assert station.log.charges() == (("r", Charge(expected.rate, expected.noise, 6)),)
    events = [entry["event"] for entry in station.log.entries()]
    assert events == ["sent", "charged", "sent"]  # the first is the answer to the handshake


def test_a_patient_with_several_samples_is_charged_at_the_chance_that_one_of_them_is_in_a_lot(tmp_path):
    station, plan = station_at(tmp_path), plan_of()
    lines = station.data.read_text().splitlines()
    station.data.write_text("\n".join(f"{line},{'who' if not k else k // 3}" for k, line in enumerate(lines)) + "\n")
    plan = plan.model_copy(update={"task": {**plan.task, "patient": "who"}})
    own = len(station._read_samples(plan)[0].train)

    trained(station, plan)

    ((_, charge),) = station.log.charges()
    assert charge.rate == pytest.approx(1 - (1 - 8 / own) ** 3)
    assert charge.noise > protection_of(plan, np.ones(own), 1, 3).noise
    assert epsilon_of([charge._replace(steps=8)], 1e-5) == pytest.approx(3, rel=2e-3)


def test_a_whole_run_costs_what_the_plan_promises(tmp_path):
    station, plan = station_at(tmp_path), plan_of()

    for t in range(1, 5):
        trained(station, plan, t=t)

    (_, epsilon), whole = spent_here(station.log, 1e-5)
    assert epsilon == whole[1] == pytest.approx(3, rel=2e-3)
    assert epsilon <= 3


def test_an_order_that_comes_again_gets_the_same_answer_and_costs_nothing(tmp_path):
    station, plan = station_at(tmp_path), plan_of()
    words, sent = trained(station, plan)
    charged = station.log.charges()

    fresh = DataProcess(station.name, station.data, station.home, station.policy_file)
    for again in (station, fresh):
        later, same = trained(again, plan)
        assert later == words
        assert list(same) == list(sent) or set(same) == set(sent)
        assert all(same[name].tobytes() == sent[name].tobytes() for name in sent)
        assert again.log.charges() == charged


def test_another_order_of_the_same_round_is_noised_anew_and_charged(tmp_path):
    station, plan = station_at(tmp_path), plan_of()
    _, sent = trained(station, plan)

    _, other = station.answer("train", order(plan), {name: array + 1 for name, array in MODEL.items()})

    assert not np.allclose(other["arrays/0.weight"] - 1, sent["arrays/0.weight"], atol=1e-4)
    assert station.log.charges()[0][1].steps == 4


def test_runs_are_added_up_and_refused_at_the_roll_call_where_they_would_cost_too_much(tmp_path):
    station, plan = station_at(tmp_path, policy="most_epsilon = 4.0"), plan_of()
    for t in range(1, 5):
        trained(station, plan, t=t)

    words, _ = station.answer("roll", config(plan, "another"), {})
    again, _ = station.answer("roll", config(plan, "r"), {})

    assert "would cost more than epsilon 4" in words["error"]
    assert "\n" not in words["error"]
    assert "error" not in again


def test_no_comm_round_goes_over_what_the_policy_allows(tmp_path):
    station, plan = station_at(tmp_path, policy="most_epsilon = 3.0"), plan_of()
    station.answer("roll", config(plan), {})
    answers = [station.answer("train", order(plan, t=min(t, 4)), at(t))[0] for t in range(1, 12)]

    refused = ["error" in words for words in answers]

    assert refused == [False] * 4 + [True] * 7
    assert spent_here(station.log, 1e-5)[-1][1] <= 3


def test_a_server_gets_no_more_steps_than_the_epsilon_was_reckoned_for(tmp_path):
    station, plan = station_at(tmp_path), plan_of()
    station.answer("roll", config(plan), {})
    answers = [station.answer("train", order(plan, t=min(t, 4)), at(t))[0] for t in range(1, 7)]

    assert ["error" in words for words in answers] == [False] * 4 + [True] * 2
    assert "all the local steps here" in answers[-1]["error"]
    assert spent_here(station.log, 1e-5)[-1][1] <= 3


def test_an_order_for_no_round_gives_no_budget_back(tmp_path):
    station, plan = station_at(tmp_path), plan_of()
    trained(station, plan)

    words, _ = station.answer("train", order(plan, rounds=-5), dict(MODEL))

    assert "the order asks for -5 rounds, where the plan has 1" in words["error"]
    assert station.log.charges()[0][1].steps == 2


def test_one_patient_more_changes_nothing_of_what_is_not_noised(tmp_path):
    """The names and the metrics of every reply, to the bit; the handshake's too. Only the model may differ."""
    plan = plan_of()
    one, other = (station_at(tmp_path / str(rows), rows) for rows in (40, 41))

    for kind, said in (("roll", config(plan)), ("train", order(plan))):
        words, arrays = one.answer(kind, said, dict(MODEL) if kind == "train" else {})
        others, theirs = other.answer(kind, said, dict(MODEL) if kind == "train" else {})
        for each in (words, others):
            each.get("config", {}).pop(MEETING, None)  # a random key, whoever the patients are
        assert json.dumps(words) == json.dumps(others)
        assert [(n, a.shape, a.dtype) for n, a in sorted(arrays.items())] == [
            (n, a.shape, a.dtype) for n, a in sorted(theirs.items())
        ]
    assert words["metrics"][EXAMPLES] == 8
    assert LOSS not in words["metrics"]


@pytest.mark.parametrize("lost", ["log.jsonl", "log.state.json"])
def test_neither_a_log_nor_a_state_that_is_lost_gives_budget_back(tmp_path, lost):
    station, plan = station_at(tmp_path), plan_of()
    for t in (1, 2):
        trained(station, plan, t=t)
    before = station.log.charges()

    (station.home / lost).unlink()

    assert SiteLog(station.home, "essen").charges() == before


@pytest.mark.parametrize(
    ("policy", "plan", "told"),
    [
        ({"most_epsilon": 3.0}, plan_of(privacy={"blur": 1.0}), "demands privacy for each patient"),
        ({"least_lot": 4}, plan_of(privacy={"clip": 1.0, "noise": 2.0}), "demands privacy for each patient"),
        ({"least_lot": 16}, plan_of(), "lots of 8; the policy here asks for 16"),
        ({"budget": 8.0}, plan_of(), "for patients, for which a policy has most_epsilon"),
    ],
)
def test_a_policy_demands_in_one_line(policy, plan, told):
    with pytest.raises(PolicyError, match=told) as refused:
        policy_from(policy).check_plan(plan, "t", samples=40, sites=3)

    assert "\n" not in str(refused.value)


def test_a_policy_lets_patient_level_plans_hand_models_on(tmp_path):
    policy_from({"most_epsilon": 3.0, "least_lot": 8}).check_plan(plan_of(), "t", samples=40, sites=3, numbers=6)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"recipe": Recipe(local_epochs=1)}, "steps that are noised and counted"),
        ({"weighted": True}, "does not tell how many"),
    ],
)
def test_the_site_itself_refuses_a_plan_that_breaks_its_promise(tmp_path, settings, told):
    words, _ = station_at(tmp_path).answer("roll", config(plan_of(**settings)), {})

    assert told in words["error"]


def test_lots_of_a_real_site_are_drawn_from_its_system(tmp_path):
    plan = plan_of(privacy={"level": "patient", "clip": 1.0, "noise": 1.0, "lot": 8})
    one, other = (station_at(tmp_path / name) for name in ("a", "b"))

    _, first = trained(one, plan)
    _, second = trained(other, plan)

    assert not np.allclose(first["arrays/0.weight"], second["arrays/0.weight"], atol=1e-4)


def test_what_is_told_of_records_adds_up_over_runs_and_a_restart_until_the_policy_says_no(tmp_path):
    station, plan = station_at(tmp_path, policy="most_exposure = 1.0"), plan_of({"exposure": 0.6})

    sent = [trained(station, plan, t=t)[1] for t in (1, 2, 3, 4)]
    assert station.log.exposure() == pytest.approx(0.6)
    trained(station, plan, t=1)  # asked again: told again
    station = station_at(tmp_path, policy="most_exposure = 1.0")
    trained(station, plan, run="another")
    words, left = station.answer("train", order(plan, run="another", t=2), dict(MODEL))

    assert left == {}
    assert "would tell more of a record than exposure 1" in words["error"]
    assert len({array["arrays/0.weight"].tobytes() for array in sent}) == 4
    assert station.log.exposure() == pytest.approx(0.9)


@pytest.mark.parametrize("hidden", [{}, {"sealed": True}, {"sealed": True, "secure": True}])
def test_a_limit_of_exposure_takes_no_exact_sums_of_scaling(tmp_path, hidden):
    plan = plan_of({"exposure": 0.6, **hidden})
    task = {key: value for key, value in plan.task.items() if key != "ranges"}
    limited = station_at(tmp_path / "limited", policy="most_exposure = 1.0")

    told = [limited.answer("roll", config(p), {}) for p in (plan.model_copy(update={"task": task}), plan)]
    free, _ = station_at(tmp_path / "free").answer("roll", config(plan.model_copy(update={"task": task})), {})

    assert "state their public ranges in the task" in told[0][0]["error"]
    assert told[0][1] == {}
    assert "public ranges" not in str(told[1][0])
    assert "public ranges" not in str(free)


def test_what_leaves_under_exposure_is_noise_that_nobody_else_can_draw(tmp_path):
    station, plan = station_at(tmp_path), plan_of({"exposure": 0.6})

    same = [trained(station, plan, t=1)[1]["arrays/0.weight"] for _ in range(2)]

    assert np.abs(same[0] - same[1]).max() > 0


def test_a_run_in_small_batches_is_charged_its_budget_and_what_is_asked_again_comes_on_top(tmp_path):
    station = station_at(tmp_path)
    plan = plan_of({"exposure": 0.6}, rounds=6, recipe=Recipe(lr=0.05, local_steps=1, batch=8))

    charged = []
    for t in range(1, 7):
        trained(station, plan, t=t)
        charged.append(station.log.exposure())

    assert charged == sorted(charged)
    assert charged[0] > 0.6 / 6 * 1.4  # of six communication rounds a patient is in four at most
    assert charged[-1] == pytest.approx(0.6)

    for t in range(1, 7):  # by a station that was started again before each order, and reads its log
        station = station_at(tmp_path)
        trained(station, plan, t=t)

    assert station.log.exposure() == pytest.approx(1.2)
