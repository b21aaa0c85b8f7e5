"""Boosted trees and networks on tables, side by side: what a table of few patients is best learnt with.

    FEDSMALL_DATA=... python -m examples.boosted_trees    # some twenty minutes on one core; kept in docs/evidence
    python -m examples.boosted_trees --show               # the tables of what is kept, put into the page too

Networks (one hidden layer or two, and logistic regression) have learning rates chosen by ``fedsmall tune``'s search on
training sites alone. Trees were set once, before any run was looked at: 33 rounds, for a histogram run of 100 exchanges
grows as many trees of depth 3, and xgboost's own defaults but for ``least_weight``: with its 1 a site of less than
eight patients could not split at all. The trees of depth 1 came after the rest had been read.
"""

import sys
from dataclasses import dataclass
from typing import Any

from examples.kept import measured
from fedsmall.evaluation.statistics import Interval, holm, interval, paired
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import Scenario, build
from fedsmall.sim.tuning.search import choose, search, with_rates

KEPT = DOCS / "evidence" / "boosted-trees.json"
RATES = (0.03, 0.1, 0.3)
SEARCH_SEEDS, SEEDS, ROUNDS = 2, 10, 100
TREES = {"boosting": {"trees": 33, "depth": 3, "least_weight": 0.25}}
STUMPS = "trees of depth 1"
MANY = {"boosting": {"trees": 100, "depth": 1, "learning_rate": 0.1, "least_weight": 0.25}}
NETWORKS: dict[str, dict[str, Any]] = {
    "Standalone": {"name": "Standalone"},
    "FedAvg, b = 1": {"name": "FedAvg", "aggregate_every": 1},
    "FedDC, d = 1, b = 10": {"name": "FedDC", "permute_every": 1, "aggregate_every": 10},
    "Central": {"name": "Central"},
}
GROUPS: dict[str, dict[str, dict[str, Any]]] = {
    "mlp": NETWORKS,
    "linear": {label: NETWORKS[label] for label in ("FedAvg, b = 1", "Central")},
    "trees": {
        name: {"name": name, **TREES}
        for name in ("StandaloneXGB", "FedXGBBagging", "FedXGBCyclic", "FedHistogramXGB", "CentralXGB")
    },
    STUMPS: {"FedHistogramXGB, 100 at .1": {"name": "FedHistogramXGB", **MANY}},
}
TREES_OF = ("trees", STUMPS)
BASELINE = "mlp: FedAvg, b = 1"
SETS: dict[str, dict[str, Any]] = {
    "heart disease, 4 x 92 to 227": {"task": "heart_disease", "hidden": [16], "batch": 16},
    "breast cancer, 40 x 4": {"task": "breast_cancer", "sites": 40, "samples_per_site": 4, "hidden": [32, 16]},
    "breast cancer, 20 x 20": {"task": "breast_cancer", "sites": 20, "samples_per_site": 20, "hidden": [32, 16]},
    "breast cancer, 8 x 50": {"task": "breast_cancer", "sites": 8, "samples_per_site": 50, "hidden": [32, 16]},
}


@dataclass(frozen=True)
class Cell:
    """A method on a set, seed by seed; ``lr`` is None for trees. Of sites alone it is the mean over sites."""

    data: str
    method: str
    lr: float | None
    accuracy: list[float]
    auc: list[float]


def scenario_of(data: str, model: str) -> Scenario:
    """The methods of one model on one set."""
    table = dict(SETS[data])
    hidden, batch = table.pop("hidden"), table.pop("batch", None)
    options = {"model_options": {"hidden": hidden}} if model == "mlp" else {}
    kind = "mlp" if model in TREES_OF else model
    methods = [{**parts, "label": label} for label, parts in GROUPS[model].items()]
    rounds = ROUNDS + 1 if model == STUMPS else ROUNDS  # one to agree on bins, and one a tree
    given = {"name": f"{data}, {model}", "model": kind, "rounds": rounds, "seeds": list(range(SEEDS))}
    return build({**given, **options, **table, "recipe": {"batch": batch} if batch else {}, "method": methods})


def measure(data: str) -> list[Cell]:
    """Search the networks' learning rates on one set, then run all seeds of all methods."""
    cells = []
    for model in GROUPS:
        scenario, rates = scenario_of(data, model), {}
        if model not in TREES_OF:
            choices = choose(search(scenario, RATES, metric="accuracy", most_seeds=SEARCH_SEEDS))
            rates = {label: choice.lr for label, choice in choices.items()}
            scenario = with_rates(scenario, rates)
        run = execute(scenario)
        if run.failed:
            raise SystemExit(run.failed[0]["reason"])
        for label in GROUPS[model]:
            rows = [one.row for one in run.done if one.label == label]
            values = [[_of(row, metric) for row in rows] for metric in ("accuracy", "auc")]
            cells.append(Cell(data, f"{model}: {label}", rates.get(label), *values))
        print(f"{data}, {model}: done", flush=True)
    return cells


def table(cells: list[Cell]) -> str:
    """AUC and accuracy in points, each with the half-width of its 95% interval, and the paired difference in AUC;
    p is corrected over a set (Holm)."""
    lines = [f"| data | method | AUC | accuracy | AUC minus {BASELINE} | p |", "|---|---|---|---|---|---|"]
    for data in dict.fromkeys(cell.data for cell in cells):
        mine = {cell.method: cell for cell in cells if cell.data == data}
        others = [name for name in mine if name != BASELINE]
        found = {name: paired(mine[name].auc, mine[BASELINE].auc) for name in others}
        p = dict(zip(others, holm([found[name].p_value for name in others]), strict=True))
        for name, cell in mine.items():
            apart = f"{_points(found[name].difference, '+')} | {p[name]:.3f}" if name in found else "|"
            worth = f"{_points(interval(cell.auc))} | {_points(interval(cell.accuracy))}"
            lines.append(f"| {data} | {name} | {worth} | {apart} |")
    return "\n".join(lines)


def _of(row: dict[str, Any], metric: str) -> float:
    return float(row["common"][metric] if row["common"] else row["sites"][f"{metric}_mean"])


def _points(told: Interval, sign: str = "") -> str:
    return f"{100 * told.mean:{sign}.1f} ± {50 * (told.high - told.low):.1f}"


def main(arguments: list[str]) -> None:
    """Measure the sets that are named (all, where none is), keep what was measured, and print the table."""
    kept = measured(arguments, Cell, KEPT, SETS, measure)
    fill(DOCS, {"boosted-trees": table(kept)}.get)
    print(table(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
