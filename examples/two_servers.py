"""Two regions with a server each, and a third server that averages their models, on the loopback of one machine.

Three SuperLinks, five hospitals, a program that speaks for each region: all of them real processes, with TLS, keys and
gates. The end is held against a simulation with the same ``regions``, to the bit: ``python -m examples.two_servers``.
"""

import hashlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from examples.loopback import LoopbackConsortium, Say
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.consortium import sample_data
from fedsmall.sim.runs.scenario import build
from fedsmall.strategies.server.run_loop import run_rounds
from fedsmall.training.trees import cohort_for

REGIONS = {"north": ("bonn", "essen", "ulm"), "south": ("aachen", "trier")}
ABOVE, RUN = "above", "tides"
# without blur and encryption, so that a simulation gives the same bits
POLICY = "least_sites = 2\nleast_blur = 0\nmost_read = 1000\nleast_batch = 1\nsealed = false\n"


def plan_of(rounds: int = 8) -> Plan:
    """FedDC within regions, which meet after every fourth round, over tables of breast cancer patients."""
    method = {"name": "FedDC", "permute_every": 1, "aggregate_every": 2, "weighted": True, "privacy": {"blur": 0.0}}
    apart = {"sites": REGIONS, "average_every": 4, "across": 0}
    scenario = {
        "name": RUN,
        "task": {"csv": "table.csv", "label": "diagnosis", "classes": ["benign", "malignant"]},
        "partition": {"natural": "file"},
        "model_options": {"hidden": [16]},
        "rounds": rounds,
        "recipe": {"lr": 0.05, "batch": 16, "local_steps": 1},
        "method": [{**method, "regions": apart}],
    }
    return build(scenario).plans()[0]


def simulated(plan: Plan, data: Path) -> Mapping[str, np.ndarray]:
    """The same run in this process: all servers, one site after the other."""
    plan = plan.model_copy(update={"task": {**dict(plan.task), "csv": str(data)}})  # type: ignore[arg-type]
    federation = build_federation(plan)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train, path="loop")
    model = run_rounds(plan, trainer, lambda site: initial_model(plan, federation.task, site)).model
    assert model is not None
    return model


@contextmanager
def consortia(folder: Path, say: Say) -> Iterator[dict[str, LoopbackConsortium]]:
    """The federation of every region, and the one above whose sites are the regions, all of them up."""
    files = {site: folder / "data" / f"{site}.csv" for sites in REGIONS.values() for site in sites}
    sample_data.write(list(files.values()))
    with ExitStack() as up:
        there = {
            region: LoopbackConsortium(folder / region, {site: files[site] for site in sites}, POLICY, say)
            for region, sites in REGIONS.items()
        }
        folders = {region: each.folder for region, each in there.items()}
        there[ABOVE] = LoopbackConsortium(folder / ABOVE, folders, POLICY, say, regions=True)
        for each in there.values():
            up.enter_context(each)
        yield there


def played(folder: Path, plan: Plan, say: Say) -> dict[str, Mapping[str, np.ndarray]]:
    """The models with which the region's runs, and the one above, have ended."""
    with consortia(folder, say) as there:
        numbers = {
            where: each.start(RUN, plan, apart=True, region=where if where in REGIONS else "")
            for where, each in there.items()
        }
        for where, each in there.items():
            outcome = each.finish(RUN, numbers[where])
            say(f"{where}: {outcome['comm_rounds']} communication rounds, {outcome['bytes_sent']} bytes of models")
        return {where: load_file(each.home(RUN) / "model.safetensors") for where, each in there.items()}


def digest(model: Mapping[str, np.ndarray]) -> str:
    """A model's numbers in sixteen letters."""
    return hashlib.sha256(b"".join(model[name].tobytes() for name in sorted(model))).hexdigest()[:16]


def main() -> int:
    """Run both ways, and print what each came to; 1 where they differ."""
    with tempfile.TemporaryDirectory(prefix="two-") as name:
        folder, plan = Path(name), plan_of()
        ends = {where: digest(model) for where, model in played(folder, plan, print).items()}
        ends["simulation"] = digest(simulated(plan, folder / "data"))
    for where, said in ends.items():
        print(f"{where:12} {said}")
    return int(len(set(ends.values())) > 1)


if __name__ == "__main__":
    sys.exit(main())
