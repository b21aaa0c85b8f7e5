"""Questions to single sites, beside the orders of a contact."""

from collections.abc import Mapping

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedsmall.errors import ReplyError
from fedsmall.files import one_line
from fedsmall.strategies.records import array_records
from fedsmall.strategies.roster import Roster

TIMEOUT_S = 600.0


def ask(roster: Roster, grid: Grid, kind: str, questions: Mapping[str, RecordDict]) -> dict[str, Message]:
    """The answers of these sites, each to its own question; of those that are connected and answer."""
    there = set(grid.get_node_ids())
    nodes = {site: roster.nodes[site] for site in questions if roster.nodes[site] in there}
    orders = {site: Message(questions[site], node, kind) for site, node in nodes.items()}
    replies = list(grid.send_and_receive(list(orders.values()), timeout=TIMEOUT_S)) if orders else []
    by_id = {reply.metadata.reply_to_message_id: reply for reply in replies}
    return {s: by_id[o.metadata.message_id] for s, o in orders.items() if o.metadata.message_id in by_id}


def records_of(reply: Message | None) -> dict[str, ArrayRecord]:
    """The records of an answer. ReplyError where there is none, or it is an error."""
    if reply is None:
        raise ReplyError("no answer before the deadline")
    if reply.has_error():
        raise ReplyError(one_line(reply.error.reason or "no reason given", 300))
    return array_records(reply.content)
