"""Accuracy against bytes: averaging and daisy-chaining with models in full, in half precision and in 8 bits.

    FEDSMALL_DATA=... python -m examples.fewer_bytes    # some minutes on one core; kept in docs/evidence
    python -m examples.fewer_bytes --show               # table and figure of what is kept, put into the page too

Every form starts from the same seeds as models in full, so differences are paired. Rates, rounds and batches were
set once. Bytes are counted twice: the arrays of all messages, by the engine, and the frames that real sites and their
server exchange (arrays, names and words, the plan among them), weighed as they go through on a few communication
rounds.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from flwr.app import Message

from examples.kept import measured
from fedsmall.clients.client_app import app
from fedsmall.clients.site_data import give_federation
from fedsmall.evaluation.statistics import paired
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import Scenario, build
from fedsmall.strategies.grid_trainer import GridTrainer
from fedsmall.strategies.records import array_records
from fedsmall.strategies.server.grid import pack
from fedsmall.strategies.server.run_loop import run_rounds

KEPT = DOCS / "evidence" / "fewer-bytes.json"
FIGURE = DOCS / "evidence" / "fewer-bytes.svg"
FORMS = ("full", "half", "int8")
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg, b = 1": {"name": "FedAvg", "aggregate_every": 1},
    "FedDC, d = 1, b = 10": {"name": "FedDC", "permute_every": 1, "aggregate_every": 10},
}
SEEDS = 20
SGD = {"lr": 0.1, "batch": 10}
DIGITS = {"task": "digits", "model_options": {"hidden": [64, 32]}, "sites": 20, "samples_per_site": 20, "rounds": 100}
SETS: dict[str, dict[str, Any]] = {
    "digits, 20 x 20": DIGITS | {"recipe": SGD},
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
    "digits, 20 x 20, Adam": DIGITS | {"recipe": {"optimizer": "adam", "lr": 0.01, "batch": 10}},
}


@dataclass(frozen=True)
class Measured:
    """What is measured: ``sets`` as scenarios have them, ``forms`` of models; frames of ``weighed`` rounds."""

    sets: dict[str, dict[str, Any]]
    forms: tuple[str, ...]
    weighed: int


BITS = Measured(SETS, FORMS, 10)


@dataclass(frozen=True)
class Cell:
    """A method on a set with models of one form: metrics seed by seed, and bytes of a run.

    ``counted`` are those of the arrays in all messages (the mean over seeds, where they differ), ``frames`` those of
    whole frames in the first rounds alone.
    """

    data: str
    method: str
    form: str
    accuracy: list[float]
    auc: list[float]
    counted: int
    frames: int


class Scales(InProcessGrid):
    """Sites in this process; weighs the frames in which their messages would go over a network."""

    def __init__(self, sites: int) -> None:
        super().__init__(app, sites)
        self.frames = 0

    def send_and_receive(self, messages: Iterable[Message], **more: Any) -> list[Message]:
        """As the grid, weighing what brings models; the handshake brings none."""
        orders = list(messages)
        replies = list(super().send_and_receive(orders, **more))
        both = [message.content for message in [*orders, *replies] if message.has_content()]
        self.frames += sum(pack(content)[1] for content in both if array_records(content))
        return replies


def scenario_of(data: str, seeds: int = SEEDS, of: Measured = BITS) -> Scenario:
    """Both methods in all forms on one set."""
    methods = [
        {**parts, "label": label_of(label, form), "wire": form} for label, parts in METHODS.items() for form in of.forms
    ]
    return build({"name": data, "seeds": list(range(seeds)), "method": methods} | of.sets[data])


def frames_of(plan: Plan, rounds: int = BITS.weighed) -> int:
    """The bytes of the frames of a plan's first ``rounds``."""
    short = plan.model_copy(update={"rounds": rounds})
    federation = build_federation(short)
    give_federation(short, federation)
    grid = Scales(len(federation.names))
    run_rounds(short, GridTrainer(short, grid), lambda site: initial_model(short, federation.task, site))
    return grid.frames


