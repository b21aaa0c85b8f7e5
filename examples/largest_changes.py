"""Accuracy against bytes: averaging and daisy-chaining where a tenth or a hundredth of a model's changes travels.

    FEDSMALL_DATA=... python -m examples.largest_changes    # a quarter of an hour on one core; kept in docs/evidence
    python -m examples.largest_changes --show               # table and figure of what is kept, put into the page too

As :mod:`examples.fewer_bytes`, with the same rates and seeds. Runs have 500 rounds, and once 100: what is left out of a
message comes later, so it matters how long there is for it.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from examples.fewer_bytes import DIGITS, METHODS, SGD, Cell, Measured, measure, table
from examples.fewer_bytes import SETS as AS_BEFORE
from examples.kept import measured
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill

KEPT = DOCS / "evidence" / "largest-changes.json"
FIGURE = DOCS / "evidence" / "largest-changes.svg"
SEEDS = 10
LONG = {"rounds": 500}
APART = {"partition": {"classes_per_site": 2}}
SETS: dict[str, dict[str, Any]] = {
    "digits, 100 rounds": DIGITS | {"recipe": SGD},
    "digits": DIGITS | {"recipe": SGD} | LONG,
    "digits, two classes a site": DIGITS | {"recipe": SGD} | LONG | APART,
    "breast cancer": AS_BEFORE["breast cancer, 20 x 10"] | LONG,
    "heart disease": AS_BEFORE["heart disease, 4 x 92 to 227"] | LONG,
    "digits, Adam, 100 rounds": AS_BEFORE["digits, 20 x 20, Adam"],
}
SHARES = Measured(SETS, ("full", "top10%", "top1%"), 50)


def draw(cells: list[Cell], path: Path) -> None:
    """Accuracy against the share of a run's bytes, a panel for each set, a line for each method."""
    sets = list(dict.fromkeys(cell.data for cell in cells))
    figure, panels = plt.subplots(2, (len(sets) + 1) // 2, figsize=(10, 5.4), constrained_layout=True, squeeze=False)
    for axes, data in zip(panels.flat, sets, strict=False):
        for method, colour, marker in zip(METHODS, ("#2f74c0", "#d9541e"), "o^", strict=True):
            mine = [cell for cell in cells if (cell.data, cell.method) == (data, method)]
            mine.sort(key=lambda cell: cell.counted)
            means = [100 * np.mean(cell.accuracy) for cell in mine]
            half = [1.96 * 100 * np.std(cell.accuracy, ddof=1) / len(cell.accuracy) ** 0.5 for cell in mine]
            whole = max(cell.counted for cell in mine)
            shares = [100 * cell.counted / whole for cell in mine]
            look: dict[str, Any] = {"color": colour, "marker": marker, "ms": 4, "lw": 0, "elinewidth": 1, "capsize": 2}
            axes.errorbar(shares, means, half, **look, label=method)
            axes.plot(shares, means, color=colour, lw=1)
            for cell, share, mean in zip(mine, shares, means, strict=True):
                below = -10 if marker == "^" else 5
                axes.annotate(
                    cell.form, (share, mean), (0, below), textcoords="offset points", fontsize=6, color=colour
                )
        axes.set(xscale="log", title=data, xlabel="% of the bytes of a run in full")
        axes.set_xticks(ticks := [1, 3, 10, 30, 100], [f"{tick}" for tick in ticks])
        axes.minorticks_off()
        axes.margins(x=0.12, y=0.15)
        axes.title.set_fontsize(9)
    panels[0, 0].set_ylabel("accuracy, %")
    panels[0, 0].legend(fontsize=7, frameon=False, loc="lower right")
    plt.rcParams["svg.hashsalt"] = "largest-changes"
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main(arguments: list[str]) -> None:
    """Measure the sets that are named (all, where none is), keep what was measured, and print the table."""
    kept = measured(arguments, Cell, KEPT, SETS, partial(measure, seeds=SEEDS, of=SHARES))
    fill(DOCS, {"largest-changes": table(kept, SHARES)}.get)
    draw(kept, FIGURE)
    print(table(kept, SHARES))


if __name__ == "__main__":
    main(sys.argv[1:])
