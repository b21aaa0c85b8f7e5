"""A federation of very small clients whose models tell where they have been."""

from collections.abc import Callable

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.strategies.records import to_record
from fedsmall.wire import CONFIG, METRICS, MODEL, PLAN

ASKED = ConfigRecord({PLAN: "a plan of which these sites know nothing"})  # so that they are asked for their names
Change = Callable[[str, np.ndarray, int], np.ndarray]


def append_digit(site: str, weights: np.ndarray, rounds: int) -> np.ndarray:
    """w -> 10 w + the site's number, for each round: the model's digits are the sites it has visited, in order."""
    for _ in range(rounds):
        weights = weights * 10 + int(site[-1]) + 1
    return weights


def half_way(site: str, weights: np.ndarray, rounds: int) -> np.ndarray:
    """Half of the way towards the site's own target: contracting, so that long runs stay finite."""
    for _ in range(rounds):
        weights = (weights + float(site[-1]) + 1.0) / 2
    return weights


def toy_app(change: Change, spoil: Callable[[str, int, Message], Message | None] | None = None) -> ClientApp:
    """A ClientApp whose site k changes its model by ``change``; ``spoil`` may replace a reply."""
    app = ClientApp()

    def name(context: Context) -> str:
        return f"site-{context.node_config['partition-id']}"

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return Message(RecordDict({CONFIG: ConfigRecord({"site": name(context)})}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        site = name(context)
        config = message.content[CONFIG]
        arrays = {key: array.numpy() for key, array in message.content[MODEL].items()}
        changed = {
            key: change(site, a, int(config.get("rounds", 1))) if a.dtype.kind == "f" else a + 1
            for key, a in arrays.items()
        }
        record = ArrayRecord({key: Array(np.asarray(a, dtype=arrays[key].dtype)) for key, a in changed.items()})
        metrics = MetricRecord({"num-examples": int(site[-1]) + 1, "train-loss": 1.0})
        reply = Message(RecordDict({MODEL: record, METRICS: metrics}), reply_to=message)
        spoilt = spoil(site, int(config.get("round", 0)), reply) if spoil else None
        return spoilt or reply

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        weights = message.content[MODEL]["w"].numpy()
        return Message(
            RecordDict({METRICS: MetricRecord({"num-examples": 1, "mean": float(weights.mean())})}), reply_to=message
        )

    return app


def toy_grid(sites: int, change: Change = half_way, spoil=None) -> InProcessGrid:
    return InProcessGrid(toy_app(change, spoil), sites)


def weights(*values: float, dtype: str = "float64") -> ArrayRecord:
    return ArrayRecord({"w": Array(np.array(values, dtype=dtype))})


def moments_of(strategy, grid, arrays: ArrayRecord, rounds: int, config: ConfigRecord | None = None):
    """What is there after each communication round of a run of so many local rounds."""
    comm_rounds = len(list(strategy.schedule.comm_rounds(rounds)))
    for _, result, _ in strategy.walk(grid, arrays, comm_rounds, 3600.0, config or ASKED):
        yield result


def walk(strategy, grid, arrays: ArrayRecord, rounds: int, config: ConfigRecord | None = None):
    """All communication rounds of a run; yields (comm_round, aggregated record or None)."""
    for result in moments_of(strategy, grid, arrays, rounds, config):
        yield result.comm_round, None if result.global_model is None else to_record(result.global_model)


def trained_in(result) -> dict[str, np.ndarray]:
    """The weights that every site has trained, by site."""
    return dict(zip(result.sites, result.models()["w"], strict=True))
