"""Does it pay to search periods with the rates? What `fedsmall tune --try` takes, against the methods' own settings.

    python -m examples.tuned_periods           # some minutes a set on one core; kept in docs/evidence
    python -m examples.tuned_periods --show    # the table of what is kept, put into the page too

Every setting is searched with all rates, on training sites alone, as the command does it (four folds of the sites,
here five seeds, from 1000); the method's own setting has the best rate of the same search. Both then run on seeds that
no search has seen, so differences are paired. The same by hand, for one set: write its scenario to a file and

    fedsmall tune digits.toml --rates 0.1,0.3,1 --try aggregate_every=50,10 --try permute_every=5,2,1 \
        --try proximal_mu=0.01,0.1,1 --write tuned.toml
"""

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from examples.kept import measured
from fedsmall.evaluation.statistics import paired
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build
from fedsmall.sim.tuning.grid import Grid, grid
from fedsmall.sim.tuning.search import Try, choose, search

KEPT = DOCS / "evidence" / "tuned-periods.json"
SEEDS, RATES = 10, (0.1, 0.3, 1.0)
# cheap ones first: of settings that cannot be told apart the first is taken
TRIED: dict[str, tuple[Any, ...]] = {
    "aggregate_every": (50, 10),
    "permute_every": (5, 2, 1),
    "proximal_mu": (0.01, 0.1, 1.0),
}
METHODS: list[dict[str, Any]] = [
    {"name": "FedAvg", "label": "FedAvg"},
    {"name": "FedDC", "label": "FedDC", "permute_every": 1, "aggregate_every": 10},
    {"name": "FedProx", "label": "FedProx", "aggregate_every": 10, "proximal_mu": 0.1},
]
SETS: dict[str, dict[str, Any]] = {
    "digits, 50 x 8, two classes": {
        "task": "digits",
        "model_options": {"hidden": [64, 32]},
        "partition": {"classes_per_site": 2},
        "sites": 50,
        "samples_per_site": 8,
        "rounds": 200,
    },
    "breast cancer, 20 x 10": {
        "task": "breast_cancer",
        "model_options": {"hidden": [32, 16]},
        "sites": 20,
        "samples_per_site": 10,
        "rounds": 100,
        "recipe": {"batch": 5},
    },
}


@dataclass(frozen=True)
class Cell:
    """A method on a set with a setting, ``own`` or taken by the search: its rate, and what it is worth seed by seed.

    ``sent`` are the bytes of one run; ``searched`` the runs of the search.
    """

    data: str
    method: str
    own: bool
    setting: str
    lr: float
    accuracy: list[float]
    sent: int
    searched: int


def measure(data: str, seeds: int = SEEDS, searched: int = 5) -> list[Cell]:
    """Search one set, and run what was taken and the methods' own settings on fresh seeds."""
    table = {"name": data, "seeds": list(range(seeds)), **SETS[data]}
    whole = grid(build({**table, "method": METHODS}), TRIED)
    tries = search(whole.scenario, RATES, metric="accuracy", least_seeds=searched, most_seeds=searched)
    entries, told = [], {}
    for method in METHODS:
        for own in (True, False):
            settings, lr = _own(whole, tries, method) if own else whole.taken(tries)[method["label"]]
            label = f"{method['label']}, {'own' if own else 'taken'}"
            told[label] = (method["label"], own, ", ".join(f"{key} = {said}" for key, said in settings.items()), lr)
            entries.append({**method, **settings, "label": label, "recipe": {"lr": lr}})
    run = execute(build({**table, "method": entries}))
    cells = []
    for label, (name, own, setting, lr) in told.items():
        rows = [one.row for one in run.done if one.label == label]
        accuracy = [float(row["common"]["accuracy"]) for row in rows]
        cells.append(Cell(data, name, own, setting, lr, accuracy, int(rows[0]["bytes_sent"]), len(tries)))
    return cells


def _own(whole: Grid, tries: list[Try], method: dict[str, Any]) -> tuple[dict[str, Any], float]:
    """A method's own setting, with the best rate that it had in the search."""
    own = {key: method[key] for key in TRIED if key in method}
    label = next(label for label, of in whole.of.items() if of == (method["label"], own))
    return own, choose(tries)[label].lr


def table(cells: list[Cell]) -> str:
    """Each method's own setting and the taken one; what the search gains, in points with 95% intervals."""
    lines = ["| data | method | own setting | accuracy, MB | taken | accuracy, MB | gain |", "|" + "---|" * 7]
    for own in (cell for cell in cells if cell.own):
        taken = next(c for c in cells if (c.data, c.method, c.own) == (own.data, own.method, False))
        difference = paired(taken.accuracy, own.accuracy).difference
        gain = f"{100 * difference.mean:+.1f} ± {50 * difference.width:.1f}"
        lines.append(f"| {own.data} | {own.method} | {_said(own)} | {_said(taken)} | {gain} |")
    return "\n".join(lines)


def _said(cell: Cell) -> str:
    setting = ", ".join(filter(None, (cell.setting, f"lr = {cell.lr:g}")))
    return f"{setting} | {100 * np.mean(cell.accuracy):.1f}, {cell.sent / 1e6:.1f}"


def main(arguments: list[str]) -> None:
    """Measure the sets that are named (all, where none is), keep what was measured, and print the table."""
    kept = measured(arguments, Cell, KEPT, SETS, measure)
    fill(DOCS, {"tuned-periods": table(kept)}.get)
    print(table(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
