"""Two regions and what goes on above them, in threads of one process: all of it real but for Flower's network."""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.app import Message

from fedsmall.clients import relay
from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.region_client import RegionClient
from fedsmall.data.federation import Federation
from fedsmall.frames import from_frame, join_pieces, to_frame
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RUN as RUN_KEY
from fedsmall.planning.run_sheet import RUN_ID, SITES, RunSheet
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.cli.options import complete_folder
from fedsmall.sim.consortium import runs, sample_data
from fedsmall.sim.consortium.finished import write_run
from fedsmall.sim.consortium.runs import LAUNCHED
from fedsmall.sim.engines.inprocess import LocalGrid, act_as_server, number_message
from fedsmall.sim.report.html import write_report
from fedsmall.sim.runs import scenario
from fedsmall.sim.runs.folder import read
from fedsmall.strategies.server import regions as above_and_below
from fedsmall.strategies.server.deployment import conduct, tell_waits, write_outcome
from fedsmall.strategies.server.grid import RetryingGrid, pack, unpack
from fedsmall.strategies.server.run_loop import Outcome, run_rounds
from fedsmall.training.trees import cohort_for
from fedsmall.wire import PLAN
from tests import ROOT

POLICY = "least_samples = 1\ncount_floor = 1\nleast_blur = 0\nmost_read = 1000\nleast_batch = 1\nleast_sites = 1\n"
RUN = "tides"
Regions = Mapping[str, tuple[str, ...]]


def plan_of(regions: Regions, *settings: str, every: int = 4) -> Plan:
    """The demo of a consortium, short and without blur, over hospitals that are in regions."""
    named = ", ".join(f"{region} = {json.dumps(names)}" for region, names in regions.items())
    plain = "method.0.name=FedAvg" in settings
    short = ["rounds=6", "method.0.aggregate_every=2", "method.0.privacy={blur = 0}"]
    short += [] if plain else ["method.0.permute_every=1"]
    apart = f"method.0.regions={{sites = {{{named}}}, average_every = {every}, across = 0}}"
    return scenario.load(ROOT / "sim" / "scenarios" / "consortium_demo.toml", [*short, apart, *settings]).plans()[0]


def tables(folder: Path, regions: Regions) -> dict[str, Path]:
    """A table for each hospital."""
    paths = {name: folder / "data" / f"{name}.csv" for names in regions.values() for name in names}
    sample_data.write(list(paths.values()))
    return paths


def simulated(folder: Path, plan: Plan, path: str = "loop") -> tuple[Outcome, Federation]:
    """The simulation over the same tables, one site after the other."""
    plan = plan.model_copy(update={"task": {**plan.task, "csv": str(folder / "data")}})  # type: ignore[dict-item]
    federation = build_federation(plan)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train, path=path)
    return run_rounds(plan, trainer, lambda site: initial_model(plan, federation.task, site)), federation


class Programs(LocalGrid):
    """A server's line to the programs ``names``; each is asked by its name. It breaks once the run is ``stopped``."""

    def __init__(self, names: tuple[str, ...], stopped: Event) -> None:
        super().__init__(len(names), 1)
        self.stopped = stopped
        self.at = dict(zip(self.nodes, names, strict=True))

    def get_nodes(self) -> list[SimpleNamespace]:
        if self.stopped.is_set():
            raise RuntimeError("stopped")
        return [SimpleNamespace(node_id=node, name=name) for node, name in self.at.items()]

    def forget(self, message_ids: Any) -> None:
        """All have been answered."""

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        return [self._through(order) for order in messages]

    def _through(self, order: Message) -> Message:
        number_message(order)
        frame = join_pieces(pack(order.content)[0].config_records.values())
        reply = relay.answer_of(order, frame, self.at[order.metadata.dst_node_id])
        if not reply.has_error():
            reply.content = unpack(join_pieces(reply.content.config_records.values()))
        return reply


