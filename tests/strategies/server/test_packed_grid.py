"""Orders and answers as frames: to the bit, all answers with one question, and one bad answer is one site's fault."""

from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import ObjectTree, PullObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from fedsmall.audit_log import digest_of
from fedsmall.frames import from_frame, join_pieces, pieces_of, to_frame
from fedsmall.sim.engines.inprocess import act_as_server
from fedsmall.strategies.server import grid as run_grid
from fedsmall.strategies.server.grid import FrameMail, pack, unpack
from fedsmall.wire import CONFIG, METRICS, MODEL

MODEL_SENT = {"b": np.array([1.0, -0.0], np.float32), "a": np.array(3, np.int64)}
ANSWER = ({"metrics": {"num-examples": 9, "train-loss": 0.1}, "order": ["arrays/b", "arrays/a"]}, "arrays/")


class SuperLink:
    """What of a SuperLink a FrameMail calls, with a store of objects; ``late`` objects are not there yet."""

    def __init__(self):
        self.sent, self.replies, self.objects, self.late, self.pushed, self.confirmed = [], {}, {}, set(), [], []
        self.questions = self.calls = 0
        self.node, self._runtime_client, self.run = None, self, SimpleNamespace(run_id=1)

    def PushMessages(self, request):
        self.calls += 1
        self.sent += [message_from_proto(proto) for proto in request.messages_list]
        names = {name for tree in request.message_object_trees for name in names_in(tree)}
        ids = [proto.metadata.message_id for proto in request.messages_list]
        return SimpleNamespace(objects_to_push=list(names - set(self.objects)), message_ids=ids, session_id="s")

    def PushObject(self, request):
        self.pushed.append(request.object_id)
        self.objects[request.object_id] = request.object_content
        return SimpleNamespace(stored=True)

    def PullMessages(self, request):
        self.questions += 1
        came = [self.replies.pop(key) for key in request.message_ids if key in self.replies]
        return SimpleNamespace(
            messages_list=[proto for proto, _ in came], message_object_trees=[tree for _, tree in came]
        )

    def PullObject(self, request):
        there = request.object_id in self.objects
        late = request.object_id in self.late
        content = b"" if late or not there else self.objects[request.object_id]
        return PullObjectResponse(object_found=there, object_available=there and not late, object_content=content)

    def ConfirmMessageReceived(self, request):
        self.confirmed.append(request.message_object_id)

    def answers(self, order, body, is_ours=False, whole=False, **lies):
        """A site's answer to an order: stored, its objects too, or its pieces alone as our own program sends them."""
        reply = Message(body, reply_to=order)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        reply.metadata.__dict__.update(lies)
        parts = get_all_nested_objects(reply)
        if is_ours:
            parts = {piece.object_id: piece for piece in body.config_records.values()}
        self.objects |= {name: part.deflate() for name, part in parts.items()}
        bare = Message(reply.error if reply.has_error() else RecordDict(), reply_to=order)
        proto = message_to_proto(reply if whole else bare)
        tree = ObjectTree(object_id=next(iter(parts))) if is_ours else get_object_tree(reply)
        proto.metadata.message_id = tree.object_id
        self.replies[order.metadata.message_id] = (proto, tree)
        return list(parts)


def names_in(tree):
    return [tree.object_id, *(name for child in tree.children for name in names_in(child))]


@pytest.fixture
def link(monkeypatch):
    act_as_server()
    monkeypatch.setattr(run_grid, "SHORTEST_LOOK_S", 0.0)
    monkeypatch.setattr(run_grid, "LONGEST_LOOK_S", 0.0)
    return SuperLink()


def orders(count=3, kind="train"):
    """Orders of one model, each with a line of its own in the server's log."""
    model = ArrayRecord({name: Array(array) for name, array in MODEL_SENT.items()})
    contents = {
        node: RecordDict({MODEL: model, CONFIG: ConfigRecord({"round": 2, "sites": ["a", "b"], "line": node})})
        for node in range(2, 2 + count)
    }
    return [Message(content, node, kind) for node, content in contents.items()]


def framed(arrays=MODEL_SENT, **words):
    header, part = ANSWER
    frame = to_frame({**header, **words}, {part + name: array for name, array in arrays.items()})
    return RecordDict({f"frame-{n}": ConfigRecord(piece) for n, piece in enumerate(pieces_of(frame))})


