"""Who is there: sites by name, and the node ids that Flower gives them today."""

import time
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall.errors import PlanError
from fedsmall.wire import CONFIG

POLL_S = 0.05


@dataclass
class Roster:
    """The sites that have answered the roll call, by name; ``answers`` holds what each said of itself.

    Node ids are Flower's and change when a program restarts without node authentication; names do not.
    """

    nodes: dict[str, int] = field(default_factory=dict)
    answers: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def sites(self) -> list[str]:
        """The names in order."""
        return sorted(self.nodes)

    def call(self, grid: Grid, config: dict[str, Any], timeout: float | None = 600) -> None:
        """Ask every node not yet known for its name and what it holds.

        A node whose program answers no queries (a Flower app of another make) is known by its registered name, or by
        its node id as text. Raises PlanError when two nodes give one name.
        """
        online = list(grid.get_node_ids())
        gone = {site: node for site, node in self.nodes.items() if node not in online}
        new = [node for node in online if node not in self.nodes.values()]
        if not new:
            return
        asked = [_query(node, config) for node in sorted(new)]
        replies = list(grid.send_and_receive(asked, timeout=timeout))
        node_of = {order.metadata.message_id: order.metadata.dst_node_id for order in asked}
        registered = _registered_names(grid)
        for reply in replies:
            node = node_of.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue  # answers no question of ours, or answers it twice
            answer = _answer(reply)
            name = str(answer.get("site") or registered.get(node) or node)
            if name in self.nodes and name not in gone:
                raise PlanError(f"Two programs answer to the name {name!r}. Give every site a name of its own.")
            self.nodes[name] = node
            self.answers[name] = answer
            gone.pop(name, None)


def await_sites(grid: Grid, count: int, timeout_s: float = 60.0) -> None:
    """Return once ``count`` nodes are connected: a simulation's, like real ones, come one after the other.

    Raises PlanError with both numbers where they are not all there in time.
    """
    until = time.monotonic() + timeout_s
    while (there := len(list(grid.get_node_ids()))) < count:
        if time.monotonic() > until:
            raise PlanError(
                f"{count} sites were to take part and {there} are connected after {timeout_s:g} s. "
                "Start the others, or plan for fewer."
            )
        time.sleep(POLL_S)


def _query(node: int, config: dict[str, Any]) -> Message:
    return Message(RecordDict({CONFIG: ConfigRecord(config)}), node, MessageType.QUERY)


def _answer(reply: Message) -> dict[str, Any]:
    if reply.has_error() or CONFIG not in reply.content.config_records:
        return {}
    return dict(reply.content.config_records[CONFIG])


def _registered_names(grid: Grid) -> dict[int, str]:
    try:
        return {node.node_id: node.name for node in grid.get_nodes() if node.name}
    except (AttributeError, NotImplementedError):
        return {}
