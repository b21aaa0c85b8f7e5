"""An answer that was sent in part is sent whole by the program that comes after; over Flower's own state of objects."""

import tracemalloc

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import PushMessagesResponse
from flwr.proto.message_pb2 import ObjectTree, PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from fedsmall.clients.fleet import Fleet
from fedsmall.sim.engines.inprocess import act_as_server

RUN = 1


class Killed(BaseException):
    """The program's end."""


class Server:
    """Keeps objects as a SuperLink does; ``shown``: the answer has been taken by the run, and its order forgotten."""

    def __init__(self):
        self.state = InMemoryNodeState(InMemoryObjectStore())
        self.shown = False
        self.takes, self.sent = 10**9, []

    def PushMessages(self, request):
        self.sent += [message_from_proto(proto) for proto in request.messages_list]
        session = self.state.start_session(RUN)
        if self.shown:
            return PushMessagesResponse(session_id=session)
        missing = self.state.preregister_object_tree(request.message_object_trees[0], session)
        return PushMessagesResponse(session_id=session, objects_to_push=missing)

    def PushObject(self, request):
        if self.takes == 0:
            raise Killed
        self.takes -= 1
        return PushObjectResponse(
            stored=self.state.store_object(RUN, request.session_id, request.object_id, request.object_content)
        )


@pytest.fixture
def fleet():
    act_as_server(RUN)
    made = Fleet.__new__(Fleet)  # without a network
    made.client, made.node = Server(), Node(node_id=5)
    return made


def answer():
    order = Message(RecordDict(), 5, "train")
    order.metadata.__dict__["_message_id"] = order.object_id
    pieces = {f"frame-{n}": ConfigRecord({"number": n, "piece": b"a part"}) for n in range(4)}
    return Message(RecordDict(pieces), reply_to=order)


def missing(server, reply):
    pieces = reply.content.config_records.values()
    return [piece.object_id for piece in pieces if not server.state.get_object(RUN, piece.object_id)]


@pytest.mark.parametrize("sent", [0, 1, 3])
@pytest.mark.parametrize("shown", [False, True])
def test_the_rest_of_an_answer_is_sent_by_the_program_that_comes_after(fleet, sent, shown):
    server, reply = fleet.client, answer()
    server.takes = sent
    with pytest.raises(Killed):
        fleet.push(reply, 0.1)
    assert len(missing(server, reply)) == 4 - sent
    server.takes, server.shown = 10**9, shown

    fleet.push(reply, 0.1, again=True)

    assert missing(server, reply) == []


def test_without_more_ado_what_a_run_has_seen_would_stay_incomplete(fleet):
    """The simple way fails: once the run has seen the answer, the server asks for nothing more of it."""
    server, reply = fleet.client, answer()
    server.takes = 1
    with pytest.raises(Killed):
        fleet.push(reply, 0.1)
    server.takes, server.shown = 10**9, True

    fleet.push(reply, 0.1)

    assert missing(server, reply)


def test_an_answer_that_nobody_waits_for_is_taken_by_nobody(fleet):
    fleet.client.shown = True

    fleet.push(answer(), 0.1, again=True)


def test_what_a_server_keeps_of_whole_messages_is_as_small_as_is_said(fleet):
    """strategies/server/grid.py says 3 kB for an order and its answer, and how many of them a run may have."""
    state, count = fleet.client.state, 500
    names = [f"{number:064x}" for number in range(2 * count)]
    tracemalloc.start()

    session = state.start_session(RUN)
    for order, its_answer in zip(names[::2], names[1::2], strict=True):
        state.preregister_object_tree(ObjectTree(object_id=order), session)
        state.preregister_object_tree(ObjectTree(object_id=its_answer), state.start_session(RUN))

    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 1000 < kept / count < 3000


@pytest.mark.parametrize("size", [10, 1 << 20])
@pytest.mark.parametrize("whole", [False, True])
def test_a_small_answer_goes_whole_in_one_call_where_its_order_did(fleet, whole, size):
    server, reply = fleet.client, answer()
    reply.content["frame-0"]["piece"] = bytes(size)
    in_one_call = whole and size < 1 << 20

    fleet.push(reply, 0.1, whole=whole)

    (sent,) = server.sent
    assert dict(sent.content) == (dict(reply.content) if in_one_call else {})
    assert len(missing(server, reply)) == (4 if in_one_call else 0)
    assert sent.metadata.message_id == reply.content["frame-0"].object_id


def test_a_refusal_is_one_call(fleet):
    order = answer()

    fleet.push(Message(Error(3, "no"), reply_to=order), 0.1)

    assert [sent.error.reason for sent in fleet.client.sent] == ["no"]
    assert fleet.client.takes == 10**9
