"""The engine ``ray``: Flower's own simulation runtime, one client at a time per actor."""

import os
from collections.abc import Callable
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsmall.errors import PlanError
from strategies.roster import await_sites

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def connect(address: str | None) -> bool:
    """Connect to the Ray cluster at ``address``, or start a local one; whether that was still to be done.

    Raises PlanError where no cluster answers.
    """
    _hush()
    import ray

    if ray.is_initialized():
        return False
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as reason:
        if address is None:
            raise
        raise PlanError(
            f"No Ray cluster answers at {address!r}. Start one with `ray start --head` (on the other machines "
            "`ray start --address=HEAD:6379`), or leave the address out."
        ) from reason
    return True


def _hush() -> None:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


def with_ray_grid(
    sites: int, work: Callable[[Grid], Any], *, cpus: int | None = None, address: str | None = None
) -> Any:
    """Call ``work`` with the grid of Flower's simulation runtime and return what it returns.

    ``cpus`` bounds what Ray starts on this machine (all of it by default); with ``address`` a running Ray cluster is
    used instead. An error in ``work`` is raised here; Flower would only log it.
    """
    _hush()
    if address is not None:
        connect(address)
    from flwr.simulation import run_simulation

    from clients.client_app import app as client_app

    kept: dict[str, Any] = {}
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            await_sites(grid, sites)  # Flower starts this before it has made all of them
            kept["result"] = work(grid)
        except BaseException as error:
            kept["error"] = error

    init: dict[str, Any] = {"address": address} if address else {"num_cpus": cpus or os.cpu_count() or 1}
    config = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": init}
    run_simulation(server_app, client_app, num_supernodes=sites, backend_config=config)
    if "error" in kept:
        raise kept["error"]
    return kept.get("result")
