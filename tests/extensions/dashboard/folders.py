"""A consortium's folder with a run in it that real sites' own programs have made; only Flower's network is left out."""

import json
from pathlib import Path

import pytest

from fedsmall.audit_log import AuditLog
from fedsmall.sim.consortium import members
from fedsmall.strategies.server.journal import put
from tests.sim.consortium.real_run import NAMES, plan_of, real_run

RUN = "trial"
HOSTILE = "<script>alert(1)</script> <img src=x onerror=alert(2)> \x1b[2J\u202e"
PLAN = plan_of("rounds=12", "method.0.aggregate_every=5", "evaluate_every=5")


def consortium(folder: Path, sites: tuple[str, ...]) -> Path:
    """A consortium whose server does not run, with these members."""
    members.create(folder, "rhine", "fed.example.org", 8443, listen="127.0.0.1", inner_port=1, days=90)
    for site in sites:
        members.add_site(folder, site, None, days=90)
    return folder


def finished(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The consortium after a run; the last site has refused once, in words that are meant to do harm."""
    consortium(folder / "consortium", NAMES)
    home = real_run(folder, PLAN, monkeypatch, RUN)
    outcome = json.loads((home / "outcome.json").read_text())
    outcome["events"].append({"t": PLAN.rounds, "site": NAMES[-1], "kind": "refused", "reason": HOSTILE})
    put(home / "outcome.json", json.dumps(outcome).encode())
    log = AuditLog(home / "log.jsonl")
    log.write("failed", kind="train", site=NAMES[-1], t=PLAN.rounds, reason=HOSTILE)
    log.write("finished", comm_rounds=outcome["comm_rounds"], rounds=PLAN.rounds)
    return folder / "consortium"
