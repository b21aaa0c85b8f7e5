"""Accuracy and AUC against the epsilon that each patient is promised: averaging, seldom averaging, daisy-chaining.

    FEDSMALL_DATA=... python -m examples.patient_privacy    # about half an hour on one core; kept in docs/evidence
    python -m examples.patient_privacy --show               # the table of what is kept, put into the page too

Five sets of real patients. Every method at every epsilon has a learning rate of its own, chosen by ``fedsmall tune``'s
search on training sites alone; lots, clip, delta and the number of rounds were set once, before any run was looked at.
The search itself looks at patients, and its cost is not in the epsilon: at real sites it would have to be.
"""

import sys
from dataclasses import dataclass
from typing import Any

from examples.kept import measured
from fedsmall.evaluation.statistics import interval
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import Scenario, build
from fedsmall.sim.tuning.search import choose, search, with_rates

KEPT = DOCS / "evidence" / "patient-privacy.json"
EPSILONS = (1.0, 3.0, 8.0, None)
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg, b = 1": {"name": "FedAvg", "aggregate_every": 1},
    "FedAvg, b = 10": {"name": "FedAvg", "aggregate_every": 10},
    "FedDC, d = 1, b = 10": {"name": "FedDC", "permute_every": 1, "aggregate_every": 10},
}
RATES = (0.03, 0.1, 0.3)
SEARCH_SEEDS, SEEDS = 3, 10
CANCER = {"task": "breast_cancer", "model_options": {"hidden": [32, 16]}, "rounds": 100}
SETS: dict[str, dict[str, Any]] = {
    "heart disease, 4 x 92 to 227": {
        "task": "heart_disease",
        "model_options": {"hidden": [16]},
        "rounds": 200,
        "lot": 16,
    },
    "breast cancer, 40 x 4": CANCER | {"sites": 40, "samples_per_site": 4, "lot": 4},
    "breast cancer, 20 x 20": CANCER | {"sites": 20, "samples_per_site": 20, "lot": 20},
    "breast cancer, 8 x 50": CANCER | {"sites": 8, "samples_per_site": 50, "lot": 16},
    "PneumoniaMNIST, 20 x 50": {
        "task": {"medmnist": "pneumoniamnist"},
        "model_options": {"hidden": [16]},
        "sites": 20,
        "samples_per_site": 50,
        "rounds": 100,
        "lot": 16,
    },
}


@dataclass(frozen=True)
class Cell:
    """A method on a set at an epsilon (None: no privacy), seed by seed.

    ``spent`` is the dearest site's epsilon, ``searched`` the seeds of the search for ``lr``.
    """

    data: str
    method: str
    epsilon: float | None
    lr: float
    at_the_edge: bool
    accuracy: list[float]
    auc: list[float]
    spent: float | None
    searched: int = SEARCH_SEEDS


def scenario_of(data: str) -> Scenario:
    """All methods at all epsilons on one set."""
    table = dict(SETS[data])
    lot = table.pop("lot")
    methods = []
    for label, parts in METHODS.items():
        for epsilon in EPSILONS:
            privacy = {"privacy": {"level": "patient", "clip": 1.0, "epsilon": epsilon}} if epsilon else {}
            methods.append({**parts, "label": label_of(label, epsilon), "gate": False} | privacy)
    return build({"name": data, "seeds": list(range(SEEDS)), "recipe": {"batch": lot}, "method": methods} | table)


def measure(data: str) -> list[Cell]:
    """Search the learning rates of one set, then run all seeds."""
    scenario = scenario_of(data)
    choices = choose(search(scenario, RATES, metric="accuracy", most_seeds=SEARCH_SEEDS))
    print(f"{data}: rates {', '.join(f'{label} {choice.lr:g}' for label, choice in choices.items())}", flush=True)
    run = execute(with_rates(scenario, {label: choice.lr for label, choice in choices.items()}))
    cells = []
    for method in METHODS:
        for epsilon in EPSILONS:
            label = label_of(method, epsilon)
            rows = [one.row for one in run.done if one.label == label]
            accuracy, auc = ([float(row["common"][metric]) for row in rows] for metric in ("accuracy", "auc"))
            spent = max(row["privacy"]["epsilon"] for row in rows) if epsilon else None
            choice = choices[label]
            cells.append(Cell(data, method, epsilon, choice.lr, choice.at_the_edge, accuracy, auc, spent))
    return cells


def table(cells: list[Cell]) -> str:
    """Accuracy / AUC in points, each the mean over seeds, with the half-width of the accuracy's 95% interval."""
    heads = [f"epsilon {epsilon:g}" if epsilon else "no privacy" for epsilon in EPSILONS]
    lines = [f"| data | method | {' | '.join(heads)} |", "|" + "---|" * (2 + len(EPSILONS))]
    for data in dict.fromkeys(cell.data for cell in cells):
        for method in METHODS:
            mine = {cell.epsilon: cell for cell in cells if (cell.data, cell.method) == (data, method)}
            lines.append(f"| {data} | {method} | {' | '.join(_written(mine[epsilon]) for epsilon in EPSILONS)} |")
    return "\n".join(lines)


def label_of(method: str, epsilon: float | None) -> str:
    """The label of a method at an epsilon."""
    return f"{method}, epsilon {epsilon:g}" if epsilon else f"{method}, none"


def _written(cell: Cell) -> str:
    accuracy, auc = interval(cell.accuracy), interval(cell.auc)
    return f"{100 * accuracy.mean:.1f} ± {50 * (accuracy.high - accuracy.low):.1f} / {100 * auc.mean:.1f}"


def main(arguments: list[str]) -> None:
    """Measure the sets that are named (all, where none is), keep what was measured, and print the table."""
    kept = measured(arguments, Cell, KEPT, SETS, measure)
    fill(DOCS, {"patient-privacy": table(kept)}.get)
    print(table(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
