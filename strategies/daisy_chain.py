"""Flower strategies: daisy-chaining around any of them, and the methods by their names.

Source: Kamp, Fischer & Vreeken, ICLR 2023, Algorithm 1. What stands alone is aggregated at every communication round.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any, NoReturn

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from fedsmall.aggregation.aggregate import aggregate
from fedsmall.aggregation.combiners import Aggregate, Combiner, FoldTrees, ServerStep
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.algorithm.daisy_chain import daisy_chain, topology_for
from fedsmall.algorithm.gate import GATE
from fedsmall.errors import PlanError, ReplyError
from fedsmall.parts import Tree
from fedsmall.plan import Method, Plan
from fedsmall.strategies.checks import check_enough, plan_for
from fedsmall.strategies.grid_trainer import GridTrainer
from fedsmall.strategies.records import SendingGrid, count_of, parameters_of, to_arrays, to_record
from fedsmall.strategies.roster import await_all, await_sites
from fedsmall.travel.journey import Event, RoundResult
from fedsmall.travel.schedule import AbstractSchedule, Action, CommRound, Schedule
from fedsmall.wire import EXAMPLES, METRICS, MODEL, PLAN, ROUND, Arrays

LOG = logging.getLogger("flwr")
BY_ITSELF = "it by itself, or fedsmall's methods of that kind (`fedsmall list methods`)"
FIXED = "DifferentialPrivacyServerSideAdaptiveClipping or ...ClientSideFixedClipping"
UNFIT: dict[type[Strategy], tuple[str, str]] = {  # what a strategy does with more of a reply than its model, and a cure
    flower.DifferentialPrivacyClientSideAdaptiveClipping: ("counts the norm_bit of every reply", FIXED),
    flower.QFedAvg: ("weighs sites by the loss in every reply", "another strategy"),
    **dict.fromkeys((flower.FedXgbBagging, flower.FedXgbCyclic), ("joins trees", BY_ITSELF)),
}
FEW: dict[str, Any] = {"min_train_nodes": 1, "min_evaluate_nodes": 1, "min_available_nodes": 1}


class FlowerCombiner(Combiner):
    """A Flower strategy's aggregation as a combiner; its server rounds are the aggregations, from 1 on."""

    def __init__(self, strategy: Strategy) -> None:
        for kind, (does, instead) in UNFIT.items():
            if isinstance(strategy, kind) or isinstance(_innermost(strategy), kind):
                raise PlanError(f"{kind.__name__} {does}, and a daisy chain hands it models; use {instead}")
        self.strategy = strategy
        self.aggregations = 0

    def config(self, global_model: Arrays, config: ConfigRecord, sites: int) -> ConfigRecord:
        """The config of the strategy's own orders; asking also tells it the model from which sites start."""
        sent = ConfigRecord(dict(config))
        model = to_record(parameters_of(global_model))
        with _quietly():
            orders = list(self.strategy.configure_train(self.aggregations + 1, model, sent, _NoSites(sites)))
        records = list(orders[0].content.config_records.values()) if orders else []
        return records[0] if records else sent

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The new global model, after :meth:`config`. Raises ReplyError where none is returned."""
        self.aggregations += 1
        with _quietly(), _without_metrics(_innermost(self.strategy)):
            arrays, _ = self.strategy.aggregate_train(self.aggregations, _replies(self.strategy, updates))
        if not arrays:
            raise ReplyError(f"{type(self.strategy).__name__} returned no model from {len(updates.sites)} sites.")
        moved = to_arrays(arrays)
        rest = aggregate(updates.stack, "mean", updates.weights)
        return {
            name: np.asarray(moved[name], dtype=before.dtype) if name in moved else rest[name]
            for name, before in global_model.items()
        }

    def checkpoint(self) -> Callable[[], None]:
        """As :meth:`Combiner.checkpoint`; what the strategy had not yet begun to remember goes, too."""
        return partial(vars(self.strategy).update, dict(vars(self.strategy)))


def count_key(strategy: Strategy) -> str:
    """The metric under which a strategy's sites count their samples."""
    return str(getattr(_innermost(strategy), "weighted_by_key", EXAMPLES))


def train_metrics_of(strategy: Strategy, contents: list[RecordDict]) -> MetricRecord | None:
    """The metrics of replies, combined by the strategy's own function or Flower's mean, without unusual ones."""
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


