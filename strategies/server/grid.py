"""The grid of a run over real sites: it waits for them until a deadline, and sends orders as frames.

An order whose site went away, or whose hospital has not agreed yet, is sent again; training is a function of the order
alone, so the answer has the same bits. Sites missing at the deadline count as silent; below the quorum the run stops.

Flower makes an object and a call of every array; a frame (:mod:`fedsmall.frames`) is one record. Answers are polled
together but unpacked one by one, so an unreadable one harms no other.
"""

import hashlib
import json
import math
import time
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest, PushAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute
from google.protobuf.message import DecodeError

from fedsmall import frames
from fedsmall.audit_log import AuditLog
from fedsmall.ends import ENDS, STARTED, Statement
from fedsmall.errors import ReplyError
from fedsmall.files import one_line
from fedsmall.planning.run_sheet import RUN, RUN_ID, SITES, Sheet
from fedsmall.strategies.records import SendingGrid, array_records, shape_and_dtype, size_in_bytes, to_arrays, to_record
from fedsmall.strategies.server.heads import Heads
from fedsmall.wire import ANSWER_BYTES, BROKEN, CONFIG, METRICS, REFUSED, ROUND, WAITS, join, parts

# Flower's ErrorCode: the message or its reply was lost, the node went away, the ClientApp's process was killed
LOST = {3: "its order was lost", 4: "its answer was lost", 5: "its program went away", 8: "its ClientApp was killed"}
GONE = 4
FOREIGN = "it is not made as answers are"
# what Flower raises while it unpacks an answer that a site made up; a lost connection raises none of these
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, DecodeError)
FAULT = "log fault"  # the event of an answer whose site's log does not go on from what the site has signed
MOST_SENDINGS = 5
RESEND_S = 2.0  # times the sendings so far: a site that comes up and falls over is given time
POLL_S = 0.25
ANSWER_S = 0.01  # between two looks for answers; the grid below asks the SuperLink no more often than pays


class QuorumError(RuntimeError):
    """Fewer sites answered than the run sheet asks for; the run can be resumed."""


