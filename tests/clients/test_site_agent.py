"""The resident: orders to the station and answers back, nothing of a bundle imported, nothing lost for good."""

import httpx
import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from fedsmall.clients import fleet, site_agent
from fedsmall.clients.bundles import bundle_digest
from fedsmall.clients.fleet import Arrival, GoneError, NotAdmittedError
from fedsmall.clients.relay import KILLED
from fedsmall.clients.site_agent import REGULAR_S, SHORTEST_S, SiteAgent, pause_s
from fedsmall.frames import from_frame, join_pieces, pieces_of, to_frame
from fedsmall.sim.engines.inprocess import act_as_server
from fedsmall.strategies.server import grid as run_grid
from tests.clients.test_relay import bundle, station

__all__ = ["station"]

OWN = bundle([("pyproject.toml", "[project]"), ("a.py", "raise SystemExit")])


class Line:
    """A fleet that holds the orders a test gives it, and keeps the answers."""

    def __init__(self, bundle=OWN):
        self.orders, self.objects, self.replies, self.confirmed = [], {}, [], 0
        self.content, self.asked, self.connections, self.released = bundle, 0, 0, 0
        self.node = type("Node", (), {"node_id": 5})

    def give(self, body, kind="train", whole=False):
        act_as_server()
        message = Message(body, 5, kind)
        message.metadata.__dict__["_message_id"] = message.object_id
        if whole:
            self.orders.append(Arrival(message, ObjectTree(object_id=message.object_id)))
            return
        self.objects |= {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        bare = Message(RecordDict(), 5, kind)
        bare.metadata.__dict__["_message_id"] = message.object_id
        self.orders.append(Arrival(bare, get_object_tree(message)))

    def connect(self):
        self.connections += 1
        return True

    def release(self):
        self.released += 1

    def pull(self):
        return self.orders.pop(0) if self.orders else None

    def pull_object(self, run, name):
        if name not in self.objects:
            raise GoneError("gone")
        return self.objects[name]

    def confirm(self, arrival):
        self.confirmed += 1

    def push(self, reply, seconds, again=False, whole=False):
        self.replies.append(reply)
        self.again, self.whole = again, whole

    def bundle(self, run):
        self.asked += 1
        return self.content


def order():
    frame = to_frame({"config": {"round": 2}}, {"arrays/w": np.array([1.0, 2.0])})
    return RecordDict({"frame-0": ConfigRecord(pieces_of(frame)[0])})


@pytest.fixture
def at_work(station, tmp_path):
    asked, answers = station
    line = Line()
    program = SiteAgent(line, str(tmp_path / "door" / "s"), bundle_digest(OWN), tmp_path / "taken")
    return line, program, asked, answers


def test_an_order_goes_to_the_station_and_its_answer_back_to_the_bit(at_work):
    line, program, asked, answers = at_work
    sent = {"arrays/w": np.array([3.0, np.nan])}
    answers.append(({"metrics": {"num-examples": 9}}, sent))
    line.give(order())

    assert program.work()
    assert not program.work()

    words, arrays = from_frame(join_pieces(line.replies[0].content.config_records.values()))
    assert asked[0][0] == {"kind": "train", "config": {"round": 2}}
    assert asked[0][1]["arrays/w"].tolist() == [1.0, 2.0]
    assert words == {"metrics": {"num-examples": 9}}
    assert arrays["arrays/w"].tobytes() == sent["arrays/w"].tobytes()
    assert line.confirmed == 1
    assert not program.taken.exists()


def test_a_small_order_comes_whole_and_needs_no_second_call(at_work):
    line, program, asked, answers = at_work
    answers.append(({"metrics": {}}, {}))
    line.give(order(), whole=True)

    program.work()

    assert asked[0][1]["arrays/w"].tolist() == [1.0, 2.0]
    assert line.confirmed == 0
    assert line.whole


def test_the_bundle_is_looked_at_once_a_run_and_never_imported(at_work):
    line, program, _, answers = at_work
    answers += [({"metrics": {}}, {}), ({"metrics": {}}, {})]
    line.give(order())
    line.give(order())

    program.work()
    program.work()

    assert line.asked == 1
    assert not any(reply.has_error() for reply in line.replies)


def test_an_app_that_is_not_approved_gets_no_order_to_the_station(at_work):
    line, program, asked, _ = at_work
    program.approved = "none"
    line.give(order())

    program.work()

    assert "not among those approved here; no code of it was loaded" in line.replies[0].error.reason
    assert not asked


def test_an_order_that_cannot_be_read_is_refused_in_a_line(at_work):
    line, program, asked, _ = at_work
    line.give(RecordDict({"x": ConfigRecord({"y": 1})}))
    line.give(order())
    last = line.orders[-1]
    leaf = last.tree.children[0].children[0].object_id
    line.objects[leaf] = b"nonsense"

    program.work()
    program.work()

    assert ["cannot be read" in reply.error.reason for reply in line.replies] == [True, True]
    assert not asked


def killed_at_work(line, program, before_it_has_answered):
    """The program takes the order that is there and is killed as it answers, or as it sends its answer."""

    def killed(*_, **__):
        raise KeyboardInterrupt

    name = "confirm" if before_it_has_answered else "push"
    setattr(line, name, killed)
    with pytest.raises(KeyboardInterrupt):
        program.work()
    delattr(line, name)


def test_an_order_in_hand_when_the_program_was_killed_is_given_back_to_be_sent_again(at_work):
    line, program, asked, _ = at_work
    line.give(order())
    killed_at_work(line, program, before_it_has_answered=True)
    assert program.taken.exists()

    program.connect()

    assert line.replies[0].error.code == KILLED
    assert not program.taken.exists()
    assert not asked


def test_an_answer_half_sent_when_the_program_was_killed_is_sent_again_itself(at_work):
    line, program, _, answers = at_work
    answers.append(({"metrics": {"num-examples": 9}}, {"arrays/w": np.array([3.0, np.nan])}))
    line.give(order())
    sent = []
    line.push = lambda reply, seconds, again, whole: sent.append(reply.object_id)
    program.work()
    del line.push
    answers.append(({"metrics": {"num-examples": 9}}, {"arrays/w": np.array([4.0, np.nan])}))
    line.give(order())
    killed_at_work(line, program, before_it_has_answered=False)
    half = site_agent.read_message(program.taken.with_name(site_agent.GIVEN)).object_id
    assert program.taken.with_name(site_agent.GIVEN).stat().st_mode & 0o077 == 0

    program.connect()

    assert [reply.object_id for reply in line.replies] == [half]  # by which the server knows what of it is there
    assert half not in sent
    assert line.again  # what the server does not ask for, too
    assert [path.name for path in program.taken.parent.iterdir() if path.is_file()] == []


def test_the_answer_to_an_earlier_order_is_never_sent_for_the_one_in_hand(at_work):
    line, program, _, answers = at_work
    answers.append(({"metrics": {}}, {}))
    line.give(order())
    killed_at_work(line, program, before_it_has_answered=False)
    program.taken.unlink()  # killed as it let go of both
    line.give(order(), "evaluate")
    killed_at_work(line, program, before_it_has_answered=True)

    program.connect()

    assert line.replies[0].error.code == KILLED


@pytest.mark.parametrize("spoilt", [b"", b"\xff\x01"])
def test_what_a_lost_power_left_of_an_order_does_not_keep_the_program_from_starting(at_work, spoilt):
    line, program, _, _ = at_work
    program.taken.write_bytes(spoilt)

    program.connect()

    assert (line.connections, line.replies) == (1, [])


def test_who_was_killed_with_nothing_in_hand_is_away_long_enough_for_the_server_to_see_it(at_work, monkeypatch):
    line, program, _, _ = at_work
    slept = []
    monkeypatch.setattr(site_agent.time, "sleep", slept.append)
    line.connect = lambda: line.released > 0  # the server counts the site as connected until it is let go

    program.connect()

    assert line.released == 1
    assert slept == [site_agent.AWAY_S]
    assert run_grid.LONGEST_LOOK_S * 2 < site_agent.AWAY_S


def test_an_order_of_a_run_that_has_ended_is_dropped(at_work):
    line, program, asked, _ = at_work
    line.give(order())
    line.objects.clear()

    assert program.work()

    assert not line.replies
    assert not asked
    assert not program.taken.exists()


def test_a_server_that_has_forgotten_the_site_is_dialled_until_it_lets_the_site_in(at_work, monkeypatch):
    line, program, _, _ = at_work
    monkeypatch.setattr(site_agent.time, "sleep", lambda seconds: None)
    refusals = [NotAdmittedError("HTTP 412"), NotAdmittedError("HTTP 412")]

    def connect():
        line.connections += 1
        if refusals:
            raise refusals.pop()
        return True

    line.connect = connect

    program.connect()

    assert line.connections == 3


def answer(status):
    request = httpx.Request("POST", "https://server/")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


def test_what_the_network_loses_is_asked_again_and_what_the_server_refuses_is_not(monkeypatch):
    monkeypatch.setattr(fleet.time, "sleep", lambda seconds: None)
    lost = [httpx.ConnectError("x"), httpx.ReadTimeout("x"), answer(502), answer(503)]

    def call():
        if lost:
            raise lost.pop()
        return "came"

    assert fleet._call_until_answered(call) == "came"
    with pytest.raises(httpx.HTTPStatusError):
        fleet._call_until_answered(lambda: (_ for _ in ()).throw(answer(403)))


@pytest.mark.parametrize("gap", [0.2, 1.0, 2.5, 20.0])
def test_orders_that_come_regularly_are_asked_for_seldom_and_come_hardly_later(gap):
    idle, questions = 0.0, 0
    while idle < gap:
        idle, questions = idle + pause_s(idle, gap), questions + 1

    assert questions <= 5 + 18 * np.log(max(gap, 1))
    assert idle - gap <= max(SHORTEST_S, gap / 10)


def test_after_a_long_pause_the_first_question_comes_within_a_second():
    assert pause_s(0.0, 10_000.0) <= 1.0
    assert pause_s(1.0, 10_000.0) == REGULAR_S / 12
    assert pause_s(0.5, 0.1) == SHORTEST_S
    assert pause_s(10_000.0, 0.0) == 3.0
