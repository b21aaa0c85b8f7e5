"""Minutes and memory of a simulation over very many sites of a few samples each, with a linear model.

    python -m examples.many_sites [SITES] [ROUNDS] [--json FILE]    # 100,000 sites and 100 rounds where nothing is said

Writes a data set of SITES x 4 samples of 20 features and, for FedAvg and for FedDC with a server, by gossip and in
ten regions, a scenario as anybody would; then runs each with ``fedsmall run`` in a process of its own, reports and
all, and says how long that took, the largest memory it ever held (peak RSS), and what it left on the disk.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, SAMPLES, TEST = 20, 4, 10_000
METHODS = {
    "FedAvg": {"name": "FedAvg", "aggregate_every": 1},
    "FedDC": {"name": "FedDC", "permute_every": 1, "aggregate_every": 10},
    "gossip": {"name": "FedDC", "permute_every": 1, "aggregate_every": 10, "topology": "gossip"},
    "regions": {"name": "FedDC", "permute_every": 1, "aggregate_every": 10, "regions": 10},
}


def write_data(path: Path, sites: int) -> None:
    """Two classes that a plane divides but for some noise, in proportion to what a logistic model says."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(sites * SAMPLES + TEST, FEATURES)).astype(np.float32)
    plane = rng.normal(size=FEATURES)
    y = rng.random(len(x)) < 1 / (1 + np.exp(-2 * (x @ plane)))
    np.savez(path, x=x, y=y.astype(np.int64))


def scenario(data: Path, sites: int, rounds: int, method: dict[str, Any]) -> str:
    """The scenario of one method, as TOML."""
    parts = "\n".join(f"{key} = {json.dumps(value)}" for key, value in method.items())
    return (
        f'name = "many"\ntask = {{ npz = "{data}" }}\nmodel = "linear"\nsites = {sites}\n'
        f"samples_per_site = {SAMPLES}\ntest = {TEST}\nrounds = {rounds}\nseeds = [0]\n"
        f"[recipe]\nlr = 0.1\n[[method]]\n{parts}\n"
    )


def measured(folder: Path, label: str, sites: int, rounds: int) -> dict[str, Any]:
    """Run one method by the command line, and say what it took."""
    (folder / f"{label}.toml").write_text(scenario(folder / "data.npz", sites, rounds, METHODS[label]))
    out, started = folder / label, time.perf_counter()
    command = [sys.executable, "-m", "fedsmall.sim.cli.app", "run", f"{label}.toml", "--out", str(out)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, env=os.environ)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit(f"{label} ended with {process.returncode}")
    summary = json.loads((out / "summary.json").read_text())
    row = next(iter(summary["runs"] if isinstance(summary, dict) else summary))
    files = [path for path in out.rglob("*") if path.is_file()]
    return {
        "method": label,
        "sites": sites,
        "rounds": rounds,
        "minutes": round((time.perf_counter() - started) / 60, 2),
        "of_rounds": round(row["seconds"] / 60, 2),
        "gib": round(used.ru_maxrss / 2**20, 2),
        "accuracy": round(100 * row["common"]["accuracy"], 1),
        "files": len(files),
        "mib_on_disk": round(sum(path.stat().st_size for path in files) / 2**20, 1),
    }


def main(arguments: list[str]) -> None:
    """Measure both methods and print a line for each."""
    kept = Path(arguments.pop(arguments.index("--json") + 1)) if "--json" in arguments else None
    said = [int(word) for word in arguments if word.isdigit()]
    sites, rounds = *said, *(100_000, 100)[len(said) :]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_data(folder / "data.npz", sites)
        rows = [measured(folder, label, sites, rounds) for label in METHODS]
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")
    for row in rows:
        print(row, flush=True)
    if kept is not None:
        kept.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
