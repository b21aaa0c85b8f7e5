"""A run over real sites' own programs, from its sheet to its folder; only Flower's network is left out."""

from pathlib import Path
from typing import Any

from fedsmall.audit_log import AuditLog
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.sim.consortium import runs, sample_data
from fedsmall.sim.consortium.finished import write_run
from fedsmall.sim.consortium.runs import LAUNCHED
from fedsmall.sim.runs import scenario
from fedsmall.strategies.server.deployment import conduct, write_outcome
from fedsmall.strategies.server.grid import RetryingGrid
from tests import ROOT
from tests.sim.engines.stations import Stations

NAMES = ("bonn", "essen", "ulm")


def plan_of(*settings: str) -> Plan:
    """The demo of a consortium, short and without blur, so that a simulation gives the same bits."""
    short = ("rounds=4", "method.0.permute_every=1", "method.0.aggregate_every=2", "evaluate_every=2")
    return demo(*short, "method.0.privacy={blur = 0}", *settings).plans()[0]


def demo(*settings: str) -> scenario.Scenario:
    return scenario.load(ROOT / "sim" / "scenarios" / "consortium_demo.toml", settings)


def files(folder: Path) -> dict[str, Path]:
    """A table for each hospital."""
    paths = {name: folder / "data" / f"{name}.csv" for name in NAMES}
    sample_data.write(list(paths.values()))
    return paths


def real_run(
    folder: Path,
    plan: Plan,
    monkeypatch: Any,
    name: str = "trial",
    policy: str = "",
    data: dict[str, Path] | None = None,
    **grid: Any,
) -> Path:
    """The folder of a finished run of the hospitals with these ``data``, or the demo's in ``folder``."""
    stations = Stations(folder, NAMES, monkeypatch, policy, data or files(folder))
    home = runs.prepare(folder / "consortium", name, plan, NAMES, about="A trial.")
    sheet, log = RunSheet.model_validate_json((home / "sheet.json").read_text()), AuditLog(home / "log.jsonl")
    log.write(LAUNCHED, flower=1)
    outcome, met = conduct(sheet, home, RetryingGrid(stations, sheet, log), log)  # type: ignore[arg-type]
    write_outcome(home, plan, outcome, met, write_run)
    return home
