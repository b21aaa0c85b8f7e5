"""FedDC's daisy chain as one file that needs Flower and NumPy alone: permute models, and only sometimes average.

    from daisy_chain_alone import DaisyChain

    @app.main()
    def main(grid, context):
        DaisyChain(permute_every=1, aggregate_every=10).start(grid, initial_arrays=arrays, num_rounds=100)

Clients are any of Flower's: they train the arrays that come and send them back. Every site has a model of its own.
After a round whose number ``permute_every`` divides, each model goes on to the site that a random permutation gives it;
after one that ``aggregate_every`` divides, and the last, all sites are given the mean.

Source: Kamp, Fischer and Vreeken, "Federated Learning from Small Datasets", ICLR 2023, Algorithm 1.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

Arrays = dict[str, np.ndarray]


class DaisyChain(FedAvg):
    """Algorithm 1 over all connected sites; who does not answer keeps its model for the next round.

    Parameters
    ----------
    permute_every
        The daisy-chaining period d, in rounds.
    aggregate_every
        The aggregation period b, in rounds.
    seed
        Of the permutations.
    fedavg
        Settings of Flower's FedAvg: the names of records and metrics, functions that combine metrics.
    """

    def __init__(self, permute_every: int = 1, aggregate_every: int = 10, seed: int = 0, **fedavg: Any) -> None:
        if permute_every < 1 or aggregate_every < 1:
            raise ValueError("permute_every and aggregate_every are at least 1")
        super().__init__(**fedavg)
        self.permute_every, self.aggregate_every, self.seed = permute_every, aggregate_every, seed
        self.models: dict[int, Arrays] = {}  # by the node that holds each
        self.num_rounds = 0

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, **more: Any) -> Any:
        """Run so many rounds; the result's arrays are the last mean."""
        self.models, self.num_rounds = {}, num_rounds
        return super().start(grid, initial_arrays, num_rounds, **more)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """An order for every site, with the model that it holds."""
        nodes = sorted(grid.get_node_ids())
        if len(nodes) < self.min_available_nodes:
            raise ValueError(f"{len(nodes)} sites are connected, of which {self.min_available_nodes} at least must be")
        common = {name: array.numpy() for name, array in arrays.items()}
        self.models = {node: self.models.get(node, common) for node in nodes}
        config["server-round"] = server_round
        return [
            Message(
                RecordDict({self.arrayrecord_key: _record(model), self.configrecord_key: config}),
                node,
                MessageType.TRAIN,
            )
            for node, model in self.models.items()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take what was trained; hand models on, or average them."""
        valid, _ = self._check_and_log_replies(replies, is_train=True)
        for reply in valid:
            record = reply.content[self.arrayrecord_key]
            self.models[reply.metadata.src_node_id] = {name: array.numpy() for name, array in record.items()}
        metrics = None
        if valid:
            metrics = self.train_metrics_aggr_fn([reply.content for reply in valid], self.weighted_by_key)
        if server_round % self.aggregate_every == 0 or server_round == self.num_rounds:
            mean = _mean(list(self.models.values()))
            self.models = dict.fromkeys(self.models, mean)
            return _record(mean), metrics
        if server_round % self.permute_every == 0:
            nodes = sorted(self.models)
            order = np.random.default_rng([self.seed, server_round]).permutation(len(nodes))
            self.models = {nodes[to]: self.models[node] for node, to in zip(nodes, order.tolist(), strict=True)}
        return None, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sites judge a mean where there is a new one."""
        is_new = server_round % self.aggregate_every == 0 or server_round == self.num_rounds
        return super().configure_evaluate(server_round, arrays, config, grid) if is_new else []


def _mean(models: list[Arrays]) -> Arrays:
    return {
        name: np.mean([m[name] for m in models], axis=0, dtype=np.float64).astype(a.dtype)
        for name, a in models[0].items()
    }


def _record(model: Arrays) -> ArrayRecord:
    return ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in model.items()})
