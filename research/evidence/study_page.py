"""The study's part of docs/evidence.md: the map, the effect of each factor, and the counts, from study.csv alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.stats import false_discovery_control

from fedsmall.evaluation.statistics import interval
from fedsmall.research.evidence.study import FULL, IMAGES, PERIOD, Cell, CellOutcome, cells, read
from fedsmall.sim.report.figures import STYLE, WHITE, save

MARGIN = 0.01  # one point: a difference within it is none that anybody would act on
RATE = 0.05  # the share of false ones among all cells that are called decided
FEW = 5  # an interval over fewer cells says nothing
FACTORS = tuple(FULL)
AGAINST = {"same": "equal communication", "rare": "equal period"}
WORDS = {
    "samples": "samples per site",
    "classes": "classes per site",
    "steps": "local steps per communication round",
    "comm_rounds": "communication rounds",
}


class Judged(NamedTuple):
    """A cell's difference against one of the two FedAvgs: its mean, and what may be said of it."""

    cell: Cell
    mean: float
    word: str


def section(folder: Path) -> str:
    """The section of the page, or nothing where no cell was run."""
    path = folder / "study.csv"
    if not path.is_file():
        return ""
    study = list(read(path))
    draw(study, folder)
    lines = [_head(study)]
    for key, name in AGAINST.items():
        judged = judge(study, key)
        lines += [
            f"### Against FedAvg with {name}\n",
            _counts(judged),
            f"![FedDC minus FedAvg, {name}](evidence/study-{key}.svg)\n",
        ]
        lines += [_effects(judged)]
    return "\n".join(lines)


def judge(study: Sequence[tuple[Cell, CellOutcome]], key: str) -> list[Judged]:
    """Each cell's word: "pays", "costs", "no difference" within a point, else "undecided".

    "pays" and "costs" need an interval without zero and, over all cells together, false discoveries held to 5%
    (Benjamini & Hochberg 1995).
    """
    discovered = false_discovery_control([getattr(outcome, f"{key}_p") for _, outcome in study]) <= RATE
    judged = []
    for (cell, outcome), real in zip(study, discovered, strict=True):
        low, mean, high = (getattr(outcome, f"{key}_{end}") for end in ("low", "mean", "high"))
        if low >= -MARGIN and high <= MARGIN:
            word = "no difference"
        elif real and low > 0:
            word = "pays"
        elif real and high < 0:
            word = "costs"
        else:
            word = "undecided"
        judged.append(Judged(cell, mean, word))
    return judged


def draw(study: Sequence[tuple[Cell, CellOutcome]], folder: Path, kind: str = "svg") -> None:
    """Both maps, as files in ``folder``."""
    for key in AGAINST:
        with mpl.rc_context(STYLE | WHITE):
            save(map_of(judge(study, key)), folder / f"study-{key}.{kind}")


