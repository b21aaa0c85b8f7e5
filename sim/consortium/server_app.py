"""The ServerApp of a federation of real sites, whose runs end in a folder such as a simulation leaves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsmall.strategies.server.deployment import serve
from fedsmall.vertical.plan import COLUMN_SHEET

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Conduct the run that the run's config names, and write its folder."""
    serve(grid, context, finished)


def finished(folder: Path, told: Mapping[str, Any]) -> None:
    """Write the folder of a run, of models that travel or over split columns."""
    if (folder / COLUMN_SHEET).exists():
        from fedsmall.sim.columns.finished import write_run as write_columns

        return write_columns(folder, told)
    from fedsmall.sim.consortium.records.finished import write_run

    write_run(folder, told)
