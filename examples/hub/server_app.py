"""The server: one method of fedsmall, or all of a scenario, as the config says."""

from fedsmall.sim.flower_app import app

__all__ = ["app"]
