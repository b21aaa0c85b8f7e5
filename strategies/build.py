"""From a plan to the strategy that runs it: each part of the method is looked up in a table."""

from collections.abc import Callable
from typing import Any

from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi, Strategy

from fedsmall.errors import PlanError
from fedsmall.plan import Plan
from fedsmall.validation import schedule_for
from strategies.combine import Averaging
from strategies.corrections import server_for
from strategies.daisy_chain import DaisyChain
from strategies.reptree import RepTreeFL

FEW: dict[str, Any] = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}

# Flower's own server optimizers, with Flower's defaults (Reddi et al. 2021; Hsu et al. 2019 for momentum)
FLOWERS: dict[str, Callable[..., Strategy]] = {
    "momentum": FedAvgM,
    "adagrad": FedAdagrad,
    "adam": FedAdam,
    "yogi": FedYogi,
}
FLOWERS_DEFAULTS: dict[str, dict[str, float]] = {"momentum": {"server_learning_rate": 1.0, "server_momentum": 0.9}}


def strategy_for(plan: Plan) -> DaisyChain:
    """The strategy of a plan's method, seeded with the plan's seed.

    Raises PlanError where a part has a setting that it does not know.
    """
    method = plan.method
    return DaisyChain(
        _inner(plan),
        schedule_for(plan),
        seed=plan.seed,
        fraction=method.fraction,
        weighted=method.weighted,
        alone=method.family != "federated",
    )


def _inner(plan: Plan) -> Strategy:
    method = plan.method
    if method.server in FLOWERS:
        options = FLOWERS_DEFAULTS.get(method.server, {}) | method.server_options
        try:
            return FLOWERS[method.server](**FEW | options)
        except TypeError as error:
            raise PlanError(f"Method {method.label!r}: server_options do not fit {method.server!r}: {error}") from None
    averaging = Averaging(
        method.aggregator, options=method.aggregator_options, weighted=method.weighted, seed=plan.seed
    )
    if method.tree is not None:
        return RepTreeFL(method.tree, averaging)
    return averaging if method.server == "none" else server_for(plan, averaging)
