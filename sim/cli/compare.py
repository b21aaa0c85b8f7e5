"""``fedsmall compare``: finished runs side by side, with paired differences where they rest on the same data."""

from pathlib import Path
from typing import Annotated

import typer

from fedsmall.sim.cli.options import OUT
from fedsmall.sim.consortium.opened import opened
from fedsmall.sim.report.terminal import terminal
from fedsmall.sim.runs.folder import read_all
from fedsmall.sim.runs.merge import merge

console = terminal()


def compare(
    folders: Annotated[list[Path], typer.Argument(help="folders of runs", show_default=False)],
    out: Annotated[Path | None, OUT] = None,
) -> None:
    """Put finished runs side by side: one table for each data set, methods paired seed by seed.

    With --out a report is written there too.
    """
    from fedsmall.sim.report.html import write_report
    from fedsmall.sim.report.terminal import print_run

    runs = [run for folder in folders for run in read_all(opened(folder))]
    merged = merge(runs)
    for one in merged:
        print_run(console, one)
    if out is not None:
        path = write_report(out, merged, "Runs compared", f"{len(runs)} runs, side by side.")
        console.print(f"\nReport: {path}")
