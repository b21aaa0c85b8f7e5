"""The program that speaks for a region: what it waits for, what it refuses, what it never takes twice."""

import numpy as np
import pytest

from fedsmall.clients import consent
from fedsmall.errors import PlanError
from fedsmall.strategies.server.regions import Line
from fedsmall.travel.handover import Handover, put, read
from fedsmall.wire import WAITS
from tests.sim.regions.two_levels import TwoLevels, plan_of

REGIONS = {"north": ("bonn", "essen", "ulm"), "south": ("aachen", "trier")}
PLAN = plan_of(REGIONS)
MODEL = {"w": np.arange(3.0)}
DOWN = {f"arrays/{name}": array for name, array in MODEL.items()}


@pytest.fixture
def levels(tmp_path, monkeypatch):
    made = TwoLevels(tmp_path, REGIONS, monkeypatch, {})
    made.programs["north"].patience_s = 0
    return made


@pytest.fixture
def handover(levels):
    levels.prepare("north", PLAN)
    return Handover(levels.home("north") / "above")


def test_a_region_that_was_not_started_is_waited_for(levels):
    said, arrays = levels.ask("north", "roll", PLAN, {})

    assert said == {"error": "north: this region has not started its run 'tides' yet", "code": WAITS}
    assert not arrays


def test_a_region_that_is_on_its_way_is_waited_for_and_says_why_it_is_not(levels, handover):
    assert "own sites have not met yet" in levels.ask("north", "roll", PLAN, {})[0]["error"]

    (levels.home("north") / "failure.json").write_text('{"reason": "2 of 3 sites answered"}')
    said, _ = levels.ask("north", "train", PLAN, {}, round=4, rounds=4)

    assert said["code"] == WAITS
    assert said["error"].endswith("has not come to round 4 yet; its run ended early: 2 of 3 sites answered")


def test_a_paused_region_sends_no_model(levels, handover):
    put(handover.up(4), {"t": 4, "weight": 3.0}, MODEL)
    consent.pause(levels.programs["north"].home)

    said, arrays = levels.ask("north", "train", PLAN, {}, round=4, rounds=4)

    assert said["code"] == WAITS
    assert not arrays


def test_what_went_up_is_sent_and_what_comes_down_is_kept_once(levels, handover):
    put(handover.up(6), {"t": 6, "weight": 3.0}, MODEL)

    said, arrays = levels.ask("north", "train", PLAN, DOWN, round=6, rounds=2)
    again = levels.ask("north", "train", PLAN, DOWN, round=6, rounds=2)
    other = levels.ask("north", "train", PLAN, {"arrays/w": np.zeros(3)}, round=6, rounds=2)

    assert said["metrics"] == {"num-examples": 3.0, "steps": 1}
    assert arrays.keys() == DOWN.keys() == again[1].keys()
    assert "the united model of round 4 came already, and was another" in other[0]["error"]
    assert np.array_equal(read(handover.down(4)).arrays["w"], MODEL["w"])


@pytest.mark.parametrize(("t", "rounds"), [(6, 3), (6, 6), (5, 2), (10**9, 2)])
def test_nothing_comes_down_of_a_round_in_which_regions_do_not_meet(levels, handover, t, rounds):
    put(handover.up(6), {"t": 6, "weight": 3.0}, MODEL)

    said, arrays = levels.ask("north", "train", PLAN, DOWN, round=t, rounds=rounds)

    assert "the plan has" in said["error"]
    assert not arrays
    assert not handover.last_down()


CASES = {
    "another seed": (lambda: PLAN.model_copy(update={"seed": 3}), {}, "seed is 0 and 3"),
    "another period": (lambda: plan_of(REGIONS, every=2), {}, "method.regions.average_every is 4 and 2"),
    "another run of that name": (lambda: PLAN, {"run-id": "two"}, "another run of that name above came already"),
    "no name": (lambda: PLAN, {"run": "../tides"}, "does not say of which run"),
    "a region that is not meant": (lambda: PLAN, {"sites": ["west"]}, "one of region 'north'"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_order_of_another_run_is_refused_in_one_line(case, levels, handover):
    plan, words, line = CASES[case]
    levels.ask("north", "roll", PLAN, {})

    said, _ = levels.ask("north", "roll", plan(), {}, **words)

    assert line in said["error"]
    assert "code" not in said
    assert "\n" not in said["error"]


def test_what_moves_no_model_may_differ(levels, handover):
    said, _ = levels.ask("north", "roll", PLAN.model_copy(update={"evaluate_every": 3, "name": "mine"}), {})

    assert said["code"] == WAITS


def test_a_question_that_is_none_of_a_region_s_is_refused(levels, handover):
    assert "does not know" in levels.ask("north", "validate", PLAN, {})[0]["error"]


def test_a_region_that_was_left_behind_says_so_and_goes_no_further(tmp_path):
    handover = Handover(tmp_path)
    put(handover.down(8), {"t": 8}, MODEL)

    with pytest.raises(PlanError, match="gone on to round 8 without this one, which is at round 4"):
        Line(handover).united(4, MODEL, 3.0)


def test_a_region_that_is_taken_up_again_takes_what_came_down_before(tmp_path):
    handover = Handover(tmp_path)
    put(handover.down(4), {"t": 4}, MODEL)

    assert np.array_equal(Line(handover).united(4, {"w": np.ones(3)}, 3.0)["w"], MODEL["w"])
    assert not handover.up(4).exists()


def test_a_damaged_file_is_named(tmp_path):
    handover = Handover(tmp_path)
    handover.up(4).write_bytes(b"no frame")

    with pytest.raises(PlanError, match=r"000000004.up in above/ of the region's run is damaged"):
        read(handover.up(4))