class RetryingGrid(SendingGrid):
    """Flower's grid for one run over ``mail``, with retries; ``log`` gets a line for each order, answer and silence."""

    def __init__(
        self,
        mail: "FrameMail",
        sheet: Sheet,
        log: AuditLog,
        clock: Callable[[], float] = time.monotonic,
        heads: Heads | None = None,
        tell_waits: Callable[[dict[str, str]], None] = lambda _: None,
    ) -> None:
        self.mail, self.sheet, self.log, self.clock = mail, sheet, log, clock
        self.waits, self.heads = Waits(tell_waits, clock), heads or Heads(None, sheet)
        self.away: set[int] = set()  # nodes that were waited for in vain, until they are back
        self.names: dict[int, str] = {}

    def get_nodes(self) -> Iterable[Any]:
        """The run's own nodes that are connected now."""
        nodes = [node for node in self.mail.get_nodes() if node.name in self.sheet.sites]
        self.names |= {node.node_id: node.name for node in nodes}
        return nodes

    def get_node_ids(self) -> Iterable[int]:
        """The connected nodes, once those of before are there or the deadline is over. QuorumError for too few."""
        deadline, least = self.clock() + self.sheet.round_deadline_s, self.sheet.least_answers
        while True:
            connected = {node.node_id for node in self.get_nodes()}
            self.away -= connected
            missing = set(self.names) - connected - self.away
            if (not missing and len(connected) >= least) or self.clock() > deadline:
                break
            time.sleep(POLL_S)
        for node in missing:
            self.log.write("away", site=self.names[node])
        self.away |= missing
        if len(connected) < least:
            raise QuorumError(self._too_few("are connected", len(connected), set(self.names) - connected))
        return sorted(connected)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send the orders and return the answers that came before the deadline."""
        orders = list(messages)
        for order in orders:
            config = order.content.config_records.setdefault(CONFIG, ConfigRecord())
            config[RUN], config[RUN_ID], config[SITES] = self.sheet.run, self.sheet.id, list(self.sheet.everyone)
            if self.sheet.started is not None:
                config[STARTED] = self.sheet.started.model_dump_json()
        questions = all(order.metadata.message_type.startswith(MessageType.QUERY) for order in orders)
        patience_s = self.sheet.start_deadline_s if questions else 0.0  # people may have to be asked
        replies = self._exchange(orders, self.clock() + max(self.sheet.round_deadline_s, patience_s))
        answered = {reply.metadata.reply_to_message_id for reply in replies if not reply.has_error()}
        training = [order for order in orders if order.metadata.message_type.startswith(MessageType.TRAIN)]
        if training and len(answered) < min(self.sheet.least_answers, len(training)):
            silent = {o.metadata.dst_node_id for o in orders if o.metadata.message_id not in answered}
            reasons = sorted({_line(reply.error.reason) for reply in replies if reply.has_error()})
            why = "".join(f" [{reason}]" for reason in reasons)[:1000]
            was_awaited = len(replies) < len(orders)  # some have neither answered nor refused
            raise QuorumError(self._too_few("answered", len(answered), silent, was_awaited) + why)
        return replies

    def _exchange(self, orders: list[Message], deadline: float) -> list[Message]:
        waiting = self._push(orders)
        again: dict[int, tuple[Message, float]] = {}  # what is to be sent again, and from when on
        waits: dict[int, Message] = {}  # the last word of those whose hospital is waited for
        sendings = dict.fromkeys(map(id, orders), 1)
        replies: list[Message] = []
        while (waiting or again) and self.clock() <= deadline:
            for key, order in list(waiting.items()):
                if (reply := self._answer_to(order)) is None:
                    continue
                del waiting[key]
                reply, statement = self._check_statement(order, reply)
                due = self._due_again(order, reply, sendings[id(order)])
                if due is None:
                    self._note_answer(order, reply, statement)
                    replies.append(reply)
                    continue
                again[id(order)] = (order, due)
                if reply.error.code == WAITS:
                    waits[id(order)] = reply
                else:
                    sendings[id(order)] += 1
            due_now = [order for order, due in again.values() if self.clock() >= due]
            here = {node.node_id for node in self.get_nodes()} if due_now else set()
            back = [order for order in due_now if order.metadata.dst_node_id in here]
            for order in back:
                del again[id(order)]
            waiting |= self._push_again(back)
            if waiting or again:
                time.sleep(ANSWER_S)
        self.heads.keep()
        self.mail.forget(waiting)
        missed = [*waiting.values(), *(order for order, _ in again.values())]
        return [*replies, *self._note_silent(missed, waits)]

    def _due_again(self, order: Message, reply: Message, sendings: int) -> float | None:
        """When an order is to be sent again; None where this is its answer."""
        site, code = self.name_of(order.metadata.dst_node_id), reply.error.code if reply.has_error() else None
        if code == WAITS:
            if self.waits.note(site, _line(reply.error.reason)):
                self._note("waits", order, reason=_line(reply.error.reason))
            return self.waits.again(site)
        if code in LOST and sendings < MOST_SENDINGS:
            self._note("lost", order, reason=LOST[reply.error.code])
            return self.clock() + RESEND_S * sendings
        self.waits.over(site)
        return None

    def _note_silent(self, orders: list[Message], waits: Mapping[int, Message]) -> list[Message]:
        """Note silent sites; the reply of one whose hospital is waited for stands as its answer."""
        answers = []
        for order in orders:
            if reply := waits.get(id(order)):
                self._note("silent", order, reason=_line(reply.error.reason))
                self.waits.in_vain.add(self.name_of(order.metadata.dst_node_id))
                answers.append(Message(reply.error, reply_to=order))
            else:
                self._note("silent", order)
                self.away.add(order.metadata.dst_node_id)
        return answers

    def _answer_to(self, order: Message) -> Message | None:
        """The reply to one order, or None: asked for alone, and what it says of itself is only its sender's word."""
        key = order.metadata.message_id
        try:
            for reply in self.mail.pull_messages([key]):
                if reply.metadata.reply_to_message_id == key:
                    return reply
                return Message(Error(REFUSED, "its answer says that it is to another order"), reply_to=order)
        except UNREADABLE:
            return unreadable(order, FOREIGN)
        return None

    def _push(self, orders: list[Message]) -> dict[str, Message]:
        rows = [{**self._about(order), "bytes": size_in_bytes(array_records(order.content))} for order in orders]
        for order, entry in zip(orders, self.log.write_each("order", rows), strict=True):
            statement = self.heads.order(self.name_of(order.metadata.dst_node_id), entry)
            config = ConfigRecord({**config_of(order), ENDS: statement})
            order.content = RecordDict({**order.content, CONFIG: config})  # others share what was there
        self.mail.push_messages(orders)  # gives each order its id
        return {order.metadata.message_id: order for order in orders}

    def _push_again(self, orders: list[Message]) -> dict[str, Message]:
        """Send orders again; each takes the id of its copy, by which the strategy knows it."""
        sent: dict[str, Message] = {}
        for order in orders:
            copy = Message(order.content, order.metadata.dst_node_id, order.metadata.message_type)
            sent |= self._push([copy])
            order.metadata.__dict__["_message_id"] = copy.metadata.message_id
        return dict(zip(sent, orders, strict=True))

    def _check_statement(self, order: Message, reply: Message) -> tuple[Message, Statement | None]:
        """An answer and the statement taken out of it; an error where that does not go on from the last."""
        if reply.has_error():
            return reply, None
        try:
            statement = reply.content.pop(ENDS, None)
            return reply, self.heads.check_statement(self.name_of(order.metadata.dst_node_id), statement)
        except ReplyError as error:
            return Message(Error(BROKEN, str(error)), reply_to=order), None

    def _note_answer(self, order: Message, reply: Message, statement: Statement | None) -> None:
        if reply.has_error():
            event = FAULT if reply.error.code == BROKEN else "failed"
            self._note(event, order, reason=_line(reply.error.reason))
            return
        size, digest = _digest(reply)
        signed = {"signed": statement.model_dump()} if statement else {}
        self._note("answer", order, bytes=size, sha256=digest, **signed)

    def _note(self, event: str, order: Message, **fields: Any) -> None:
        self.log.write(event, **self._about(order), **fields)

    def _about(self, order: Message) -> dict[str, Any]:
        site = self.name_of(order.metadata.dst_node_id)
        return {"kind": order.metadata.message_type, "site": site, "t": config_of(order).get(ROUND)}

    def name_of(self, node: int) -> str:
        """The name under which a node was registered, or its number."""
        return self.names.get(node, str(node))

    def _too_few(self, what: str, count: int, missing: set[int], was_awaited: bool = True) -> str:
        names = ", ".join(sorted(self.name_of(node) for node in missing)) or "none"
        within = f" within {self.sheet.round_deadline_s:g} s" if was_awaited else ""
        return (
            f"{count} of {len(self.sheet.sites)} sites {what}{within}; the run asks for {self.sheet.least_answers}. "
            f"Missing: {names}. `fedsmall resume {self.sheet.run}` goes on from here."
        )


