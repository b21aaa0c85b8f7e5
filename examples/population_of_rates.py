"""One federated run in which every group has a learning rate of its own, and losers go on as winners.

    FEDSMALL_DATA=... python -m examples.population_of_rates    # some minutes on one core; kept in docs/evidence
    python -m examples.population_of_rates --show               # the tables of what is kept

Groups travel by routes (:mod:`fedsmall.travel.journey`), so each is judged at sites where it never trained. What is run
and tested was written down before: the second addendum of docs/evidence/travelling-groups-protocol.md.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import log_softmax

from examples.population import Population, explored, halved
from examples.travelling_groups import judged
from examples.travelling_groups_sets import MLP, Design
from fedsmall.data.federation import Federation
from fedsmall.evaluation.outputs import answer
from fedsmall.evaluation.statistics import Comparison, holm, paired
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from fedsmall.research.evidence.items import DOCS
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.files import read_json, write_json
from fedsmall.sim.runs.scenario import build

KEPT = DOCS / "evidence" / "population-of-rates.json"
GROUPS, SEEDS, COMM_ROUNDS = 10, 20, 100
RATES = (0.03, 0.1, 0.3, 1.0, 3.0)
MIDDLE, MIDDLE_COMM_ROUNDS, SHORT = 0.3, 110, 20
SETS = ("digits", "cardiotocography", "dermatology")
DESIGN: Design = MLP
MARGIN = 0.02


class Rung(NamedTuple):
    """After how many communication rounds groups are judged, and how many rates go on; None: worst groups explore."""

    comm_rounds: int
    kept: int | None


class Way(NamedTuple):
    """One run that tunes itself: over so many ``routes``, with ``rungs``."""

    routes: int
    rungs: tuple[Rung, ...]


HALVING = (Rung(10, 3), Rung(20, 2), Rung(40, 1))
WAYS = {
    "Halving, 2 routes": Way(2, HALVING),
    "Halving, 5 routes": Way(5, HALVING),
    "Population, 2 routes": Way(2, tuple(Rung(t, None) for t in (20, 40, 60, 80))),
}
RIVALS = ("Grid", "Grid, equal traffic", "Middle rate")


@dataclass(frozen=True)
class Run:
    """What came out of one seed: metrics on the test set, ``own`` ones out of fold, traffic, and the last rates."""

    metrics: dict[str, float]
    own: dict[str, float]
    sent: float
    rates: list[float]


@dataclass(frozen=True)
class Cell:
    """A way or a rival on a set, seed by seed."""

    data: str
    label: str
    runs: list[Run]


def plan_of(data: str, comm_rounds: int, seed: int, routes: int | None) -> Plan:
    """Ten groups that travel, on so many routes or everywhere."""
    method = {"name": "TravellingGroups", "groups": GROUPS} | ({"validate": {"routes": routes}} if routes else {})
    recipe = {"lr": MIDDLE, "batch": 8, "local_steps": 1}
    run = {"name": data, "seeds": [seed], "rounds": comm_rounds, "recipe": recipe, "method": [method]}
    return build(dict(DESIGN.sets[data]) | {"initial_models": "independent"} | run).plan(0, seed)


def dealt(routes: int) -> np.ndarray:
    """The first rates, (groups,), two groups each: no two of a route alike, and routes chained by what they share."""
    groups = np.arange(GROUPS)
    shift = groups // len(RATES) * 2 if routes == len(RATES) else 0
    order = groups if routes == len(RATES) else groups // routes
    return np.asarray(np.array(RATES)[(order + shift) % len(RATES)])


def tuned_on_the_road(way: Way, data: str, seed: int, federation: Federation) -> Run:
    """One run whose groups are judged at every rung, and go on as it says."""
    population, done = Population(plan_of(data, COMM_ROUNDS, seed, way.routes), federation, dealt(way.routes)), 0
    for rung in way.rungs:
        population.walk(rung.comm_rounds - done)
        losses, done = population.losses(), rung.comm_rounds
        rates, routes, rng = population.rates, population.routes, rng_for(seed, "explore", rung.comm_rounds)
        of = explored(losses, rates, routes, rng) if rung.kept is None else halved(losses, rates, routes, rung.kept)
        population.go_on(*of)
    population.walk(COMM_ROUNDS - done)
    return ended(population)


def at_one_rate(lr: float, comm_rounds: int, data: str, seed: int, federation: Federation, routes: int | None) -> Run:
    """One run of groups at one rate."""
    population = Population(plan_of(data, comm_rounds, seed, routes), federation, np.full(GROUPS, lr))
    population.walk(comm_rounds)
    return ended(population)


def ended(population: Population) -> Run:
    """What a run is worth at its end; a run of which no number is left counts as one that knows nothing."""
    own: dict[str, float] = {}
    if population.plan.method.validation is not None:
        population.losses()  # all groups are sent to the sites that judge them, once more
        own = population.out_of_fold()
    test, task = population.federation.test, population.federation.task
    logs = log_softmax(answer(population.outputs(test.x, np.arange(GROUPS)), task.loss), axis=-1)
    logs = logs if np.isfinite(logs).all() else np.full((len(test.y), task.classes), -np.log(task.classes))
    return Run(judged(logs, test.y, task.classes), own, population.sent, population.rates.tolist())


def grid(comm_rounds: int, data: str, seed: int, federation: Federation) -> Run:
    """Of a run at every rate the one with the least out-of-fold loss, for the traffic of all."""
    runs = [at_one_rate(lr, comm_rounds, data, seed, federation, len(RATES)) for lr in RATES]
    best = min(runs, key=lambda run: run.own["loss"])
    return Run(best.metrics, best.own, sum(run.sent for run in runs), best.rates)


def run_of(label: str, data: str, seed: int) -> Run:
    """A way or a rival on one seed."""
    federation = build_federation(plan_of(data, 1, seed, None))
    if label in WAYS:
        return tuned_on_the_road(WAYS[label], data, seed, federation)
    if label == "Middle rate":
        return at_one_rate(MIDDLE, MIDDLE_COMM_ROUNDS, data, seed, federation, None)
    return grid(COMM_ROUNDS if label == "Grid" else SHORT, data, seed, federation)


def gains(cells: Sequence[Cell]) -> dict[tuple[str, str, str], tuple[Comparison, float]]:
    """What every way gains in NLL, by way, rival and set; p by Holm over all of them."""
    found = {(cell.data, cell.label): [run.metrics["nll"] for run in cell.runs] for cell in cells}
    sets = [data for data in SETS if all((data, label) in found for label in (*WAYS, *RIVALS))]
    keys = [(way, rival, data) for way in WAYS for rival in RIVALS for data in sets]
    pairs = [paired(found[data, rival], found[data, way]) for way, rival, data in keys]
    corrected = holm([pair.p_value for pair in pairs])
    return {key: (pair, float(p)) for key, pair, p in zip(keys, pairs, corrected, strict=True)}


def holds(cells: Sequence[Cell]) -> dict[str, bool]:
    """Whether a way is as good as the grid on all sets, and better than what costs as much on two, worse on none."""
    table, said = gains(cells), {}
    for way in WAYS:
        near = all(table[way, "Grid", data][0].difference.low > -MARGIN for data in SETS)
        signs = {
            rival: [np.sign(one.difference.mean) * (p <= 0.05) for one, p in (table[way, rival, d] for d in SETS)]
            for rival in RIVALS[1:]
        }
        said[way] = near and all(signs[rival].count(1) >= 2 and -1 not in signs[rival] for rival in RIVALS[1:])
    return said


def table_of_gains(cells: Sequence[Cell]) -> str:
    """What every way gains in NLL over its rivals, with 95% intervals; bold where p <= .05."""
    found = gains(cells)
    sets = list(dict.fromkeys(data for _, _, data in found))
    lines = [f"| way | over | {' | '.join(sets)} |", "|" + "---|" * (2 + len(sets))]
    for way, rival in [(way, rival) for way in WAYS for rival in RIVALS]:
        lines.append(f"| {way} | {rival} | {' | '.join(_gain(*found[way, rival, data]) for data in sets)} |")
    return "\n".join(lines)


def _gain(one: Comparison, p: float) -> str:
    text = f"{one.difference.mean:+.3f} ± {one.difference.width / 2:.3f}"
    return f"**{text}**" if p <= 0.05 else text


def table_of_means(cells: Sequence[Cell]) -> str:
    """Traffic, AUC in percent, NLL on the test set, what the run itself expected, and the rates at its end."""
    lines = ["| data | way | models a site | AUC | NLL | own out-of-fold NLL | rates at the end |", "|" + "---|" * 7]
    for cell in sorted(cells, key=lambda cell: (SETS.index(cell.data), [*WAYS, *RIVALS].index(cell.label))):
        auc, nll = (float(np.mean([run.metrics[name] for run in cell.runs])) for name in ("auc", "nll"))
        own = [run.own["loss"] for run in cell.runs if run.own]
        rates = Counter(round(rate, 2) for run in cell.runs for rate in run.rates)
        shares = ", ".join(f"{rate:g}: {100 * n / rates.total():.0f}%" for rate, n in sorted(rates.items()))
        expected = f"{np.mean(own):.3f}" if own else ""
        sent = f"{np.mean([run.sent for run in cell.runs]):.0f}"
        lines.append(f"| {cell.data} | {cell.label} | {sent} | {100 * auc:.1f} | {nll:.3f} | {expected} | {shares} |")
    return "\n".join(lines)


def tables(cells: Sequence[Cell]) -> dict[str, str]:
    """Both tables by name, as the page has them."""
    return {"population-gains": table_of_gains(cells), "population-means": table_of_means(cells)}


def kept() -> list[Cell]:
    """The cells that are measured."""
    found = read_json(KEPT) if KEPT.is_file() else []
    return [Cell(cell["data"], cell["label"], [Run(**run) for run in cell["runs"]]) for cell in found]


def main(arguments: list[str]) -> None:
    """Measure what is not kept yet, print the tables and fill them into the pages."""
    cells = kept()
    for data, label in [(data, label) for data in SETS for label in (*WAYS, *RIVALS)]:
        if arguments != ["--show"] and not any((cell.data, cell.label) == (data, label) for cell in cells):
            cells.append(Cell(data, label, [run_of(label, data, seed) for seed in range(SEEDS)]))
            write_json(KEPT, [asdict(cell) for cell in cells])
            print(f"{data}: {label}", flush=True)
    shown = tables(cells)
    fill(DOCS, shown.get)
    for name, text in shown.items():
        print(f"\n{name}\n\n{text}")
    print("\nholds:", holds(cells))


if __name__ == "__main__":
    main(sys.argv[1:])
