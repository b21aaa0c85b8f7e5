"""Many models into one, as the last step of a strategy: what our own aggregating strategies share."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedsmall.aggregation.aggregate import aggregate
from fedsmall.errors import ReplyError
from fedsmall.randomness import rng_for
from fedsmall.wire import EXAMPLES, METRICS, MODEL, STEPS, Arrays
from strategies.checks import check_reply, signature
from strategies.records import stacked, to_arrays, to_record


@dataclass(frozen=True)
class Updates:
    """What counts in one aggregation, in the order of the sites' names.

    ``stack`` is {name: (models, ...)}; ``weights`` (models,) or None for equal ones; ``steps`` (models,) the local
    optimizer steps of the last contact; ``rule`` {name: (models, ...)} what the local rule sent (may be empty);
    ``sites_in_all`` counts the sites of the federation, of which these may be a part.
    """

    sites: tuple[str, ...]
    stack: Arrays
    weights: np.ndarray | None
    steps: np.ndarray
    rule: Arrays = field(default_factory=dict)
    sites_in_all: int = 0


@runtime_checkable
class Combiner(Protocol):
    """A strategy that turns a stack of models into the common one; ``order_rule`` is what orders carry for the rule."""

    def combine(self, common: Arrays, updates: Updates, t: int) -> Arrays:
        """The new common model; ``common`` is the one before it."""

    def order_rule(self) -> Arrays:
        """What the local rule at the sites needs from the server, sent with every order."""

    def state(self) -> tuple[Arrays, dict[str, float]]:
        """What must be kept to go on after a restart."""

    def restore(self, arrays: Arrays, numbers: Mapping[str, float]) -> None:
        """Take up what :meth:`state` gave."""


class Averaging(FedAvg):
    """FedAvg with the aggregator as a part: unweighted by default, float64 inside, blind to arrival order.

    ``aggregator`` is a name of :data:`fedsmall.aggregation.aggregate.AGGREGATORS`, ``options`` its settings. Other than
    Flower's FedAvg it keeps every dtype, carries integer buffers, and sets a bad reply aside instead of ending the run.
    Source: McMahan et al. 2017; the aggregators' sources are in :mod:`fedsmall.aggregation.aggregate`.
    """

    def __init__(
        self,
        aggregator: str = "mean",
        *,
        options: Mapping[str, float] | None = None,
        weighted: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.aggregator = aggregator
        self.options = dict(options or {})
        self.weighted = weighted
        self.seed = seed
        self._sent: ArrayRecord = ArrayRecord()

    def combine(self, common: Arrays, updates: Updates, t: int) -> Arrays:
        """The aggregate of the stack."""
        rng = rng_for(self.seed, "aggregate", t)
        return aggregate(updates.stack, self.aggregator, updates.weights, self.options, rng)

    def order_rule(self) -> Arrays:
        """Nothing: averaging asks no more of the local rule."""
        return {}

    def state(self) -> tuple[Arrays, dict[str, float]]:
        """Nothing: each aggregation depends on its models alone."""
        return {}, {}

    def restore(self, arrays: Arrays, numbers: Mapping[str, float]) -> None:
        """Nothing to take up."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the common model to the sites, as FedAvg does, and remember what was sent."""
        self._sent = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine the good replies (used when the strategy runs by itself, without a daisy chain around it)."""
        good = []
        for reply in replies:
            try:
                check_reply(reply, signature(self._sent))
            except ReplyError:
                continue
            good.append(reply)
        if not good:
            return None, None
        good.sort(key=lambda reply: reply.metadata.src_node_id)
        updates = Updates(
            sites=tuple(str(reply.metadata.src_node_id) for reply in good),
            stack=stacked([reply.content.array_records[MODEL] for reply in good]),
            weights=_metric(good, EXAMPLES) if self.weighted else None,
            steps=_metric(good, STEPS),
            sites_in_all=len(good),
        )
        common = self.combine(to_arrays(self._sent), updates, server_round)
        metrics = self.train_metrics_aggr_fn([reply.content for reply in good], self.weighted_by_key)
        return to_record(common), metrics


def _metric(replies: list[Message], key: str) -> np.ndarray:
    told: list[Any] = [reply.content.metric_records[METRICS].get(key, 1.0) for reply in replies]
    return np.array(told, dtype=np.float64)


def RadonMachine(*, seed: int = 0) -> Averaging:
    """Aggregation by the iterated Radon point (Kamp et al. 2017): one absurd model cannot move it far."""
    return Averaging("radon", seed=seed)