def _digest(reply: Message) -> tuple[int, str]:
    """Bytes and digest (as :func:`fedsmall.audit_log.digest_of` gives) of an answer's arrays, as they came."""
    total, size = hashlib.sha256(), 0
    for name, array in sorted(join(**reply.content.array_records).items()):
        named = shape_and_dtype(array)
        if named is None:
            return size, "unreadable"
        shape, dtype = named
        count = math.prod(shape) * dtype.itemsize
        total.update(json.dumps([name, dtype.str, list(shape)]).encode())
        total.update(memoryview(array.data)[-count:] if count else b"")  # what follows the header
        size += min(count, len(array.data))  # without the header: as many as the site's own log says
    return size, total.hexdigest()


def _line(text: str | None) -> str:
    return one_line(text or "no reason given", 300)


FIRST_S, LONGEST_S = 1.0, 15.0  # between two questions


class Waits:
    """The sites that are waited for and why; ``tell`` is given {site: reason} whenever that changes.

    One that was waited for in vain for a whole communication round is not waited for again until it has answered.
    """

    def __init__(self, tell: Callable[[dict[str, str]], None], clock: Callable[[], float]) -> None:
        self.tell, self.clock = tell, clock
        self.reasons: dict[str, str] = {}
        self._asked: dict[str, int] = {}
        self.in_vain: set[str] = set()

    def again(self, site: str) -> float | None:
        """When to ask a waiting site again; None where it was waited for long enough."""
        if site in self.in_vain:
            return None
        self._asked[site] = self._asked.get(site, 0) + 1
        return self.clock() + min(FIRST_S * 2.0 ** (self._asked[site] - 1), LONGEST_S)

    def note(self, site: str, reason: str) -> bool:
        """Note why a site waits; False where that is known."""
        if self.reasons.get(site) == reason:
            return False
        self.reasons[site] = reason
        self.tell(dict(self.reasons))
        return True

    def over(self, site: str) -> None:
        """Note that the site has answered."""
        self._asked.pop(site, None)
        self.in_vain.discard(site)
        if self.reasons.pop(site, None) is not None:
            self.tell(dict(self.reasons))


SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0  # between two questions
PATIENCE = 20  # a question comes after a twentieth of the time for which nothing came
MOST_TIMES, MOST_BESIDE = 8, 16 << 20  # an answer is at most so many times its order, and so many bytes
MOST_WHOLE = 20_000  # orders sent whole in a run: of each and its answer a SuperLink keeps 3 kB until the run ends

