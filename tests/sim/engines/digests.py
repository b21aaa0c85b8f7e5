"""The bits of scenarios that come along, after a few rounds of each method: ``python -m tests.sim.engines.digests``.

Recorded before Algorithm 1 became one function, and to be recorded anew only where numbers are meant to change.
"""

import hashlib
import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedsmall.data.federation import Federation, Samples
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.run import RunRecord, run_plan
from fedsmall.sim.runs.scenario import load
from tests import ROOT

FILE = Path(__file__).with_name("digests.json")
SCENARIOS = ("demo_breast_cancer", "demo_digits", "papers/feddc_table2_digits", "papers/survey_quantity_skew")

RECORDED = ("t", "common", "sites", "extra")  # what an evaluation held when the bits were recorded


def machine() -> dict[str, str]:
    """What the last digit of a float32 product may depend on, and the bits of some such products."""
    bits, generator = hashlib.blake2b(digest_size=8), torch.Generator().manual_seed(0)
    for rows, inner, columns in ((1, 30, 10), (40, 30, 10), (40, 64, 32), (200, 8, 2), (7, 129, 65)):
        models = torch.randn(5, rows, inner, generator=generator), torch.randn(5, inner, columns, generator=generator)
        bits.update(torch.bmm(*models).numpy().tobytes() + (models[0][0] @ models[1][0]).numpy().tobytes())
    capability = torch.backends.cpu.get_cpu_capability()
    return {"torch": torch.__version__, "processor": capability, "products": bits.hexdigest()}


def shortened(plan: Plan) -> Plan:
    """The plan for five rounds, with evaluations between communication rounds and an aggregation before the last."""
    method, recipe = plan.method, plan.recipe
    periods = {
        "aggregate_every": method.aggregate_every and min(method.aggregate_every, 3),
        "permute_every": method.permute_every and min(method.permute_every, 2),
    }
    steps = {
        "local_epochs": recipe.local_epochs and 1,
        "local_steps": recipe.local_steps and min(recipe.local_steps, 2),
    }
    shorter = {"method": method.model_copy(update=periods), "recipe": recipe.model_copy(update=steps)}
    return plan.model_copy(update={"rounds": 5, "evaluate_every": 2, **shorter})


def few(federation: Federation) -> Federation:
    """The federation with test samples that are quickly judged."""
    return replace(
        federation,
        test=_cut(federation.test, 40),
        extra=tuple((name, _cut(samples, 40)) for name, samples in federation.extra),
        held_out=tuple(None if samples is None else _cut(samples, 10) for samples in federation.held_out),
    )


def _cut(samples: Samples, count: int) -> Samples:
    return Samples(samples.x[:count], samples.y[:count])


def digest(record: RunRecord) -> dict[str, Any]:
    """What a run came to, in a few words that differ where a bit of it does."""
    model = record.model or {}
    bits = hashlib.sha256()
    for name, array in sorted(model.items()):
        bits.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    told = [{name: vars(evaluation)[name] for name in RECORDED} for evaluation in record.evaluations]
    evaluations = json.dumps(told, sort_keys=True, default=str)
    return {
        "model": bits.hexdigest()[:16] if model else None,
        "evaluations": hashlib.sha256(evaluations.encode()).hexdigest()[:16],
        "norm": sum(float((array.astype("float64") ** 2).sum()) for array in model.values()) ** 0.5,
        "bytes": record.bytes_sent,
        "updates": record.client_updates,
        "contacts": record.comm_rounds,
        "events": len(record.events),
    }


def digests(name: str) -> dict[str, dict[str, Any]]:
    """The digest of every method of a scenario, by its label."""
    scenario = load(ROOT / "sim" / "scenarios" / f"{name}.toml")
    found: dict[str, dict[str, Any]] = {}
    federation: Federation | None = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for plan in scenario.plans()[: len(scenario.method)]:
            federation = federation or few(build_federation(plan))
            found[plan.method.label] = digest(run_plan(shortened(plan), federation, "cohort"))
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    recorded = {"machine": machine()} | {name: digests(name) for name in SCENARIOS}
    FILE.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")
