"""``fedsmall demo``: the main job in one command, on data that come along."""

import time
from pathlib import Path
from typing import Annotated

import typer

from fedsmall.sim.cli.options import ENGINE, OUT, PROCESSES
from fedsmall.sim.report.terminal import terminal

NAMES = ("demo_breast_cancer", "demo_digits")
TITLE = "What federation is worth, and what daisy-chaining adds"
ABOUT = (
    "Seven methods on two data sets that come along: real patients at 40 hospitals, where the question is a federation "
    "against every hospital alone, and digits at 50 sites that know two classes each, where models must travel. "
    "FedAvg with b = 1 sends as many messages as FedDC, and is always among the comparators."
)
SLOW_SEEDS = (0,)  # without the batched engine one seed is what 90 seconds allow

console = terminal()


def demo(
    engine: Annotated[str | None, ENGINE] = None,
    out: Annotated[Path | None, OUT] = None,
    processes: Annotated[int | None, PROCESSES] = None,
) -> None:
    """Compare seven methods on two data sets that come along: no questions, no download, about a minute.

    Prints a table for each with 95% intervals over seeds and two plain sentences, and writes report.html.
    """
    from fedsmall.sim.engines.run import DEFAULT_ENGINE
    from fedsmall.sim.report.html import write_report
    from fedsmall.sim.report.terminal import print_run
    from fedsmall.sim.runs.execute import execute
    from fedsmall.sim.runs.files import check_free, free_folder
    from fedsmall.sim.runs.progress import watcher
    from fedsmall.sim.runs.scenario import Scenario, load, scenarios

    started = time.monotonic()
    engine = engine or DEFAULT_ENGINE
    folder = out or free_folder("demo")
    check_free(folder)
    asked = [load(scenarios()[name]) for name in NAMES]
    if engine != "cohort":
        console.print(f"The engine {engine} trains site after site: one seed instead of {len(asked[0].seeds)}.")
        asked = [Scenario(**{**one.model_dump(), "seeds": SLOW_SEEDS, "evaluate_every": 50}) for one in asked]
    done = []
    for one in asked:
        watching = watcher(console, one.plans(), one.name)
        done.append(
            execute(one, folder / one.name.replace(" ", "_"), engine=engine, watcher=watching, processes=processes)
        )
        print_run(console, done[-1])
        console.print()
        if done[-1].not_run:
            break
    path = write_report(folder, done, TITLE, ABOUT)
    console.print(f"{time.monotonic() - started:.0f} seconds. The report, to open in a browser: {path}")
    if any(run.not_run for run in done):
        raise typer.Exit(130)
    if any(run.failed for run in done):
        raise typer.Exit(1)
