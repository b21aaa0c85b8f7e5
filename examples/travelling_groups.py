"""Groups of models that travel and never merge, beside averaging with its free fixes, and beside one central model.

    FEDSMALL_DATA=... python -m examples.travelling_groups            # about an hour on one core; kept in docs/evidence
    FEDSMALL_DATA=... python -m examples.travelling_groups --cnn      # the same with a small convolutional network
    python -m examples.travelling_groups --show                       # the tables of what is kept; --cnn --show

What is run, chosen and tested was written down before any of it was run: docs/evidence/travelling-groups-protocol.md.
What is done is kept method by method: a run that is stopped goes on where it was.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from scipy.special import log_softmax

from examples.travelling_groups_sets import BASE, BUDGETS, CNN, FOLDS, MLP, SEARCH_SEEDS, Design
from examples.travelling_groups_tables import Cell, tables, wins
from fedsmall.data.federation import Federation, Task
from fedsmall.errors import ReplyError
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.outputs import answer
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.files import read_json, write_json
from fedsmall.sim.tuning.search import inner
from fedsmall.strategies.server.run_loop import run_rounds
from fedsmall.training.stack import tensors_of
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import RoundResult
from fedsmall.wire import Arrays, stack_of_one


def over(label: str, federation: Federation, central: int) -> Federation:
    """What a method is run on: for central models all samples at one place, or, for an ensemble, at so many."""
    if not label.startswith("Central"):
        return federation
    copies = 1 if label == "Central" else central
    names = tuple(f"central-{number}" for number in range(copies))
    return replace(federation, names=names, train=federation.pooled().train * copies, held_out=())


def answers(plan: Plan, federation: Federation) -> np.ndarray:
    """The logarithms of the probabilities, (test samples, classes), that what comes out of a run gives."""
    task, own, last = federation.task, plan.initial_models == "independent", dict[str, Arrays]()
    trainer: Any = cohort_for(plan, task, federation.names, federation.train)

    def keep(result: RoundResult) -> None:
        central = plan.method.family == "central"
        last["model"] = result.models() if central else stacked_members(result.global_model, plan.method.is_ensemble)

    run_rounds(plan, trainer, lambda site: initial_model(plan, task, site if own else None), evaluator=keep)
    outputs = trainer.predict(trainer.stack_of(tensors_of(last["model"])), federation.test.x)
    return np.asarray(log_softmax(answer(outputs, task.loss), axis=-1))


def stacked_members(model: Arrays | None, is_ensemble: bool) -> Arrays:
    """What comes out of a run as a stack of its members."""
    assert model is not None
    return model if is_ensemble else stack_of_one(model)


def judged(logs: np.ndarray, y: np.ndarray, classes: int) -> dict[str, float]:
    """Accuracy, AUC, NLL, Brier score and expected calibration error (ten bins of equal width) of log-probabilities.

    The Brier score is the sum over classes for two classes too, as in what is kept: there twice scikit-learn's.
    """
    task = Task("", (), classes, metrics=("accuracy", "auc", "loss"))
    shares, found = np.exp(logs), evaluate(logs, y, task)
    sure, right = shares.max(axis=1), shares.argmax(axis=1) == y
    bins = np.minimum((sure * 10).astype(int), 9)
    gaps = np.bincount(bins, sure - right, 10)
    brier = float(((shares - np.eye(classes)[y]) ** 2).sum(axis=1).mean())
    ece = float(np.abs(gaps).sum() / len(y))
    return {"accuracy": found["accuracy"], "auc": found["auc"], "nll": found["loss"], "brier": brier, "ece": ece}


def scored(plan: Plan, federation: Federation, central: int = 1) -> dict[str, float]:
    """The metrics of one run, and the accuracy at the worst of natural hospitals.

    A run that diverges counts as one that finds all classes equally likely.
    """
    y, classes = federation.test.y, federation.task.classes
    logs = np.full((len(y), classes), -np.log(classes))
    with suppress(ReplyError):
        found = answers(plan, over(plan.method.label, federation, central))
        logs = found if np.isfinite(found).all() else logs
    sizes = [len(held) for held in federation.held_out if held is not None]
    edges = np.cumsum(sizes)[:-1]
    right = np.split(logs.argmax(axis=1) == y, edges) if sizes else []
    return judged(logs, y, classes) | ({"worst": float(min(part.mean() for part in right))} if right else {})


def grid(design: Design, data: str, label: str) -> dict[tuple[float, int], float]:
    """The mean NLL on sites left out, by rate and number of rounds: two folds by two seeds, no test sample."""
    parts = []
    for seed in SEARCH_SEEDS:
        federation = build_federation(design.plan_of(data, BASE, 0.1, 1, seed, 1))
        parts += [(seed, inner(federation, fold, FOLDS, rng_for(seed, "inner folds"))) for fold in range(FOLDS)]
    means = {}
    for lr in design.rates:
        for comm_rounds in design.comm_rounds:
            plans = [
                (design.plan_of(data, label, lr, comm_rounds, seed, len(part.names)), part) for seed, part in parts
            ]
            means[lr, comm_rounds] = float(np.mean([scored(plan, part, design.central)["nll"] for plan, part in plans]))
    return means


def measure(design: Design, data: str, label: str) -> list[Cell]:
    """One method on one set: its rate and its communication rounds chosen on training sites, then all seeds."""
    means, cells = grid(design, data, label), list[Cell]()
    for word, allowed in zip(BUDGETS, (design.comm_rounds[:1], design.comm_rounds), strict=True):
        lr, comm_rounds = min((key for key in means if key[1] in allowed), key=means.__getitem__)
        if cells and comm_rounds == cells[0].comm_rounds and lr == cells[0].lr:
            cells.append(replace(cells[0], budget=word))
            continue
        runs = []
        for seed in range(design.seeds):
            federation = build_federation(design.plan_of(data, BASE, lr, comm_rounds, seed, 1))
            plan = design.plan_of(data, label, lr, comm_rounds, seed, len(federation.names))
            runs.append(scored(plan, federation, design.central))
        values = {metric: [run[metric] for run in runs] for metric in runs[0]}
        cells.append(Cell(data, word, label, lr, comm_rounds, lr in (design.rates[0], design.rates[-1]), values))
    return cells


def kept(design: Design) -> list[Cell]:
    """The cells that are measured."""
    return [Cell(**cell) for cell in read_json(design.kept)] if design.kept.is_file() else []


def go_on(design: Design, sets: Sequence[str]) -> None:
    """Measure what is not kept yet of the sets that are named (all, where none is)."""
    for data, label in [one for one in design.order() if not sets or one[0] in sets]:
        if any((cell.data, cell.method) == (data, label) for cell in kept(design)):
            continue
        measured = measure(design, data, label)
        # read again: another set may be measured beside this one
        write_json(design.kept, [asdict(cell) for cell in (*kept(design), *measured)])
        print(f"{data}: {label}", flush=True)


def main(arguments: list[str]) -> None:
    """Measure what is not kept yet, and print the tables and fill them into the pages."""
    parser = argparse.ArgumentParser(prog="python -m examples.travelling_groups")
    parser.add_argument("--cnn", action="store_true", help="the convolutional network on images, not the MLP")
    parser.add_argument("--show", action="store_true", help="measure nothing")
    parser.add_argument("sets", nargs="*", help="names of sets; all, where none is given")
    asked = parser.parse_args(arguments)
    design = CNN if asked.cnn else MLP
    if unknown := [name for name in asked.sets if name not in design.sets]:
        parser.error(f"there is no set {unknown[0]!r}; there are {', '.join(design.sets)}")
    if not asked.show:
        go_on(design, asked.sets)
    cells = kept(design)
    shown = tables(design, cells)
    fill(DOCS, shown.get)
    for name, text in shown.items():
        print(f"\n{name}\n\n{text}")
    print("\nwins:", {budget: wins(design, cells, budget, tuple(design.sets)) for budget in BUDGETS})


if __name__ == "__main__":
    main(sys.argv[1:])
