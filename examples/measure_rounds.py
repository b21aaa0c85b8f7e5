"""Seconds and processor seconds per communication round of three real sites, all programs on the same cores.

Federations, one after the other, each with TLS, the gate, node keys, policies, logs and journal: ``resident`` as
`fedsmall server up` and `fedsmall site up` start it; ``durable`` with the SuperLink's state on the disk. Two more have
sites behind slow lines: ``slow`` of a tenth of a second there and back and 10 Mbit/s, ``slowest`` of 1 s and 1 Mbit/s.
``sealed`` is ``resident`` with end-to-end encryption and secure sums; ``ten``, ``twenty`` and ``forty`` are
``resident`` with so many sites. One in EVERY communication rounds is an average, in ten where nothing is said.

    python -m examples.measure_rounds [ROUNDS[/EVERY]] [VARIANT ...]
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from examples.loopback import LoopbackConsortium
from examples.slow_line import Line
from fedsmall.audit_log import AuditLog
from fedsmall.plan import Plan
from fedsmall.sim.consortium import flower_cli, sample_data, server, supervisor
from fedsmall.sim.runs import scenario

SITES = ("bonn", "essen", "ulm")
VARIANTS: dict[str, dict[str, Any]] = {
    "resident": {},
    "durable": {"durable": True},
    "slow": {"line": Line(0.1, 10.0)},
    "slowest": {"line": Line(1.0, 1.0)},
    "sealed": {},
}
MANY = {"ten": 10, "twenty": 20, "forty": 40}
SETTINGS = {"sealed": ["method.0.privacy={blur = 1.0, sealed = true, secure = true}"]}
BLURRED = ["method.0.privacy={blur = 1.0}"]
POLICY = "least_samples = 1\nsealed = false\n"
AVERAGE_EVERY = "10"
USUAL = ("resident", "durable")
PATIENCE = {"round_deadline_s": 300.0, "start_deadline_s": 300.0}


def main(comm_rounds: int, every: int, variants: Iterable[str]) -> None:
    """Measure the variants and print a row for each."""
    path = Path(__file__).parent.parent / "sim" / "scenarios" / "consortium_demo.toml"
    settings = [f"rounds={comm_rounds + 1}", "method.0.permute_every=1", "evaluate_every=100000"]
    settings.append(f"method.0.aggregate_every={every}")
    for name in variants:
        plan = scenario.load(path, [*settings, *SETTINGS.get(name, BLURRED)]).plans()[0]
        with tempfile.TemporaryDirectory(prefix="fm") as scratch:
            sites = [f"site-{k:02d}" for k in range(MANY[name])] if name in MANY else SITES
            print(name, json.dumps(measured(Path(scratch), plan, sites, VARIANTS.get(name, {}))), flush=True)


def measured(folder: Path, plan: Plan, sites: Sequence[str], variant: dict[str, Any]) -> dict[str, float]:
    """A run of the plan over a consortium of its own: medians, and processor seconds of all its programs."""
    data = {name: folder / f"{name}.csv" for name in sites}
    sample_data.write(list(data.values()))
    with LoopbackConsortium(folder, data, POLICY, **variant) as loopback:
        number = loopback.start("run", plan, **PATIENCE)
        home = loopback.home("run")
        _wait(home, 1)
        before = processor_seconds(loopback)
        _wait(home, plan.rounds - 1)
        spent = processor_seconds(loopback) - before
        loopback.finish("run", number)
        return row(loopback.home("run"), spent)


def _wait(home: Path, comm_round: int) -> None:
    there, failed = home / "journal" / f"{comm_round:06d}.json", home / "failure.json"
    flower_cli.wait_until(lambda: there.exists() or failed.exists(), 1800)
    if failed.exists():
        raise RuntimeError(json.loads(failed.read_text())["reason"])


def row(home: Path, spent: float) -> dict[str, float]:
    """What a finished run took for a communication round, the first and the last left out."""
    orders, answers = stamps(home)
    each = sorted(orders)[1:-1]
    between = [orders[t + 1] - orders[t] for t in each]
    return {
        "communication rounds": len(each),
        "communication round to communication round, median s": round(statistics.median(between), 2),
        "to the last answer, median s": round(statistics.median(answers[t] - orders[t] for t in each), 2),
        "mean s": round(statistics.mean(between), 3),
        "slowest s": round(max(between), 2),
        "processor s a communication round": round(spent / len(each), 2),
        "load": round(os.getloadavg()[0], 1),
    }


def stamps(home: Path) -> tuple[dict[int, float], dict[int, float]]:
    """When the first order of every round of training went out, and when its last answer was there, by round."""
    orders: dict[int, float] = {}
    answers: dict[int, float] = {}
    for entry in AuditLog(home / "log.jsonl").entries():
        if entry.get("kind") == "train":
            at, t = datetime.fromisoformat(entry["time"]).timestamp(), int(entry["t"])
            if entry["event"] == "order":
                orders.setdefault(t, at)
            elif entry["event"] == "answer":
                answers[t] = at
    return orders, answers


def processor_seconds(loopback: LoopbackConsortium) -> float:
    """What all programs of the consortium have spent so far, those that they started and that have ended too."""
    folders = [server.process_folder(loopback.folder), *(loopback.kit(name).process_folder for name in loopback.data)]
    total = 0.0
    for folder in folders:
        pid = supervisor.running(folder)
        for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)] if pid else []:
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system + times.children_user + times.children_system
    return total


if __name__ == "__main__":
    number, _, period = (sys.argv[1] if len(sys.argv) > 1 else "30").partition("/")
    main(int(number), int(period or AVERAGE_EVERY), sys.argv[2:] or USUAL)