class TwoLevels:
    """Servers of ``regions`` and the one above, with the folders of their runs, in ``folder``."""

    def __init__(self, folder: Path, regions: Regions, monkeypatch: Any, data: Mapping[str, Path]) -> None:
        self.folder, self.regions = folder, regions
        (folder / "policy.toml").write_text(POLICY)
        policy = folder / "policy.toml"
        self.programs: dict[str, Any] = {
            name: DataProcess(name, path, folder / "homes" / name, policy) for name, path in data.items()
        }
        for region in regions:
            self.programs[region] = RegionClient(
                region, folder / region / "runs", folder / "homes" / region, policy, 10
            )
        monkeypatch.setattr(above_and_below, "LOOK_S", 0.1)
        monkeypatch.setattr(relay.socket_frames, "ask", self._ask)
        self.failed: dict[str, Exception] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.stopped = Event()

    def _ask(self, path: str, frame: bytes) -> bytes:
        words, arrays = from_frame(frame)
        return to_frame(*self.programs[path].answer(words["kind"], words["config"], arrays))

    def home(self, where: str) -> Path:
        return self.folder / where / "runs" / RUN

    def prepare(self, where: str, plan: Plan, **more: Any) -> None:
        """The folder of a run, of a region or of what is "above"."""
        region = where if where in self.regions else ""
        sites = tuple(sorted(self.regions[region] if region else self.regions))
        more = {"round_deadline_s": 15, "start_deadline_s": 60} | more
        runs.prepare(self.folder / where, RUN, plan, sites, apart=True, region=region, **more)

    def conduct(self, where: str) -> Outcome:
        """Conduct a run from its journal on."""
        home = self.home(where)
        sheet, log = RunSheet.model_validate_json((home / "sheet.json").read_text()), runs.log_of(home)
        grid = RetryingGrid(Programs(sheet.sites, self.stopped), sheet, log, tell_waits=partial(tell_waits, home))  # type: ignore[arg-type]
        log.write(LAUNCHED, flower=1)
        outcome, met = conduct(sheet, home, grid, log)
        write_outcome(home, sheet.plan, outcome, met, write_run)
        return outcome

    def begin(self, *where: str) -> dict[str, Thread]:
        """Begin to conduct all runs that are prepared, or these alone, a thread each."""
        act_as_server()

        def lead(where: str) -> None:
            try:
                self.outcomes[where] = self.conduct(where)
            except Exception as error:
                self.failed[where] = error

        threads = {name: Thread(target=lead, args=(name,), daemon=True) for name in where or (*self.regions, "above")}
        for thread in threads.values():
            thread.start()
        return threads

    def end(self, threads: Mapping[str, Thread]) -> dict[str, Outcome]:
        """What each run came to."""
        for thread in threads.values():
            thread.join(60)
        return self.outcomes

    def stop(self) -> None:
        """End what waits."""
        self.stopped.set()

    def ask(self, region: str, kind: str, plan: Plan, arrays: Mapping[str, np.ndarray], **words: Any) -> Any:
        """What the program that speaks for a region answers to an order of the run above."""
        config = {PLAN: plan.model_dump_json(), RUN_KEY: RUN, RUN_ID: "one", SITES: list(self.regions), **words}
        return self.programs[region].answer(kind, config, dict(arrays))

    def log(self, where: str) -> list[dict[str, Any]]:
        """The lines of a run's log."""
        return list(runs.log_of(self.home(where)).entries())


def same(one: Mapping[str, np.ndarray] | None, other: Mapping[str, np.ndarray] | None) -> bool:
    """Whether two models are the same to the bit."""
    assert one is not None
    assert other is not None
    return list(one) == list(other) and all(one[name].tobytes() == other[name].tobytes() for name in one)


def page_of(home: Path) -> Path:
    """The page of a finished run, written as at its end."""
    run = read(complete_folder(home))
    return write_report(home, [run], run.scenario.name)
