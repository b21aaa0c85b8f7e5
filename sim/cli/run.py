"""``fedsmall run`` and ``fedsmall report``."""

from pathlib import Path
from typing import Annotated

import typer

from fedsmall.entry_points import SCENARIOS, kind_of_scenario, load_extension
from fedsmall.errors import PlanError
from fedsmall.own_code import look_in
from fedsmall.sim.cli.options import ADDRESS, DATA_ROOT, DEVICE, ENGINE, OUT, PROCESSES, SET, WORKERS
from fedsmall.sim.consortium.opened import opened
from fedsmall.sim.report.terminal import print_run, terminal

console = terminal()


def run(
    scenario: Annotated[
        Path, typer.Argument(help="a .toml file, or a name from `fedsmall list scenarios`", show_default=False)
    ],
    engine: Annotated[str | None, ENGINE] = None,
    device: Annotated[str | None, DEVICE] = None,
    out: Annotated[Path | None, OUT] = None,
    setting: Annotated[list[str] | None, SET] = None,
    data_root: Annotated[Path | None, DATA_ROOT] = None,
    processes: Annotated[int | None, PROCESSES] = None,
    workers: Annotated[int | None, WORKERS] = None,
    address: Annotated[str | None, ADDRESS] = None,
) -> None:
    """Run a scenario: every method with every seed. Prints the table and writes a folder with report.html.

    Ctrl-C ends the run after the next contact; what was run until then is kept and reported. A plan that fails is a
    line with its reason, all others are run, and the exit code is 1.
    """
    from fedsmall.sim.runs.scenario import find, load, read

    scenario = find(scenario)
    if kind := kind_of_scenario(read(scenario)):
        options = {"engine": engine, "device": device, "processes": processes}
        if given := [name for name, value in options.items() if value is not None]:
            raise PlanError(f"--{given[0]} is of models that travel; a scenario with {kind} has no such choice")
        return load_extension(SCENARIOS, kind).run(scenario, out, setting)  # type: ignore[no-any-return]
    asked = load(scenario, setting or [])
    look_in(Path.cwd(), scenario.resolve().parent)

    from fedsmall.sim.report.html import write_report
    from fedsmall.sim.runs.execute import execute
    from fedsmall.sim.runs.files import free_folder
    from fedsmall.sim.runs.progress import watcher

    folder = out or free_folder(asked.name)
    plans = asked.plans()
    watching = watcher(console, plans, asked.name)
    shared = {name: value for name, value in (("workers", workers), ("address", address)) if value is not None}
    done = execute(
        asked,
        folder,
        engine=engine,
        data_root=data_root,
        watcher=watching,
        options=shared | ({"device": device} if device else {}),
        processes=1 if shared else processes,  # one plan at a time has all the workers
    )
    print_run(console, done)
    path = write_report(folder, [done], asked.name)
    console.print(f"\nReport: {path}")
    if done.not_run:
        raise typer.Exit(130)
    if done.failed:
        raise typer.Exit(1)


def report(folder: Annotated[Path, typer.Argument(help="the folder of a run", show_default=False)]) -> None:
    """Make the report of a run anew, from its folder alone, and print its table."""
    from fedsmall.sim.report.html import write_report
    from fedsmall.sim.runs.folder import read_all

    runs = read_all(opened(folder))
    for one in runs:
        print_run(console, one)
    title = folder.resolve().name if len(runs) > 1 else runs[0].scenario.name
    console.print(f"\nReport: {write_report(folder, runs, title)}")
