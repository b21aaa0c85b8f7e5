"""Sealed runs over real sites' own programs; only Flower's network is left out, and everything else may be watched."""

import random
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedsmall.audit_log import AuditLog
from fedsmall.clients import key_store
from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.shelf import secret
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.sealing.envelopes import IDENTITY, name_of
from fedsmall.sim.consortium import sample_data
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs import scenario
from fedsmall.strategies.server.deployment import conduct
from fedsmall.strategies.server.grid import RetryingGrid
from fedsmall.strategies.server.run_loop import Outcome
from fedsmall.wire import CONFIG, PLAN
from tests.sim.engines.harness import federation_of
from tests.sim.engines.stations import Stations

BOTH: dict[str, Any] = {"sealed": True, "secure": True}
Change = Callable[[str, Message], Message | None]


def plan_of(name: str = "FedDC", sites: int | None = 3, privacy: dict[str, Any] | None = BOTH, **more: Any) -> Plan:
    """A short run; sealed and secure unless said otherwise."""
    entry = {"name": name, **({"privacy": privacy} if privacy else {}), **more.pop("method", {})}
    table: dict[str, Any] = {
        "name": "letters",
        "task": "breast_cancer",
        "sites": sites,
        "samples_per_site": 12,
        "model": "mlp",
        "model_options": {"hidden": [8]},
        "rounds": 6,
        "recipe": {"lr": 0.1, "batch": 4},
        "method": [entry],
        **more,
    }
    return scenario.build({key: value for key, value in table.items() if value is not None}).plans()[0]


class Federation(Stations):
    """Stations of real sites, over one server; ``change`` may hold back, or change, what passes."""

    def __init__(
        self,
        folder: Path,
        sites: int,
        monkeypatch: Any,
        policy: str = "",
        change: Change | None = None,
        anew: bool = False,
    ):
        super().__init__(folder, tuple(f"site-{k:03d}" for k in range(sites)), monkeypatch, policy)
        rng = random.Random(0)  # always the same ways
        monkeypatch.setattr(key_store.secrets, "token_hex", lambda size: rng.randbytes(size).hex())
        self.change, self.anew = change, anew
        self.there: dict[str, DataProcess] = {}
        self.passed: list[tuple[str, Message, Message]] = []  # every order and its answer

    def station(self, site: str) -> DataProcess:
        """The site's program; where it is started ``anew`` for every message it knows what is on its disk alone."""
        if self.anew or site not in self.there:
            kit = self.folder / site  # with a policy and an identity of its own
            kit.mkdir(exist_ok=True)
            if not (kit / "policy.toml").exists():
                (kit / "policy.toml").symlink_to(self.folder / "policy.toml")
            self.there[site] = DataProcess(site, self.data.get(site), kit, kit / "policy.toml")
        return self.there[site]

    @property
    def roll(self) -> dict[str, str]:
        return {name: name_of(secret(self.folder / name / IDENTITY)) for name in self.names}

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        return list(self._replies(messages))

    def _replies(self, messages: Iterable[Message]) -> Iterable[Message]:
        for order in messages:
            site = self.at[order.metadata.dst_node_id]
            if self.change is not None and self.change(site, order) is None:
                continue
            reply = self._through(order)
            self.passed.append((site, order, reply))
            yield reply


TABLES: dict[str, Any] = {
    "task": {"csv": "hospital.csv", "label": "diagnosis", "classes": ["malignant", "benign"]},
    "partition": {"natural": "file"},
    "samples_per_site": None,
}


def with_tables(federation: Federation) -> Federation:
    """The sites with a table each, of which they hold some patients out."""
    federation.data = {name: federation.folder / f"{name}.csv" for name in federation.names}
    sample_data.write(list(federation.data.values()))
    return federation


def drawn(federation: Federation) -> Plan:
    """The plan that the orders of the last run held: with the seed that its sites have drawn."""
    order = next(o for _, o, _ in reversed(federation.passed) if o.metadata.message_type == "train")
    return Plan.model_validate_json(str(order.content[CONFIG][PLAN]))


def simulated(federation: Federation, engine: str = "inprocess") -> Outcome:
    """The same run in a simulation of that plan."""
    plan = drawn(federation)
    return run_plan(plan, federation_of(plan), engine)


def run(federation: Federation, plan: Plan, name: str = "trial", **patience: Any) -> Outcome:
    """What comes of a run of the plan by the server's own code."""
    return conducted(federation, plan, name, **patience)[1]


def conducted(
    federation: Federation, plan: Plan, name: str = "trial", **patience: Any
) -> tuple[Path, Outcome, dict[str, Any]]:
    """The folder of a run, what came of it, and what the sites said of themselves."""
    roll, sites = federation.roll, federation.names
    sheet = RunSheet(run=name, id="0123", plan=plan, sites=sites, roll=roll, **{"quorum": 1, **patience})
    home = federation.folder / "server" / name
    home.mkdir(parents=True, exist_ok=True)
    clock = partial(next, count())  # a second at every look
    log = AuditLog(home / "log.jsonl", run=name, id="0123")
    (home / "sheet.json").write_text(sheet.model_dump_json())
    outcome, met = conduct(sheet, home, RetryingGrid(federation, sheet, log, clock), log)  # type: ignore[arg-type]
    return home, outcome, met
