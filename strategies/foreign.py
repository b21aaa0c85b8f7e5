"""Aggregation by Flower's own strategies, through their hooks.

They see float parameters alone, one reply per model in the order of site names, with equal weights unless some are
given. Buffers are averaged and integers carried outside; every dtype is restored.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import DifferentialPrivacyClientSideAdaptiveClipping, FedAvg, Strategy

from fedsmall.aggregation.aggregate import aggregate
from fedsmall.aggregation.combiners import Combiner, Updates
from fedsmall.errors import PlanError, ReplyError
from fedsmall.strategies.records import parameters_of, to_arrays, to_record
from fedsmall.wire import EXAMPLES, METRICS, MODEL, Arrays

FEW: dict[str, Any] = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


class FlowerCombiner(Combiner):
    """A Flower strategy's aggregation as a combiner; its server rounds are the aggregations, from 1 on."""

    def __init__(self, strategy: Strategy) -> None:
        if isinstance(strategy, DifferentialPrivacyClientSideAdaptiveClipping):
            raise PlanError(
                "DifferentialPrivacyClientSideAdaptiveClipping counts the norm_bit of every reply, and a daisy chain "
                "hands it models; use DifferentialPrivacyServerSideAdaptiveClipping or ...ClientSideFixedClipping"
            )
        self.strategy = strategy
        self.aggregations = 0

    def config(self, common: Arrays, config: ConfigRecord, sites: int) -> ConfigRecord:
        """The config of the strategy's own orders; asking also tells it the model from which sites start."""
        sent = ConfigRecord(dict(config))
        model = to_record(parameters_of(common))
        with _quietly():
            orders = list(self.strategy.configure_train(self.aggregations + 1, model, sent, _NoSites(sites)))
        records = list(orders[0].content.config_records.values()) if orders else []
        return records[0] if records else sent

    def combine(self, common: Arrays, updates: Updates, t: int) -> Arrays:
        """The new common model, after :meth:`config`. Raises ReplyError where none is returned."""
        self.aggregations += 1
        with _quietly(), _without_metrics(_innermost(self.strategy)):
            arrays, _ = self.strategy.aggregate_train(self.aggregations, _replies(self.strategy, updates))
        if not arrays:
            raise ReplyError(f"{type(self.strategy).__name__} returned no model from {len(updates.sites)} sites.")
        moved = to_arrays(arrays)
        rest = aggregate(updates.stack, "mean", updates.weights)
        return {
            name: np.asarray(moved[name], dtype=before.dtype) if name in moved else rest[name]
            for name, before in common.items()
        }

    def bookmark(self) -> Callable[[], None]:
        """As :meth:`Combiner.bookmark`; what the strategy had not yet begun to remember goes, too."""
        return partial(vars(self.strategy).update, dict(vars(self.strategy)))


def count_key(strategy: Strategy) -> str:
    """The metric under which a strategy's sites count their samples."""
    return str(getattr(_innermost(strategy), "weighted_by_key", EXAMPLES))


def train_metrics_of(strategy: Strategy, contents: list[RecordDict]) -> MetricRecord | None:
    """The metrics of replies, combined by the strategy's own function or Flower's mean.

    Sites with other metrics than most are left out: the functions expect the same of all.
    """
    inner = _innermost(strategy)
    together = (inner if isinstance(inner, FedAvg) else FedAvg(**FEW)).train_metrics_aggr_fn
    names_of = [_metric_names(content) for content in contents]
    usual = max(names_of, key=names_of.count, default={})
    alike = [content for content, names in zip(contents, names_of, strict=True) if names == usual]
    return together(alike, count_key(strategy)) if alike else None


def _metric_names(content: RecordDict) -> dict[tuple[str, str], int]:
    """A reply's metrics by record and name, with the lengths of lists."""
    return {
        (record, name): len(value) if isinstance(value, list) else -1
        for record, metrics in content.metric_records.items()
        for name, value in metrics.items()
    }


def _innermost(strategy: Strategy) -> Strategy:
    within = getattr(strategy, "strategy", None)
    return _innermost(within) if isinstance(within, Strategy) else strategy


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence Flower's lines on its replies, which here are our models."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _without_metrics(strategy: Strategy) -> Iterator[None]:
    """Replace the strategy's metrics function, which finds no metrics in our models."""
    function: Any = getattr(strategy, "train_metrics_aggr_fn", None)
    if isinstance(strategy, FedAvg):
        strategy.train_metrics_aggr_fn = lambda contents, key: MetricRecord()
    try:
        yield
    finally:
        if isinstance(strategy, FedAvg):
            strategy.train_metrics_aggr_fn = function


def _replies(strategy: Strategy, updates: Updates) -> list[Message]:
    weights = np.ones(len(updates.sites)) if updates.weights is None else updates.weights
    replies = []
    for row, weight in enumerate(weights):
        model = parameters_of({name: stack[row] for name, stack in updates.stack.items()})
        metrics = MetricRecord({count_key(strategy): float(weight)})
        content = RecordDict({MODEL: to_record(model), METRICS: metrics})
        replies.append(Message(content, reply_to=Message(RecordDict(), row + 1, MessageType.TRAIN)))
    return replies


class _NoSites(Grid):
    """As many nodes as there are models; the wrapped strategy's orders are never sent."""

    def __init__(self, sites: int) -> None:
        self._nodes = range(1, sites + 1)
        self._asked = 0

    def get_node_ids(self) -> list[int]:
        self._asked += 1
        if self._asked > 4:  # Flower's sampler asks again each second, for ever
            raise ReplyError(
                f"The wrapped strategy waits for more sites than the {len(self._nodes)} that take part. "
                "Lower its min_available_nodes and min_train_nodes."
            )
        return list(self._nodes)

    def _never(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    run = property(_never)
    set_run = create_message = push_messages = pull_messages = send_and_receive = _never


def own_config(combiner: Combiner, common: Arrays, config: ConfigRecord, sites: int) -> ConfigRecord:
    """The config of an order, with what a Flower strategy adds to it (FedProx's mu)."""
    return combiner.config(common, config, sites) if isinstance(combiner, FlowerCombiner) else config


def count_of(reply: Message, key: str) -> Any:
    """The number under ``key`` in a reply's metrics, or None."""
    metrics = reply.content.get(METRICS)
    return metrics.get(key) if isinstance(metrics, MetricRecord) else None


def with_our_count(reply: Message, key: str) -> Message:
    """The reply with its number of samples under our name as well."""
    if key != EXAMPLES and not reply.has_error() and (count := count_of(reply, key)) is not None:
        reply.content[METRICS] = MetricRecord({**reply.content.metric_records[METRICS], EXAMPLES: count})
    return reply
