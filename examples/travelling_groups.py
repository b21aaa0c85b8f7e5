"""Groups of models that travel and never merge, beside averaging with its free fixes, and beside one central model.

    FEDSMALL_DATA=... python -m examples.travelling_groups            # about an hour on one core; kept in docs/evidence
    python -m examples.travelling_groups --show                       # the tables of what is kept

What is run, chosen and tested was written down before any of it was run: docs/evidence/travelling-groups-protocol.md.
"""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from scipy.special import log_softmax

from fedsmall.errors import ReplyError
from fedsmall.evaluation.ensembles import answer
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.statistics import Comparison, holm, paired
from fedsmall.federation import Federation, Task
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.tasks import build_federation
from fedsmall.training.stack import tensors_of
from fedsmall.training.trees import cohort_for
from fedsmall.travellers import Moment
from fedsmall.wire import Arrays, stack_of_one
from sim.engines.cohort import run_cohort
from sim.evidence.run import DOCS
from sim.evidence.search import inner
from sim.evidence.tables import fill
from sim.runs.files import read_json, write_json
from sim.runs.scenario import build

KEPT = DOCS / "evidence" / "travelling-groups.json"
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
CONTACTS = (30, 100, 300)  # many: the best of the three; few: the first
BUDGETS = ("few", "many")
SEARCH_SEEDS, FOLDS, SEEDS = (1000, 1001), 2, 20
MEMBERS = 10
VISIT = 5  # local steps at each visit of the one model that travels
GROUPED = ("TravellingGroups", "TravellingEnsemble", "ParallelFedAvg")  # every group starts with a model of its own
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "FedAvg"},
    "FedAvg, moving average": {"name": "FedAvg", "ema": 0.95},
    "FedAvg, 10 snapshots": {"name": "FedAvg", "snapshots": MEMBERS},
    "FedAvg, 5 steps": {"name": "FedAvg", "recipe": {"local_steps": 5}},
    "FedDC, b = 10": {"name": "FedDC"},
    "TravellingModel": {"name": "TravellingModel", "recipe": {"local_steps": VISIT}},
    "FedTM": {"name": "FedTM", "recipe": {"local_steps": VISIT}},
    "ParallelFedAvg, 5": {"name": "ParallelFedAvg", "groups": 5},
    "TravellingGroups, 2": {"name": "TravellingGroups", "groups": 2},
    "TravellingGroups, 5": {"name": "TravellingGroups", "groups": 5},
    "TravellingGroups, 10": {"name": "TravellingGroups", "groups": 10},
    "TravellingEnsemble": {"name": "TravellingEnsemble"},
    "Central": {"name": "Central"},
    "Central ensemble": {"name": "TravellingEnsemble", "permute_every": None},  # over copies of all data
    "Standalone ensemble": {"name": "TravellingEnsemble", "permute_every": None},
}
WAY = {"permute_every": 1, "models": 1, "route": "cyclic"}
BASE = "FedAvg"
RIVALS = ("FedAvg", "FedAvg, moving average", "FedAvg, 10 snapshots", "Central")
METRICS = ("accuracy", "auc", "nll", "brier", "ece")
MLP = {"model": "mlp", "model_options": {"hidden": [32]}}
SETS: dict[str, dict[str, Any]] = {
    "breast cancer": MLP | {"task": "breast_cancer", "sites": 20, "samples_per_site": 16},
    "heart disease": MLP | {"task": "heart_disease"},
    "cardiotocography": MLP
    | {"task": {"csv": "fetal_health.csv", "label": "fetal_health"}, "sites": 50, "samples_per_site": 20},
    "dermatology": MLP
    | {"task": {"csv": "dermatology.data", "label": "Classification"}, "sites": 20, "samples_per_site": 12},
    "PneumoniaMNIST": MLP | {"task": {"medmnist": "pneumoniamnist"}, "sites": 50, "samples_per_site": 16},
    "digits": MLP | {"task": "digits", "sites": 50, "samples_per_site": 16},
    "digits, two classes a site": MLP
    | {"task": "digits", "sites": 50, "samples_per_site": 16, "partition": {"classes_per_site": 2}},
}
MEDICAL = ("breast cancer", "heart disease", "cardiotocography", "dermatology", "PneumoniaMNIST")
PRIMARY = {"heart disease": 2, "breast cancer": 5, "dermatology": 5}  # groups: the listed number nearest to a fifth
OTHERWISE = 10


