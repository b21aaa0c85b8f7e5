"""The station: the same order gives the same bits, the policy comes first, and nothing is told that must not be."""

import errno
import json
import os

import numpy as np
import pytest

from fedsmall.audit_log import verify
from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.kept import OWN_MODEL, load_kept
from fedsmall.clients.memory import KEEP, RoundMemory
from fedsmall.clients.runs import run_folder
from fedsmall.methods import method
from fedsmall.models import registry
from fedsmall.models.registry import initial_model
from fedsmall.package.predictor import predictor_of
from fedsmall.package.record import GLOBAL
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN, RUN_ID, SITES, SUMS, TELL
from fedsmall.sim.consortium import sample_data
from fedsmall.wire import BROKEN, IS_GLOBAL, PLAN, ROUND, ROUNDS, split
from tests.fedsmall.training.second_device import second_device

NAMES = ["bonn", "essen", "ulm"]
AS_IT_IS = "least_blur = 0\nmost_read = 1000\nleast_batch = 1\ncheck_models = false\n"  # any model comes and leaves


def plan(rounds=4, name="FedDC", privacy=None, **settings):
    chosen = method(name, **settings)
    if privacy is not None:
        chosen = chosen.model_copy(update={"privacy": privacy})
    task = {"csv": "hospital.csv", "label": "diagnosis", "classes": ["malignant", "benign"]}
    if privacy is not None and privacy.counted:
        task["ranges"] = [0.0, 5000.0]
    return Plan(
        name="p",
        task=task,
        partition={"natural": "file"},
        model="linear",
        rounds=rounds,
        recipe=Recipe(lr=0.05, batch=8),
        method=chosen,
    )


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{name}.csv" for name in NAMES]
    sample_data.write(paths)
    return dict(zip(NAMES, paths, strict=True))


@pytest.fixture
def station(tmp_path, files):
    (tmp_path / "policy.toml").write_text(AS_IT_IS)
    return DataProcess("essen", files["essen"], tmp_path / "home", tmp_path / "policy.toml")


def config(the_plan, run="r", **more):
    return {PLAN: the_plan.model_dump_json(), RUN: run, SITES: NAMES, **more}


def order(t, rounds=1, run="r", the_plan=None, common=True):
    return config(the_plan or plan(), run, **{ROUND: t, ROUNDS: rounds, IS_GLOBAL: common})


def scaled(station, the_plan=None, run="r"):
    """A station that has gone through handshake and scaling, and a model to send it."""
    the_plan = the_plan or plan()
    words, _ = station.answer("roll", config(the_plan, run), {})
    if words["config"]["scaled"]:
        agree(station, the_plan, run)
    from fedsmall.data.federation import Task

    read = json.loads(words["config"]["task"])
    task = Task(**{k: tuple(v) if isinstance(v, list) else v for k, v in read.items()})
    return {f"arrays/{name}": value for name, value in initial_model(the_plan, task).items()}


def agree(station, the_plan, run):
    _, sums = station.answer("roll", config(the_plan, run, **{TELL: [SUMS]}), {})
    count = np.maximum(sums["sums/count"], 1)
    mean = sums["sums/total"] / count
    scale = np.sqrt(np.maximum(sums["sums/squares"] / count - mean**2, 1e-6))
    station.answer("scaling", config(the_plan, run), {"scaling/mean": mean, "scaling/scale": scale})


def same(one, other):
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_the_roll_call_says_who_and_what_and_that_features_are_scaled(station):
    words, arrays = station.answer("roll", config(plan()), {})

    assert words["config"]["site"] == "essen"
    assert words["config"]["scaled"] is True
    assert arrays == {}


def test_the_same_order_gives_the_same_bits_even_from_a_new_station(station):
    model = scaled(station)

    _, first = station.answer("train", order(1), model)
    _, again = station.answer("train", order(1), model)
    fresh = DataProcess(station.name, station.data, station.home, station.policy_file)
    _, later = fresh.answer("train", order(1), model)

    assert same(first, again)
    assert same(first, later)
    assert not same(first, model)


def test_the_plans_first_model_is_made_for_the_first_order_alone(station, monkeypatch):
    model, made = scaled(station), []
    _, sent = station.answer("train", order(1), model)
    monkeypatch.setattr(registry, "build_model", lambda *words: made.append(words))

    words, _ = station.answer("train", order(2, common=False), sent)

    assert "error" not in words
    assert made == []


def test_a_station_trains_on_the_device_it_was_started_with(station):
    model = scaled(station)
    _, on_the_cpu = station.answer("train", order(1), model)

    with second_device() as place:
        station.device = place
        station._core = None
        _, there = station.answer("train", order(1), model)
        trainer = station._core[2]

    assert trainer.device == place
    assert same(on_the_cpu, there)


