"""What sites say besides models: evaluations and sums, read as carefully as the models are."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.evaluation.site_sums import held_out_sums
from fedsmall.plan import Method, Plan
from fedsmall.planning.run_sheet import SUMS
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.handshake import _sums, agreed_scaling
from fedsmall.strategies.server.site_judges import evaluator_for
from fedsmall.travel.journey import RoundResult
from fedsmall.travel.schedule import Action, CommRound
from fedsmall.wire import HELD_OUT, METRICS
from tests.strategies.toy import ASKED, toy_grid

PLAN = Plan(name="p", task="t", method=Method(name="FedDC"))


def result(common):
    return RoundResult(CommRound(4, 1, Action.AGGREGATE), common, (), dict, 0, 0, [], {})


class SpoilingGrid(InProcessGrid):
    """One site's evaluation is replaced by ``spoilt``."""

    spoilt = RecordDict()

    def send_and_receive(self, messages, *, timeout=None):
        orders = list(messages)
        replies = super().send_and_receive(orders)
        if orders[0].metadata.message_type == "evaluate":
            replies[0].content = self.spoilt
        return replies


@pytest.mark.parametrize(
    "spoilt",
    [
        {"num-examples": 5, "mean": float("nan")},
        {"num-examples": 5, "mean": float("inf")},
        {"num-examples": -5, "mean": 1.0},
        {"num-examples": [5, 6], "mean": 1.0},
        {"num-examples": 10**12, "mean": 1.0},
    ],
)
def test_an_evaluation_that_is_no_number_is_set_aside_with_its_site(spoilt):
    roster = Roster()
    grid = SpoilingGrid(toy_grid(3).app, 3)
    grid.spoilt = RecordDict({METRICS: MetricRecord(spoilt)})
    roster.call(grid, dict(ASKED))

    judged = evaluator_for(roster, grid, PLAN)(result({"w": np.array([2.0])}))

    assert judged.common == {"mean": 2.0}
    assert sorted(judged.extra["held_out"]) == ["site-1", "site-2"]
    assert [(e["t"], e["site"], e["kind"]) for e in roster.events] == [(4, "site-0", "set aside")]


@pytest.mark.parametrize("spoilt", [RecordDict(), RecordDict({METRICS: ConfigRecord({"num-examples": ""})})])
def test_an_answer_without_an_evaluation_is_left_out(spoilt):
    roster = Roster()
    grid = SpoilingGrid(toy_grid(3).app, 3)
    grid.spoilt = spoilt
    roster.call(grid, dict(ASKED))

    judged = evaluator_for(roster, grid, PLAN)(result({"w": np.array([2.0])}))

    assert sorted(judged.extra["held_out"]) == ["site-1", "site-2"]


TASK = Task("t", (1,), 2, metrics=("accuracy", "loss"))


def told_by(change=None, **metrics):
    """An answer of a run's end by a site of three patients; ``change`` is done to its sums."""
    told = held_out_sums(np.array([[0.0, 1.0], [2.0, 0.0], [0.5, 1.0]]), np.array([1, 0, 0]), TASK)
    if change is not None:
        change(told)
    said = {"num-examples": 3, "accuracy": 2 / 3} | metrics
    arrays = ArrayRecord({name: Array(np.asarray(values)) for name, values in told.items()})
    return RecordDict({METRICS: MetricRecord(said), HELD_OUT: arrays})


def judged_with(answer):
    """What the server makes of three sites' answers, of which the first is this one, and of whom it has events."""
    roster = Roster()
    grid = SpoilingGrid(toy_grid(3).app, 3)
    grid.spoilt = answer
    roster.call(grid, dict(ASKED))
    return evaluator_for(roster, grid, PLAN, TASK)(result({"w": np.array([2.0])})), roster.events


def test_sums_are_kept_as_they_were_told_and_charges_are_no_metrics():
    judged, events = judged_with(told_by(**{"charged-steps": 8.0, "charged-most": 3.0}))

    told = judged.told["site-0"]
    assert events == []
    assert (told["samples"], told["charged"]) == (3, {"steps": 8.0, "most": 3.0})
    assert told["sums"]["called"] == [[1.0, 1.0], [0.0, 1.0]]
    assert judged.extra["held_out"]["site-0"] == {"accuracy": pytest.approx(2 / 3)}


def test_what_a_site_was_charged_is_known_though_it_holds_too_few_out():
    judged, events = judged_with(RecordDict({METRICS: MetricRecord({"num-examples": 0, "charged-steps": 8.0})}))

    assert judged.told["site-0"] == {"charged": {"steps": 8.0}}
    assert "site-0" not in judged.extra["held_out"]
    assert events == []


SUM_LIES = {
    "more patients than it judged": (None, {"num-examples": 2}, "its sums are of more samples than its metrics"),
    "a matrix of others": (lambda told: told.update(called=np.eye(2)), {}, "its counts do not add up"),
    "another number right": (lambda told: told.update(called=np.array([[2.0, 0], [0, 1]])), {}, "do not add up"),
    "half a patient": (lambda told: told.update(called=told["called"] / 2 + 0.375), {}, "a count is no whole number"),
    "no matrix": (lambda told: told.pop("called"), {}, "expected 7 sums by name, and others came"),
}


@pytest.mark.parametrize(("lie", "metrics", "line"), SUM_LIES.values(), ids=SUM_LIES)
def test_sums_that_cannot_be_are_set_aside_with_their_site(lie, metrics, line):
    judged, (event,) = judged_with(told_by(lie, **metrics))

    assert (event["site"], event["kind"]) == ("site-0", "set aside")
    assert line in event["reason"]
    assert "site-0" not in judged.told


def sums(count, total=None, squares=None):
    arrays = {"count": count, "total": count if total is None else total}
    arrays["squares"] = count if squares is None else squares
    held = {name: a if isinstance(a, Array) else Array(np.array(a)) for name, a in arrays.items()}
    return RecordDict({SUMS: ArrayRecord(held)})


PROMISE = Array("float64", (10**9,), "numpy.ndarray", b"\x93NUMPY")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (RecordDict(), "cannot be read"),
        (sums(Array("", (2,), "numpy.ndarray", b"")), "cannot be read"),
        (sums(PROMISE), "cannot be read"),
        (sums([5.0, np.nan]), "not finite"),
        (sums([5, 6]), "not finite"),
        (sums([5.0, -1.0]), "not three numbers for each feature"),
        (sums([5.0, 6.0], [1.0]), "not three numbers for each feature"),
        (sums([[5.0, 6.0]]), "not three numbers for each feature"),
    ],
)
def test_sums_that_cannot_be_used_name_their_site(content, line):
    with pytest.raises(PlanError, match=f"essen: its sums .*{line}|essen: its sums {line}"):
        _sums("essen", SUMS, content)


def test_sites_with_different_features_are_told_apart_before_anything_is_scaled(tmp_path):
    roster = Roster()
    roster.answers = {"bonn": {"scaled": True}, "essen": {"scaled": True}}
    told = {"bonn": sums([5.0, 6.0]), "essen": sums([5.0])}

    with pytest.raises(PlanError, match="number of features: bonn has 2, essen has 1"):
        agreed_scaling(roster, tmp_path, told)

    assert not (tmp_path / "scaling.json").exists()
