"""SCAFFOLD, FedNova, FedDyn and the adaptive servers as strategies, around fedsmall.aggregation.server_optimizers."""

from collections.abc import Mapping

import numpy as np
from flwr.serverapp.strategy import FedAvg

from fedsmall.aggregation.server_optimizers import SERVERS, Returns, check_options, parameters_of, server_step
from fedsmall.errors import PlanError, ReplyError
from fedsmall.plan import Plan
from fedsmall.wire import Arrays
from strategies.combine import Averaging, Updates


class ServerUpdate(FedAvg):
    """Moves the common model by a row of :data:`~fedsmall.aggregation.server_optimizers.SERVERS`, by what came.

    ``server`` names the row and ``options`` its settings; ``averaging`` makes one model of the sites'. What the server
    remembers outlives a restart (:meth:`state`). Runs inside a :class:`DaisyChain`, which keeps the sites' slots.
    """

    def __init__(
        self, server: str, averaging: Averaging | None = None, options: Mapping[str, float] | None = None
    ) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        if server not in SERVERS:
            raise PlanError(f"There is no server optimizer {server!r}. Known: {', '.join(SERVERS)}.")
        self.server = server
        self.averaging = averaging or Averaging()
        self.options = dict(options or {})
        self.memory: Arrays = {}

    def combine(self, common: Arrays, updates: Updates, t: int) -> Arrays:
        """The next common model; raises ReplyError where SCAFFOLD's controls did not come with the models."""
        if self.server == "scaffold":
            _check_controls(common, updates)
        weights = np.ones(len(updates.sites)) if updates.weights is None else updates.weights
        returns = Returns(
            models=updates.stack,
            aggregate=self.averaging.combine(common, updates, t),
            weights=weights / weights.sum(),
            steps=updates.steps,
            sites=updates.sites_in_all or len(updates.sites),
            rule=updates.rule,
        )
        moved, self.memory = server_step(self.server, common, self.memory, returns, self.options)
        return moved

    def order_rule(self) -> Arrays:
        """SCAFFOLD's server control c, which every order carries; nothing for any other."""
        return self.memory if self.server == "scaffold" else {}

    def state(self) -> tuple[Arrays, dict[str, float]]:
        """What the server remembers."""
        return self.memory, {}

    def restore(self, arrays: Arrays, numbers: Mapping[str, float]) -> None:
        """Take up what :meth:`state` gave."""
        self.memory = dict(arrays)


def _check_controls(common: Arrays, updates: Updates) -> None:
    shapes = {f"control/{name}": (len(updates.sites), *common[name].shape) for name in parameters_of(common)}
    for name, shape in shapes.items():
        came = updates.rule[name].shape if name in updates.rule else "nothing"
        if came != shape:
            raise ReplyError(
                f"SCAFFOLD expects {name!r} of shape {shape} from {len(updates.sites)} sites; came {came}."
            )


def SCAFFOLD(*, lr: float = 1.0) -> ServerUpdate:
    """Control variates correct the drift of local training (Karimireddy et al. 2020, Algorithm 1, option II)."""
    return ServerUpdate("scaffold", options={"lr": lr})


def FedNova(*, momentum: float = 0.0) -> ServerUpdate:
    """Updates normalised by the local steps taken, weighed by samples (Wang et al. 2020); sites' ``momentum``."""
    return ServerUpdate("fednova", Averaging(weighted=True), {"momentum": momentum})


def FedDyn(*, alpha: float = 0.01) -> ServerUpdate:
    """A dynamic regulariser aligns local and common optima (Acar et al. 2021); ``alpha`` is the sites' too."""
    return ServerUpdate("feddyn", options={"alpha": alpha})


def server_for(plan: Plan, averaging: Averaging) -> ServerUpdate:
    """The server optimizer of a plan's method, with the settings that it shares with the sites.

    Raises PlanError for a setting that it does not have.
    """
    method = plan.method
    shared = {"fednova": {"momentum": plan.recipe.momentum}, "feddyn": {"alpha": method.feddyn_alpha}}
    options = {**shared.get(method.server, {}), **method.server_options}
    check_options(method.server, options)
    return ServerUpdate(method.server, averaging, options)
