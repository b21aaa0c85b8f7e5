"""Does matching hidden units mend the first average of MLPs that started apart?

    python -m examples.matched_averages           # some minutes on one core; kept in docs/evidence
    python -m examples.matched_averages --show    # the table of what is kept, put into the page too

Everything was set before a run was looked at: 10 sites of 50 digits or 30 patients, 100 rounds, an average every
twentieth, one learning rate.
"""

import sys
from typing import Any

from examples.matching import MatchedMean
from examples.own_method import accuracies
from fedsmall.aggregation.combiners import Combiner
from fedsmall.evaluation.statistics import interval
from fedsmall.planning.tasks import build_federation
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.files import read_json, write_json
from fedsmall.sim.runs.scenario import build
from fedsmall.training.cohort import Cohort

KEPT = DOCS / "evidence" / "matched-averages.json"
SEEDS, EVERY, ROUNDS = 10, 20, 100
SETS: dict[str, dict[str, Any]] = {
    "digits, 10 x 50": {"task": "digits", "samples_per_site": 50, "hidden": [64, 32], "steps": 5},
    "breast cancer, 10 x 30": {"task": "breast_cancer", "samples_per_site": 30, "hidden": [32, 16], "steps": 1},
}
STARTS = ("independent", "common")
METHODS: dict[str, tuple[dict[str, Any], Combiner | None]] = {
    f"{name}, {label}": ({"name": name, **schedule}, combiner)
    for name, schedule in {
        "FedAvg": {"aggregate_every": EVERY},
        "FedDC": {"permute_every": 1, "aggregate_every": EVERY},
    }.items()
    for label, combiner in (("mean", None), ("matched mean", MatchedMean()))
}
Kept = dict[str, dict[str, dict[str, dict[str, list[float]]]]]  # set, start, method, round, seeds


def measure(data: str, seeds: int = SEEDS) -> dict[str, dict[str, dict[str, list[float]]]]:
    """The global model's accuracy after every average, seed by seed, by start, method and round."""
    table = dict(SETS[data])
    hidden, steps = table.pop("hidden"), table.pop("steps")
    given = {"name": data, "model": "mlp", "model_options": {"hidden": hidden}, "sites": 10, "rounds": ROUNDS}
    given |= {
        "seeds": list(range(seeds)),
        "method": [{**parts, "label": label} for label, (parts, _) in METHODS.items()],
        **table,
    }
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for start in STARTS:
        scenario = build({**given, "initial_models": start, "recipe": {"lr": 0.1, "batch": 10, "local_steps": steps}})
        for index, (label, (_, combiner)) in enumerate(METHODS.items()):
            by_round = found.setdefault(start, {}).setdefault(label, {})
            for plan in (scenario.plan(index, seed) for seed in range(seeds)):
                federation = build_federation(plan)
                sites = Cohort(plan, federation.task, federation.names, federation.train)
                for t, accuracy in accuracies(plan, federation, sites, combiner):
                    by_round.setdefault(str(t), []).append(accuracy)
    return found


def table(kept: Kept) -> str:
    """Accuracy in points after the first, the second and the last average, with the half-width of its 95% interval."""
    rounds = [EVERY, 2 * EVERY, ROUNDS]
    lines = [f"| data | start | method | {' | '.join(f'round {t}' for t in rounds)} |", "|" + "---|" * 6]
    for data, starts in kept.items():
        for start, methods in starts.items():
            for label, by_round in methods.items():
                lines.append(
                    f"| {data} | {start} | {label} | {' | '.join(_points(by_round[str(t)]) for t in rounds)} |"
                )
    return "\n".join(lines)


def _points(values: list[float]) -> str:
    told = interval(values)
    return f"{100 * told.mean:.1f} ± {50 * (told.high - told.low):.1f}"


def main(arguments: list[str]) -> None:
    """Measure, keep what was measured, and print the table."""
    if arguments != ["--show"]:
        write_json(KEPT, {data: measure(data) for data in SETS})
    kept = read_json(KEPT)
    fill(DOCS, {"matched-averages": table(kept)}.get)
    print(table(kept))


if __name__ == "__main__":
    main(sys.argv[1:])
