"""Sums that are noised once against noised steps, at the same epsilon for each patient, on the sets of patient_privacy.

    FEDSMALL_DATA=... python -m examples.noised_sums    # some ten minutes on one core; kept in docs/evidence
    python -m examples.noised_sums --show               # the table of what is kept, put into the page too

``Ridge`` with level = "patient" is one exchange and has no setting that is searched; its clip was set once. Noised
steps are those of ``FedAvg`` at every round with its learning rate searched, from ``examples.patient_privacy``; only
epsilon 0.5 is run here. Seeds are the same, so differences are paired.
"""

import sys

import numpy as np

from examples import patient_privacy
from examples.kept import measured
from examples.patient_privacy import RATES, SEARCH_SEEDS, SEEDS, SETS, Cell, label_of
from fedsmall.evaluation.statistics import CHANCE, holm, interval, paired
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.files import read_json
from fedsmall.sim.runs.scenario import Scenario, build
from fedsmall.sim.tuning.search import choose, search, with_rates

KEPT = DOCS / "evidence" / "noised-sums.json"
EPSILONS, CLIP = (0.5, 1.0, 3.0, 8.0), 4.0
SUMS, STEPS = "noised sums", "FedAvg, b = 1"


def scenario_of(data: str, method: str, epsilons: tuple[float, ...] = EPSILONS) -> Scenario:
    """One method on one set at these epsilons."""
    table = dict(SETS[data])
    lot, methods = table.pop("lot"), []
    for epsilon in epsilons:
        privacy = {"level": "patient", "clip": CLIP if method == SUMS else 1.0, "epsilon": epsilon}
        parts = {"name": "Ridge"} if method == SUMS else {**patient_privacy.METHODS[STEPS], "gate": False}
        methods.append({**parts, "label": label_of(method, epsilon), "privacy": privacy})
    return build({"name": data, "seeds": list(range(SEEDS)), "recipe": {"batch": lot}, "method": methods} | table)


def measure(data: str) -> list[Cell]:
    """Noised sums at every epsilon, and noised steps at those that patient_privacy has not."""
    steps = scenario_of(data, STEPS, EPSILONS[:1])
    choices = choose(search(steps, RATES, metric="accuracy", most_seeds=SEARCH_SEEDS))
    choice = choices[label_of(STEPS, EPSILONS[0])]
    runs = [execute(scenario_of(data, SUMS)), execute(with_rates(steps, {choice.label: choice.lr}))]
    cells = []
    for run, method, epsilons in zip(runs, (SUMS, STEPS), (EPSILONS, EPSILONS[:1]), strict=True):
        for epsilon in epsilons:
            rows = [done.row for done in run.done if done.label == label_of(method, epsilon)]
            accuracy, auc = ([float(row["common"][metric]) for row in rows] for metric in ("accuracy", "auc"))
            spent = max(row["privacy"]["epsilon"] for row in rows)
            lr, at_the_edge = (0.0, False) if method == SUMS else (choice.lr, choice.at_the_edge)
            cells.append(Cell(data, method, epsilon, lr, at_the_edge, accuracy, auc, spent))
    return cells


def table(cells: list[Cell]) -> str:
    """Accuracy / AUC in points, and differences of accuracy with 95% intervals; a star: told apart after Holm."""
    known = {(cell.data, cell.method, cell.epsilon): cell for cell in cells}
    sets = [data for data in SETS if (data, SUMS, EPSILONS[0]) in known]
    pairs = {
        (data, epsilon): [known[data, of, epsilon] for of in (SUMS, STEPS)] for data in sets for epsilon in EPSILONS
    }
    differences = {
        key: paired(np.array(sums.accuracy), np.array(steps.accuracy)) for key, (sums, steps) in pairs.items()
    }
    chances = dict(zip(differences, holm([of.p_value for of in differences.values()]).tolist(), strict=True))
    lines = [f"| data | | {' | '.join(f'epsilon {epsilon:g}' for epsilon in EPSILONS)} |", "|" + "---|" * 6]
    for data in sets:
        rows = {SUMS: [], "noised steps": [], "difference": []}
        for epsilon in EPSILONS:
            for row, cell in zip((SUMS, "noised steps"), pairs[data, epsilon], strict=True):
                rows[row].append(f"{100 * interval(cell.accuracy).mean:.1f} / {100 * interval(cell.auc).mean:.1f}")
            found = differences[data, epsilon]
            star = "*" if chances[data, epsilon] < CHANCE else ""
            rows["difference"].append(
                f"{100 * found.difference.mean:+.1f} ± {50 * (found.difference.high - found.difference.low):.1f}{star}"
            )
        lines += [f"| {data} | {name} | {' | '.join(values)} |" for name, values in rows.items()]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Measure the sets that are named (all, where none is), keep what was measured, and print the table."""
    kept = measured(arguments, Cell, KEPT, SETS, measure)
    steps = [Cell(**cell) for cell in read_json(patient_privacy.KEPT) if cell["method"] == STEPS]
    fill(DOCS, {"noised-sums": table([*kept, *steps])}.get)
    print(table([*kept, *steps]))


if __name__ == "__main__":
    main(sys.argv[1:])
