"""The engine ``inprocess``: Flower's ClientApp called for one site after the other in this process.

All uses of Flower's private interface are here (1.41): a process without its runtime must set a task identity itself.
"""

import copy
import traceback
from collections.abc import Iterable
from itertools import count
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

SERVER_NODE = 1
CLIENT_APP_ERROR = 2  # Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION

_message_ids = count(1)


def act_as_server(run_id: int = 1) -> None:
    """Let this process make messages as a server does."""
    TaskIdentity.task_id = 0
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = SERVER_NODE


def number_message(message: Message) -> str:
    """Give an order the id to which its reply will refer, as a SuperLink does."""
    message_id = str(next(_message_ids))
    message.metadata.__dict__["_message_id"] = message_id
    return message_id


def failure(order: Message, reason: str) -> Message:
    """The reply that Flower makes of an exception in a client."""
    return Message(Error(code=CLIENT_APP_ERROR, reason=reason), reply_to=order)


class LocalGrid(Grid):
    """What the grids in this process share: node ids 2, 3, ..., one per site, and the run that Flower wants to see."""

    def __init__(self, sites: int, run_id: int = 1) -> None:
        act_as_server(run_id)
        self._run = Run.create_empty(run_id)
        self.nodes = list(range(SERVER_NODE + 1, SERVER_NODE + 1 + sites))
        self._waiting: dict[str, Message] = {}

    def set_run(self, run: Run) -> None:
        """Take the run as given."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def get_node_ids(self) -> list[int]:
        """All nodes: none is ever away."""
        return list(self.nodes)

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Make a message as Flower's own class does."""
        return Message(*args, **kwargs)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Answer the messages at once and keep the replies until they are pulled."""
        orders = list(messages)
        self._waiting |= {reply.metadata.reply_to_message_id: reply for reply in self.send_and_receive(orders)}
        return [order.metadata.message_id for order in orders]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages that have not been pulled before."""
        return [self._waiting.pop(message_id) for message_id in message_ids if message_id in self._waiting]


class InProcessGrid(LocalGrid):
    """A Flower grid without processes or a network: it calls the ClientApp for every message, in their order.

    A client gets copies of messages, as across a network; its exceptions become error replies, whole in ``tracebacks``.
    """

    def __init__(self, app: ClientApp, sites: int, run_id: int = 1) -> None:
        super().__init__(sites, run_id)
        self.app = app
        self.tracebacks: dict[int, str] = {}
        self._contexts: dict[int, Context] = {}  # a client's state is kept for as long as the grid lives
        for index, node in enumerate(self.nodes):
            config: dict[str, Any] = {"partition-id": index, "num-partitions": sites}
            self._contexts[node] = Context(run_id, node, config, state=RecordDict(), run_config={})

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Every site's answer, in the order of the messages."""
        return [self._answer(order) for order in messages]

    def _answer(self, order: Message) -> Message:
        number_message(order)
        node = order.metadata.dst_node_id
        received = copy.copy(order)
        received.__dict__["_content"] = copy.deepcopy(order.content)
        try:
            return self.app(received, self._contexts[node])
        except Exception as error:
            # what a client raises is its own affair: the run goes on without its answer, as it would elsewhere
            self.tracebacks[node] = traceback.format_exc()
            return failure(order, f"{type(error).__name__}: {error}")
