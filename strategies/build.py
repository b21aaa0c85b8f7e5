"""From a plan to the strategy that runs it: each part of the method is looked up in a table."""

from collections.abc import Callable
from typing import Any

from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi, Strategy

from fedsmall.errors import PlanError
from fedsmall.plan import Method, Plan
from fedsmall.planning import schedule_for
from strategies.combine import Averaging
from strategies.daisy_chain import DaisyChain

FEW: dict[str, Any] = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}

# server optimizers: Flower's own, with the defaults of Reddi et al. 2021 that Flower has, and the plan's options
SERVERS: dict[str, Callable[[Method, int], Strategy]] = {
    "none": lambda method, seed: Averaging(
        method.aggregator, options=method.aggregator_options, weighted=method.weighted, seed=seed
    ),
    "momentum": lambda method, seed: FedAvgM(
        **FEW | {"server_learning_rate": 1.0, "server_momentum": 0.9} | method.server_options
    ),
    "adagrad": lambda method, seed: FedAdagrad(**FEW | method.server_options),
    "adam": lambda method, seed: FedAdam(**FEW | method.server_options),
    "yogi": lambda method, seed: FedYogi(**FEW | method.server_options),
}


def strategy_for(plan: Plan) -> DaisyChain:
    """The strategy of a plan's method, seeded with the plan's seed.

    Raises PlanError where a part has no implementation, or its settings do not fit.
    """
    method = plan.method
    if method.server not in SERVERS:
        raise PlanError(f"There is no server part {method.server!r}. Known: {', '.join(SERVERS)}.")
    try:
        inner = SERVERS[method.server](method, plan.seed)
    except TypeError as error:
        raise PlanError(f"Method {method.label!r}: server_options do not fit {method.server!r}: {error}") from None
    return DaisyChain(
        inner,
        schedule_for(plan),
        seed=plan.seed,
        fraction=method.fraction,
        weighted=method.weighted,
        alone=method.family != "federated",
    )
