"""Real sites' own programs behind a grid: only Flower's network is left out."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Message

from fedsmall.clients import relay
from fedsmall.clients.data_process import DataProcess
from fedsmall.data.preparation import Sums, agree
from fedsmall.frames import from_frame, join_pieces, to_frame
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN, SITES, SUMS, TELL
from fedsmall.sim.engines.inprocess import LocalGrid, number_message
from fedsmall.strategies.server.grid import pack, unpack
from fedsmall.wire import PLAN


class Stations(LocalGrid):
    """The sites ``names``, each with its ``data`` or none of its own; a program is started anew for every message.

    What a site writes lies in a folder of its name.
    """

    def __init__(
        self,
        folder: Path,
        names: tuple[str, ...],
        monkeypatch: Any,
        policy: str = "",
        data: Mapping[str, Path] | None = None,
    ) -> None:
        super().__init__(len(names), 1)
        self.data = data or {}
        self.folder, self.names, self.at = folder, names, dict(zip(self.nodes, names, strict=True))
        lenient = {"least_samples": 1, "count_floor": 1, "least_blur": 0, "most_read": 1000, "least_batch": 1}
        lines = [f"{key} = {value}\n" for key, value in lenient.items() if key not in policy]
        (folder / "policy.toml").write_text("".join([*lines, policy]))
        monkeypatch.setattr(relay.socket_frames, "ask", self._ask)

    def station(self, site: str) -> DataProcess:
        return DataProcess(site, self.data.get(site), self.folder / site, self.folder / "policy.toml")

    def get_nodes(self) -> list[SimpleNamespace]:
        """The nodes under the names of their sites, as Flower's grid has them."""
        return [SimpleNamespace(node_id=node, name=name) for node, name in self.at.items()]

    def forget(self, message_ids: Iterable[str]) -> None:
        """All have been answered."""

    def agree_on_scaling(self, plan: Plan) -> None:
        """What a server does between the handshake and the first communication round."""
        config = {PLAN: plan.model_dump_json(), RUN: "r", SITES: list(self.names)}
        told = [self.station(site).answer("roll", {**config, TELL: [SUMS]}, {})[1] for site in self.names]
        scaling = agree([Sums(**{name.removeprefix("sums/"): array for name, array in sums.items()}) for sums in told])
        arrays = {f"scaling/{name}": array for name, array in vars(scaling).items()}
        for site in self.names:
            self.station(site).answer("scaling", config, arrays)

    def _ask(self, path: str, frame: bytes) -> bytes:
        words, arrays = from_frame(frame)
        config = {RUN: "r", SITES: list(self.names), **words["config"]}
        return to_frame(*self.station(self.site).answer(words["kind"], config, arrays))

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        return [self._through(order) for order in messages]

    def _through(self, order: Message) -> Message:
        number_message(order)
        self.site = self.at[order.metadata.dst_node_id]
        content, order.content = order.content, pack(order.content)[0]
        reply = relay.answer_of(order, join_pieces(order.content.config_records.values()), "")
        order.content = content
        if not reply.has_error():
            reply.content = unpack(join_pieces(reply.content.config_records.values()))
        return reply
