"""The ServerApp of a federation of real sites, whose runs end in a folder such as a simulation leaves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsmall.entry_points import SCENARIOS, kind_of_run, load_extension
from fedsmall.strategies.server.deployment import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Conduct the run that the run's config names, and write its folder."""
    serve(grid, context, finished)


def finished(folder: Path, told: Mapping[str, Any]) -> None:
    """Write the folder of a run, of models that travel or an extension's."""
    if kind := kind_of_run(folder):
        load_extension(SCENARIOS, kind).write_run(folder, told)
    else:
        from fedsmall.sim.consortium.finished import write_run

        write_run(folder, told)
