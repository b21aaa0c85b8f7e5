"""The ServerApp of a federation of real sites, whose runs end in a folder such as a simulation leaves."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsmall.sim.consortium.finished import write_run
from fedsmall.strategies.server.deployment import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Conduct the run that the run's config names, and write its folder."""
    serve(grid, context, write_run)
