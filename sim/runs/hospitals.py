"""Does joining pay: what methods come to with 1, 2, 5, 10 and more of the hospitals, judged on the same patients.

Hospitals join one after the other in an order that each seed draws, so the smaller federations are within the larger.
The test patients are those of all hospitals, and so is the scaling of features; nothing else is known of who is not in.
"""

import json
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from fedsmall.data.federation import Federation
from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for
from fedsmall.sim.runs.files import write
from fedsmall.sim.runs.scenario import Scenario

FILE = "hospitals.json"
PER_DECADE = (1, 2, 5)


class Growth(NamedTuple):
    """What methods come to by a metric: {method: {hospitals: a value for each seed}}."""

    metric: str
    values: dict[str, dict[int, list[float]]]


def counts_up_to(sites: int) -> list[int]:
    """1, 2, 5, 10, 20, 50, ... and all."""
    decades = (step * 10**power for power, step in product(range(len(str(sites))), PER_DECADE))
    return sorted({count for count in decades if count < sites} | {sites})


def growth_of(scenario: Scenario, data_root: Path | None = None) -> Growth:
    """Run the plans of ``scenario`` that end with a global model over so many of its hospitals, nested.

    A method that cannot run with so few (a secure sum of two) has no value there; PlanError where none has any.
    """
    from fedsmall.planning.tasks import build_federation  # a page that only reads the curve needs none of these
    from fedsmall.sim.engines.run import DEFAULT_ENGINE, run_plan
    from fedsmall.sim.runs.execute import Federations, judged_by

    federations = Federations(partial(build_federation, data_root=data_root))
    scenario = judged_by(scenario, federations.of(scenario.plans()[0]))
    values: dict[str, dict[int, list[float]]] = {}
    metric = scenario.metric or "loss"
    for plan in (plan for plan in scenario.plans() if plan.method.is_federated):
        whole = federations.of(plan)
        for count in counts_up_to(len(whole.names)):
            try:
                record = run_plan(plan, first_of_order(whole, plan.seed, count), DEFAULT_ENGINE)
            except PlanError:
                continue
            common = record.evaluations[-1].common or {}
            of_method = values.setdefault(plan.method.label, {})
            of_method.setdefault(count, []).extend([common[metric]] if metric in common else [])
    if not any(found for of_method in values.values() for found in of_method.values()):
        raise PlanError(f"no method here has a global model that is judged by {metric!r}, which a test set may lack")
    return Growth(metric, values)


def first_of_order(federation: Federation, seed: int, count: int) -> Federation:
    """The first ``count`` hospitals of the order that a seed draws, judged on the test patients of all."""
    if not 1 <= count <= len(federation.names):
        raise ValueError(f"{count} of {len(federation.names)} hospitals: take 1 to all")
    order = rng_for(seed, "hospitals join").permutation(len(federation.names))[:count]
    kept = sorted(order.tolist())
    parts: dict[str, Any] = {
        name: tuple(getattr(federation, name)[k] for k in kept) if getattr(federation, name) else ()
        for name in ("names", "train", "class_sums", "kept_back")
    }
    return replace(federation, **parts, held_out=(None,) * count, extra=())


def save_growth(growth: Growth, folder: Path) -> None:
    """Write it into the folder of a run, whose page then shows it."""
    write(folder / FILE, json.dumps(growth._asdict()).encode())


def read_growth(folder: Path | None) -> Growth | None:
    """What :func:`save_growth` wrote; None where there is nothing."""
    if folder is None or not (folder / FILE).is_file():
        return None
    read = json.loads((folder / FILE).read_text())
    of_methods = {label: {int(n): of for n, of in found.items()} for label, found in read["values"].items()}
    return Growth(read["metric"], of_methods)
