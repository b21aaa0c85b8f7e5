"""`fedsmall reproduce study`: when does letting models travel pay, against FedAvg with the same traffic?

A random fraction of a factorial design: a cell combines samples per site, sites, classes per site, model, optimizer,
local steps per communication round, and communication rounds. In each cell FedDC, FedAvg with equal communication and
FedAvg with equal period get their own learning rates, searched on training sites alone, and are compared on the test
samples by seeds that the search has not seen.

Cells come in a fixed random order, so the first N are a balanced sample, and a stopped study goes on where it was.
Results are one line a cell in docs/evidence/study.csv.
"""

import csv
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, fields
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from torch import set_num_threads

from fedsmall.errors import PlanError
from fedsmall.evaluation.statistics import paired
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from fedsmall.research.evidence.study_walk import final_accuracies
from fedsmall.sim.runs.files import write_csv
from fedsmall.sim.runs.scenario import Scenario, build
from fedsmall.sim.tuning.search import Try, choose, inner, with_rates

PERIOD = 10  # b: communication rounds between two aggregations of FedDC, and of FedAvg with equal period
SEEDS, SEEDS_OF_IMAGES = 10, 6
SEARCH_SEEDS, FOLDS = (1000, 1001, 1002), 2
SGD_RATES, ADAM_RATES = (0.03, 0.1, 0.3, 1.0), (0.001, 0.003, 0.01, 0.03)
METHODS = (
    {"name": "FedDC", "permute_every": 1, "aggregate_every": PERIOD},
    {"name": "FedAvg", "label": "equal communication", "aggregate_every": 1},
    {"name": "FedAvg", "label": "equal period", "aggregate_every": PERIOD},
)
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"optimizer": "sgd"},
    "mini-batch SGD": {"optimizer": "sgd", "batch": 1},
    "Adam, moments travel": {"optimizer": "adam"},
    "Adam, moments reset": {"optimizer": "adam", "optimizer_state": "reset"},
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("linear", {}),
    "MLP": ("mlp", {}),
    "CNN, BatchNorm": ("cnn", {"norm": "batch"}),
    "CNN, GroupNorm": ("cnn", {"norm": "group"}),
    "ResNet": ("resnet_small", {"blocks": 1, "norm": "group"}),
}
FULL = {
    "samples": (2, 4, 8, 16),
    "sites": (5, 20),
    "classes": (2, 10),
    "model": ("linear", "MLP"),
    "optimizer": tuple(OPTIMIZERS),
    "steps": (1, 4),
    "comm_rounds": (20, 80),
}
IMAGES = {  # models that cost a hundred times as much: a corner of the design, one cell in every eight
    "samples": (8,),
    "sites": (5,),
    "classes": (2, 10),
    "model": ("CNN, BatchNorm", "CNN, GroupNorm", "ResNet"),
    "optimizer": ("SGD", "Adam, moments travel"),
    "steps": (1,),
    "comm_rounds": (20,),
}
EVERY = 8


@dataclass(frozen=True)
class Cell:
    """One combination of the factors; ``classes`` is the number at a site, 10 being all."""

    samples: int
    sites: int
    classes: int
    model: str
    optimizer: str
    steps: int
    comm_rounds: int

    def scenario(self) -> Scenario:
        """The three methods on digits under this combination."""
        model, options = MODELS[self.model]
        return build(
            {
                "name": "study",
                "task": "digits",
                "model": model,
                "model_options": options,
                "sites": self.sites,
                "samples_per_site": self.samples,
                "partition": "iid" if self.classes == 10 else {"classes_per_site": self.classes},
                "rounds": self.comm_rounds,
                "seeds": tuple(range(SEEDS_OF_IMAGES if self.model in IMAGES["model"] else SEEDS)),
                "recipe": OPTIMIZERS[self.optimizer] | {"local_steps": self.steps},
                "method": list(METHODS),
            }
        )

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates to search."""
        return SGD_RATES if "SGD" in self.optimizer else ADAM_RATES


@dataclass(frozen=True)
class CellOutcome:
    """FedDC minus FedAvg in accuracy, at equal communication (``same``) and period (``rare``)."""

    feddc: float
    same_mean: float
    same_low: float
    same_high: float
    same_p: float
    rare_mean: float
    rare_low: float
    rare_high: float
    rare_p: float
    lr_feddc: float
    lr_same: float
    lr_rare: float
    regret: float
    at_the_edge: int
    seeds: int
    seconds: float


def cells() -> list[Cell]:
    """All cells in the fixed random order in which they are run."""
    full, images = (_shuffled(design, name) for design, name in ((FULL, "study"), (IMAGES, "study of images")))
    listed: list[Cell] = []
    while full:
        listed += full[: EVERY - 1] + images[:1]
        full, images = full[EVERY - 1 :], images[1:]
    return listed


def run_cell(cell: Cell) -> CellOutcome:
    """Search each method's learning rate, then compare the three on further seeds."""
    started = time.perf_counter()
    scenario = cell.scenario()
    choices = choose(_search(cell, scenario))
    scores = _scores(with_rates(scenario, {label: choice.lr for label, choice in choices.items()}))
    same, rare = (paired(scores["FedDC"], scores[label]) for label in ("equal communication", "equal period"))
    return CellOutcome(
        feddc=sum(scores["FedDC"]) / len(scenario.seeds),
        same_mean=same.difference.mean,
        same_low=same.difference.low,
        same_high=same.difference.high,
        same_p=same.p_value,
        rare_mean=rare.difference.mean,
        rare_low=rare.difference.low,
        rare_high=rare.difference.high,
        rare_p=rare.p_value,
        lr_feddc=choices["FedDC"].lr,
        lr_same=choices["equal communication"].lr,
        lr_rare=choices["equal period"].lr,
        regret=max(choice.regret for choice in choices.values()),
        at_the_edge=sum(choice.at_the_edge for choice in choices.values()),
        seeds=len(scenario.seeds),
        seconds=round(time.perf_counter() - started, 1),
    )


