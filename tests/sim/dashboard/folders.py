"""A consortium's folder with a run in it that real sites' own programs have made; only Flower's network is left out."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clients.station import Station
from fedsmall.audit_log import AuditLog
from fedsmall.run_sheet import RunSheet
from sim.consortium import members, runs, sample_data
from sim.runs.scenario import build
from strategies.server.deployment import conduct, write_outcome
from strategies.server.journal import put
from strategies.server.retrying_grid import RetryingGrid
from tests.sim.engines.stations import Stations

RUN = "trial"
HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(2)> \x1b[2J\u202e"
SITES = ("bonn", "essen", "graz", "ulm")
TABLE = {
    "name": "trial",
    "task": {"csv": "hospital.csv", "label": "diagnosis", "classes": ["malignant", "benign"]},
    "partition": {"natural": "file"},
    "model_options": {"hidden": [4]},
    "rounds": 12,
    "evaluate_every": 5,
    "recipe": {"lr": 0.05},
    "method": [{"name": "FedDC", "permute_every": 1, "aggregate_every": 5, "privacy": {"blur": 0.0}}],
}


class Online(Stations):
    """Sites that are all connected, under the names they were registered with."""

    def station(self, site: str) -> Station:
        return Station(site, self.folder / f"{site}.csv", self.folder / site, self.folder / "policy.toml")

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=node, name=name) for node, name in self.at.items()]

    def forget(self, message_ids: Any) -> None:
        """Nothing is ever late."""


def consortium(folder: Path, sites: tuple[str, ...]) -> Path:
    """A consortium whose server does not run, with these members."""
    members.create(folder, "rhine", "fed.example.org", 8443, listen="127.0.0.1", inner_port=1, days=90)
    for site in sites:
        members.add_site(folder, site, None, days=90)
    return folder


def finished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The consortium after a run; the last site has refused once, in words that are meant to do harm."""
    consortium(folder, SITES)
    plan = build(TABLE).plans()[0]
    home = runs.prepare(folder, RUN, plan, SITES)
    sheet = RunSheet.model_validate_json((home / "sheet.json").read_text())
    log = AuditLog(home / "log.jsonl")
    log.write("launched", flower=1)
    sample_data.write([folder / "stations" / f"{site}.csv" for site in SITES])
    grid: Any = Online(folder / "stations", SITES, monkeypatch)
    outcome = conduct(sheet, home, RetryingGrid(grid, sheet, log), log)
    log.write("failed", kind="train", site=SITES[-1], t=plan.rounds, reason=HOSTILE)
    outcome.events.append({"t": plan.rounds, "site": SITES[-1], "kind": "refused", "reason": HOSTILE})
    write_outcome(home, sheet.plan, outcome)
    put(home / "progress.json", json.dumps({"t": plan.rounds, "rounds": plan.rounds, "seconds": 1.0}).encode())
    log.write("finished", contacts=outcome.contacts, rounds=outcome.rounds)
    return folder
