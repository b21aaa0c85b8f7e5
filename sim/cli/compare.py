"""``fedsmall compare``: finished runs side by side, with paired differences where they rest on the same data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from sim.cli.options import OUT
from sim.report.terminal import terminal
from sim.runs.folder import PlanRun, Run, read_all

console = terminal()


def compare(
    folders: Annotated[list[Path], typer.Argument(help="folders of runs", show_default=False)],
    out: Annotated[Path | None, OUT] = None,
) -> None:
    """Put finished runs side by side: one table for each data set, methods paired seed by seed.

    With --out a report is written there too.
    """
    from sim.report.html import write_report
    from sim.report.terminal import print_run

    runs = [run for folder in folders for run in read_all(folder)]
    merged = merge(runs)
    for one in merged:
        print_run(console, one)
    if out is not None:
        path = write_report(out, merged, "Runs compared", f"{len(runs)} runs, side by side.")
        console.print(f"\nReport: {path}")


def merge(runs: Sequence[Run]) -> list[Run]:
    """One run for each data set, holding all that was run on it; a label that occurs twice gets its run's name.

    Two runs rest on the same data where task, partition and sizes agree. Raises PlanError where nothing was finished.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(data_of(run.plans[0]), []).append(run)
    if not any(run.done for run in runs):
        raise PlanError("none of these runs has a finished plan, so there is nothing to compare")
    return [_merged(group) for group in groups.values()]


def data_of(plan: Plan) -> str:
    """What the data of a plan depend on, apart from the seed."""
    return plan.model_copy(update={"seed": 0, "fold": 0}).data_key


def _merged(group: Sequence[Run]) -> Run:
    first = group[0]
    labels = [{plan.method.label for plan in run.plans} for run in group]
    shared = {label for held in labels for label in held if sum(label in other for other in labels) > 1}
    done: list[PlanRun] = []
    for run in group:
        for one in run.done:
            label = f"{one.label} ({_name(run)})" if one.label in shared else one.label
            method = one.plan.method.model_copy(update={"label": label})
            plan = one.plan.model_copy(update={"method": method})
            done.append(PlanRun(len(done), plan, {**one.row, "label": label}, one.evaluations, one.events))
            if (model := run.model_of(one)) is not None:
                first.models[len(done) - 1] = model
    name = first.scenario.name if len(group) == 1 else " and ".join(dict.fromkeys(map(_name, group)))
    scenario = first.scenario.model_copy(update={"name": name})
    about = {**first.about, "sources": [_name(run) for run in group]}
    return Run(scenario, [one.plan for one in done], None, done, about, dict(first.models))


def _name(run: Run) -> str:
    return run.folder.name if run.folder is not None else run.scenario.name
