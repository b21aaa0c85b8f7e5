"""Kills the processes of a run over real sites at random, again and again, and shows that its end is the same.

    python -m sim.endurance [KILLS] [ROUNDS]

The run is a consortium of three sites on the loopback. One run is never disturbed; in the other every few seconds one
process (ServerApp, SuperLink, gate, SuperExec, a site's station, SuperNode, SuperExec or ClientApp) is killed with
SIGKILL, and the run is resumed where it ended. At the end the two models must have the same bytes.
"""

import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from fedsmall.errors import PlanError
from fedsmall.logbook import digest_of, verify
from fedsmall.plan import Plan
from sim import deploy, scenario, server, supervisor, trial_data
from sim.trial import Trial

SITES = ("bonn", "essen", "ulm")
PATIENCE = {"round_deadline_s": 900.0, "start_deadline_s": 600.0}
POLICY = "least_samples = 1\n"


def trial_plan(rounds: int) -> Plan:
    """A run with a contact in every round, and control variates that each site must remember."""
    path = Path(__file__).parent.parent / "scenarios" / "consortium_demo.toml"
    settings = [f"rounds={rounds}", "method.0.permute_every=1", "method.0.aggregate_every=3", "evaluate_every=1000"]
    return scenario.load(path, settings).plans()[0]


def victims(trial: Trial) -> dict[str, int]:
    """The processes that may be killed now, by what they are."""
    found = {f"server {name}": pid for name, pid in supervisor.pids(server.household(trial.folder)).items()}
    for site in trial.data:
        found |= {f"site {name}": pid for name, pid in supervisor.pids(trial.kit(site).household).items()}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0") if path.exists() else []
        if any(word.endswith((b"flwr-serverapp", b"clients.launcher")) for word in words) and _ours(path, trial):
            kind = "ServerApp" if any(word.endswith(b"flwr-serverapp") for word in words) else "ClientApp"
            found[kind] = int(path.parent.name)
    return found


def _ours(path: Path, trial: Trial) -> bool:
    """Only what this trial started: its environment names the trial's folder."""
    try:
        return str(trial.folder).encode() in path.with_name("environ").read_bytes()
    except OSError:
        return False


def disturb(trial: Trial, run: str, number: int, kills: int, rng: random.Random, log: Counter[str]) -> dict[str, Any]:
    """Kill at random moments until ``kills`` are done, resuming whenever the run has ended; then let it finish."""
    while True:
        home = trial.home(run)
        if (home / "outcome.json").exists():
            outcome: dict[str, Any] = json.loads((home / "outcome.json").read_text())
            return outcome
        if sum(log.values()) < kills:
            time.sleep(rng.uniform(0.5, 12.0))
            what, pid = rng.choice(sorted(victims(trial).items()))
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            log[what] += 1
            print(f"killed {what} ({sum(log.values())} of {kills})", flush=True)
        else:
            time.sleep(1.0)
        if not deploy.is_running(home) and not (home / "outcome.json").exists():
            _resume(trial, run)


def _resume(trial: Trial, run: str) -> None:
    """Resume as a coordinator would: again, until the server is back."""
    for _ in range(60):
        try:
            deploy.resume(trial.folder, run, print)
            break
        except (PlanError, RuntimeError, TimeoutError) as error:
            if deploy.is_running(trial.home(run)) or (trial.home(run) / "outcome.json").exists():
                return
            print(f"  not yet: {str(error)[:120]}", flush=True)
            time.sleep(2.0)
    for _ in range(120):  # the new ServerApp takes its lock only after its imports
        if deploy.is_running(trial.home(run)) or (trial.home(run) / "outcome.json").exists():
            return
        time.sleep(0.5)


def half_written(folder: Path) -> list[str]:
    """Files that a killed process left unfinished where nobody would ever finish them."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*.new") if path.is_file()]


def main(kills: int, rounds: int, seed: int = 0) -> int:
    """Run both, compare, and report; 0 where the models agree."""
    plan, log = trial_plan(rounds), Counter[str]()
    with tempfile.TemporaryDirectory(prefix="fe") as scratch:
        data = {name: Path(scratch) / f"{name}.csv" for name in SITES}
        trial_data.write(list(data.values()))
        with Trial(Path(scratch), data, POLICY) as trial:
            started = time.monotonic()
            trial.finish("calm", trial.start("calm", plan, **PATIENCE))
            calm = time.monotonic() - started
            disturb(trial, "wild", trial.start("wild", plan, **PATIENCE), kills, random.Random(seed), log)
            models = {run: load_file(trial.home(run) / "model.safetensors") for run in ("calm", "wild")}
            digests = {run: digest_of(model) for run, model in models.items()}
            logs = [trial.home("wild") / "log.jsonl", *(trial.kit(name).home / "log.jsonl" for name in SITES)]
            report = {
                "kills": sum(log.values()),
                "killed": dict(sorted(log.items())),
                "same_model": digests["calm"] == digests["wild"],
                "logs_hold": all(verify(path).fault is None for path in logs),
                "half_written": half_written(trial.home("wild")),
                "contacts": rounds,
                "calm_seconds": round(calm),
                "wild_seconds": round(time.monotonic() - started - calm),
            }
    print(json.dumps(report, indent=1), flush=True)
    return 0 if report["same_model"] and report["logs_hold"] else 1


if __name__ == "__main__":
    words = [int(word) for word in sys.argv[1:]]
    sys.exit(main(*(words or [30, 12])))
