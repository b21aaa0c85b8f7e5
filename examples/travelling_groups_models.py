"""Models that are no networks on the sets of travelling groups: ridge, additive ridge, boosting, and their mean.

    FEDSMALL_DATA=... python -m examples.travelling_groups_models    # some minutes on one core; kept in docs/evidence
    python -m examples.travelling_groups_models --show               # the table of what is kept, put into the page too

What is chosen and tested was written down before: the last addendum of docs/evidence/travelling-groups-protocol.md.
Ridge on the pixels of images, and on random features of them, was run after it, and is shown without a test.
"""

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from examples.kept import measured
from examples.travelling_groups import judged, kept
from examples.travelling_groups_sets import BASE, FOLDS, MLP, SEARCH_SEEDS
from examples.travelling_groups_tables import of
from fedsmall.data.federation import Federation
from fedsmall.evaluation.statistics import CHANCE, holm, paired
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.runs.scenario import build
from fedsmall.sim.tuning.search import inner

KEPT = DOCS / "evidence" / "travelling-groups-models.json"
SETS = ("breast cancer", "heart disease", "cardiotocography", "dermatology")
IMAGES = ("digits", "digits, two classes a site", "PneumoniaMNIST")
TREES = {"histogram": True, "learning_rate": 0.1, "least_weight": 0.25}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "Ridge": [{"regression": {"penalty": penalty}} for penalty in (0.3, 1.0, 3.0, 10.0, 30.0)],
    "AdditiveRidge": [{"regression": {"penalty": penalty}} for penalty in (1.0, 3.0, 10.0, 30.0)],
    "FedHistogramXGB": [{"boosting": {**TREES, "depth": d, "trees": n}} for d in (1, 3) for n in (40, 100)],
}
OF_IMAGES: dict[str, list[dict[str, Any]]] = {
    name: [{"regression": {"penalty": penalty}} for penalty in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)]
    for name in ("Ridge", "RandomFeatureRidge")
}
SLOW = ("digits", "digits, two classes a site")  # ten classes of 256 features each
MEAN = "mean of three"
ROWS = (*SETTINGS, MEAN)
EXCHANGES = 100  # of a regression, at most
SMALLEST = 1e-12


@dataclass(frozen=True)
class Cell:
    """A model on a set: what was chosen, the exchanges that it takes, and NLL and AUC, seed by seed."""

    data: str
    model: str
    chosen: dict[str, Any]
    exchanges: float
    nll: list[float]
    auc: list[float]


def probabilities(data: str, model: str, setting: dict[str, Any], part: Federation) -> tuple[np.ndarray, int]:
    """What a model of pooled rows says of the test samples, (samples, classes), and its exchanges."""
    boosting = setting.get("boosting", {})
    rounds = boosting["depth"] * boosting["trees"] + 1 if boosting else EXCHANGES
    table = {key: value for key, value in MLP.sets[data].items() if not key.startswith("model")}
    table |= {"sites": 1} if "sites" in table else {}
    plan = build(table | {"name": data, "rounds": rounds, "method": [{"name": model, **setting}]}).plans()[0]
    record = run_plan(plan, replace(part.pooled(), held_out=(None,)), "cohort", options={"device": "cpu"})
    return record.predictions["probabilities"], record.comm_rounds


def federation_of(data: str, seed: int) -> Federation:
    """The sites, samples and test set of a seed of the main table."""
    return build_federation(MLP.plan_of(data, BASE, 0.1, 1, seed, 1))


def nll_and_auc(shares: np.ndarray, part: Federation) -> tuple[float, float]:
    """Both metrics of probabilities."""
    found = judged(np.log(np.maximum(shares, SMALLEST)), part.test.y, part.task.classes)
    return found["nll"], found["auc"]


def measure(data: str) -> list[Cell]:
    """Each model's setting chosen on sites left out, then all seeds; of tables the mean of all, too."""
    folds = [
        inner(federation_of(data, seed), fold, FOLDS, rng_for(seed, "inner folds"))
        for seed in SEARCH_SEEDS
        for fold in range(FOLDS)
    ]
    cells, said = [], []
    federations = [federation_of(data, seed) for seed in range(MLP.seeds)]
    for model, settings in (OF_IMAGES if data in IMAGES else SETTINGS).items():
        if data in SLOW and model == "RandomFeatureRidge":
            continue
        losses = [np.mean([nll_and_auc(probabilities(data, model, s, f)[0], f)[0] for f in folds]) for s in settings]
        chosen = settings[int(np.argmin(losses))]
        found = [probabilities(data, model, chosen, part) for part in federations]
        said.append([shares for shares, _ in found])
        cells.append(_cell(data, model, chosen, float(np.median([t for _, t in found])), said[-1], federations))
        print(f"{data}: {model}", flush=True)
    if data in IMAGES:
        return cells
    mean = [np.mean(shares, axis=0) for shares in zip(*said, strict=True)]
    return [*cells, _cell(data, MEAN, {}, sum(cell.exchanges for cell in cells), mean, federations)]


