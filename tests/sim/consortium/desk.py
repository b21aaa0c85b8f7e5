"""A consortium without its network: the coordinator's ServerApp, its folder, and the sites' own programs, all real.

Between them are a dictionary and no SuperLink, and time passes only where the server waits; frames, log lines and
signatures are those of real sites.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Message

from fedsmall.clients import relay
from fedsmall.clients.data_process import DataProcess
from fedsmall.ends import signer
from fedsmall.frames import from_frame, join_pieces, to_frame
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.sim.consortium import keys, members, runs, sample_data
from fedsmall.sim.consortium.site import Site
from fedsmall.sim.engines.inprocess import act_as_server, number_message
from fedsmall.sim.runs import scenario
from fedsmall.strategies.server import grid as run_grid
from fedsmall.strategies.server.deployment import conduct, tell_waits, write_outcome
from fedsmall.strategies.server.grid import RetryingGrid, join_answer, pack
from fedsmall.strategies.server.heads import Heads
from fedsmall.strategies.server.run_loop import Outcome
from fedsmall.wire import Arrays
from tests import ROOT

NAMES = ("bonn", "essen", "ulm")
POLICY = "least_sites = 3\nleast_blur = 0\nmost_read = 1000\nleast_batch = 1\nsealed = false\n"


def plan_of(rounds: int = 2, **settings: Any) -> Plan:
    """The scenario that comes along, with so many rounds and without blur, so that a simulation gives the same bits."""
    words = {
        "rounds": rounds,
        "method.0.permute_every": 1,
        "method.0.aggregate_every": 2,
        "evaluate_every": rounds,
        "method.0.privacy": "{blur = 0}",
        **settings,
    }
    path = ROOT / "sim" / "scenarios" / "consortium_demo.toml"
    return scenario.load(path, [f"{key}={value}" for key, value in words.items()]).plans()[0]


class Desk:
    """A consortium in ``folder``, its sites' data and kits; :meth:`run` conducts a run over all sites."""

    def __init__(self, folder: Path, monkeypatch: Any, names: Sequence[str] = NAMES, *, new: bool = True) -> None:
        self.folder, self.names = folder / "consortium", tuple(names)
        self.data = {name: folder / "data" / f"{name}.csv" for name in names}
        self.stations: dict[str, DataProcess] = {}
        self.now = 0.0
        monkeypatch.setattr(run_grid.time, "sleep", self._sleep)
        monkeypatch.setattr(relay.socket_frames, "ask", self._ask)
        if new:
            self._make()

    def _make(self) -> None:
        sample_data.write(list(self.data.values()))
        members.create(self.folder, "trial", "127.0.0.1", 1, listen="127.0.0.1", inner_port=2, days=90)
        for name in self.names:
            members.add_site(self.folder, name, None, days=90)
            keys.new_site_key(self.site(name).key)
            members.add_site(self.folder, name, self.site(name).key.with_name("site.key.pub"), days=90)
            (self.site(name).kit / "policy.toml").write_text(POLICY)

    def site(self, name: str) -> Site:
        """A site's kit and home."""
        return Site(self.folder / "kits" / name, self.folder / "kits" / name / "state")

    def log_of(self, name: str) -> Path:
        """A site's log."""
        return self.site(name).home / "log.jsonl"

    def restart(self) -> None:
        """Let all stations start anew at their next order."""
        self.stations.clear()

    def station(self, name: str) -> DataProcess:
        """A site's station, which stays until :meth:`restart`."""
        if name not in self.stations:
            site = self.site(name)
            self.stations[name] = DataProcess(name, self.data[name], site.home, site.kit / "policy.toml")
        return self.stations[name]

    def run(self, name: str, plan: Plan | None = None, **patience: Any) -> Outcome:
        """Conduct a new run from its sheet to its outcome."""
        runs.prepare(self.folder, name, plan or plan_of(), self.names, **patience)
        return self.go_on(name)

    def go_on(self, name: str) -> Outcome:
        """Conduct a run that is prepared, from its journal on."""
        act_as_server()
        home = runs.run_home(self.folder, name)
        sheet, log = RunSheet.model_validate_json((home / "sheet.json").read_text()), runs.log_of(home)
        told, clock = partial(tell_waits, home), lambda: self.now
        grid = RetryingGrid(Wire(self), sheet, log, clock, Heads(self.folder / "sites", sheet), told)  # type: ignore[arg-type]
        outcome, met = conduct(sheet, home, grid, log)
        write_outcome(home, sheet.plan, outcome, met)
        return outcome

    def answer(self, name: str, kind: str, config: dict[str, Any], arrays: Arrays) -> tuple[dict[str, Any], Arrays]:
        """What a site answers; a test may put itself in between."""
        return self.station(name).answer(kind, config, arrays)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _ask(self, path: str, frame: bytes) -> bytes:
        words, arrays = from_frame(frame)
        return to_frame(*self.answer(path, words["kind"], words["config"], arrays))


class Wire:
    """What a RetryingGrid wants of the grid behind it: every order is answered as it is sent."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.at = dict(enumerate(desk.names, start=2))
        self.came: dict[str, Message] = {}

    def get_nodes(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(node_id=node, name=name) for node, name in self.at.items()]

    def push_messages(self, messages: list[Message]) -> list[str]:
        return [self._answered(message) for message in messages]

    def pull_messages(self, ids: list[str]) -> list[Message]:
        return [self.came.pop(key) for key in ids if key in self.came]

    def forget(self, ids: Any) -> None:
        for key in ids:
            self.came.pop(key, None)

    def _answered(self, order: Message) -> str:
        key, name = number_message(order), self.at[order.metadata.dst_node_id]
        frame = join_pieces(pack(order.content)[0].config_records.values())
        reply = relay.answer_of(order, frame, name, signer(self.desk.site(name).key))
        self.came[key] = reply if reply.has_error() else join_answer(order, reply.content.config_records.values())
        return key
