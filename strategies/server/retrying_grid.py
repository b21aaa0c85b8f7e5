"""A grid that waits for sites, but not for ever: the deadline and the quorum of a contact, and its line in the log.

It stands between a strategy and a grid over Flower's own. An order whose site went away before it answered is sent
again when the site is back: training is a function of the order alone, so the answer has the same bits. So is one that
a hospital has not agreed to yet, or paused. What is still missing at the deadline is left out, and the strategy counts
the site as silent; below the quorum the run stops and can be resumed.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict
from google.protobuf.message import DecodeError

from fedsmall.audit_log import AuditLog
from fedsmall.ends import ENDS, Statement
from fedsmall.errors import ReplyError
from fedsmall.files import one_line
from fedsmall.run_sheet import RUN, RUN_ID, SITES, Sheet
from fedsmall.strategies.records import array_records, described, size_in_bytes
from fedsmall.strategies.server.grid_around import GridAround
from fedsmall.strategies.server.heads import Heads
from fedsmall.strategies.server.packed_grid import PackedGrid
from fedsmall.strategies.server.waits import Waits
from fedsmall.wire import BROKEN, CONFIG, REFUSED, ROUND, WAITS, join

# Flower's ErrorCode: the message or its reply was lost, the node went away, the ClientApp's process was killed
LOST = {3: "its order was lost", 4: "its answer was lost", 5: "its program went away", 8: "its ClientApp was killed"}
# what Flower raises while it unpacks an answer that a site made up; a lost connection raises none of these
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, DecodeError)
FAULT = "log fault"  # the event of an answer whose site's log does not go on from what the site has signed
MOST_SENDINGS = 5
RESEND_S = 2.0  # times the sendings so far: a site that comes up and falls over is given time
POLL_S = 0.25
ANSWER_S = 0.01  # between two looks for answers; the grid below asks the SuperLink no more often than pays


class QuorumError(RuntimeError):
    """Fewer sites answered than the run sheet asks for; the run can be resumed when they are back."""


class RetryingGrid(GridAround):
    """Flower's ``grid`` for one run; ``log`` gets a line for every order, every answer and every silence."""

    grid: PackedGrid

    def __init__(
        self,
        grid: PackedGrid,
        sheet: Sheet,
        log: AuditLog,
        clock: Callable[[], float] = time.monotonic,
        heads: Heads | None = None,
        tell_waits: Callable[[dict[str, str]], None] = lambda _: None,
    ) -> None:
        self.grid = grid
        self.waits = Waits(tell_waits, clock)
        self.heads = heads or Heads(None, sheet)
        self.sheet = sheet
        self.log = log
        self.clock = clock
        self.away: set[int] = set()  # nodes that were waited for in vain, until they are back
        self.names: dict[int, str] = {}

    def get_nodes(self) -> Iterable[Any]:
        """The run's own nodes that are connected now; whoever else is admitted and online does not exist for it."""
        nodes = [node for node in self.grid.get_nodes() if node.name in self.sheet.sites]
        self.names |= {node.node_id: node.name for node in nodes}
        return nodes

    def get_node_ids(self) -> Iterable[int]:
        """The connected nodes, after a wait of at most the deadline for those that were there before.

        Raises QuorumError where fewer than the quorum are there then.
        """
        deadline = self.clock() + self.sheet.round_deadline_s
        while True:
            here = {node.node_id for node in self.get_nodes()}
            self.away -= here
            missing = set(self.names) - here - self.away
            if not missing and len(here) >= self.sheet.least_answers:
                return sorted(here)
            if self.clock() > deadline:
                break
            time.sleep(POLL_S)
        for node in missing:
            self.log.write("away", site=self.names[node])
        self.away |= missing
        if len(here) < self.sheet.least_answers:
            raise QuorumError(self._too_few("are connected", len(here), set(self.names) - here))
        return sorted(here)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send the orders and return the answers that came before the deadline; see the module's own words."""
        orders = list(messages)
        for order in orders:
            config = order.content.config_records.setdefault(CONFIG, ConfigRecord())
            config[RUN], config[RUN_ID], config[SITES] = self.sheet.run, self.sheet.id, list(self.sheet.everyone)
        replies = self._exchange(orders, self.clock() + self._patience_s(orders))
        answered = {reply.metadata.reply_to_message_id for reply in replies if not reply.has_error()}
        silent = {o.metadata.dst_node_id for o in orders if o.metadata.message_id not in answered}
        training = [order for order in orders if order.metadata.message_type.startswith(MessageType.TRAIN)]
        least = min(self.sheet.least_answers, len(training))
        if training and len(answered) < least:
            raise QuorumError(self._too_few("answered", len(answered), silent) + self._reasons(replies))
        return replies

    def _patience_s(self, orders: list[Message]) -> float:
        """Before the first contact people may have to be asked, which takes as long as it takes them to come."""
        questions = all(order.metadata.message_type.startswith(MessageType.QUERY) for order in orders)
        return max(self.sheet.round_deadline_s, self.sheet.start_deadline_s if questions else 0.0)

    def _exchange(self, orders: list[Message], deadline: float) -> list[Message]:
        waiting = self._push(orders)
        again: dict[int, tuple[Message, float]] = {}  # what is to be sent again, and from when on
        said: dict[int, Message] = {}  # the last word of those whose hospital is waited for
        sendings = dict.fromkeys(map(id, orders), 1)
        replies: list[Message] = []
        while (waiting or again) and self.clock() <= deadline:
            for key, order in list(waiting.items()):
                reply = self._answer_to(order)
                if reply is None:
                    continue
                del waiting[key]
                reply, statement = self._held_to(order, reply)
                due = self._due_again(order, reply, sendings[id(order)])
                if due is None:
                    self._note_answer(order, reply, statement)
                    replies.append(reply)
                    continue
                again[id(order)] = (order, due)
                if reply.error.code == WAITS:
                    said[id(order)] = reply
                else:
                    sendings[id(order)] += 1
            back = [order for order, due in again.values() if self.clock() >= due and self._is_here(order)]
            for order in back:
                del again[id(order)]
            waiting |= self._push_again(back)
            if waiting or again:
                time.sleep(ANSWER_S)
        self.heads.keep()
        self.grid.forget(waiting)
        missed = [*waiting.values(), *(order for order, _ in again.values())]
        return [*replies, *self._missed(missed, said)]

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

    def _missed(self, orders: list[Message], said: Mapping[int, Message]) -> list[Message]:
        """Note who was silent; who said that its hospital is waited for has that as its answer."""
        answers = []
        for order in orders:
            reply = said.get(id(order))
            self._note("silent", order, **({"reason": _line(reply.error.reason)} if reply else {}))
            if reply:
                self.waits.give_up([self.name_of(order.metadata.dst_node_id)])
                answers.append(Message(reply.error, reply_to=order))
            else:
                self.away.add(order.metadata.dst_node_id)
        return answers

    def _answer_to(self, order: Message) -> Message | None:
        """What came for one order, or None.

        Each is asked for alone: Flower unpacks answers together, so that one nobody can read would take the others
        with it; and what an answer says of itself, the order that it answers too, is only its sender's word.
        """
        key = order.metadata.message_id
        try:
            for reply in self.grid.pull_messages([key]):
                if reply.metadata.reply_to_message_id == key:
                    return reply
                return Message(Error(REFUSED, "its answer says that it is to another order"), reply_to=order)
        except UNREADABLE as error:
            return Message(Error(REFUSED, f"its answer cannot be read ({type(error).__name__})"), reply_to=order)
        return None

    def _push(self, orders: list[Message]) -> dict[str, Message]:
        sizes = [size_in_bytes(array_records(order.content)) for order in orders]
        rows = [{**self._about(order), "bytes": size} for order, size in zip(orders, sizes, strict=True)]
        entries = self.log.write_each("order", rows)
        for order, entry in zip(orders, entries, strict=True):
            site = self.name_of(order.metadata.dst_node_id)
            config = ConfigRecord({**order.content.config_records.get(CONFIG, {}), ENDS: self.heads.order(site, entry)})
            order.content = RecordDict({**order.content, CONFIG: config})  # others share what was there
        self.grid.push_messages(orders)  # gives each order its id
        return {order.metadata.message_id: order for order in orders}

    def _push_again(self, orders: list[Message]) -> dict[str, Message]:
        """The strategy knows an order by its id: the one it holds takes the id of the copy that is sent."""
        sent: dict[str, Message] = {}
        for order in orders:
            copy = Message(order.content, order.metadata.dst_node_id, order.metadata.message_type)
            sent |= self._push([copy])
            order.metadata.__dict__["_message_id"] = copy.metadata.message_id
        return dict(zip(sent, orders, strict=True))

    def _is_here(self, order: Message) -> bool:
        return order.metadata.dst_node_id in {node.node_id for node in self.get_nodes()}

    def _held_to(self, order: Message, reply: Message) -> tuple[Message, Statement | None]:
        """An answer without what it says of its site's log, and that; an error where it does not go on from before."""
        if reply.has_error():
            return reply, None
        try:
            told = reply.content.pop(ENDS, None)
            return reply, self.heads.took(self.name_of(order.metadata.dst_node_id), told)
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
        config: Mapping[str, Any] = order.content.config_records.get(CONFIG, {})
        site = self.name_of(order.metadata.dst_node_id)
        return {"kind": order.metadata.message_type, "site": site, "t": config.get(ROUND)}

    def name_of(self, node: int) -> str:
        """The name under which a node was registered, or its number."""
        return self.names.get(node, str(node))

    def _too_few(self, what: str, count: int, missing: set[int]) -> str:
        names = ", ".join(sorted(self.name_of(node) for node in missing)) or "none"
        return (
            f"{count} of {len(self.sheet.sites)} sites {what} within {self.sheet.round_deadline_s:g} s; the run asks "
            f"for {self.sheet.least_answers}. Missing: {names}. `fedsmall resume {self.sheet.run}` goes on from here."
        )

    @staticmethod
    def _reasons(replies: list[Message]) -> str:
        reasons = sorted({_line(reply.error.reason) for reply in replies if reply.has_error()})
        return "".join(f" [{reason}]" for reason in reasons)[:1000]

    # -- the rest is Flower's own ----------------------------------------------------------------------------------

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """As Flower's grid."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """As Flower's grid."""
        return self.grid.pull_messages(message_ids)


def _digest(reply: Message) -> tuple[int, str]:
    """Bytes and digest of an answer's arrays: what :func:`fedsmall.audit_log.digest_of` gave at the site.

    An answer that is not checked yet may be anything: its arrays' bytes are taken as they came, and none is made.
    """
    total, size = hashlib.sha256(), 0
    for name, array in sorted(join(**reply.content.array_records).items()):
        named = described(array)
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