class _NoSites(SendingGrid):
    """As many nodes as there are models; the wrapped strategy's orders are never sent."""

    def __init__(self, sites: int) -> None:
        self._nodes, self._asked = list(range(1, sites + 1)), 0

    def get_node_ids(self) -> list[int]:
        self._asked += 1
        if self._asked > 4:  # Flower's sampler asks again each second, for ever
            waits = f"The wrapped strategy waits for more sites than the {len(self._nodes)} that take part"
            raise ReplyError(f"{waits}. Lower its min_available_nodes and min_train_nodes.")
        return self._nodes


class DaisyChain(Strategy):
    """Hands every site's model on to another site, and lets the wrapped strategy aggregate now and then.

    The sites are those that are connected when the run starts. The model sent to one that is silent, or whose reply
    fails its check, goes on at the next communication round. After a run ``sites`` are their names, and ``events`` what
    did not go as it should. Where both are due, aggregation wins, unlike in Algorithm 1 as printed (Kamp et al. 2023).

    Parameters
    ----------
    strategy
        Any Flower strategy, or a combiner of ours; it sees only the aggregations.
    schedule
        At which rounds models travel and are aggregated (d and b of the paper); d = 1 and b = 10 if not given.
    seed
        Of permutations and of the sites that take part.
    fraction
        The share of the sites that takes part in a communication round.
    weighted
        Whether a mean goes by samples.
    gate
        How far an update may be from the others before it is set aside (:mod:`fedsmall.algorithm.gate`); 0 for any.
    method
        Of what no other argument says: how many models travel, and by which route.

    Examples
    --------
    >>> from flwr.serverapp.strategy import FedAvg
    >>> from fedsmall.strategies import DaisyChain
    >>> from fedsmall.travel.schedule import Schedule
    >>> chain = DaisyChain(FedAvg(), Schedule(permute_every=1, aggregate_every=2))
    >>> result = chain.start(grid, arrays, 4, train_config=config)
    >>> sorted(result.evaluate_metrics_clientapp), len(chain.sites)
    ([2, 4], 3)
    """

    def __init__(
        self,
        strategy: Strategy | Combiner,
        schedule: AbstractSchedule | None = None,
        *,
        seed: int = 0,
        fraction: float = 1.0,
        weighted: bool = False,
        gate: float = GATE,
        method: Method | None = None,
    ) -> None:
        if isinstance(strategy, DaisyChain):  # one of ours by its name: what it combines with, under this schedule
            self.combiner: Combiner = strategy.combiner
            self.strategy: Strategy = strategy.strategy
            weighted = weighted or bool(strategy.method.weighted)
        elif isinstance(strategy, Combiner):
            self.combiner, self.strategy = strategy, FedAvg(**FEW)
        else:
            self.combiner, self.strategy = FlowerCombiner(strategy), strategy
        self.schedule: AbstractSchedule = schedule or Schedule(permute_every=1, aggregate_every=10)
        asked = {"fraction": fraction, "weighted": weighted, "gate": float(gate)}
        self.method: Method = (method or Method(name="DaisyChain")).model_copy(update=asked)
        self.seed, self.sites, self.events = seed, list[str](), list[Event]()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run ``num_rounds`` communication rounds, the last of which aggregates; as Flower's own loop does.

        Where ``train_config`` carries a plan, the clients are fedsmall's own and are asked who they are. Raises
        PlanError where several models come out: Flower's result has a place for one.
        """
        if self.method.is_ensemble:
            raise PlanError("several models come out of groups and snapshots, and Flower's loop takes one; run a plan")
        train, judge, result = train_config or ConfigRecord(), evaluate_config or ConfigRecord(), Result()
        self.events = []
        self.summary()
        if evaluate_fn and (evaluated := evaluate_fn(0, initial_arrays)) is not None:
            result.evaluate_metrics_serverapp[0] = evaluated
        for server_round, round_result, contents in self.walk(grid, initial_arrays, num_rounds, timeout, train):
            LOG.info("[ROUND %s/%s] %s of %s sites", server_round, num_rounds, len(round_result.sites), len(self.sites))
            if (metrics := train_metrics_of(self.strategy, contents)) is not None:
                LOG.info("\t└──> Aggregated MetricRecord: %s", metrics)
                result.train_metrics_clientapp[server_round] = metrics
            if round_result.global_model is not None:
                result.arrays = to_record(round_result.global_model)
                # our own clients know by these what they judge
                words = {PLAN: train[PLAN], ROUND: round_result.comm_round.t} if PLAN in train else {}
                config = ConfigRecord({**words, **judge})
                metrics_of_sites = self._evaluate(server_round, result.arrays, config, grid, timeout)
                if metrics_of_sites is not None:
                    LOG.info("\t└──> Aggregated MetricRecord: %s", metrics_of_sites)
                    result.evaluate_metrics_clientapp[server_round] = metrics_of_sites
            if evaluate_fn and (evaluated := evaluate_fn(server_round, result.arrays or initial_arrays)) is not None:
                result.evaluate_metrics_serverapp[server_round] = evaluated
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise PlanError: who calls it is another strategy."""
        _refuse_wrapper()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raise PlanError: who calls it is another strategy."""
        _refuse_wrapper()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The wrapped strategy's, of the sites that have held something out: no mean goes by weights of nothing."""
        key = count_key(self.strategy)
        counted = [reply for reply in replies if reply.has_error() or count_of(reply, key) != 0]
        return self.strategy.aggregate_evaluate(server_round, counted) if counted else None

    def summary(self) -> None:
        """The wrapped strategy's."""
        self.strategy.summary()

    def walk(
        self, grid: Grid, initial: ArrayRecord, num_rounds: int, timeout: float, config: ConfigRecord
    ) -> Iterator[tuple[int, RoundResult, list[RecordDict]]]:
        """Algorithm 1 over a grid: of each communication round Flower's number, its result, what sites have said."""
        first, sent_plan = to_arrays(initial), plan_for(self.combiner, config)
        comm_rounds = list(islice(self.schedule.comm_rounds(None), num_rounds))
        comm_rounds[-1] = comm_rounds[-1]._replace(action=Action.AGGREGATE)
        await_sites(grid, max(1, getattr(self.strategy, "min_available_nodes", 1)))  # as Flower's strategies do
        await_all(grid)
        plan = self._plan(sent_plan, comm_rounds)
        trainer = GridTrainer(plan, grid, timeout_s=timeout, words=config, count=count_key(self.strategy))
        if sent_plan is None:
            check_enough(self.combiner, self.method.averaged(len(trainer.names)), first)
        self.sites = list(trainer.names)
        topology = topology_for(plan, trainer, lambda site: first, self.combiner)
        global_models = topology.states.global_models

        def announced() -> Iterator[CommRound]:
            for number, comm_round in enumerate(comm_rounds, start=1):  # the strategy adds words, FedProx's mu
                own = self.combiner if isinstance(self.combiner, FlowerCombiner) else None
                words = own.config(global_models.models[0], config, len(trainer.names)) if own else config
                trainer.words = {**words, "server-round": number}
                yield comm_round

        for server_round, round_result in enumerate(daisy_chain(topology, announced()), start=1):
            self.events += round_result.events
            contents = [trainer.contents[site] for site in round_result.sites if site in trainer.contents]
            yield server_round, round_result, contents

    def _plan(self, sent_plan: Plan | None, comm_rounds: list[CommRound]) -> Plan:
        """What our arguments say, as a plan; what a message holds is as in the one that our own clients are told."""
        if sent_plan is None:
            return Plan(name="app", task="an app's own", rounds=comm_rounds[-1].t, seed=self.seed, method=self.method)
        asked = {name: getattr(sent_plan.method, name) for name in ("wire", "privacy", "tree", "rule")}
        return sent_plan.model_copy(update={"seed": self.seed, "method": self.method.model_copy(update=asked)})

    def _evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, timeout: float
    ) -> MetricRecord | None:
        """What the sites say of a global model, as the wrapped strategy asks them and takes the mean."""
        orders = self.configure_evaluate(server_round, arrays, config, grid)
        return self.aggregate_evaluate(server_round, grid.send_and_receive(orders, timeout=timeout))