@pytest.mark.parametrize(("kind", "calls"), [("train", 1), ("query.help", 1), ("query", 3)])
def test_small_orders_go_out_whole_in_one_call_and_the_first_question_as_pieces(link, kind, calls):
    """Pieces are what a site of an older release answers too, so that it can be told that it is."""
    grid, asked = FrameMail(link), orders(kind=kind)

    grid.push_messages(asked)

    assert link.calls == calls
    assert len({order.metadata.message_id for order in asked}) == 3
    assert len(link.pushed) == (3 if kind == "query" else 0)
    for order, sent in zip(asked, link.sent, strict=True):
        content = sent.content.config_records.values()
        if kind == "query":
            content = [ConfigRecord.inflate(link.objects[order.metadata.message_id])]
        words, arrays = from_frame(join_pieces(content))
        assert words == {CONFIG: {"round": 2, "sites": ["a", "b"], "line": order.metadata.dst_node_id}}
        assert {name: a.tobytes() for name, a in arrays.items()} == {
            f"{MODEL}/{name}": a.tobytes() for name, a in MODEL_SENT.items()
        }
    assert [order.metadata.message_id for order in asked] == [sent.metadata.message_id for sent in link.sent]


@pytest.mark.parametrize(("is_ours", "whole"), [(True, False), (False, False), (True, True)])
def test_an_answer_is_read_whole_as_pieces_and_as_flowers_own_program_sends_it(link, is_ours, whole):
    grid, asked = FrameMail(link), orders(1)
    grid.push_messages(asked)
    link.answers(link.sent[0], framed(), is_ours, whole)
    if whole:
        link.objects.clear()

    reply = grid.pull_messages([asked[0].metadata.message_id])[0]

    assert list(reply.content[MODEL]) == ["b", "a"]
    assert len(link.confirmed) == (not whole)  # nothing of it is kept by the SuperLink


def test_a_long_run_goes_on_in_pieces_which_leave_nothing_behind(link, monkeypatch):
    monkeypatch.setattr(run_grid, "MOST_WHOLE", 2)
    grid, asked = FrameMail(link), orders(5)

    grid.push_messages(asked)

    assert sorted(len(sent.content) for sent in link.sent) == [0, 0, 0, 1, 1]
    assert len(link.pushed) == 3


def test_all_answers_come_with_one_question_to_the_bit_and_in_the_order_of_the_model(link):
    grid, asked = FrameMail(link), orders()
    grid.push_messages(asked)
    for order in link.sent:
        link.answers(order, framed())

    replies = [grid.pull_messages([order.metadata.message_id])[0] for order in asked]

    assert link.questions == 1
    assert len(link.confirmed) == 3
    for reply, order in zip(replies, asked, strict=True):
        assert reply.metadata.reply_to_message_id == order.metadata.message_id
        assert list(reply.content[MODEL]) == ["b", "a"]
        assert reply.content[METRICS] == MetricRecord({"num-examples": 9, "train-loss": 0.1})
        came = {name: array.numpy() for name, array in reply.content[MODEL].items()}
        assert digest_of(came) == digest_of(MODEL_SENT)


def test_who_is_still_sending_keeps_nobody_waiting(link):
    grid, asked = FrameMail(link), orders(2)
    grid.push_messages(asked)
    link.late = {name for name in link.answers(link.sent[0], framed({"b": np.zeros(3)}, order=["arrays/b"]))}
    link.answers(link.sent[1], framed())

    first = [grid.pull_messages([order.metadata.message_id]) for order in asked]
    link.late = set()
    then = grid.pull_messages([asked[0].metadata.message_id])

    assert [len(replies) for replies in first] == [0, 1]
    assert len(then) == 1


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("body", "why"),
    [
        (RecordDict({"x": ConfigRecord({"y": 1})}), "no piece"),
        (RecordDict({"x": MetricRecord({"y": 1})}), "cannot be read"),
        (framed(order=["arrays/b"]), "other arrays than came"),
        (framed(order=3), "it is not made as answers are"),
        (framed(metrics={"x": "word"}), "cannot be read"),
        (framed(metrics=[1]), "cannot be read"),
        (framed(config={"x": None}), "cannot be read"),
    ],
)
def test_an_answer_that_cannot_be_read_is_one_sites_fault_alone(link, body, why, whole):
    grid, asked = FrameMail(link), orders(2)
    grid.push_messages(asked)
    link.answers(link.sent[0], body, whole=whole)
    link.answers(link.sent[1], framed())

    bad, good = [grid.pull_messages([order.metadata.message_id])[0] for order in asked]

    assert why in bad.error.reason
    assert not good.has_error()