def map_of(judged: Sequence[Judged]) -> Figure:
    """Mean difference by samples per site (across) and optimizer (down), a panel for each model and skew."""
    panels = [(model, classes) for model in _levels("model") for classes in _levels("classes")]
    panels = [p for p in panels if any((j.cell.model, j.cell.classes) == p for j in judged)]
    rows = _levels("optimizer")
    columns = _levels("samples")
    count = max(1, (len(panels) + 1) // 2)
    figure = Figure(figsize=(7.4, 1.45 * count + 0.6), layout="constrained")
    grid = figure.subplots(count, 2, squeeze=False, sharey=True)
    image = None
    for axes in grid.flat:
        axes.set_visible(False)
    for axes, (model, classes) in zip(grid.flat, panels, strict=False):
        axes.set_visible(True)
        inside = [j for j in judged if (j.cell.model, j.cell.classes) == (model, classes)]
        image = _panel(axes, inside, rows, columns)
        axes.set_title(f"{model}, {'all' if classes == 10 else classes} classes a site", fontsize=8.5)
    figure.supxlabel("samples per site", fontsize=9)
    if image is not None:
        figure.colorbar(image, ax=grid, label="FedDC minus FedAvg, points of accuracy", shrink=0.6)
    return figure


def _panel(axes: Any, judged: Sequence[Judged], rows: Sequence[str], columns: Sequence[int]) -> Any:
    """One panel: the mean of the cells at each place, as colour and as a number; bold where all decided cells agree."""
    table = np.full((len(rows), len(columns)), np.nan)
    for i, row in enumerate(rows):
        for j, samples in enumerate(columns):
            group = [outcome for outcome in judged if (outcome.cell.optimizer, outcome.cell.samples) == (row, samples)]
            if group:
                table[i, j] = 100 * np.mean([outcome.mean for outcome in group])
                decided = {outcome.word for outcome in group} & {"pays", "costs"}
                text = f"{table[i, j]:+.1f}" + ("*" if len(decided) == 1 else "")
                ink = "white" if abs(table[i, j]) > 7 else "black"
                axes.text(
                    j, i, text, ha="center", va="center", fontsize=7, color=ink, weight="bold" if decided else None
                )
    image = axes.imshow(table, cmap="PuOr_r", vmin=-10, vmax=10, aspect="auto")
    axes.set_xticks(range(len(columns)), [str(value) for value in columns])
    axes.set_yticks(range(len(rows)), rows, fontsize=7.5)
    axes.grid(visible=False)
    return image


def _head(study: Sequence[tuple[Cell, CellOutcome]]) -> str:
    outcomes = [outcome for _, outcome in study]
    edge = sum(outcome.at_the_edge for outcome in outcomes) / (3 * len(outcomes))
    return (
        '<a id="study"></a>\n## When does letting models travel pay?\n\n'
        f"`fedsmall reproduce study` - {len(study)} of the {len(cells())} cells of the design, in a fixed random "
        f"order, on digits; FedDC (d=1, b={PERIOD}) against FedAvg b=1 (equal communication) and b={PERIOD} (equal "
        "period). Each method's learning rate was searched on training sites; "
        f"{100 * edge:.0f}% of the chosen rates lie at an edge of the grid, and a choice on resampled runs loses "
        f"{100 * np.median([o.regret for o in outcomes]):.1f} points in the median cell (the worst of its three "
        f"methods). {max(o.seeds for o in outcomes)} seeds a cell ({min(o.seeds for o in outcomes)} with "
        f"convolutions), {sum(o.seconds for o in outcomes) / 60:.0f} minutes in all. The data: "
        "[study.csv](evidence/study.csv).\n\n"
        f"A cell *pays* (or *costs*) where the paired interval leaves out zero and the test survives a false discovery "
        f"rate of 5% over all cells; *no difference* where the whole interval lies within {100 * MARGIN:g} point; "
        "else it is *undecided*. In the maps a star marks places where decided cells agree.\n"
    )


def _counts(judged: Sequence[Judged]) -> str:
    words = [outcome.word for outcome in judged]
    counts = [f"{words.count(word)} {word}" for word in ("pays", "costs", "no difference", "undecided")]
    return f"Of {len(judged)} cells: {', '.join(counts)}.\n"


def _effects(judged: Sequence[Judged]) -> str:
    """The mean difference at each level of each factor, over cells, with a 95% interval over cells."""
    lines = [
        "| factor | level | cells | mean difference [95%] | pays | costs | no difference | undecided |",
        "|---" * 8 + "|",
    ]
    for factor in FACTORS:
        for level in _levels(factor):
            group = [outcome for outcome in judged if getattr(outcome.cell, factor) == level]
            if not group:
                continue
            mean = interval([100 * outcome.mean for outcome in group])
            ends = f" [{mean.low:+.1f}, {mean.high:+.1f}]" if len(group) >= FEW else ""
            words = [outcome.word for outcome in group]
            counts = " | ".join(str(words.count(word)) for word in ("pays", "costs", "no difference", "undecided"))
            lines.append(
                f"| {WORDS.get(factor, factor)} | {level} | {len(group)} | {mean.mean:+.1f}{ends} | {counts} |"
            )
    return "\n".join([*lines, ""])


def _levels(factor: str) -> list[Any]:
    return list(dict.fromkeys([*FULL[factor], *IMAGES[factor]]))
