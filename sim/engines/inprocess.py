"""The engine ``inprocess``: Flower's ClientApp called for one site after the other in this process."""

import copy
import traceback
from collections.abc import Iterable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsmall.sim.engines.local_grid import LocalGrid, client_context, failure, number_message


class InProcessGrid(LocalGrid):
    """A Flower grid without processes or a network: it calls the ClientApp for every message, in their order.

    A client sees a copy of each message, as it would across a network, so that what one changes no other sees. An
    exception in a client becomes an error reply with its first line; ``tracebacks`` keeps the whole for the caller.
    """

    def __init__(self, app: ClientApp, sites: int, run_id: int = 1) -> None:
        super().__init__(sites, run_id)
        self.app = app
        self.tracebacks: dict[int, str] = {}
        self._contexts: dict[int, Context] = {
            node: client_context(run_id, node, {"partition-id": index, "num-partitions": sites})
            for index, node in enumerate(self.nodes)
        }

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
