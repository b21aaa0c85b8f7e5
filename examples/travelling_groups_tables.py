"""What the runs of travelling groups say: gains over rivals with their tests, and every method's means, as tables."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from examples.travelling_groups_sets import BUDGETS, MEDICAL, METHODS, METRICS, RIVALS, Design
from fedsmall.evaluation.statistics import Comparison, holm, paired


@dataclass(frozen=True)
class Cell:
    """A method on a set with few or many communication rounds: what was chosen, and every metric, seed by seed."""

    data: str
    budget: str
    method: str
    lr: float
    comm_rounds: int
    at_the_edge: bool
    values: dict[str, list[float]]


def of(cells: Sequence[Cell], budget: str, data: str, label: str) -> Cell | None:
    """The cell of a method on a set, where it was run."""
    return next((cell for cell in cells if (cell.budget, cell.data, cell.method) == (budget, data, label)), None)


def compared(cells: Sequence[Cell], budget: str, one: str, other: str, data: str, metric: str) -> Comparison:
    """``one`` against ``other``, seed by seed; positive is better."""
    found = [of(cells, budget, data, label) for label in (one, other)]
    mine, theirs = (cell.values[metric] for cell in found if cell is not None)
    sign = 1 if metric in ("accuracy", "auc") else -1
    return paired([sign * value for value in mine], [sign * value for value in theirs])


def against_rivals(
    design: Design, cells: Sequence[Cell], budget: str
) -> dict[tuple[str, str, str], tuple[Comparison, float]]:
    """The primary method against every rival in AUC and NLL, by set, rival and metric; p by Holm over all of them.

    Only sets are in it on which all of these were run.
    """
    sets = [data for data in design.sets if all(of(cells, budget, data, label) for label in design.tested(data))]
    keys = [(data, rival, metric) for data in sets for rival in RIVALS for metric in ("auc", "nll")]
    found = [compared(cells, budget, design.primary(data), rival, data, metric) for data, rival, metric in keys]
    corrected = holm([one.p_value for one in found])
    return {key: (one, float(p)) for key, one, p in zip(keys, found, corrected, strict=True)}


def wins(design: Design, cells: Sequence[Cell], budget: str, among: Sequence[str] = MEDICAL) -> dict[str, list[str]]:
    """The metrics in which the primary method beats every rival on a set, by set ``among`` these."""
    table = against_rivals(design, cells, budget)
    won: dict[str, list[str]] = {}
    for data in dict.fromkeys(data for data, _, _ in table if data in among):
        for metric in ("auc", "nll"):
            against = [table[data, rival, metric] for rival in RIVALS]
            if all(one.difference.mean > 0 and p <= 0.05 for one, p in against):
                won.setdefault(data, []).append(metric)
    return won


def table(design: Design, cells: Sequence[Cell], budget: str, metric: str) -> str:
    """The mean of a metric by method and set; nothing where it was not run."""
    sets = [data for data in design.sets if any(cell.data == data for cell in cells)]
    lines = [f"| method | {' | '.join(sets)} |", "|" + "---|" * (1 + len(sets))]
    for label in METHODS:
        row = [of(cells, budget, data, label) for data in sets]
        written = [_written(metric, float(np.mean(cell.values[metric]))) if cell else "" for cell in row]
        lines.append(f"| {label} | {' | '.join(written)} |")
    return "\n".join(lines)


def gains(design: Design, cells: Sequence[Cell], budget: str) -> str:
    """What the primary method gains over each rival: AUC in points and NLL, with 95% intervals; bold where p <= .05."""
    found = against_rivals(design, cells, budget)
    lines = [f"| data | G | {' | '.join(RIVALS)} |", "|" + "---|" * (2 + len(RIVALS))]
    for data in dict.fromkeys(key[0] for key in found):
        row = [" / ".join(_gain(metric, *found[data, rival, metric]) for metric in ("auc", "nll")) for rival in RIVALS]
        lines.append(f"| {data} | {design.primary_groups(data)} | {' | '.join(row)} |")
    return "\n".join(lines)


def tables(design: Design, cells: Sequence[Cell]) -> dict[str, str]:
    """All tables by name, as pages have them."""
    means = {(budget, metric): table(design, cells, budget, metric) for budget in BUDGETS for metric in METRICS}
    named = {f"{design.word}-{budget}-{metric}": text for (budget, metric), text in means.items()}
    return named | {f"{design.word}-{budget}": gains(design, cells, budget) for budget in BUDGETS}


def _gain(metric: str, found: Comparison, p: float) -> str:
    scale, digits = (100, 1) if metric == "auc" else (1, 3)
    half = scale * found.difference.width / 2
    text = f"{scale * found.difference.mean:+.{digits}f} ± {half:.{digits}f}"
    return f"**{text}**" if p <= 0.05 else text


def _written(metric: str, value: float) -> str:
    return f"{100 * value:.1f}" if metric in ("accuracy", "auc", "ece") else f"{value:.3f}"
