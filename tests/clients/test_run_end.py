"""At a run's end a site tells sums over its held-out patients, as its policy allows, and keeps what was answered."""

import numpy as np
import pytest

from fedsmall.clients.kept import load_kept
from fedsmall.clients.runs import run_folder
from fedsmall.clients.site_request import read_agreed
from fedsmall.clients.telling import may_be_last, own_evaluation
from fedsmall.data.federation import task_from
from fedsmall.evaluation.intercepts import fit_intercept
from fedsmall.evaluation.site_sums import held_out_shapes, held_out_sums
from fedsmall.package.predictor import predictor_of
from fedsmall.package.record import GLOBAL
from fedsmall.parts import EarlyStop
from fedsmall.wire import split
from tests.clients.test_data_process import AS_IT_IS, files, order, plan, same, scaled, station

__all__ = ["files", "station"]  # fixtures


def evaluated(at, t, model):
    words, arrays = at.answer("evaluate", order(t), model)
    assert "error" not in words
    return words["metrics"], split(arrays, "held-out")


def test_sums_are_told_of_the_last_model_and_of_none_before(station):
    model = scaled(station)

    _, before = evaluated(station, 2, model)
    metrics, sums = evaluated(station, 4, model)

    own, raw = own_evaluation(run_folder(station.home / "runs", "r")), station._read_samples(plan())[0]
    expected = held_out_sums(np.log(own.predictions), own.y, raw.task)
    assert before == {}
    assert {name: array.shape for name, array in sums.items()} == held_out_shapes(raw.task)
    assert sums["count"] == metrics["num-examples"] == len(raw.held_out)
    assert sums["called"].tolist() == expected["called"].tolist()
    assert sums["loss"] == pytest.approx(expected["loss"])
    assert (own.t, own.y.tolist()) == (4, raw.held_out.y.tolist())


def test_where_a_run_may_end_early_every_model_may_be_the_last():
    routes = plan(validate={"routes": 3})

    assert may_be_last(routes.model_copy(update={"stop": EarlyStop(patience=2)}), 2)
    assert not may_be_last(routes, 2)
    assert may_be_last(plan(), 4)


def test_a_policy_that_lets_no_sums_be_told_is_kept_here_too(station):
    model = scaled(station)
    station.policy_file.write_text(AS_IT_IS + "judge = false\n")

    metrics, sums = evaluated(station, 4, model)

    assert sums == {}
    assert "accuracy" in metrics


def test_of_fewer_than_the_floor_nothing_is_told_and_the_site_still_sees_it(station):
    model = scaled(station)
    station.policy_file.write_text(AS_IT_IS + "count_floor = 1000\n")

    metrics, sums = evaluated(station, 4, model)

    assert (metrics, sums) == ({"num-examples": 0}, {})
    assert len(own_evaluation(run_folder(station.home / "runs", "r")).y) == 48


def test_sums_of_two_runs_never_differ_by_a_few_patients(station, files):
    model = scaled(station)
    _, first = evaluated(station, 4, model)
    lines = files["essen"].read_text().splitlines(keepends=True)
    files["essen"].write_text("".join(lines[:-3]))  # three patients fewer; others may be held out

    words, arrays = station.answer("evaluate", order(4, run="later"), scaled(station, run="later"))

    later = split(arrays, "held-out")
    same = [e for e in station.log.entries() if e["event"] == "kept" and e["kind"] == "evaluate"]
    assert "error" not in words
    assert not later or later["count"] == first["count"] or later["count"] >= 8
    assert len(same) == int(not later or later["count"] < words["metrics"]["num-examples"])


def test_what_was_agreed_is_kept_as_it_came_first(station):
    scaled(station)

    found = read_agreed(run_folder(station.home / "runs", "r"))

    assert (found.run, found.plan, found.sites) == ("r", plan(), ("bonn", "essen", "ulm"))


def test_the_roll_call_says_how_rows_become_samples_and_nothing_of_any(station):
    from fedsmall.data.preparation import Preparation

    words, _ = station.answer("roll", {**order(0), "round": 0}, {})

    told = Preparation.model_validate_json(words["config"]["rows"])
    assert told == station._read_samples(plan())[0].preparation
    assert told.agreed is None
    assert task_from({"name": "t", "input_shape": [30], "classes": 2}).input_shape == told.shape


def test_a_hospitals_intercept_changes_nothing_that_is_sent_and_is_in_its_own_package_alone(station):
    answers, kept, seen = [], [], []
    for run, its in (("r", plan()), ("own", plan(intercepts="hospital"))):
        model = scaled(station, its, run)
        words, sent = station.answer("train", order(2, run=run, the_plan=its), model)
        answers.append((words, sent, *station.answer("evaluate", order(4, run=run, the_plan=its), model)))
        kept.append(load_kept(run_folder(station.home / "runs", run), GLOBAL))
        seen.append(own_evaluation(run_folder(station.home / "runs", run)))

    for ours, theirs in zip(*answers, strict=True):
        assert same(ours, theirs) if ours and isinstance(next(iter(ours.values())), np.ndarray) else ours == theirs

    plain, own = kept
    assert plain.package.intercept == ()
    assert len(own.package.intercept) == 2
    assert "elsewhere it is wrong" in own.package.limits[-1]
    raw, home = station._read_samples(plan())[0], seen[1].predictions
    rows, train = raw.held_out.x, raw.train
    odds = [np.diff(np.log(predictor_of([stored]).answers(rows).together))[:, 0] for stored in kept]
    assert odds[1] - odds[0] == pytest.approx(np.full(len(rows), np.diff(own.package.intercept)[0]), abs=1e-5)
    assert np.diff(np.log(home))[:, 0] == pytest.approx(odds[1], abs=1e-4)
    on_train = np.log(predictor_of([plain]).answers(train.x).together)
    assert fit_intercept(on_train, train.y, "cross_entropy") == pytest.approx(own.package.intercept, abs=1e-5)
    assert own.package.performance["held out at essen"]["loss"] < plain.package.performance["held out at essen"]["loss"]
