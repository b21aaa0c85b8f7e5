"""The ServerApp of a federation of real sites, from the fedsmall that is installed at the coordinator."""

from strategies.server.deployment import app

__all__ = ["app"]