def measure(data: str, seeds: int = SEEDS, of: Measured = BITS) -> list[Cell]:
    """Run one set with all seeds, and weigh the frames of the first."""
    scenario = scenario_of(data, seeds, of)
    plans = {plan.method.label: plan for plan in scenario.plans() if plan.seed == 0}
    run = execute(scenario)
    cells = []
    for method in METHODS:
        for form in of.forms:
            label = label_of(method, form)
            rows = [one.row for one in run.done if one.label == label]
            accuracy, auc = ([float(row["common"][metric]) for row in rows] for metric in ("accuracy", "auc"))
            counted = round(np.mean([int(row["bytes_sent"]) for row in rows]))
            cells.append(Cell(data, method, form, accuracy, auc, counted, frames_of(plans[label], of.weighed)))
    return cells


def table(cells: list[Cell], of: Measured = BITS) -> str:
    """Accuracy in full; what each form changes of it, in points with its 95% interval; its bytes (frames)."""
    forms = of.forms[1:]
    lines = [f"| data | method | in full | {' | '.join(forms)} |", "|" + "---|" * (3 + len(forms))]
    for data in dict.fromkeys(cell.data for cell in cells):
        for method in METHODS:
            mine = {cell.form: cell for cell in cells if (cell.data, cell.method) == (data, method)}
            full = mine["full"]
            row = [f"{100 * np.mean(full.accuracy):.1f}, {full.counted / 1e6:.1f} MB"]
            lines.append(f"| {data} | {method} | {' | '.join(row + [_against(mine[form], full) for form in forms])} |")
    return "\n".join(lines)


def _against(cell: Cell, full: Cell) -> str:
    difference = paired(cell.accuracy, full.accuracy).difference
    half = 50 * difference.width
    bytes_ = f"{100 * cell.counted / full.counted:.0f}% ({100 * cell.frames / full.frames:.0f}%)"
    return f"{100 * difference.mean:+.1f} ± {half:.1f}, {bytes_}"


def draw(cells: list[Cell], path: Path) -> None:
    """Accuracy against the bytes of a run, a panel for each set."""
    sets = list(dict.fromkeys(cell.data for cell in cells))
    figure, panels = plt.subplots(1, len(sets), figsize=(3.2 * len(sets), 3.0), constrained_layout=True)
    for axes, data in zip(np.atleast_1d(panels), sets, strict=True):
        for method, colour, marker in zip(METHODS, ("#2f74c0", "#d9541e"), "o^", strict=True):
            mine = [cell for cell in cells if (cell.data, cell.method) == (data, method)]
            means = np.array([100 * np.mean(cell.accuracy) for cell in mine])
            half = [1.96 * 100 * np.std(cell.accuracy, ddof=1) / len(cell.accuracy) ** 0.5 for cell in mine]
            sizes = np.array([cell.counted / 1e6 for cell in mine])
            beside = 1.03 if marker == "^" else 1 / 1.03  # or one would hide the other
            axes.errorbar(sizes * beside, means, half, color=colour, marker=marker, ms=5, lw=1, capsize=2, label=method)
        axes.set(xscale="log", title=data, xlabel="MB in all messages of a run")
        axes.set_xticks(sizes, [f"{cell.form}\n{size:.3g}" for cell, size in zip(mine, sizes, strict=True)], fontsize=7)
        axes.minorticks_off()
        axes.title.set_fontsize(9)
    panels = np.atleast_1d(panels)
    panels[0].set_ylabel("accuracy, %")
    panels[0].legend(fontsize=7, frameon=False, loc="lower right")
    plt.rcParams["svg.hashsalt"] = "fewer-bytes"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def label_of(method: str, form: str) -> str:
    """The label of a method whose models go in a form."""
    return f"{method}, {form}"


def main(arguments: list[str]) -> None:
    """Measure the sets that are named (all, where none is), keep what was measured, and print the table."""
    kept = measured(arguments, Cell, KEPT, SETS, measure)
    fill(DOCS, {"fewer-bytes": table(kept)}.get)
    draw(kept, FIGURE)
    print(table(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
