"""The hospital's say: a pause stops training alone, a new run waits for a yes, and a no is remembered."""

import pytest

from fedsmall.clients import consent
from fedsmall.clients.data_process import DataProcess
from fedsmall.errors import PolicyError
from fedsmall.planning.run_sheet import RUN_ID
from fedsmall.wire import WAITS
from tests.clients.test_data_process import AS_IT_IS, config, files, order, plan, scaled, station  # noqa: F401


@pytest.fixture
def asking(station):  # noqa: F811
    """A station whose policy wants each new run approved."""
    station.policy_file.write_text(AS_IT_IS + "approve = true\n")
    return station


def events(station, event):  # noqa: F811
    return [entry for entry in station.log.entries() if entry["event"] == event]


def test_a_paused_site_trains_for_nobody_judges_and_goes_on_to_the_same_bits(station):  # noqa: F811
    model = scaled(station)
    _, before = station.answer("train", order(1), model)

    assert consent.pause(station.home)
    assert not consent.pause(station.home)
    words = [station.answer("train", order(1), model)[0] for _ in range(3)]
    judged = station.answer("evaluate", order(1), model)[0]
    assert consent.unpause(station.home)
    assert not consent.unpause(station.home)
    _, after = station.answer("train", order(1), model)

    assert [each["error"] for each in words] == ["essen: paused by the hospital"] * 3
    assert [each["code"] for each in words] == [WAITS] * 3
    assert "metrics" in judged
    assert {name: array.tobytes() for name, array in after.items()} == {n: a.tobytes() for n, a in before.items()}
    assert [entry["reason"] for entry in events(station, "waits")] == ["paused by the hospital"]  # asked three times


def test_nothing_leaves_for_a_run_before_somebody_has_said_yes(asking):
    for kind in ("roll", "scaling", "train"):
        words, leaving = asking.answer(kind, order(1), {})
        assert (words["code"], leaving) == (WAITS, {})
        assert "essen: waits for the hospital's approval (there: fedsmall site approve r)" in words["error"]
    (request,) = consent.requests(asking.home)

    consent.decide(asking.home, request, yes=True)

    words, _ = asking.answer("roll", config(plan()), {})
    assert words["config"]["site"] == "essen"
    assert len(events(asking, "waits")) == 1
    assert [entry["reason"] for entry in events(asking, "approved")] == ["by the hospital"]


def test_what_is_asked_for_says_what_the_run_is_and_what_would_leave(asking):
    asking.answer("roll", config(plan(rounds=40)), {})

    told = "\n".join(consent.request_of(asking.home, "r").lines)

    assert "method FedDC, 40 local rounds; models leave in 40 of them" in told
    assert "sites: bonn, essen, ulm" in told
    assert "task: csv = hospital.csv, label = diagnosis, classes = ['malignant', 'benign']\n" in told
    assert "privacy: none; models leave as they are trained" in told
    assert "62 numbers in 2 arrays: 0.weight (2, 30), 0.bias (2,); 248 bytes" in told
    assert "for each feature count, sum and sum of squares" in told


def test_a_no_is_remembered_by_the_next_station_and_can_be_taken_back(asking):
    asking.answer("roll", config(plan()), {})
    request = consent.request_of(asking.home, "r")
    consent.decide(asking.home, request, yes=False)
    again = DataProcess(asking.name, asking.data, asking.home, asking.policy_file)

    for each in (asking, again):
        words, _ = each.answer("roll", config(plan()), {})
        assert words["error"] == "essen: the hospital has refused this run"
        assert "code" not in words  # to be asked no more
    consent.decide(asking.home, request, yes=True)
    assert "config" in again.answer("roll", config(plan()), {})[0]


@pytest.mark.parametrize(
    "other",
    [
        config(plan(rounds=5)),
        config(plan(), run="s"),
        {**config(plan()), RUN_ID: "another"},
        {**config(plan()), "sites": ["essen", "bonn", "ulm", "kiel"]},
    ],
)
def test_a_yes_is_for_one_run_one_plan_and_its_sites(asking, other):
    asking.answer("roll", config(plan()), {})
    consent.decide(asking.home, consent.request_of(asking.home, "r"), yes=True)
    assert "config" in asking.answer("roll", config(plan()), {})[0]

    assert asking.answer("roll", other, {})[0]["code"] == WAITS
    assert len(consent.requests(asking.home)) == 2


def test_class_weights_that_the_run_itself_agrees_on_need_no_second_yes(asking):
    balanced = plan().model_copy(update={"recipe": plan().recipe.model_copy(update={"class_weights": "balanced"})})
    agreed = plan().model_copy(update={"recipe": plan().recipe.model_copy(update={"class_weights": (0.5, 1.5)})})
    asking.answer("roll", config(balanced), {})

    consent.decide(asking.home, consent.request_of(asking.home, "r"), yes=True)

    assert "config" in asking.answer("roll", config(agreed), {})[0]


def test_a_verdict_that_nobody_can_read_is_no_yes(asking):
    asking.answer("roll", config(plan()), {})
    request = consent.request_of(asking.home, "r")

    (asking.home / consent.FOLDER / f"{request.key}.verdict").write_bytes(b"\xff")

    assert asking.answer("roll", config(plan()), {})[0]["code"] == WAITS


def test_a_plan_that_the_policy_refuses_is_not_asked_about(asking):
    asking.policy_file.write_text(AS_IT_IS + "approve = true\nmost_rounds = 2\n")

    assert "allows 2" in asking.answer("roll", config(plan()), {})[0]["error"]
    assert consent.requests(asking.home) == []


def test_a_coordinator_cannot_fill_the_disk_with_questions(asking, monkeypatch):
    monkeypatch.setattr(consent, "MOST_WAITING", 2)
    for run in ("a", "b"):
        asking.answer("roll", config(plan(), run=run), {})

    assert "too many runs wait" in asking.answer("roll", config(plan(), run="c"), {})[0]["error"]
    assert len(consent.requests(asking.home)) == 2


def test_a_run_that_has_not_asked_is_named_with_the_nearest(asking):
    with pytest.raises(PolicyError, match="None has asked yet"):
        consent.request_of(asking.home, "r")
    asking.answer("roll", config(plan(), run="lungs"), {})

    with pytest.raises(PolicyError, match=r"no run .lung. has asked here\. .*lungs"):
        consent.request_of(asking.home, "lung")