@dataclass(frozen=True)
class Cell:
    """A method on a set with few or many contacts: what was chosen, and every metric, seed by seed."""

    data: str
    budget: str
    method: str
    lr: float
    contacts: int
    at_the_edge: bool
    values: dict[str, list[float]]


def plan_of(data: str, label: str, lr: float, contacts: int, seed: int, sites: int) -> Plan:
    """One run over ``sites``. One model that travels visits as many as equal local work allows, at less traffic."""
    parts = {key: value for key, value in METHODS[label].items() if key != "recipe"}
    recipe = {"lr": lr, "batch": 8, "local_steps": 1} | METHODS[label].get("recipe", {})
    own = {"initial_models": "independent"} if parts["name"] in GROUPED else {}
    rounds = max(1, contacts * sites // VISIT) if label == "TravellingModel" else contacts
    if label == "FedTM":  # a fifth of the steps at 40% of the sites, the others on the way
        warm, visits = max(1, contacts // 10), max(1, 4 * contacts * sites // (5 * VISIT))
        rounds = warm + visits
        parts["phases"] = [{"rounds": warm, "sites": 0.4, "aggregate_every": 1}, WAY]
    run = {"name": data, "seeds": [seed], "rounds": rounds, "recipe": recipe, "method": [parts | {"label": label}]}
    return build(SETS[data] | own | run).plan(0, seed)


def over(label: str, federation: Federation) -> Federation:
    """What a method is run on: for central models all samples at one place, or, for ten of them, at ten."""
    if not label.startswith("Central"):
        return federation
    copies = 1 if label == "Central" else MEMBERS
    names = tuple(f"central-{number}" for number in range(copies))
    return replace(federation, names=names, train=federation.pooled().train * copies, held_out=())


def answers(plan: Plan, federation: Federation) -> np.ndarray:
    """The logarithms of the probabilities, (test samples, classes), that what comes out of a run gives."""
    task, own, last = federation.task, plan.initial_models == "independent", dict[str, Arrays]()
    trainer: Any = cohort_for(plan, task, federation.names, federation.train)

    def keep(moment: Moment) -> None:
        central = plan.method.family == "central"
        last["model"] = moment.models() if central else stacked_members(moment.common, plan.method.is_ensemble)

    run_cohort(plan, trainer, lambda site: initial_model(plan, task, site if own else None), keep)
    outputs = trainer.predict(trainer.stack_of(tensors_of(last["model"])), federation.test.x)
    return np.asarray(log_softmax(answer(outputs, task.loss), axis=-1))


def stacked_members(model: Arrays | None, is_ensemble: bool) -> Arrays:
    """What comes out of a run as a stack of its members."""
    assert model is not None
    return model if is_ensemble else stack_of_one(model)


def judged(logs: np.ndarray, y: np.ndarray, classes: int) -> dict[str, float]:
    """Accuracy, AUC, NLL, Brier score and expected calibration error (ten bins of equal width) of log-probabilities."""
    task = Task("", (), classes, metrics=("accuracy", "auc", "loss"))
    shares, found = np.exp(logs), evaluate(logs, y, task)
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == y
    bins = np.minimum((sure * 10).astype(int), 9)
    gaps = np.bincount(bins, sure - right, 10)
    brier = float(((shares - np.eye(classes)[y]) ** 2).sum(axis=1).mean())
    ece = float(np.abs(gaps).sum() / len(y))
    return {"accuracy": found["accuracy"], "auc": found["auc"], "nll": found["loss"], "brier": brier, "ece": ece}


def scored(plan: Plan, federation: Federation) -> dict[str, float]:
    """The metrics of one run, and the accuracy at the worst of natural hospitals.

    A run that diverges counts as one that finds all classes equally likely.
    """
    y, classes = federation.test.y, federation.task.classes
    logs = np.full((len(y), classes), -np.log(classes))
    with suppress(ReplyError):
        found = answers(plan, over(plan.method.label, federation))
        logs = found if np.isfinite(found).all() else logs
    sizes = [len(held) for held in federation.held_out if held is not None]
    edges = np.cumsum(sizes)[:-1]
    right = np.split(logs.argmax(axis=1) == y, edges) if sizes else []
    return judged(logs, y, classes) | ({"worst": float(min(part.mean() for part in right))} if right else {})


def grid(data: str, label: str) -> dict[tuple[float, int], float]:
    """The mean NLL on sites left out, by rate and contacts: two folds by two seeds, no test sample looked at."""
    parts = []
    for seed in SEARCH_SEEDS:
        federation = build_federation(plan_of(data, BASE, 0.1, 1, seed, 1))
        parts += [(seed, inner(federation, fold, FOLDS, rng_for(seed, "inner folds"))) for fold in range(FOLDS)]
    means = {}
    for lr in RATES:
        for contacts in CONTACTS:
            plans = [(plan_of(data, label, lr, contacts, seed, len(part.names)), part) for seed, part in parts]
            means[lr, contacts] = float(np.mean([scored(plan, part)["nll"] for plan, part in plans]))
    return means


def measure(data: str, label: str) -> list[Cell]:
    """One method on one set: its rate and its contacts chosen on training sites, then all seeds."""
    means, cells = grid(data, label), []
    for word, allowed in zip(BUDGETS, (CONTACTS[:1], CONTACTS), strict=True):
        lr, contacts = min((key for key in means if key[1] in allowed), key=means.__getitem__)
        if cells and contacts == cells[0].contacts and lr == cells[0].lr:
            cells.append(replace(cells[0], budget=word))
            continue
        runs = []
        for seed in range(SEEDS):
            federation = build_federation(plan_of(data, BASE, lr, contacts, seed, 1))
            runs.append(scored(plan_of(data, label, lr, contacts, seed, len(federation.names)), federation))
        values = {metric: [run[metric] for run in runs] for metric in runs[0]}
        cells.append(Cell(data, word, label, lr, contacts, lr in (RATES[0], RATES[-1]), values))
    return cells


def methods_of(data: str) -> list[str]:
    """The methods that a set has enough sites for: half of them are left out while rates are chosen."""
    sites = SETS[data].get("sites", 4)
    return [label for label, parts in METHODS.items() if parts.get("groups", 1) <= sites // 2]


def primary(data: str) -> str:
    """The method whose gains are tested."""
    return f"TravellingGroups, {PRIMARY.get(data, OTHERWISE)}"


def compared(cells: Sequence[Cell], budget: str, one: str, other: str, data: str, metric: str) -> Comparison:
    """``one`` against ``other``, seed by seed; positive is better."""
    mine, theirs = (of(cells, budget, data, label).values[metric] for label in (one, other))
    sign = 1 if metric in ("accuracy", "auc") else -1
    return paired([sign * value for value in mine], [sign * value for value in theirs])


def of(cells: Sequence[Cell], budget: str, data: str, label: str) -> Cell:
    """The cell of a method on a set."""
    return next(cell for cell in cells if (cell.budget, cell.data, cell.method) == (budget, data, label))


def against_rivals(cells: Sequence[Cell], budget: str) -> dict[tuple[str, str, str], tuple[Comparison, float]]:
    """The primary method against every rival in AUC and NLL, by set, rival and metric; p by Holm over all of them."""
    sets = [data for data in SETS if any(cell.data == data for cell in cells)]
    keys = [(data, rival, metric) for data in sets for rival in RIVALS for metric in ("auc", "nll")]
    found = [compared(cells, budget, primary(data), rival, data, metric) for data, rival, metric in keys]
    corrected = holm([one.p_value for one in found])
    return {key: (one, float(p)) for key, one, p in zip(keys, found, corrected, strict=True)}


def wins(cells: Sequence[Cell], budget: str) -> dict[str, list[str]]:
    """The metrics in which the primary method beats every rival on a medical set, by set."""
    table = against_rivals(cells, budget)
    won: dict[str, list[str]] = {}
    for data in [data for data in MEDICAL if any(cell.data == data for cell in cells)]:
        for metric in ("auc", "nll"):
            against = [table[data, rival, metric] for rival in RIVALS]
            if all(one.difference.mean > 0 and p <= 0.05 for one, p in against):
                won.setdefault(data, []).append(metric)
    return won


def table(cells: Sequence[Cell], budget: str, metric: str) -> str:
    """The mean of a metric by method and set."""
    sets = [data for data in SETS if any(cell.data == data for cell in cells)]
    lines = [f"| method | {' | '.join(sets)} |", "|" + "---|" * (1 + len(sets))]
    for label in METHODS:
        row = []
        for data in sets:
            here = [cell for cell in cells if (cell.budget, cell.data, cell.method) == (budget, data, label)]
            row.append(_written(metric, float(np.mean(here[0].values[metric]))) if here else "")
        lines.append(f"| {label} | {' | '.join(row)} |")
    return "\n".join(lines)


def gains(cells: Sequence[Cell], budget: str) -> str:
    """What the primary method gains over each rival: AUC in points and NLL, with 95% intervals; bold where p <= .05."""
    found = against_rivals(cells, budget)
    lines = [f"| data | G | {' | '.join(RIVALS)} |", "|" + "---|" * (2 + len(RIVALS))]
    for data in dict.fromkeys(key[0] for key in found):
        row = [" / ".join(_gain(metric, *found[data, rival, metric]) for metric in ("auc", "nll")) for rival in RIVALS]
        lines.append(f"| {data} | {PRIMARY.get(data, OTHERWISE)} | {' | '.join(row)} |")
    return "\n".join(lines)


def _gain(metric: str, found: Comparison, p: float) -> str:
    scale, digits = (100, 1) if metric == "auc" else (1, 3)
    half = scale * found.difference.width / 2
    text = f"{scale * found.difference.mean:+.{digits}f} ± {half:.{digits}f}"
    return f"**{text}**" if p <= 0.05 else text


def _written(metric: str, value: float) -> str:
    return f"{100 * value:.1f}" if metric in ("accuracy", "auc", "ece") else f"{value:.3f}"


def main(arguments: list[str]) -> None:
    """Measure what is not kept yet of the sets that are named (all, where none is), and print the tables."""
    kept = [Cell(**cell) for cell in read_json(KEPT)] if KEPT.is_file() else []
    if arguments != ["--show"]:
        for data in [name for name in SETS if not arguments or name in arguments]:
            for label in methods_of(data):
                if not any((cell.data, cell.method) == (data, label) for cell in kept):
                    kept += measure(data, label)
                    write_json(KEPT, [asdict(cell) for cell in kept])
                    print(f"{data}: {label}", flush=True)
    shown = tables(kept)
    fill(DOCS, shown.get)
    for name, text in shown.items():
        print(f"\n{name}\n\n{text}")
    print("\nwins:", {budget: wins(kept, budget) for budget in BUDGETS})


def tables(cells: Sequence[Cell]) -> dict[str, str]:
    """All tables by name, as pages have them."""
    means = {(budget, metric): table(cells, budget, metric) for budget in BUDGETS for metric in METRICS}
    named = {f"travelling-groups-{budget}-{metric}": text for (budget, metric), text in means.items()}
    return named | {f"travelling-groups-{budget}": gains(cells, budget) for budget in BUDGETS}


if __name__ == "__main__":
    main(sys.argv[1:])
