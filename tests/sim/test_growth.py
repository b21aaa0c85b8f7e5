"""Ten times as much takes about ten times as long, whatever there is more of: nothing grows with the square."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.data.sources.tables import csv
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.sim.engines.run import run_plan
from fedsmall.sim.report.html import write_report
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import Scenario

TWICE = 2.0  # over what is in proportion; a square is ten times

pytestmark = [pytest.mark.slow, pytest.mark.alone]


def over_sites(sites: int, samples: int = 2, test: int = 100) -> None:
    rng = np.random.default_rng(0)
    task = Task("grown", (8,), 2, loss="logistic")
    names = tuple(f"site-{number:06d}" for number in range(sites))
    x, y = rng.normal(size=(sites, samples, 8)).astype(np.float32), rng.integers(0, 2, (sites, samples))
    judged = Samples(rng.normal(size=(test, 8)).astype(np.float32), rng.integers(0, 2, test))
    federation = Federation(task, names, tuple(map(Samples, x, y)), judged)
    chained = method("FedDC", permute_every=1, aggregate_every=3)
    plan = Plan(name="grown", task="synthetic", model="linear", rounds=6, method=chained, recipe=Recipe(lr=0.1))
    run_plan(plan, federation, "cohort")


def over_columns(columns: int, rows: int = 40) -> None:
    x = np.random.default_rng(0).normal(size=(rows, columns))
    table = pandas.DataFrame(x, columns=[f"gene {k}" for k in range(columns)]).assign(ill=np.arange(rows) % 2)
    csv(None, 0, {"essen": table, "graz": table}, label="ill")


def over_plans(plans: int, folder: Path) -> None:
    table = {"name": "grown", "task": "breast_cancer", "sites": 4, "samples_per_site": 8, "model": "linear"}
    rounds = {"rounds": 5, "seeds": list(range(plans)), "method": [{"name": "FedAvg"}]}
    run = execute(Scenario(**table, **rounds), folder)
    write_report(folder, [run], "grown")


def seconds(work: Callable[[], None]) -> float:
    """The processor's, of the faster of two."""
    taken = []
    for _ in range(2):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


@pytest.mark.parametrize(
    ("less", "more", "what"),
    [
        (10_000, 100_000, over_sites),
        (1_000, 10_000, lambda n: over_sites(10, samples=n)),
        (10_000, 100_000, lambda n: over_sites(10, test=n)),
        (4_000, 40_000, over_columns),
    ],
    ids=["sites", "samples", "test samples", "columns"],
)
def test_ten_times_as_many_take_ten_times_as_long(less, more, what):
    over_sites(10)

    assert seconds(lambda: what(more)) < TWICE * more / less * seconds(lambda: what(less))


def test_two_hundred_plans_take_four_times_as_long_as_fifty(tmp_path):
    over_plans(2, tmp_path / "warm")
    begun = time.process_time()
    over_plans(50, tmp_path / "few")
    few, begun = time.process_time() - begun, time.process_time()

    over_plans(200, tmp_path / "many")

    assert time.process_time() - begun < TWICE * 4 * few