def study(
    path: Path,
    *,
    minutes: float | None = None,
    on_cell: Callable[[Cell, CellOutcome, int, int], None] | None = None,
    processes: int = 1,
) -> int:
    """Run the cells that ``path`` does not hold yet, until ``minutes`` have passed; return how many it holds then.

    ``on_cell(cell, outcome, kept, all)`` is called after each. ``processes`` run a cell each, in the design's order.
    Raises PlanError where the file is of another design.
    """
    kept = dict(read(path)) if path.is_file() else {}
    designed = cells()
    if unknown := set(kept) - set(designed):
        raise PlanError(f"{path.name} holds {len(unknown)} cells of another design; move it away to start anew")
    until = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    for cell, outcome in _outcomes([cell for cell in designed if cell not in kept], until, processes):
        kept[cell] = outcome
        _write(path, {cell: kept[cell] for cell in designed if cell in kept})
        if on_cell is not None:
            on_cell(cell, outcome, len(kept), len(designed))
    return len(kept)


def _outcomes(todo: Sequence[Cell], until: float, processes: int) -> Iterator[tuple[Cell, CellOutcome]]:
    """The cells as they are done; none is begun after ``until``, and those begun are waited for."""
    if processes == 1:
        for cell in todo:
            if time.monotonic() > until:
                return
            yield cell, run_cell(cell)
        return
    left, running = list(todo), dict[Future[CellOutcome], Cell]()
    with ProcessPoolExecutor(processes, get_context("spawn"), set_num_threads, (1,)) as pool:
        while True:
            while left and len(running) < processes and time.monotonic() <= until:
                cell = left.pop(0)
                running[pool.submit(run_cell, cell)] = cell
            if not running:
                return
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(done), done.result()


def read(path: Path) -> Iterator[tuple[Cell, CellOutcome]]:
    """The cells and outcomes in a file that :func:`study` wrote."""
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield _record(Cell, row), _record(CellOutcome, row)


def _shuffled(design: dict[str, Any], stream: str) -> list[Cell]:
    ordered = [Cell(*levels) for levels in product(*design.values())]
    return [ordered[place] for place in rng_for(0, stream).permutation(len(ordered))]


def _search(cell: Cell, scenario: Scenario) -> list[Try]:
    """Every method with every rate on training sites alone: folds of the sites by ``SEARCH_SEEDS`` seeds."""
    parts = [
        (seed, fold, inner(build_federation(scenario.plan(0, seed)), fold, FOLDS, rng_for(seed, "inner folds")))
        for seed in SEARCH_SEEDS
        for fold in range(FOLDS)
    ]
    tries = []
    for index, lr in product(range(len(scenario.method)), cell.rates):
        plans = [_with_rate(scenario.plan(index, seed), lr) for seed, _, _ in parts]
        scores = final_accuracies(plans, [part for _, _, part in parts])
        label = plans[0].method.label
        tries += [Try(label, lr, seed, fold, score) for (seed, fold, _), score in zip(parts, scores, strict=True)]
    return tries


def _scores(scenario: Scenario) -> dict[str, list[float]]:
    federations = [build_federation(scenario.plan(0, seed)) for seed in scenario.seeds]
    scores = {}
    for index in range(len(scenario.method)):
        plans = [scenario.plan(index, seed) for seed in scenario.seeds]
        scores[plans[0].method.label] = final_accuracies(plans, federations)
    return scores


def _with_rate(plan: Plan, lr: float) -> Plan:
    return plan.model_copy(update={"recipe": plan.recipe.model_copy(update={"lr": lr})})


def _write(path: Path, outcomes: dict[Cell, CellOutcome]) -> None:
    columns = [field.name for kind in (Cell, CellOutcome) for field in fields(kind)]
    rows = [asdict(cell) | asdict(outcome) for cell, outcome in outcomes.items()]
    rounded = [{k: value if isinstance(value, str) else f"{value:.7g}" for k, value in row.items()} for row in rows]
    write_csv(path, columns, rounded)


def _record(kind: Any, row: dict[str, str]) -> Any:
    types: dict[str, Any] = {field.name: field.type for field in fields(kind)}
    return kind(**{name: of(row[name]) for name, of in types.items()})
