"""FedPAGE and FedFa beside FedAvg, SCAFFOLD and FedDC: equally many contacts, for each method a rate of its own.

    python -m examples.more_baselines           # some minutes a set on one core; kept in docs/evidence
    python -m examples.more_baselines --show    # the table of what is kept, put into the page too

Rates are searched on training sites alone, as `fedsmall tune` does it, and all methods then run on the same fresh
seeds. How fair a model is: the spread over the sites of its accuracy on test samples of the classes that a site has, in
the shares that it has them.
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.kept import measured
from fedsmall.evaluation.metrics import predicted
from fedsmall.evaluation.statistics import paired
from fedsmall.federation import Federation
from fedsmall.plan import Plan
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.engines.run import DEFAULT_ENGINE, run_plan
from fedsmall.sim.runs.scenario import build
from fedsmall.sim.tuning.search import choose, search
from fedsmall.tasks import build_federation
from fedsmall.training.trees import cohort_for
from fedsmall.wire import Arrays

KEPT = DOCS / "evidence" / "more-baselines.json"
SEEDS, RATES = 10, (0.003, 0.01, 0.03, 0.1, 0.3)
METHODS: list[dict[str, Any]] = [
    {"name": "FedAvg"},
    {"name": "SCAFFOLD"},
    {"name": "FedDC", "permute_every": 1, "aggregate_every": 10},
    {"name": "FedPAGE"},
    {"name": "FedFa"},
]
SETS: dict[str, dict[str, Any]] = {
    "digits, 50 x 8, two classes": {
        "task": "digits",
        "model_options": {"hidden": [64, 32]},
        "partition": {"classes_per_site": 2},
        "sites": 50,
        "samples_per_site": 8,
        "rounds": 100,
        "recipe": {"batch": 4, "local_steps": 5},
    },
    "breast cancer, 20 x 10": {
        "task": "breast_cancer",
        "model_options": {"hidden": [32, 16]},
        "sites": 20,
        "samples_per_site": 10,
        "rounds": 50,
        "recipe": {"batch": 5, "local_steps": 5},
    },
}


@dataclass(frozen=True)
class Cell:
    """A method on a set with its ``lr``: accuracy and its spread over the sites, seed by seed; bytes of one run."""

    data: str
    method: str
    lr: float
    accuracy: list[float]
    spread: list[float]
    sent: int


def measure(data: str, seeds: int = SEEDS, most_seeds: int = 3) -> list[Cell]:
    """Search the rates of one set, and run all methods on fresh seeds."""
    scenario = build({"name": data, "seeds": list(range(seeds)), **SETS[data], "method": METHODS})
    rates = {
        label: choice.lr
        for label, choice in choose(search(scenario, RATES, metric="accuracy", most_seeds=most_seeds)).items()
    }
    found: dict[str, list[tuple[float, float, int]]] = {label: [] for label in rates}
    for plan in scenario.plans():
        lr = rates[plan.method.label]
        rated = plan.model_copy(update={"recipe": plan.recipe.model_copy(update={"lr": lr})})
        found[plan.method.label].append(_worth(rated))
    return [
        Cell(data, label, rates[label], [a for a, _, _ in each], [s for _, s, _ in each], each[0][2])
        for label, each in found.items()
    ]


def _worth(plan: Plan) -> tuple[float, float, int]:
    """Accuracy on the test set, its spread over the sites, and the bytes that were sent."""
    federation = build_federation(plan)
    outcome = run_plan(plan, federation, DEFAULT_ENGINE)
    assert outcome.model is not None
    right = _right(plan, federation, outcome.model)
    return float(right.mean()), spread(right, federation), int(outcome.bytes_sent)


def _right(plan: Plan, federation: Federation, model: Arrays) -> np.ndarray:
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    outputs = trainer.predict_at(0, model, federation.test.x, {})
    right: np.ndarray = predicted(outputs) == federation.test.y
    return right


def spread(right: np.ndarray, federation: Federation) -> float:
    """The standard deviation over the sites of the accuracy on test samples of each one's own classes."""
    classes = range(federation.task.classes)
    of_class = np.array([right[federation.test.y == one].mean() for one in classes])
    shares = np.array([[np.mean(site.y == one) for one in classes] for site in federation.train])
    return float((shares @ of_class).std())


def table(cells: list[Cell]) -> str:
    """Each method's accuracy, what it is less FedAvg's in points with its 95% interval, its spread and its bytes."""
    head = "| data | method | lr | accuracy | minus FedAvg | spread over sites | MB |"
    lines = [head, "|" + "---|" * 7]
    for cell in cells:
        plain = next(c for c in cells if (c.data, c.method) == (cell.data, "FedAvg"))
        difference = paired(cell.accuracy, plain.accuracy).difference
        less = "" if cell is plain else f"{100 * difference.mean:+.1f} ± {50 * difference.width:.1f}"
        worth = f"{100 * np.mean(cell.accuracy):.1f} | {less} | {100 * np.mean(cell.spread):.1f}"
        lines.append(f"| {cell.data} | {cell.method} | {cell.lr:g} | {worth} | {cell.sent / 1e6:.1f} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Measure the sets that are named (all, where none is), keep what was measured, and print the table."""
    kept = measured(arguments, Cell, KEPT, SETS, measure)
    fill(DOCS, {"more-baselines": table(kept)}.get)
    print(table(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