def _cell(
    data: str, model: str, chosen: dict[str, Any], exchanges: float, said: list[np.ndarray], parts: list[Federation]
) -> Cell:
    metrics = [nll_and_auc(shares, part) for shares, part in zip(said, parts, strict=True)]
    nll, auc = (list(values) for values in zip(*metrics, strict=True))
    return Cell(data, model, chosen, exchanges, nll, auc)


def rivals_of(data: str) -> dict[str, str]:
    """The rivals by their heads, as the main table has them."""
    return {
        "FedAvg": "FedAvg",
        "moving average": "FedAvg, moving average",
        "groups": MLP.primary(data),
        "central ensemble": "Central ensemble",
    }


def known_of(cells: list[Cell]) -> dict[tuple[str, str], Any]:
    """The kept rivals of the cells' sets, by set and head."""
    heads = {(cell.data, label): name for cell in cells for label, name in rivals_of(cell.data).items()}
    networks = kept(MLP)
    return {(data, label): of(networks, "many", data, name) for (data, label), name in heads.items()}


def table_of_images(cells: list[Cell]) -> str:
    """NLL / AUC of regressions on images, and of rivals."""
    known, sets = known_of(cells), list(dict.fromkeys(cell.data for cell in cells))
    values = {(cell.model, cell.data): (cell.nll, cell.auc) for cell in cells}
    values |= {(label, data): (one.values["nll"], one.values["auc"]) for (data, label), one in known.items()}
    lines = [f"| model | {' | '.join(sets)} |", "|" + "---|" * (1 + len(sets))]
    for model in dict.fromkeys(model for model, _ in values):
        means = [[np.mean(part) for part in values.get((model, data), ())] for data in sets]
        lines.append(f"| {model} | {' | '.join(f'{m[0]:.3f} / {100 * m[1]:.1f}' if m else '-' for m in means)} |")
    return "\n".join(lines)


def table(cells: list[Cell]) -> str:
    """NLL / AUC of every model and rival; behind a model, over whom it is told apart (+) and who over it (-)."""
    known = known_of(cells)
    keys = [(cell, label) for cell in cells for label in rivals_of(cell.data)]
    found = [paired(known[cell.data, label].values["nll"], cell.nll) for cell, label in keys]  # above 0: better
    p = holm([one.p_value for one in found])
    apart = {
        (c.data, c.model, label): np.sign(one.difference.mean) * (q < CHANCE)
        for (c, label), one, q in zip(keys, found, p, strict=True)
    }
    sets = list(dict.fromkeys(cell.data for cell in cells))
    heads = list(rivals_of(sets[0]))
    lines = [f"| model | {' | '.join(sets)} |", "|" + "---|" * (1 + len(sets))]
    for model in ROWS:
        row = []
        for data in sets:
            cell = next(cell for cell in cells if (cell.data, cell.model) == (data, model))
            signs = [apart[data, model, label] for label in heads]
            better, worse = (sum(sign == of_sign for sign in signs) for of_sign in (1, -1))
            row.append(f"{np.mean(cell.nll):.3f} / {100 * np.mean(cell.auc):.1f} (+{better} -{worse})")
        lines.append(f"| {model} | {' | '.join(row)} |")
    for label in heads:
        values = [known[data, label].values for data in sets]
        row = [f"{np.mean(of_set['nll']):.3f} / {100 * np.mean(of_set['auc']):.1f}" for of_set in values]
        lines.append(f"| {label} | {' | '.join(row)} |")
    exchanges = [next(f"{c.exchanges:.0f}" for c in cells if (c.data, c.model) == (data, "Ridge")) for data in sets]
    return "\n".join([*lines, f"| exchanges of Ridge | {' | '.join(exchanges)} |"])


def main(arguments: list[str]) -> None:
    """Measure the sets that are named (all, where none is), keep what was measured, and print the table."""
    cells = measured(arguments, Cell, KEPT, (*SETS, *IMAGES), measure)
    of_tables, of_images = ([cell for cell in cells if cell.data in sets] for sets in (SETS, IMAGES))
    made = {"travelling-groups-models": table(of_tables), "travelling-groups-pixels": table_of_images(of_images)}
    fill(DOCS, made.get)
    print(*made.values(), sep="\n\n")


if __name__ == "__main__":
    main(sys.argv[1:])