def test_a_device_that_the_policy_forbids_is_refused_and_logged(station):
    station.device = "cuda"
    station.policy_file.write_text('devices = ["cpu"]')

    words, arrays = station.answer("roll", config(plan()), {})

    assert words == {"error": 'essen: device "cuda" is not among those allowed here (cpu)'}
    assert arrays == {}
    assert station.log.entries()[-1]["event"] == "refused"


def test_a_comm_round_asked_for_twice_starts_from_the_memory_before_it(station):
    scaffold = plan(name="SCAFFOLD")
    model = scaled(station, scaffold)
    _, first = station.answer("train", order(1, the_plan=scaffold), model)

    _, second = station.answer("train", order(2, the_plan=scaffold), model)
    _, again = station.answer("train", order(2, the_plan=scaffold), model)

    assert same(second, again)
    assert not same(first, second)  # what was remembered matters: the model that came was the same


def test_memory_is_read_by_the_round_that_asks(tmp_path):
    for t in range(1, 9):
        RoundMemory(tmp_path, t).write({"c": np.array([t])})

    assert RoundMemory(tmp_path, 9).read()["c"].tolist() == [8]
    assert RoundMemory(tmp_path, 7).read()["c"].tolist() == [6]
    assert RoundMemory(tmp_path, 1).read() == {}
    assert len(list(tmp_path.iterdir())) == KEEP


def refused(station, kind, the_config, arrays=None):
    words, leaving = station.answer(kind, the_config, arrays or {})
    assert leaving == {}
    assert "\n" not in words["error"]
    return words["error"]


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ('methods = ["FedAvg"]', "method 'FedDC'"),
        ("least_samples = 100000", "fewer than the 100000 samples"),
        ("least_sites = 4", "has 3 sites"),
        ("most_rounds = 3", "has 4 rounds"),
        ("clip = 1.0", "demands clipping"),
        ("nonsense = 1", "the policy's 'nonsense'"),
    ],
)
@pytest.mark.parametrize("kind", ["roll", "train", "evaluate"])
def test_the_policy_is_asked_before_every_answer(station, kind, policy, line):
    station.policy_file.write_text(policy)

    said = refused(station, kind, order(1))

    assert said.startswith("essen: ")
    assert line in said
    assert [entry["event"] for entry in station.log.entries()] == ["refused"]


def test_a_run_begun_anew_under_an_old_name_meets_no_memory_of_the_old_one(station, files):
    scaled(station)
    text = files["essen"].read_text().splitlines(keepends=True)
    files["essen"].write_text("".join(text[:-1]))

    words, _ = station.answer("roll", config(plan(), **{RUN_ID: "another"}), {})
    unscaled = refused(station, "train", {**order(1), RUN_ID: "another"})
    old = refused(station, "roll", config(plan()))

    assert words["config"]["site"] == "essen"
    assert "never told the scaling of this run" in unscaled
    assert "data have changed since this run began" in old  # it finds its own memory again


def test_data_changed_under_way_are_noticed(station, files):
    scaled(station)
    text = files["essen"].read_text().splitlines(keepends=True)
    files["essen"].write_text("".join(text[:-1]))

    assert "data have changed since this run began" in refused(station, "roll", config(plan()))
    assert "error" not in station.answer("roll", config(plan(), run="another"), {})[0]


def test_a_failure_is_one_line_and_its_traceback_stays_here(station, capsys, monkeypatch):
    model = scaled(station)
    monkeypatch.setattr("fedsmall.clients.data_process.fit_or_stay", lambda *_: [][0])

    said = refused(station, "train", order(1), model)

    assert "its program failed; the traceback is in the data process's log" in said
    assert "Traceback" in capsys.readouterr().err


def test_a_model_of_another_shape_is_refused_before_it_is_trained(station):
    model = scaled(station) | {"arrays/0.weight": np.zeros((1, 1), np.float32)}

    assert "the model that came is not that of the plan" in refused(station, "train", order(1), model)


def test_nothing_of_the_data_is_in_a_refusal(station, files):
    files["essen"].write_text(files["essen"].read_text().replace("benign", "secret-word", 1))

    said = refused(station, "roll", config(plan()))

    assert "secret-word" not in said
    assert str(files["essen"].parent) not in said
    assert "essen.csv" not in said


@pytest.mark.parametrize("broken", [{}, {PLAN: "{}"}, {PLAN: "no json"}, {PLAN: 3}])
def test_an_order_that_makes_no_sense_is_refused(station, broken):
    assert "no plan" in refused(station, "train", broken)


def test_an_unknown_wish_is_refused(station):
    assert "does not know" in refused(station, "read-files", config(plan()))


def test_an_order_without_its_run_or_without_this_site_is_refused(station):
    scaled(station)
    elsewhere = order(1, run="new") | {SITES: ["bonn", "ulm", "x"]}
    without = order(1)
    del without[RUN]

    assert "of which run" in refused(station, "train", without)
    assert "a run that this site is not in" in refused(station, "roll", elsewhere)


