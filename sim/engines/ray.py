"""The engine ``ray``: Flower's own simulation runtime, one client at a time per actor."""

import os
from collections.abc import Callable
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsmall.entry_points import import_extra
from fedsmall.errors import PlanError
from fedsmall.strategies.roster import await_sites
from fedsmall.training.device import SHARED_BY

CPU = torch.device("cpu")
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray will do soon, and until then warns of at every start
}


def connect(address: str) -> None:
    """Connect to the Ray cluster at ``address``; PlanError where none answers."""
    os.environ.update(QUIET | os.environ)
    ray = import_extra("ray", "ray")
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as reason:
        raise PlanError(
            f"No Ray cluster answers at {address!r}. Start one with `ray start --head` (on the other machines "
            "`ray start --address=HEAD:6379`), or leave the address out."
        ) from reason


def gpu_share(device: torch.device) -> float:
    """The part of a GPU that an actor asks Ray for, or 0. PlanError for one by number, and where Ray has none."""
    if device.type != "cuda":
        return 0.0
    if device.index is not None:
        raise PlanError(f'Ray hands out the GPUs itself: say device = "cuda" in place of "{device}".')
    ray = import_extra("ray", "ray")
    if ray.is_initialized() and not ray.cluster_resources().get("GPU"):
        raise PlanError("The Ray cluster has no GPU; leave the device out, or start Ray where one is.")
    return 1 / SHARED_BY


def with_ray_grid(
    sites: int,
    work: Callable[[Grid], Any],
    *,
    device: torch.device = CPU,
    prepare: Callable[[], None] = lambda: None,
    cpus: int | None = None,
    address: str | None = None,
) -> Any:
    """Call ``work`` with the grid of Flower's simulation runtime and return what it returns, or raise its error.

    Every actor is to ``prepare``, before each answer. ``cpus`` bounds what Ray starts; ``address`` is a cluster's.
    """
    os.environ.update(QUIET | os.environ)
    if address is not None:
        connect(address)
    from flwr.simulation import run_simulation

    from fedsmall.clients.client_app import app_on

    share = gpu_share(device)
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
    config = {"client_resources": {"num_cpus": 1, "num_gpus": share}, "init_args": init}
    run_simulation(server_app, app_on(str(device), prepare), num_supernodes=sites, backend_config=config)
    if "error" in kept:
        raise kept["error"]
    return kept.get("result")
