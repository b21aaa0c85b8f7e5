"""Sums that are noised once against noised steps, at the same epsilon for each patient, on the sets of patient_privacy.

    FEDSMALL_DATA=... python -m examples.noised_sums            # a few minutes on one core; kept in docs/evidence
    FEDSMALL_DATA=... python -m examples.noised_sums --steps    # noised steps at epsilon 0.5: a quarter of an hour
    python -m examples.noised_sums --show                       # the table of what is kept, put into the page too

``Ridge`` with level = "patient" is one exchange and has no setting that is searched; its clip was set once. Noised
steps are those of ``FedAvg`` at every round with its learning rate searched, from ``examples.patient_privacy``, which
has no epsilon of 0.5. Seeds are the same, so differences are paired.
"""

import sys
from dataclasses import replace
from typing import Any

from examples import patient_privacy
from examples.kept import measured
from examples.patient_privacy import RATES, SEARCH_SEEDS, SEEDS, SETS, Cell, label_of
from fedsmall.evaluation.statistics import CHANCE, Comparison, holm, interval, paired
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.files import read_json
from fedsmall.sim.runs.folder import Run
from fedsmall.sim.runs.scenario import Scenario, build
from fedsmall.sim.tuning.search import choose, search, with_rates

KEPT, KEPT_STEPS = (DOCS / "evidence" / f"noised-{of}.json" for of in ("sums", "steps"))
EPSILONS, CLIP = (0.5, 1.0, 3.0, 8.0), 4.0
SUMS, ONCE, STEPS = "noised sums", "noised once, in a secure sum", "FedAvg, b = 1"


def scenario_of(data: str, method: str, epsilons: tuple[float, ...] = EPSILONS) -> Scenario:
    """One method on one set at these epsilons."""
    table = dict(SETS[data])
    lot, methods = table.pop("lot"), []
    for epsilon in epsilons:
        privacy = {"level": "patient", "clip": 1.0 if method == STEPS else CLIP, "epsilon": epsilon}
        privacy |= {"secure": True} if method == ONCE else {}
        parts = {**patient_privacy.METHODS[STEPS], "gate": False} if method == STEPS else {"name": "Ridge"}
        methods.append({**parts, "label": label_of(method, epsilon), "privacy": privacy})
    return build({"name": data, "seeds": list(range(SEEDS)), "recipe": {"batch": lot}, "method": methods} | table)


def measure_sums(data: str) -> list[Cell]:
    """Noised sums at every epsilon, with noise of each site and with noise once."""
    runs = [(method, execute(scenario_of(data, method))) for method in (SUMS, ONCE)]
    return [_cell(data, method, epsilon, run) for method, run in runs for epsilon in EPSILONS]


def measure_steps(data: str) -> list[Cell]:
    """Noised steps at the epsilon that patient_privacy has not."""
    steps = scenario_of(data, STEPS, EPSILONS[:1])
    choice = choose(search(steps, RATES, metric="accuracy", most_seeds=SEARCH_SEEDS))[label_of(STEPS, EPSILONS[0])]
    run = execute(with_rates(steps, {choice.label: choice.lr}))
    return [replace(_cell(data, STEPS, EPSILONS[0], run), lr=choice.lr, at_the_edge=choice.at_the_edge)]


def _cell(data: str, method: str, epsilon: float, run: Run) -> Cell:
    rows = [done.row for done in run.done if done.label == label_of(method, epsilon)]
    accuracy, auc = ([float(row["common"][metric]) for row in rows] for metric in ("accuracy", "auc"))
    return Cell(data, method, epsilon, 0.0, False, accuracy, auc, max(row["privacy"]["epsilon"] for row in rows))


def table(cells: list[Cell]) -> str:
    """Accuracy / AUC in points, and differences of accuracy with 95% intervals; a star: told apart after Holm."""
    known = {(cell.data, cell.method, cell.epsilon): cell for cell in cells}
    sets = [data for data in SETS if (data, SUMS, EPSILONS[0]) in known]
    keys = [(data, epsilon) for data in sets for epsilon in EPSILONS if (data, STEPS, epsilon) in known]
    found = {key: paired(*(known[key[0], of, key[1]].accuracy for of in (SUMS, STEPS))) for key in keys}
    apart = dict(zip(found, holm([of.p_value for of in found.values()]).tolist(), strict=True))
    lines = [f"| data | | {' | '.join(f'epsilon {epsilon:g}' for epsilon in EPSILONS)} |", "|" + "---|" * 6]
    for data in sets:
        for name, method in ((SUMS, SUMS), (ONCE, ONCE), ("noised steps", STEPS)):
            row = [_written(known.get((data, method, epsilon))) for epsilon in EPSILONS]
            lines.append(f"| {data} | {name} | {' | '.join(row)} |")
        gaps = [(found.get((data, epsilon)), apart.get((data, epsilon), 1.0)) for epsilon in EPSILONS]
        shown = ["" if gap is None else _gap(gap, p) for gap, p in gaps]
        lines.append(f"| {data} | difference | {' | '.join(shown)} |")
    return "\n".join(lines)


def _written(cell: Cell | None) -> str:
    if cell is None:
        return "not run"
    return f"{100 * interval(cell.accuracy).mean:.1f} / {100 * interval(cell.auc).mean:.1f}"


def _gap(found: Comparison, p: float) -> str:
    half = 50 * (found.difference.high - found.difference.low)
    return f"{100 * found.difference.mean:+.1f} ± {half:.1f}{'*' if p < CHANCE else ''}"


def main(arguments: list[str]) -> None:
    """Measure the sets that are named (all, where none is), keep what was measured, and print the table."""
    asked = [word for word in arguments if word != "--steps"]
    of_steps = "--steps" in arguments
    sums = measured(["--show"] if of_steps else asked, Cell, KEPT, SETS, measure_sums)
    steps = measured(asked if of_steps else ["--show"], Cell, KEPT_STEPS, SETS, measure_steps)
    before = [cell for cell in map(_read, read_json(patient_privacy.KEPT)) if cell.method == STEPS]
    shown = table([*sums, *steps, *before])
    fill(DOCS, {"noised-sums": shown}.get)
    print(shown)


def _read(words: dict[str, Any]) -> Cell:
    return Cell(**words)


if __name__ == "__main__":
    main(sys.argv[1:])
