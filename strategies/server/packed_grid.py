"""A grid over Flower's HttpGrid whose messages are frames: few objects a message, one question for all answers.

Flower makes an object of every array and of every record around it, and a call of every object: 83 calls for a contact
of three sites with a model of four arrays. In a frame (:mod:`fedsmall.frames`) they are one record; both ends ask for
that one alone. Answers are asked for together, and each is unpacked by itself: one that nobody can read harms no other.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, no_object_id_recompute

from fedsmall.ends import ENDS
from fedsmall.files import one_line
from fedsmall.frames import PIECE, FrameError, block_of, cuts_of, from_frame, joined, leaves, pieces_with
from fedsmall.strategies.records import array_records, to_arrays, to_record
from fedsmall.strategies.server.grid_around import GridAround
from fedsmall.wire import ANSWER_BYTES, CONFIG, METRICS, REFUSED, join, parts

LOST = 4  # Flower's ErrorCode: an answer is not to be had any more
SHORTEST_S, LONGEST_S = 0.05, 1.0  # between two questions
PATIENCE = 20  # a question comes after a twentieth of the time for which nothing came
MOST_TIMES, MOST_BESIDE = 8, 16 << 20  # an answer is at most so many times its order, and so many bytes

Blocks = dict[tuple[tuple[str, int], ...], list[bytes]]  # what arrays became, by the records that hold them


@dataclass
class _Arriving:
    """An answer that was taken, and what of it is here so far."""

    message: Message
    left: list[str]
    pieces: list[ConfigRecord] = field(default_factory=list)
    size: int = 0


@dataclass
class _Waiting:
    order: Message
    most: int
    arriving: _Arriving | None = None


class PackedGrid(GridAround):
    """``grid`` is Flower's HttpGrid, whose own client makes the calls."""

    def __init__(self, grid: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.grid = grid
        self.clock = clock
        self._waiting: dict[str, _Waiting] = {}
        self._came: dict[str, Message] = {}
        self._last = self._since = 0.0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send orders, each as a frame; every one is given its id."""
        orders = list(messages)
        blocks: Blocks = {}  # many orders share their arrays
        packed = [pack(order.content, blocks) for order in orders]
        copies = [
            Message(content, order.metadata.dst_node_id, order.metadata.message_type)
            for order, (content, _) in zip(orders, packed, strict=True)
        ]
        ids = self._push(copies)
        for order, copy, (_, size) in zip(orders, copies, packed, strict=True):
            key = copy.metadata.message_id
            order.metadata.__dict__["_message_id"] = key
            config: Mapping[str, Any] = order.content.config_records.get(CONFIG, {})
            most = MOST_TIMES * size + MOST_BESIDE + int(config.get(ANSWER_BYTES, 0))
            self._waiting[key] = _Waiting(order, most)
        self._since = self._last = self.clock()
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """What has come for these orders; one question asks for all that is outstanding, no more often than pays."""
        now = self.clock()
        if self._waiting and now - self._last >= min(max((now - self._since) / PATIENCE, SHORTEST_S), LONGEST_S):
            if self._collect():
                self._since = self.clock()
            self._last = self.clock()
        return [self._came.pop(key) for key in message_ids if key in self._came]

    def _push(self, messages: list[Message]) -> list[str]:
        """As Flower's grid, but that leaves go last: who has the last leaf has all, and lets the server clear up."""
        with no_object_id_recompute():
            objects: dict[str, Any] = {}
            for message in messages:
                message.metadata.__dict__["_message_id"] = message.object_id
                objects |= get_all_nested_objects(message)
            asked = self.grid._runtime_client.PushMessages(
                PushAppMessagesRequest(
                    messages_list=[message_to_proto(remove_content_from_message(message)) for message in messages],
                    message_object_trees=[get_object_tree(message) for message in messages],
                )
            )
            missing = set(asked.objects_to_push)
            for name in sorted(missing & set(objects), key=lambda name: not objects[name].children):
                request = PushObjectRequest(
                    node=self.grid.node,
                    run_id=self.grid.run.run_id,
                    object_id=name,
                    object_content=objects[name].deflate(),
                    session_id=asked.session_id,
                )
                self.grid._runtime_client.PushObject(request)
        return list(asked.message_ids)

    def forget(self, message_ids: Iterable[str]) -> None:
        """Ask for these answers no more: their deadline is over."""
        for key in message_ids:
            self._waiting.pop(key, None)

    def _collect(self) -> bool:
        asked = [key for key, waiting in self._waiting.items() if waiting.arriving is None]
        came = False
        if asked:
            answer = self.grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                # the SuperLink lets a node answer its own orders alone; what the content says of itself is not read
                key = proto.metadata.reply_to_message_id
                if key in self._waiting:
                    message = message_from_proto(proto)
                    left = [] if message.has_error() else leaves(tree)
                    self._waiting[key].arriving, came = _Arriving(message, left), True
        for key, waiting in list(self._waiting.items()):
            if waiting.arriving is not None and self._gather(waiting, waiting.arriving):
                self._came[key], came = self._finished(waiting, waiting.arriving), True
                del self._waiting[key]
        return came

    def _gather(self, waiting: _Waiting, arriving: _Arriving) -> bool:
        """Fetch what is there of an answer; True once that is all, or enough to know that it cannot be used."""
        while arriving.left:
            request = PullObjectRequest(
                node=self.grid.node, run_id=arriving.message.metadata.run_id, object_id=arriving.left[0]
            )
            got = self.grid._runtime_client.PullObject(request)
            if got.object_found and not got.object_available:
                return False  # the site is still sending; who is slow keeps nobody waiting
            arriving.left.pop(0)
            arriving.size += len(got.object_content)
            if not got.object_found or arriving.size > waiting.most:
                arriving.left.clear()
                code, reason = (LOST, "gone") if not got.object_found else (REFUSED, "its answer is too large")
                arriving.message = Message(Error(code, reason), reply_to=waiting.order)
                return True
            try:
                arriving.pieces.append(ConfigRecord.inflate(got.object_content))
            except Exception as error:  # whatever Flower raises over bytes that a site made up
                arriving.left.clear()
                arriving.message = unreadable(waiting.order, type(error).__name__)
        return True

    def _finished(self, waiting: _Waiting, arriving: _Arriving) -> Message:
        about = arriving.message.metadata
        request = ConfirmMessageReceivedRequest(
            node=self.grid.node, run_id=about.run_id, message_object_id=about.message_id
        )
        if about.message_id:
            self.grid._runtime_client.ConfirmMessageReceived(request)
        if arriving.message.has_error():
            return Message(arriving.message.error, reply_to=waiting.order)
        try:
            return Message(unpack(joined(arriving.pieces)), reply_to=waiting.order)
        except (FrameError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            return unreadable(waiting.order, str(error) if isinstance(error, FrameError) else type(error).__name__)

    # -- the rest is Flower's own ----------------------------------------------------------------------------------

    def get_nodes(self) -> Iterable[Any]:
        """As Flower's grid."""
        return self.grid.get_nodes()  # type: ignore[no-any-return]

    def get_node_ids(self) -> Iterable[int]:
        """As Flower's grid."""
        return self.grid.get_node_ids()  # type: ignore[no-any-return]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Not here: the deadline and the quorum of a contact are the retrying grid's."""
        raise NotImplementedError


def unreadable(order: Message, why: str) -> Message:
    """The answer that stands for one which nobody can read."""
    return Message(Error(REFUSED, f"its answer cannot be read ({one_line(why, 100)})"), reply_to=order)


def pack(content: RecordDict, blocks: Blocks | None = None) -> tuple[RecordDict, int]:
    """An order's content as a frame in records, and the frame's bytes; ``blocks`` are the arrays packed so far."""
    blocks = {} if blocks is None else blocks
    config: Mapping[str, Any] = content.config_records.get(CONFIG, {})
    words = {key: value for key, value in config.items() if not isinstance(value, bytes)}
    records = array_records(content)
    same = tuple((key, id(record)) for key, record in records.items())
    if same not in blocks:
        blocks[same] = cuts_of(block_of(join(**{key: to_arrays(record) for key, record in records.items()})))
    pieces = pieces_with({CONFIG: words}, blocks[same])
    size = sum(len(piece[PIECE]) for piece in pieces)
    return RecordDict({f"frame-{n}": ConfigRecord(piece) for n, piece in enumerate(pieces)}), size


def unpack(frame: bytes) -> RecordDict:
    """The content of an answer: its arrays in the order that its words give (safetensors keeps none), and its numbers.

    Raises FrameError, or what Flower raises over words that are none of its kinds.
    """
    header, arrays = from_frame(frame)
    order = header.get("order", sorted(arrays))
    if len(order) != len(arrays) or set(order) != set(arrays):
        raise FrameError("its words name other arrays than came")
    named: dict[str, dict[str, np.ndarray]] = parts({name: arrays[name] for name in order})
    content = RecordDict({part: to_record(own) for part, own in named.items()})
    if CONFIG in header:
        content[CONFIG] = ConfigRecord(header[CONFIG])
    if METRICS in header:
        content[METRICS] = MetricRecord(header[METRICS])
    if ENDS in header:
        content[ENDS] = ConfigRecord(header[ENDS])
    return content
