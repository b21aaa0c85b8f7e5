"""The sites by name with their node ids of today, and questions to single ones."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall.errors import PlanError, ReplyError
from fedsmall.files import one_line
from fedsmall.strategies.records import array_records
from fedsmall.travel.journey import Event, event
from fedsmall.wire import CONFIG

POLL_S = 0.05
TIMEOUT_S = 600.0  # for an answer
QUIET_S = 1.0  # without a newcomer all are there


@dataclass
class Roster:
    """The sites that have answered the handshake, by name, with their ``answers``, ``samples`` and ``events``.

    ``samples`` are the counts of when a site was first met. A refusal enrols nobody: ``refused`` holds its reason by
    node, which is asked again. Node ids change when a program restarts without node authentication; names do not.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    @property
    def sites(self) -> list[str]:
        """The names in order."""
        return sorted(self.nodes)

    def counts(self) -> dict[str, int]:
        """Each site's number of training samples, by name in order; 0 where it has not said."""
        return {site: self.samples.get(site, 0) for site in self.sites}

    def note(self, t: int, site: str, kind: str, reason: str) -> None:
        """Note an event of a site at round ``t``, for the report."""
        self.events.append(event(t, site, kind, reason))

    def take_events(self) -> list[Event]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events

    def call(self, grid: Grid, config: dict[str, Any], timeout: float | None = TIMEOUT_S) -> None:
        """Ask every unknown node for its name (else its registered one, or its id as text) and what it holds.

        Raises PlanError when two nodes give one name.
        """
        content = RecordDict({CONFIG: ConfigRecord(config)})
        asked = [Message(content, node, MessageType.QUERY) for node in self._newcomers(grid)]
        if not asked:
            return
        replies = list(grid.send_and_receive(asked, timeout=timeout))
        node_of = {order.metadata.message_id: order.metadata.dst_node_id for order in asked}
        answers: dict[int, dict[str, Any]] = {}
        self.refused = {}
        for reply in replies:
            node = node_of.get(reply.metadata.reply_to_message_id)
            if node is None:  # it answers no question of ours
                continue
            if reply.has_error():
                self.refused[node] = reply.error.reason or "no reason given"
            else:
                answers.setdefault(node, dict(reply.content.config_records.get(CONFIG, {})))
        self._enter(grid, answers)

    def check(self) -> None:
        """Raise PlanError where a node has refused, or none is there."""
        for node, reason in sorted(self.refused.items()):
            raise PlanError(f"Node {node} cannot take part: {one_line(reason, 300)}")
        if not self.nodes:
            raise PlanError("No site is connected. Start the sites first; `status` shows who is there.")

    def list_unasked(self, grid: Grid) -> None:
        """Enter every unknown node by its registered name or its id as text, for apps that answer no handshake."""
        self._enter(grid, {node: {} for node in self._newcomers(grid)})

    def _newcomers(self, grid: Grid) -> list[int]:
        return sorted(set(grid.get_node_ids()) - set(self.nodes.values()))

    def _enter(self, grid: Grid, answers: dict[int, dict[str, Any]]) -> None:
        """Enter new nodes; a name whose node has gone may come back under another."""
        registered: dict[int, str] = {}
        with suppress(AttributeError, NotImplementedError):
            registered = {node.node_id: node.name for node in grid.get_nodes() if node.name} if answers else {}
        gone = set(self.nodes.values()) - set(grid.get_node_ids()) if answers else set()
        for node, answer in answers.items():
            name = str(answer.get("site") or registered.get(node) or node)
            if self.nodes.get(name, node) not in {node, *gone}:
                raise PlanError(f"Two programs answer to the name {name!r}. Give every site a name of its own.")
            self.nodes[name], self.answers[name] = node, answer


def await_sites(grid: Grid, count: int, timeout_s: float = 60.0) -> None:
    """Wait until ``count`` nodes are connected. Raises PlanError with both numbers where they are not in time."""
    until = time.monotonic() + timeout_s
    while (connected := len(list(grid.get_node_ids()))) < count:
        if time.monotonic() > until:
            few = f"{count} sites were to take part and {connected} are connected after {timeout_s:g} s"
            raise PlanError(f"{few}. Start the others, or plan for fewer.")
        time.sleep(POLL_S)


def await_all(grid: Grid, timeout_s: float = 60.0) -> int:
    """The number of connected nodes, once none has come for :data:`QUIET_S`. PlanError where none is there in time."""
    await_sites(grid, 1, timeout_s)
    connected, since = 0, time.monotonic()
    while time.monotonic() - since < QUIET_S:
        before, connected = connected, len(list(grid.get_node_ids()))
        since = since if connected == before else time.monotonic()
        time.sleep(POLL_S)
    return connected


def ask(roster: Roster, grid: Grid, kind: str, questions: Mapping[str, RecordDict]) -> dict[str, Message]:
    """The answers of these sites, each to its own question; silent ones are left out."""
    connected = set(grid.get_node_ids())
    nodes = {site: roster.nodes[site] for site in questions if roster.nodes[site] in connected}
    orders = {site: Message(questions[site], node, kind) for site, node in nodes.items()}
    replies = list(grid.send_and_receive(list(orders.values()), timeout=TIMEOUT_S)) if orders else []
    by_id = {reply.metadata.reply_to_message_id: reply for reply in replies}
    return {s: by_id[o.metadata.message_id] for s, o in orders.items() if o.metadata.message_id in by_id}


def records_of(reply: Message | None) -> dict[str, ArrayRecord]:
    """The records of an answer. Raises ReplyError where there is none, or it is an error."""
    if reply is None:
        raise ReplyError("no answer before the deadline")
    if reply.has_error():
        raise ReplyError(one_line(reply.error.reason or "no reason given", 300))
    return array_records(reply.content)
