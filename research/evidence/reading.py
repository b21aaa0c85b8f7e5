"""``fedsmall reproduce reading``: who could read how many patients, with and without blur, and what blur costs.

Written into docs/evidence/reading.json, and as a table into docs/reading.md at its marks.
"""

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsmall.errors import ReplyError
from fedsmall.parts import Privacy
from fedsmall.plan import Method
from fedsmall.planning.tasks import build_federation
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.consortium import sample_data
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.files import write
from fedsmall.sim.runs.scenario import SHIPPED, Scenario, build, read

SCENARIOS = ("demo_breast_cancer", "demo_digits", "heart_disease", "consortium_demo")  # the last is for real sites
EVERY_COMM_ROUND = "FedAvg, b = 1"
KAPPAS = (0.0, 0.2, 0.5, 1.0, 2.0)
BOTH = (0.0, 1.0)
HOSPITALS = ("berlin", "essen", "ulm")
Say = Callable[[str], None]


class Measured(NamedTuple):
    """One method with one blur: the global model's accuracy over seeds, and who could be read on the first seed.

    ``accuracy`` and ``spread`` (standard deviation) are None where no site had a finite model at the end.
    """

    scenario: str
    method: str
    blur: float
    accuracy: float | None
    spread: float | None
    seeds: int
    read: dict[str, Any]


def measure(say: Say, data_root: Path | None = None, seeds: int | None = None) -> list[Measured]:
    """Run every scenario whose data are at hand; ``seeds`` takes fewer of them than the scenario says."""
    rows: list[Measured] = []
    with tempfile.TemporaryDirectory() as place:
        for name in SCENARIOS:
            scenario = _scenario(name, Path(place))
            if name == "heart_disease" and not (data_root and (data_root / name).is_dir()):
                say(f"{name}: not run, its data are not under the data root")
                continue
            for method, kappa in _variants(scenario):
                row = _measured(scenario, method, kappa, data_root, seeds)
                rows.append(row)
                say(_line(row))
    return rows


def _variants(scenario: Scenario) -> Iterator[tuple[Method, float]]:
    """Averaging at every communication round and FedDC, as in the scenario; blur in steps where models move on."""
    for method in (plan.method for plan in scenario.plans()[: len(scenario.method)]):
        if method.name == "FedDC" or method.label == EVERY_COMM_ROUND:
            yield from ((method, kappa) for kappa in (KAPPAS if method.permute_every else BOTH))


def _measured(scenario: Scenario, method: Method, kappa: float, data_root: Path | None, most: int | None) -> Measured:
    method = method.model_copy(update={"privacy": Privacy(blur=kappa)})
    plans = [plan for plan in scenario.plans() if plan.method.label == method.label][:most]
    accuracies: list[float] = []
    read: dict[str, Any] = {}
    for plan in plans:
        plan = plan.model_copy(update={"method": method, "evaluate_every": None})
        first = plan.seed == plans[0].seed
        try:
            record = run_plan(plan, build_federation(plan, data_root), "cohort", exposed=first)
        except ReplyError:  # no site had a finite model left
            return Measured(scenario.name, method.label, kappa, None, None, len(plans), {})
        accuracies.append((record.evaluations[-1].common or {})["accuracy"])
        read = record.read or read
    spread = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else 0.0
    return Measured(scenario.name, method.label, kappa, float(np.mean(accuracies)), spread, len(plans), read)


def _scenario(name: str, place: Path) -> Scenario:
    table = read(SHIPPED / f"{name}.toml")
    if name == "consortium_demo":
        sample_data.write([place / "hospitals" / f"{hospital}.csv" for hospital in HOSPITALS])
        table |= {"task": {**table["task"], "csv": str(place / "hospitals")}, "seeds": list(range(5))}
    return build(table)


def keep(rows: list[Measured], docs: Path) -> None:
    """Write the numbers beside the other evidence, and the table into docs/reading.md where that has its marks."""
    write(docs / "evidence" / "reading.json", (json.dumps([row._asdict() for row in rows], indent=1) + "\n").encode())
    fill(docs, {"reading": table(rows)}.get)


def table(rows: list[Measured]) -> str:
    """All rows as a Markdown table."""
    lines = [
        "| scenario | method | blur | accuracy | the server | any next site | one site: median, most | from averages |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        read, blur = row.read, f"{row.blur:g}" if row.blur else "none"
        median, most = read.get("curious", ("-", "-"))
        accuracy = _accuracy(row)
        cells = [row.scenario, row.method, blur, accuracy, *(_cell(read, party) for party in ("server", "neighbours"))]
        curious = f"{median:g}, {most}" if "curious" in read else "-"
        lines.append(f"| {' | '.join([*cells, curious, _cell(read, 'averages')])} |")
    return "\n".join(lines) + "\n"


def _cell(read: dict[str, Any], party: str) -> str:
    """As "151 (160) of 160": read, and in brackets come near to."""
    return f"{read[party]} ({read['close'][party]}) of {read['patients']}" if party in read else "-"


def _line(row: Measured) -> str:
    blur = f"blur {row.blur:g}" if row.blur else "no blur"
    next_site = f", any next site {_cell(row.read, 'neighbours')}" if "neighbours" in row.read else ""
    return f"{row.scenario}, {row.method}, {blur}: {_accuracy(row)}, the server {_cell(row.read, 'server')}{next_site}"


def _accuracy(row: Measured) -> str:
    if row.accuracy is None or row.spread is None:
        return "no finite model"
    return f"{100 * row.accuracy:.1f} ±{100 * row.spread:.1f}"