def _refuse_wrapper() -> NoReturn:
    raise PlanError("a daisy chain goes around other strategies, not within one: DaisyChain(Wrapper(FedAvg()))")


def FedDC(
    permute_every: int | None = 1,
    aggregate_every: int | None = 10,
    aggregator: str = "mean",
    *,
    seed: int = 0,
    fraction: float = 1.0,
    weighted: bool = False,
    gate: float = GATE,
) -> DaisyChain:
    """Federated daisy-chaining by its name (Kamp et al. 2023).

    Parameters
    ----------
    permute_every
        The period d, in rounds; None for never.
    aggregate_every
        The period b.
    aggregator
        "mean", "median", "radon" or another of `fedsmall list aggregators`.
    seed
        As of :class:`DaisyChain`, like ``fraction``, ``weighted`` and ``gate``.

    Examples
    --------
    >>> from fedsmall.strategies import FedDC
    >>> result = FedDC(permute_every=1, aggregate_every=3).start(grid, arrays, 3, train_config=config)
    >>> sorted(result.evaluate_metrics_clientapp)
    [3]
    """
    combiner, schedule = Aggregate(aggregator, seed=seed), Schedule(permute_every, aggregate_every)
    return DaisyChain(combiner, schedule, seed=seed, fraction=fraction, weighted=weighted, gate=gate)


