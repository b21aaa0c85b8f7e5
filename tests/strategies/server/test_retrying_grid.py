"""The patient grid: sends again what was lost, waits until the deadline and no longer, and stops below the quorum."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from google.protobuf.message import DecodeError

from fedsmall.audit_log import AuditLog, digest_of, verify
from fedsmall.plan import Method, Plan
from fedsmall.planning.run_sheet import RUN, RUN_ID, SITES, RunSheet
from fedsmall.strategies.server import grid as run_grid
from fedsmall.strategies.server.grid import QuorumError, RetryingGrid
from fedsmall.wire import CONFIG, METRICS, MODEL, ROUND, WAITS

NAMES = {2: "bonn", 3: "essen", 4: "ulm"}
PLAN = Plan(name="p", task="t", method=Method(name="FedDC"))


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(run_grid.time, "sleep", self.sleep)

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Fleet:
    """Flower's grid with sites that do at each time what a test's script says; ``online`` may depend on the clock."""

    def __init__(self, clock, script, online=lambda now: set(NAMES)):
        self.clock, self.script, self.online = clock, script, online
        self.pushed, self.waiting, self.ids = [], {}, itertools.count(1)

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, name=NAMES[node]) for node in sorted(self.online(self.clock()))]

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.ids)}"
            self.pushed.append(message)
            self.waiting[message.metadata.message_id] = message
        return [m.metadata.message_id for m in messages]

    def forget(self, ids):
        for key in ids:
            del self.waiting[key]

    def pull_messages(self, ids):
        replies = []
        for key in ids:
            order = self.waiting[key]
            times = sum(m.metadata.dst_node_id == order.metadata.dst_node_id for m in self.pushed)
            said = self.script(order.metadata.dst_node_id, times, self.clock())
            if said is not None:
                body = Error(code=said, reason="gone") if isinstance(said, int) else said
                replies.append(Message(body, reply_to=order))
        return replies


@pytest.fixture(autouse=True)
def _server():
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 0, 1, 1


def answer():
    return RecordDict({MODEL: ArrayRecord({"w": Array(np.ones(2, np.float32))})})


def grid_of(tmp_path, monkeypatch, script, online=None, **settings):
    clock = Clock(monkeypatch)
    sheet = RunSheet(**{"run": "r", "plan": PLAN, "sites": tuple(NAMES.values()), "round_deadline_s": 60, **settings})
    fleet = Fleet(clock, script, online or (lambda now: set(NAMES)))
    grid = RetryingGrid(fleet, sheet, AuditLog(tmp_path / "log.jsonl"), clock)
    grid.get_nodes()  # as every run does first: names come from Flower's register
    return grid, fleet


def test_a_site_that_is_online_and_not_in_the_run_does_not_exist_for_it(tmp_path, monkeypatch):
    grid, _ = grid_of(tmp_path, monkeypatch, lambda *_: answer(), sites=("bonn", "ulm"))

    assert grid.get_node_ids() == [2, 4]
    assert [node.name for node in grid.get_nodes()] == ["bonn", "ulm"]
    assert "essen" not in grid.names.values()


def orders(kind="train"):
    config = ConfigRecord({ROUND: 7})
    return [Message(RecordDict({CONFIG: config}), node, kind) for node in NAMES]


def sites_of(asked, replies):
    by_order = {order.metadata.message_id: NAMES[order.metadata.dst_node_id] for order in asked}
    return sorted(by_order[reply.metadata.reply_to_message_id] for reply in replies)


def events(grid):
    return [(entry["event"], entry.get("site")) for entry in grid.log.entries()]


def test_every_order_names_the_run_and_its_sites(tmp_path, monkeypatch):
    grid, fleet = grid_of(tmp_path, monkeypatch, lambda *_: answer(), id="0123")

    replies = grid.send_and_receive(orders())

    assert len(replies) == 3
    assert fleet.pushed[0].content[CONFIG][RUN] == "r"
    assert fleet.pushed[0].content[CONFIG][RUN_ID] == "0123"
    assert fleet.pushed[0].content[CONFIG][SITES] == list(NAMES.values())


@pytest.mark.parametrize("code", [3, 4, 5, 8])
def test_a_lost_order_is_sent_again_and_its_answer_is_known_to_the_strategy(tmp_path, monkeypatch, code):
    script = lambda node, times, now: code if node == 3 and times == 1 else answer()  # noqa: E731
    grid, fleet = grid_of(tmp_path, monkeypatch, script)
    asked = orders()

    replies = grid.send_and_receive(asked)

    assert sites_of(asked, replies) == ["bonn", "essen", "ulm"]
    assert ("lost", "essen") in events(grid)
    assert len(fleet.pushed) == 4


@pytest.mark.parametrize(
    "error", [KeyError("dtype"), TypeError("no dtype"), ValueError("no such object"), DecodeError()]
)
def test_an_answer_that_cannot_be_unpacked_is_one_sites_fault_alone(tmp_path, monkeypatch, error):
    def script(node, times, now):
        if node == 3:
            raise error
        return answer()

    grid, _ = grid_of(tmp_path, monkeypatch, script)
    asked = orders()

    replies = grid.send_and_receive(asked)

    told = {NAMES[order.metadata.dst_node_id]: order.metadata.message_id for order in asked}
    failed = [reply for reply in replies if reply.has_error()]
    assert sites_of(asked, replies) == ["bonn", "essen", "ulm"]
    assert [reply.metadata.reply_to_message_id for reply in failed] == [told["essen"]]
    assert "cannot be read" in failed[0].error.reason
    assert ("failed", "essen") in events(grid)


def test_no_site_answers_in_anothers_name(tmp_path, monkeypatch):
    grid, fleet = grid_of(tmp_path, monkeypatch, lambda *_: answer())
    honest = fleet.pull_messages

    def pull(ids):
        replies = honest(ids)
        if ids == ["m2"]:
            replies[0].metadata.__dict__["_reply_to_message_id"] = "m1"
        return replies

    monkeypatch.setattr(fleet, "pull_messages", pull)
    asked = orders()

    replies = grid.send_and_receive(asked)

    assert [reply.metadata.reply_to_message_id for reply in replies] == ["m1", "m2", "m3"]
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert "to another order" in replies[1].error.reason


def test_a_site_that_went_away_is_waited_for_until_it_is_back(tmp_path, monkeypatch):
    script = lambda node, times, now: 5 if node == 3 and now < 20 else answer()  # noqa: E731
    grid, _ = grid_of(tmp_path, monkeypatch, script, lambda now: set(NAMES) if now >= 30 or now < 1 else {2, 4})
    asked = orders()

    replies = grid.send_and_receive(asked)

    assert sites_of(asked, replies) == ["bonn", "essen", "ulm"]
    assert 30 <= grid.clock() < 33


def test_a_silent_site_costs_one_deadline_and_the_others_are_heard(tmp_path, monkeypatch):
    grid, _ = grid_of(tmp_path, monkeypatch, lambda node, *_: None if node == 3 else answer())
    asked = orders()

    replies = grid.send_and_receive(asked)

    assert sites_of(asked, replies) == ["bonn", "ulm"]
    assert 60 <= grid.clock() < 61
    assert ("silent", "essen") in events(grid)


def test_a_site_that_always_loses_its_order_is_not_asked_for_ever(tmp_path, monkeypatch):
    grid, fleet = grid_of(tmp_path, monkeypatch, lambda node, *_: 8 if node == 3 else answer())
    asked = orders()

    replies = grid.send_and_receive(asked)

    assert sum(order.metadata.dst_node_id == 3 for order in fleet.pushed) == run_grid.MOST_SENDINGS
    assert sum(reply.has_error() for reply in replies) == 1


def test_below_the_quorum_the_run_stops_and_says_who_is_missing(tmp_path, monkeypatch):
    grid, _ = grid_of(tmp_path, monkeypatch, lambda node, *_: answer() if node == 2 else None)

    with pytest.raises(
        QuorumError, match=r"1 of 3 sites answered within 60 s.*asks for 2.*essen, ulm.*fedsmall resume r"
    ):
        grid.send_and_receive(orders())


def test_a_refusal_is_told_with_its_reason(tmp_path, monkeypatch):
    grid, _ = grid_of(tmp_path, monkeypatch, lambda *_: 2)

    with pytest.raises(QuorumError, match=r"0 of 3 sites answered; .*\[gone\]"):
        grid.send_and_receive(orders())


def test_an_evaluation_needs_no_quorum(tmp_path, monkeypatch):
    grid, _ = grid_of(tmp_path, monkeypatch, lambda node, *_: answer() if node == 2 else None)

    assert len(grid.send_and_receive(orders("evaluate"))) == 1


def test_a_site_that_is_gone_is_waited_for_once_then_not_until_it_is_back(tmp_path, monkeypatch):
    present = {"now": set(NAMES)}
    grid, _ = grid_of(tmp_path, monkeypatch, lambda *_: answer(), lambda now: present["now"])
    assert grid.get_node_ids() == [2, 3, 4]

    present["now"] = {2, 4}
    assert grid.get_node_ids() == [2, 4]
    waited = grid.clock()
    assert grid.get_node_ids() == [2, 4]
    assert 60 <= waited < 61
    assert grid.clock() == waited
    present["now"] = set(NAMES)
    assert grid.get_node_ids() == [2, 3, 4]
    assert not grid.away


def test_too_few_connected_sites_stop_the_run(tmp_path, monkeypatch):
    grid, _ = grid_of(tmp_path, monkeypatch, lambda *_: answer(), lambda now: {2})
    grid.names = dict(NAMES)

    with pytest.raises(QuorumError, match=r"1 of 3 sites are connected.*essen, ulm"):
        grid.get_node_ids()


def test_the_log_has_the_digest_that_the_site_wrote(tmp_path, monkeypatch):
    grid, _ = grid_of(tmp_path, monkeypatch, lambda *_: answer())

    grid.send_and_receive(orders())

    answers = [entry for entry in grid.log.entries() if entry["event"] == "answer"]
    assert {entry["sha256"] for entry in answers} == {digest_of({"arrays/w": np.ones(2, np.float32)})}
    assert verify(grid.log.path).fault is None


def test_an_answer_of_nonsense_is_logged_without_being_read(tmp_path, monkeypatch):

    lie = Array(np.ones(2, np.float32))
    lie.dtype, lie.shape = "nonsense", (10**12,)
    nonsense = RecordDict({MODEL: ArrayRecord({"w": lie}), METRICS: ConfigRecord({"x": 1})})
    grid, _ = grid_of(tmp_path, monkeypatch, lambda *_: nonsense)

    grid.send_and_receive(orders())

    assert [entry["sha256"] for entry in grid.log.entries() if entry["event"] == "answer"] == ["unreadable"] * 3


@pytest.mark.parametrize(
    ("settings", "line"), [({"quorum": 4}, "quorum is 4, but the run is for 3"), ({"run": "../x"}, "letters, digits")]
)
def test_a_sheet_that_cannot_be_is_refused(settings, line):
    with pytest.raises(ValueError, match=line):
        RunSheet(**{"run": "r", "plan": PLAN, "sites": ("a", "b", "c"), **settings})


def waits(reason="essen: paused by the hospital"):
    return Error(code=WAITS, reason=reason)


def test_a_hospital_that_is_not_ready_is_asked_again_until_it_is_and_costs_one_line(tmp_path, monkeypatch):
    script = lambda node, times, now: waits() if node == 3 and now < 40 else answer()  # noqa: E731
    grid, fleet = grid_of(tmp_path, monkeypatch, script)
    asked, told = orders(), []
    grid.waits.tell = told.append

    replies = grid.send_and_receive(asked)

    assert sites_of(asked, replies) == ["bonn", "essen", "ulm"]
    assert not any(reply.has_error() for reply in replies)
    assert len(fleet.pushed) == 3 + 6  # after 1, 3, 7, 15, 30 and 45 seconds: seldom enough
    assert events(grid).count(("waits", "essen")) == 1
    assert told == [{"essen": "essen: paused by the hospital"}, {}]


def test_who_was_waited_for_in_vain_is_silent_with_the_reason_and_not_waited_for_again(tmp_path, monkeypatch):
    until = 100.0
    script = lambda node, times, now: waits() if node == 3 and now < until else answer()  # noqa: E731
    grid, _ = grid_of(tmp_path, monkeypatch, script)

    first, begun = list(grid.send_and_receive(orders())), grid.clock()
    second, then = list(grid.send_and_receive(orders())), grid.clock()
    grid.clock.now = until
    third, end = list(grid.send_and_receive(orders())), grid.clock()

    for replies in (first, second):
        (error,) = [reply.error for reply in replies if reply.has_error()]
        assert "paused by the hospital" in error.reason
    assert begun >= 60
    assert then - begun < 2  # asked once, not waited for
    assert not any(reply.has_error() for reply in third)
    assert end - until < 2
    (silent,) = [entry for entry in grid.log.entries() if entry["event"] == "silent"]
    assert "paused by the hospital" in silent["reason"]


def test_below_the_quorum_the_run_stops_and_says_that_the_hospital_has_paused(tmp_path, monkeypatch):
    script = lambda node, times, now: waits() if node != 2 else answer()  # noqa: E731
    grid, _ = grid_of(tmp_path, monkeypatch, script)

    with pytest.raises(QuorumError, match=r"1 of 3 sites answered.*essen, ulm.*paused by the hospital"):
        grid.send_and_receive(orders())


@pytest.mark.parametrize(("kind", "most"), [("query", 500), ("train", 60)])
def test_people_have_until_the_start_deadline_to_say_yes(tmp_path, monkeypatch, kind, most):
    script = lambda node, times, now: waits("essen: waits for a yes") if node == 3 else answer()  # noqa: E731
    grid, _ = grid_of(tmp_path, monkeypatch, script, start_deadline_s=500)

    replies = grid.send_and_receive(orders(kind))

    assert [reply.error.reason for reply in replies if reply.has_error()] == ["essen: waits for a yes"]
    assert most <= grid.clock() < most + 5