def test_counts_below_the_floor_are_not_told(station, files):
    text = files["essen"].read_text().splitlines(keepends=True)
    files["essen"].write_text("".join(text[:9]))
    station.policy_file.write_text(AS_IT_IS + "least_samples = 2\ncount_floor = 20\n")

    words, _ = station.answer("roll", config(plan()), {})

    assert words["config"]["num-examples"] == 20


def test_too_few_held_out_samples_are_not_judged(station):
    model = scaled(station)
    words, _ = station.answer("evaluate", config(plan()), model)
    assert "accuracy" in words["metrics"]

    station.policy_file.write_text(AS_IT_IS + "count_floor = 1000\n")
    words, _ = station.answer("evaluate", config(plan()), model)

    assert words["metrics"] == {"num-examples": 0}


def test_the_log_holds_what_left_and_no_number_of_it(station):
    model = scaled(station)
    _, leaving = station.answer("train", order(1), model)

    last = list(station.log.entries())[-1]

    assert last["arrays"] == {name: list(value.shape) for name, value in sorted(leaving.items())}
    assert last["bytes"] == sum(value.nbytes for value in leaving.values())
    assert verify(station.log.path).fault is None


def test_a_spent_budget_stops_the_site_and_survives_a_restart(station):
    private = plan(privacy=Privacy(clip=1.0, noise=2.0))
    model = scaled(station, private)
    from fedsmall.privacy.site_level import epsilon

    station.policy_file.write_text(f"budget = {epsilon(2.0, 1e-5, 2) + 1e-6}\n")

    assert "error" not in station.answer("train", order(1, the_plan=private), model)[0]
    station = DataProcess(station.name, station.data, station.home, station.policy_file)
    assert "error" not in station.answer("train", order(2, the_plan=private), model)[0]
    assert "budget" in refused(station, "train", order(3, the_plan=private), model)


def test_a_cut_log_does_not_give_the_budget_back_and_stops_the_site_until_it_is_back(station):
    private = plan(privacy=Privacy(clip=1.0, noise=2.0))
    model = scaled(station, private)
    from fedsmall.privacy.site_level import epsilon

    station.policy_file.write_text(f"budget = {epsilon(2.0, 1e-5, 1) + 1e-6}\n")
    assert "error" not in station.answer("train", order(1, the_plan=private), model)[0]
    whole = station.log.path.read_bytes()
    station.log.path.write_bytes(b"")

    for each in (station, DataProcess(station.name, station.data, station.home, station.policy_file)):
        words, leaving = each.answer("train", order(2, the_plan=private), model)
        assert words["code"] == BROKEN
        assert "was cut off or replaced: it had 3 lines and has 0" in words["error"]
        assert leaving == {}
    assert station.log.path.read_bytes() == b""  # nothing is written to a log that is not the one

    station.log.path.write_bytes(whole)
    station = DataProcess(station.name, station.data, station.home, station.policy_file)
    assert "budget" in refused(station, "train", order(2, the_plan=private), model)


@pytest.mark.parametrize("at", ["the log", "the memory"])
def test_a_full_disk_is_told_as_one_and_nothing_leaves(station, monkeypatch, at):
    scaffold = plan(name="SCAFFOLD")
    model = scaled(station, scaffold)

    def full(handle):
        if at == "the log" or "safetensors" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    words, leaving = station.answer("train", order(1, the_plan=scaffold) | {RUN: "r"}, model)

    assert "disk is full" in words["error"]
    assert leaving == {}


def test_the_site_keeps_the_common_model_and_its_own_and_can_use_both_alone(station, files):
    model = scaled(station)
    station.answer("train", order(4), model)
    words, _ = station.answer("evaluate", order(4), model)
    folder = run_folder(station.home / "runs", "r")
    raw = station._read_samples(plan())[0]
    rows = raw.held_out.x

    common, own = load_kept(folder, GLOBAL), load_kept(folder, OWN_MODEL)

    said = predictor_of([common]).answers(rows)
    assert (said.named == raw.held_out.y).mean() == pytest.approx(words["metrics"]["accuracy"])
    assert same(common.weights, split(model, "arrays"))
    assert not same(own.weights, common.weights)
    assert common.package.performance["held out at essen"]["accuracy"] == words["metrics"]["accuracy"]
    assert (common.package.trained_on.sites, common.package.trained_on.samples) == (3, None)
    assert "stays at this site" in own.package.notes[1]


def test_a_model_on_the_way_is_not_kept_as_the_common_one_and_an_odd_one_is_refused(station):
    model = scaled(station)

    station.answer("evaluate", order(2), model)
    station.policy_file.write_text(AS_IT_IS + "count_floor = 1000\n")  # nothing is judged, so nothing is checked there
    odd = refused(station, "evaluate", order(4), {"arrays/0.weight": np.zeros((1, 1), np.float32)})

    assert load_kept(run_folder(station.home / "runs", "r"), GLOBAL) is None
    assert "the model that came is not that of the plan" in odd