def test_an_answer_in_thousands_of_pieces_is_refused_before_one_is_fetched(link, monkeypatch):
    grid, asked = FrameMail(link), orders(1)
    grid.push_messages(asked)
    tiny = RecordDict({f"frame-{n}": ConfigRecord({"number": n, "count": 3000, "piece": b"x"}) for n in range(3000)})
    link.answers(link.sent[0], tiny)
    monkeypatch.setattr(link, "PullObject", lambda request: pytest.fail("a piece was fetched"))

    (refused,) = grid.pull_messages([asked[0].metadata.message_id])

    assert "it is in too many pieces" in refused.error.reason


def test_a_whole_answer_that_is_too_large_is_refused(link, monkeypatch):
    monkeypatch.setattr(run_grid, "MOST_BESIDE", 0)
    monkeypatch.setattr(run_grid, "MOST_TIMES", 1)
    grid, asked = FrameMail(link), orders(1)
    grid.push_messages(asked)
    link.answers(link.sent[0], framed({"b": np.zeros(10**5)}, order=["arrays/b"]), whole=True)

    (refused,) = grid.pull_messages([asked[0].metadata.message_id])

    assert (refused.error.code, "too large" in refused.error.reason) == (run_grid.REFUSED, True)


def test_an_answer_that_is_gone_is_lost_and_one_that_is_too_large_is_not_fetched(link, monkeypatch):
    monkeypatch.setattr(run_grid, "MOST_BESIDE", 0)
    monkeypatch.setattr(run_grid, "MOST_TIMES", 1)
    grid, asked = FrameMail(link), orders(2)
    grid.push_messages(asked)
    for name in link.answers(link.sent[0], framed()):
        del link.objects[name]
    link.answers(link.sent[1], framed({"b": np.zeros(10**5)}, order=["arrays/b"]))

    gone, large = [grid.pull_messages([order.metadata.message_id])[0] for order in asked]

    assert (gone.error.code, large.error.code) == (run_grid.GONE, run_grid.REFUSED)
    assert "too large" in large.error.reason


def test_a_refusal_comes_with_its_reason_and_what_is_forgotten_is_asked_for_no_more(link):
    grid, asked = FrameMail(link), orders(2)
    grid.push_messages(asked)
    link.answers(link.sent[0], Error(2, "essen: no"))

    reply = grid.pull_messages([asked[0].metadata.message_id])[0]
    grid.forget([asked[1].metadata.message_id])
    before = link.questions
    nothing = grid.pull_messages([asked[1].metadata.message_id])

    assert reply.error.reason == "essen: no"
    assert nothing == []
    assert link.questions == before


def test_what_is_packed_is_what_is_unpacked():
    content = orders(1)[0].content

    records, size = pack(content)
    frame = join_pieces(records.config_records.values())

    assert size == len(frame)
    assert unpack(frame)[CONFIG] == content[CONFIG]


def test_large_arrays_are_sent_once_though_the_words_of_every_order_differ(link):
    grid, large = FrameMail(link), ArrayRecord({"w": Array(np.arange(20_000.0))})
    asked = [
        Message(RecordDict({MODEL: large, CONFIG: ConfigRecord({"round": 2, "own": site})}), 2 + site, "train")
        for site in range(3)
    ]

    grid.push_messages(asked)

    pieces = [name for name in link.pushed if b"piece" in link.objects[name]]
    assert len(pieces) == len(set(pieces)) == 3 + 1  # words for each, and one block for all
    for site, sent in enumerate(link.sent):
        content = pack(asked[site].content)[0]
        own, block = (piece.object_id for piece in content.config_records.values())
        words, arrays = from_frame(join_pieces(ConfigRecord.inflate(link.objects[name]) for name in (own, block)))
        assert words[CONFIG]["own"] == site
        assert arrays["arrays/w"].tobytes() == np.arange(20_000.0).tobytes()
        assert sent.metadata.message_id == own
