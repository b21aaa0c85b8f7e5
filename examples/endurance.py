"""Kills the processes of a run over real sites at random, again and again, and shows that its end is the same.

    python -m examples.endurance [KILLS] [ROUNDS] [SEED] [sealed]

The run is a consortium of three sites on the loopback. One run is never disturbed; in the others, one after the other
until there were enough kills, every few seconds one process (ServerApp, SuperLink, gate, SuperExec, a site's data
process or agent) is killed with SIGKILL, and the run is resumed where it ended. At the end all models must have the
same bytes.

``sealed``, models go in envelopes and averages are secure sums. The sites of each run then draw its routes anew, so
every run is compared with a simulation of its own plan, and nothing is blurred, for that is drawn by a site's own key.
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

import numpy as np
from safetensors.numpy import load_file

from examples.loopback import LoopbackConsortium
from fedsmall.audit_log import digest_of, verify
from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.consortium import flower_cli, runs, sample_data, server, supervisor
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs import scenario

SITES = ("bonn", "essen", "ulm")
PATIENCE = {"round_deadline_s": 900.0, "start_deadline_s": 600.0}
RESTART_S = 120.0  # until a server that was killed is there again
POLICY = "least_samples = 1\nsealed = false\n"
NO_BLUR = "least_blur = 0\nmost_read = 1000\nleast_batch = 1\n"
SEALED = "method.0.privacy={sealed = true, secure = true, blur = 0}"
BLURRED = "method.0.privacy={blur = 1.0}"  # by a key of the site's own: the same noise for the same update


def plan_of_rounds(rounds: int, sealed: bool = False) -> Plan:
    """A run with a communication round in every round, and control variates that each site must remember."""
    path = Path(__file__).parent.parent / "sim" / "scenarios" / "consortium_demo.toml"
    settings = [f"rounds={rounds}", "method.0.permute_every=1", "method.0.aggregate_every=3", "evaluate_every=1000"]
    return scenario.load(path, [*settings, SEALED if sealed else BLURRED]).plans()[0]


def simulated(loopback: LoopbackConsortium, run: str) -> dict[str, np.ndarray]:
    """The model of a simulation of the plan that a finished run over real sites says it has followed."""
    plan = Plan.model_validate(json.loads((loopback.home(run) / "outcome.json").read_text())["plan"])
    files = next(iter(loopback.data.values())).parent
    plan = plan.model_copy(update={"task": {**dict(plan.task), "csv": str(files)}})
    model = run_plan(plan, build_federation(plan), "inprocess").model
    assert model is not None
    return model


def victims(loopback: LoopbackConsortium) -> list[tuple[str, int]]:
    """The processes that may be killed now, of the server and of every site: what each is, and its number."""
    servers = supervisor.pids(server.process_folder(loopback.folder))
    processes = [(f"server {name}", pid) for name, pid in servers.items()]
    for site in loopback.data:
        processes += [(f"site {name}", pid) for name, pid in supervisor.pids(loopback.kit(site).process_folder).items()]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        arguments = _read(path).split(b"\0")
        ours = str(loopback.folder).encode() in _read(path.with_name("environ"))  # only what this consortium started
        if ours and any(word.endswith(b"flwr-serverapp") for word in arguments):
            processes.append(("ServerApp", int(path.parent.name)))
    return sorted(processes)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # the process has ended meanwhile
        return b""


def disturb(loopback: LoopbackConsortium, run: str, kills: int, rng: random.Random, log: Counter[str]) -> None:
    """Kill at random moments until ``kills`` are done, resuming whenever the run has ended; then let it finish."""
    home = loopback.home(run)
    while not (home / "outcome.json").exists():
        if sum(log.values()) < kills:
            time.sleep(rng.uniform(0.5, 12.0))
            processes = victims(loopback)
            what = rng.choice(sorted({kind for kind, _ in processes}))  # each kind as often, though sites have most
            pid = rng.choice([pid for kind, pid in processes if kind == what])
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            log[what] += 1
            print(f"killed {what} ({sum(log.values())} of {kills})", flush=True)
        else:
            time.sleep(1.0)
        if not runs.is_running(home) and not (home / "outcome.json").exists():
            _resume(loopback, run)


def _resume(loopback: LoopbackConsortium, run: str) -> None:
    """Resume as a coordinator would: again, until the server is back."""
    for _ in range(60):
        try:
            runs.resume(loopback.folder, run, print)
            break
        except (PlanError, RuntimeError, TimeoutError) as error:
            if runs.is_running(loopback.home(run)) or (loopback.home(run) / "outcome.json").exists():
                return
            print(f"  not yet: {str(error)[:120]}", flush=True)
            time.sleep(2.0)
    for _ in range(120):  # the new ServerApp takes its lock only after its imports
        if runs.is_running(loopback.home(run)) or (loopback.home(run) / "outcome.json").exists():
            return
        time.sleep(0.5)


def half_written(folder: Path) -> list[str]:
    """Files that a killed process left unfinished where nobody would ever finish them."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*.new") if path.is_file()]


def main(kills: int, rounds: int, seed: int = 0, sealed: bool = False) -> int:
    """Run all, compare, and report; 0 where the models agree and nothing was left half-written."""
    plan, log, rng = plan_of_rounds(rounds, sealed), Counter[str](), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="fe") as scratch:
        data = {name: Path(scratch) / "data" / f"{name}.csv" for name in SITES}
        sample_data.write(list(data.values()))
        with LoopbackConsortium(Path(scratch), data, POLICY + NO_BLUR * sealed) as loopback:
            started = time.monotonic()
            loopback.finish("calm", loopback.start("calm", plan, **PATIENCE))
            calm = time.monotonic() - started
            wild: list[str] = []
            while sum(log.values()) < kills:
                wild.append(f"wild-{len(wild) + 1}")
                # the last kill may have been the server's, as its run ended
                flower_cli.wait_until(lambda: server.is_up(loopback.folder), RESTART_S)
                loopback.start(wild[-1], plan, **PATIENCE)
                disturb(loopback, wild[-1], kills, rng, log)
            digests = {run: digest_of(load_file(loopback.home(run) / "model.safetensors")) for run in ["calm", *wild]}
            logs = [loopback.home(run) / "log.jsonl" for run in wild]
            logs += [loopback.kit(name).home / "log.jsonl" for name in SITES]
            report = {
                "kills": sum(log.values()),
                "killed": dict(sorted(log.items())),
                "runs": len(wild),
                "resumes": sum(len(runs.numbers(loopback.home(run))) - 1 for run in wild),
                "same_model": len(set(digests.values())) == 1 if not sealed else all_as_simulated(loopback, digests),
                "digest": digests["calm"][:16],
                "logs_hold": all(verify(path).fault is None for path in logs),
                "half_written": [file for run in wild for file in half_written(loopback.home(run))],
                "communication rounds": rounds,
                "calm_seconds": round(calm),
                "wild_seconds": round(time.monotonic() - started - calm),
            }
    print(json.dumps(report, indent=1), flush=True)
    return 0 if report["same_model"] and report["logs_hold"] and not report["half_written"] else 1


def all_as_simulated(loopback: LoopbackConsortium, digests: dict[str, str]) -> bool:
    """Whether every run's model, of which these are the digests, is that of a simulation."""
    return all(digest_of(simulated(loopback, run)) == digest for run, digest in digests.items())


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    sys.exit(main(*(numbers or [30, 12]), sealed="sealed" in sys.argv))
