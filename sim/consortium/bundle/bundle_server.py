"""The ServerApp of a federation of real sites, from the fedsmall that is installed at the coordinator."""

from fedsmall.sim.consortium.server_app import app

__all__ = ["app"]