Same = tuple[tuple[str, int], ...]  # the records that hold some arrays


@dataclass
class _Waiting:
    """An order that is waited for, and its answer as far as it has come: at ``most`` so many bytes."""

    order: Message
    most: int
    answer: Message | None = None
    left: list[str] = field(default_factory=list)
    pieces: list[ConfigRecord] = field(default_factory=list)
    size: int = 0

    def refuse(self, answer: Message) -> None:
        """Take this in place of the answer that was coming."""
        self.answer = answer
        self.left.clear()


class FrameMail:
    """Orders and answers as frames over ``grid``, Flower's HttpGrid, whose client makes the calls."""

    def __init__(self, grid: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.grid, self.clock = grid, clock
        self._waiting: dict[str, _Waiting] = {}
        self._came: dict[str, Message] = {}
        self._last = self._since = 0.0
        self._whole = 0

    def push_messages(self, messages: Iterable[Message]) -> None:
        """Send orders, each as a frame; every one is given its id."""
        orders, blocks = list(messages), dict[Same, list[bytes]]()  # many orders share their arrays
        packed = [pack(order.content, blocks) for order in orders]
        copies = [
            Message(content, order.metadata.dst_node_id, order.metadata.message_type)
            for order, (content, _) in zip(orders, packed, strict=True)
        ]
        whole = list[Message]()
        for copy, (_, size) in zip(copies, packed, strict=True):
            is_first = copy.metadata.message_type == MessageType.QUERY  # sites of older releases are to answer it too
            if is_first or len(copy.content) > 1 or size > frames.WHOLE_BYTES or self._whole + len(whole) >= MOST_WHOLE:
                self._push([copy])  # one by one, so that the first begin while others are sent
            else:
                whole.append(copy)
        if whole:
            self._push(whole, whole=True)
        self._whole += len(whole)
        for order, copy, (_, size) in zip(orders, copies, packed, strict=True):
            key = copy.metadata.message_id
            order.metadata.__dict__["_message_id"] = key
            more = int(config_of(order).get(ANSWER_BYTES, 0))
            self._waiting[key] = _Waiting(order, MOST_TIMES * size + MOST_BESIDE + more)
        self._since = self._last = self.clock()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The answers to these orders; one call asks for all outstanding ones, at growing intervals."""
        now = self.clock()
        pause_s = min(max((now - self._since) / PATIENCE, SHORTEST_LOOK_S), LONGEST_LOOK_S)
        if self._waiting and now - self._last >= pause_s:
            if self._collect():
                self._since = self.clock()
            self._last = self.clock()
        return [self._came.pop(key) for key in message_ids if key in self._came]

    def _push(self, messages: Sequence[Message], whole: bool = False) -> None:
        """Push messages in one call, ``whole`` or then their pieces, the first of which is each one's id."""
        with no_object_id_recompute():
            pieces = [{piece.object_id: piece for piece in sent.content.config_records.values()} for sent in messages]
            trees = [ObjectTree(object_id=next(iter(own))) for own in pieces]
            for sent, own, tree in zip(messages, pieces, trees, strict=True):
                sent.metadata.__dict__["_message_id"] = tree.object_id
                tree.children.extend(ObjectTree(object_id=name) for name in list(own)[1:])
            protos = [message_to_proto(sent if whole else remove_content_from_message(sent)) for sent in messages]
            order = PushAppMessagesRequest(messages_list=protos, message_object_trees=trees)
            asked, objects = self.grid._runtime_client.PushMessages(order), ChainMap(*pieces)
            for name in () if whole else asked.objects_to_push:
                part = PushObjectRequest(
                    node=self.grid.node,
                    run_id=self.grid.run.run_id,
                    object_id=name,
                    object_content=objects[name].deflate(),
                    session_id=asked.session_id,
                )
                self.grid._runtime_client.PushObject(part)

    def forget(self, message_ids: Iterable[str]) -> None:
        """Ask for these answers no more."""
        for key in message_ids:
            self._waiting.pop(key, None)

    def _collect(self) -> bool:
        asked = [key for key, waiting in self._waiting.items() if waiting.answer is None]
        has_news = False
        if asked:
            answer = self.grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for proto, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
                # the SuperLink lets a node answer its own orders alone; what the content says of itself is not read
                if waiting := self._waiting.get(proto.metadata.reply_to_message_id):
                    waiting.answer, has_news = message_from_proto(proto), True
                    if waiting.answer.has_error():
                        continue
                    waiting.pieces = list(waiting.answer.content.config_records.values())
                    waiting.left = [] if waiting.pieces else frames.pieces_in(tree)
                    if proto.ByteSize() > waiting.most:
                        waiting.refuse(unreadable(waiting.order, "it is too large"))
                    if len(waiting.left) > waiting.most // frames.PIECE_BYTES + 2:
                        waiting.refuse(unreadable(waiting.order, "it is in too many pieces"))
        for key, waiting in list(self._waiting.items()):
            if waiting.answer is not None and self._gather(waiting, waiting.answer.metadata):
                self._came[key], has_news = self._read_answer(waiting), True
                del self._waiting[key]
        return has_news

    def _gather(self, waiting: _Waiting, about: Any) -> bool:
        """Fetch what is there of an answer; True once that is all, or enough to refuse it."""
        while waiting.left:
            request = PullObjectRequest(node=self.grid.node, run_id=about.run_id, object_id=waiting.left[0])
            got = self.grid._runtime_client.PullObject(request)
            if got.object_found and not got.object_available:
                return False  # the site is still sending; who is slow keeps nobody waiting
            waiting.left.pop(0)
            waiting.size += len(got.object_content)
            if not got.object_found or waiting.size > waiting.most:
                code, reason = (GONE, "gone") if not got.object_found else (REFUSED, "its answer is too large")
                waiting.refuse(Message(Error(code, reason), reply_to=waiting.order))
                break
            try:
                waiting.pieces.append(ConfigRecord.inflate(got.object_content))
            except Exception:  # whatever Flower raises over bytes that a site made up
                waiting.refuse(unreadable(waiting.order, FOREIGN))
        return True

    def _read_answer(self, waiting: _Waiting) -> Message:
        assert waiting.answer is not None
        about = waiting.answer.metadata
        if about.message_id and (waiting.answer.has_error() or not waiting.answer.content):
            request = ConfirmMessageReceivedRequest(
                node=self.grid.node, run_id=about.run_id, message_object_id=about.message_id
            )
            self.grid._runtime_client.ConfirmMessageReceived(request)
        if waiting.answer.has_error():
            return Message(waiting.answer.error, reply_to=waiting.order)
        return join_answer(waiting.order, waiting.pieces)

    def get_nodes(self) -> Iterable[Any]:
        """The connected nodes."""
        return self.grid.get_nodes()  # type: ignore[no-any-return]


def join_answer(order: Message, pieces: Iterable[Mapping[str, Any]]) -> Message:
    """The answer to an order that came in ``pieces``, or the error that stands for one."""
    try:
        return Message(unpack(frames.join_pieces(pieces)), reply_to=order)
    except frames.FrameError as error:
        return unreadable(order, str(error))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return unreadable(order, FOREIGN)


def unreadable(order: Message, why: str) -> Message:
    """The error that stands for an unreadable answer."""
    return Message(Error(REFUSED, f"its answer cannot be read ({one_line(why, 100)})"), reply_to=order)


def pack(content: RecordDict, blocks: dict[Same, list[bytes]] | None = None) -> tuple[RecordDict, int]:
    """An order's content as a frame in records, and its bytes; ``blocks`` caches packed arrays."""
    blocks = {} if blocks is None else blocks
    config: Mapping[str, Any] = content.config_records.get(CONFIG, {})
    words = {key: value for key, value in config.items() if not isinstance(value, bytes)}
    records = array_records(content)
    same = tuple((key, id(record)) for key, record in records.items())
    if same not in blocks:
        named = join(**{key: to_arrays(record) for key, record in records.items()})
        blocks[same] = frames.cuts_of(frames.block_of(named))
    pieces = frames.pieces_with({CONFIG: words}, blocks[same])
    size = sum(len(piece[frames.PIECE]) for piece in pieces)
    return RecordDict({f"frame-{n}": ConfigRecord(piece) for n, piece in enumerate(pieces)}), size


def config_of(order: Message) -> Mapping[str, Any]:
    """The words of an order."""
    return order.content.config_records.get(CONFIG, {})


def unpack(frame: bytes) -> RecordDict:
    """The content of an answer: arrays in its header's order, metrics, words. FrameError, or Flower's errors."""
    header, arrays = frames.from_frame(frame)
    order = header.get("order", sorted(arrays))
    if len(order) != len(arrays) or set(order) != set(arrays):
        raise frames.FrameError("its words name other arrays than came")
    content = RecordDict({part: to_record(of) for part, of in parts({name: arrays[name] for name in order}).items()})
    for key, record in ((CONFIG, ConfigRecord), (METRICS, MetricRecord), (ENDS, ConfigRecord)):
        if key in header:
            content[key] = record(header[key])
    return content