def Averaging(
    aggregator: str = "mean", *, options: Mapping[str, float] | None = None, weighted: bool = False, seed: int = 0
) -> DaisyChain:
    """FedAvg with the aggregator as a part: float64 inside, blind to arrival order (McMahan et al. 2017).

    Other than Flower's it keeps every dtype, carries integer buffers, and sets a bad reply aside.

    Parameters
    ----------
    aggregator
        The aggregator's name.
    options
        Its settings by their names.
    weighted
        Whether a mean goes by samples.
    seed
        Of an aggregator that draws.

    Examples
    --------
    >>> from fedsmall.strategies import Averaging
    >>> result = Averaging("median").start(grid, arrays, 2, train_config=config)
    >>> sorted(result.evaluate_metrics_clientapp)
    [1, 2]
    """
    return _every_comm_round(Aggregate(aggregator, options, seed), seed=seed, weighted=weighted)


def RadonMachine(*, seed: int = 0) -> DaisyChain:
    """Aggregation by the iterated Radon point (Kamp et al. 2017): one absurd model cannot move it far.

    Parameters
    ----------
    seed
        Of the order in which models are taken. There must be two models more than parameters, or it does not start.
    """
    return _every_comm_round(Aggregate("radon", seed=seed), seed=seed)


def SCAFFOLD(*, lr: float = 1.0) -> DaisyChain:
    """Control variates correct the drift of local training (Karimireddy et al. 2020, Algorithm 1, option II).

    The sites send their controls, as fedsmall's own clients do under a plan of this method; else it does not start.

    Parameters
    ----------
    lr
        The server's rate.
    """
    return _every_comm_round(ServerStep("scaffold", options={"lr": lr}))


def FedNova(*, momentum: float = 0.0) -> DaisyChain:
    """Updates normalised by the local steps taken, weighed by samples (Wang et al. 2020).

    The sites say how many steps they took, as fedsmall's own clients do, without which it does not go on.

    Parameters
    ----------
    momentum
        That of the sites' optimizer.
    """
    return _every_comm_round(ServerStep("fednova", options={"momentum": momentum}), weighted=True)


def FedDyn(*, alpha: float = 0.01) -> DaisyChain:
    """A dynamic regulariser aligns local and global optima (Acar et al. 2021).

    The sites' half is that of fedsmall's own clients, without which it does not go on.

    Parameters
    ----------
    alpha
        The strength of the regulariser; the sites' is the same.
    """
    return _every_comm_round(ServerStep("feddyn", options={"alpha": alpha}))


def RepTreeFL(tree: Tree | None = None, aggregator: str = "mean", *, seed: int = 0) -> DaisyChain:
    """Sites train trees of replicas, and the server averages the anchors (Ghilea & Rekik, Algorithm 1).

    Parameters
    ----------
    tree
        How trees grow. With ``fold_at = "site"`` one model leaves a site; with "server" the replicas' models come
        beside the anchor's, and folding them here gives the same bits. The sites plant them: fedsmall's own clients.
    aggregator
        As of :func:`Averaging`, like ``seed``.
    """
    anchors = Aggregate(aggregator, seed=seed)
    anchors.half_of = FoldTrees.half_of
    return _every_comm_round(FoldTrees(tree, anchors) if tree and tree.fold_at == "server" else anchors, seed=seed)


def _every_comm_round(combiner: Combiner, *, seed: int = 0, weighted: bool = False) -> DaisyChain:
    return DaisyChain(combiner, Schedule(aggregate_every=1), seed=seed, weighted=weighted)
