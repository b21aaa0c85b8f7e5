"""Accuracy against bytes: averages that are left out while models are near the last global one, and plain periods.

    FEDSMALL_DATA=... python -m examples.dynamic_averages    # some minutes on one core; kept in docs/evidence
    python -m examples.dynamic_averages --show               # table and figure of what is kept, put into the page too

Bounds are looked at after every round, and after every tenth; beside them stand averages in periods, which is what they
must beat: fewer bytes can be had by averaging less often. All start from the same seeds, so differences are paired.
Rates, rounds, batches and bounds were set once.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from examples.kept import measured
from fedsmall.evaluation.statistics import paired
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import Scenario, build

KEPT = DOCS / "evidence" / "dynamic-averages.json"
FIGURE = DOCS / "evidence" / "dynamic-averages.svg"
SEEDS = 20
PERIODS = (1, 2, 3, 5, 7, 10, 14, 20, 30, 50, 100)
BOUNDS = {1: (0.1, 0.3, 1.0, 3.0), 10: (0.3, 1.0, 3.0, 10.0)}
NAMED, BESIDE = (1, 10, 50), {1: (4, -10), 10: (-9, 5)}  # in the figure: periods, and where a bound is written
SGD = {"lr": 0.1, "batch": 10}
DIGITS = {"task": "digits", "model_options": {"hidden": [64, 32]}, "sites": 20, "samples_per_site": 20, "rounds": 100}
SETS: dict[str, dict[str, Any]] = {
    "digits, 20 x 20": DIGITS | {"recipe": SGD},
    "digits, 20 x 20, two classes a site": DIGITS | {"recipe": SGD, "partition": {"classes_per_site": 2}},
    "breast cancer, 20 x 10": {
        "task": "breast_cancer",
        "model_options": {"hidden": [32, 16]},
        "sites": 20,
        "samples_per_site": 10,
        "rounds": 100,
        "recipe": SGD,
    },
    "heart disease, 4 x 92 to 227": {
        "task": "heart_disease",
        "model_options": {"hidden": [16]},
        "rounds": 100,
        "recipe": SGD,
    },
}


@dataclass(frozen=True)
class Cell:
    """Averages looked at ``every`` so many rounds under a ``bound`` (none: all are made): accuracy and bytes by seed.

    ``left_out``, ``partial`` and ``whole`` are the shares of a run's averages, over the seeds.
    """

    data: str
    every: int
    bound: float | None
    accuracy: list[float]
    bytes: list[int]
    left_out: float = 0.0
    partial: float = 0.0
    whole: float = 1.0

    @property
    def megabytes(self) -> float:
        """The mean over the seeds."""
        return float(np.mean(self.bytes)) / 1e6


def settings() -> list[tuple[int, float | None]]:
    """Periods and bounds that are measured."""
    return [*((every, None) for every in PERIODS), *((every, bound) for every in BOUNDS for bound in BOUNDS[every])]


def scenario_of(data: str, seeds: int = SEEDS) -> Scenario:
    """All settings on one set."""
    methods = [
        {"name": "FedAvg", "label": f"{every}, {bound}", "aggregate_every": every}
        | ({} if bound is None else {"divergence": bound})
        for every, bound in settings()
    ]
    return build({"name": data, "seeds": list(range(seeds)), "method": methods} | SETS[data])


def measure(data: str, seeds: int = SEEDS) -> list[Cell]:
    """Run one set with all seeds."""
    run = execute(scenario_of(data, seeds))
    cells = []
    for every, bound in settings():
        rows = [one.row for one in run.done if one.label == f"{every}, {bound}"]
        accuracy, sent = [float(row["common"]["accuracy"]) for row in rows], [int(row["bytes_sent"]) for row in rows]
        cells.append(Cell(data, every, bound, accuracy, sent, **_kinds(rows)))
    return cells


def _kinds(rows: list[dict[str, Any]]) -> dict[str, float]:
    told = [row["averages"] for row in rows if "averages" in row]
    averages = sum(len(each["models"]) for each in told)
    return {kind: sum(each[kind] for each in told) / averages for kind in ("left_out", "partial", "whole") if averages}


def table(cells: list[Cell]) -> str:
    """What each bound changes of an average after every round, and of averages in a period of about as many bytes.

    Differences are in points with their 95% intervals.
    """
    lines = [
        "| data | looked at every | bound | averages left out, of some, of all | MB | accuracy | against b = 1 "
        "| against the period of nearest bytes |",
        "|" + "---|" * 8,
    ]
    for cell in cells:
        if cell.bound is None and cell.every not in BOUNDS:
            continue
        every_round, like = cell_of(cells, cell.data, 1, None), period_like(cells, cell)
        kinds = "-" if cell.bound is None else ", ".join(f"{100 * part:.0f}%" for part in _parts(cell))
        bound, other = ("-", "-") if cell.bound is None else (f"{cell.bound:g}", f"{_against(cell, like)}")
        other += "" if cell.bound is None else f" (b = {like.every}, {like.megabytes:.2g} MB)"
        row = [cell.data, cell.every, bound, kinds, f"{cell.megabytes:.3g}", f"{100 * np.mean(cell.accuracy):.1f}"]
        lines.append(f"| {' | '.join(map(str, [*row, _against(cell, every_round), other]))} |")
    return "\n".join(lines)


def cell_of(cells: list[Cell], data: str, every: int, bound: float | None) -> Cell:
    """The cell of a setting on a set."""
    return next(cell for cell in cells if (cell.data, cell.every, cell.bound) == (data, every, bound))


def period_like(cells: list[Cell], cell: Cell) -> Cell:
    """The averages in a period whose bytes are nearest to those of ``cell``, as a ratio."""
    periods = [other for other in cells if other.data == cell.data and other.bound is None]
    return min(periods, key=lambda other: abs(np.log(other.megabytes / cell.megabytes)))


def _parts(cell: Cell) -> tuple[float, float, float]:
    return cell.left_out, cell.partial, cell.whole


def _against(cell: Cell, other: Cell) -> str:
    if cell is other:
        return "-"
    difference = paired(cell.accuracy, other.accuracy).difference
    return f"{100 * difference.mean:+.1f} ± {50 * difference.width:.1f}"


def draw(cells: list[Cell], path: Path) -> None:
    """Accuracy against the bytes of a run, a panel for each set."""
    sets = list(dict.fromkeys(cell.data for cell in cells))
    figure, panels = plt.subplots(1, len(sets), figsize=(3.4 * len(sets), 3.2), constrained_layout=True)
    lines = {
        "averages in periods": ([(every, None) for every in PERIODS], "#6b6b6b", "s"),
        "dynamic, looked at every round": ([(1, bound) for bound in BOUNDS[1]], "#2f74c0", "o"),
        "dynamic, every 10 rounds": ([(10, bound) for bound in BOUNDS[10]], "#d9541e", "^"),
    }
    for axes, data in zip(np.atleast_1d(panels), sets, strict=True):
        for label, (wanted, colour, marker) in lines.items():
            mine = [cell_of(cells, data, every, bound) for every, bound in wanted]
            means = [100 * np.mean(cell.accuracy) for cell in mine]
            half = [1.96 * 100 * np.std(cell.accuracy, ddof=1) / len(cell.accuracy) ** 0.5 for cell in mine]
            sizes = [cell.megabytes for cell in mine]
            axes.errorbar(sizes, means, half, color=colour, marker=marker, ms=5, lw=1, capsize=2, label=label)
            for cell, x, y in zip(mine, sizes, means, strict=True):
                if cell.bound is None and cell.every not in NAMED:
                    continue
                said, off = (
                    (f"b = {cell.every}", (4, 5)) if cell.bound is None else (f"{cell.bound:g}", BESIDE[cell.every])
                )
                axes.annotate(said, (x, y), off, textcoords="offset points", fontsize=7, color=colour)
        axes.set(xscale="log", xlabel="MB in all messages of a run")
        axes.set_title(data, fontsize=9)
    first = np.atleast_1d(panels)[0]
    first.set_ylabel("accuracy, %")
    first.legend(fontsize=7, frameon=False, loc="lower right")
    plt.rcParams["svg.hashsalt"] = "dynamic-averages"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(arguments: list[str]) -> None:
    """Measure the sets that are named (all, where none is), keep what was measured, and print the table."""
    kept = measured(arguments, Cell, KEPT, SETS, measure)
    fill(DOCS, {"dynamic-averages": table(kept)}.get)
    draw(kept, FIGURE)
    print(table(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
