"""Flower's own mods at the sites, and its wrappers for privacy: what they do to models that travel (docs/flower.md)."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import (
    LocalDpMod,
    adaptiveclipping_mod,
    arrays_size_mod,
    fixedclipping_mod,
    message_size_mod,
)
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    QFedAvg,
)

from fedsmall.clients.client_app import app as our_app
from fedsmall.clients.site_data import give_federation
from fedsmall.errors import PlanError, ReplyError
from fedsmall.methods import method
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.sim.engines.run import initial_model
from fedsmall.strategies import SCAFFOLD, Averaging, DaisyChain, FedDC, RadonMachine
from fedsmall.strategies.records import to_record
from fedsmall.travel.schedule import Schedule
from fedsmall.wire import PLAN

NORM, SITES, SIZE, ROUNDS = 0.5, 4, 2, 6
STRATEGIES = {
    "FedAvg in a chain": lambda: DaisyChain(FedAvg(), Schedule(1, 3)),
    "FedAdam in a chain": lambda: DaisyChain(FedAdam(), Schedule(1, 3)),
    "FedDC": lambda: FedDC(1, 3),
    "RadonMachine": RadonMachine,
    "RadonMachine in a chain": lambda: DaisyChain(RadonMachine(), Schedule(1, 3)),
}
SIZES = [arrays_size_mod, message_size_mod]


def pulling(mods=()) -> ClientApp:
    """Site k pulls every number half of the way to k + 1; the mods are those of its training."""
    app = ClientApp()

    @app.train(mods=[*mods])
    def train(message, context):
        target = context.node_config["partition-id"] + 1
        moved = {
            name: array.numpy() + (1 if array.dtype == "int64" else (target - array.numpy()) / 2)
            for name, array in message.content["arrays"].items()
        }
        arrays = ArrayRecord({name: Array(np.asarray(array)) for name, array in moved.items()})
        metrics = MetricRecord({"num-examples": 4, "loss": 1.0})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        told = MetricRecord({"num-examples": 4, "mean": float(message.content["arrays"]["w"].numpy().mean())})
        return Message(RecordDict({"metrics": told}), reply_to=message)

    return app


class Watched(InProcessGrid):
    """Remembers the models of every communication round: what each site received, and what it sent."""

    def __init__(self, app, sites=SITES):
        super().__init__(app, sites)
        self.comm_rounds = []

    def send_and_receive(self, messages, *, timeout=None):
        orders = list(messages)
        replies = super().send_and_receive(orders)
        if orders and orders[0].metadata.message_type == "train":
            assert not any(reply.has_error() for reply in replies)
            pairs = zip(orders, replies, strict=True)
            self.comm_rounds.append([tuple(one.content["arrays"]["w"].numpy() for one in pair) for pair in pairs])
        return replies


def start(strategy, mods=(), rounds=ROUNDS, size=SIZE, **named):
    grid = Watched(pulling(mods))
    given = ArrayRecord({"w": Array(np.zeros(size))})
    result = strategy.start(grid, given, num_rounds=rounds, train_config=ConfigRecord({"clipping_norm": NORM}), **named)
    assert not grid.tracebacks
    return result, grid


def model(result):
    return result.arrays["w"].numpy()


@pytest.mark.parametrize("name", STRATEGIES)
def test_mods_that_tell_sizes_change_no_bit_and_tell_them_of_every_message(name, caplog):
    with caplog.at_level("INFO", logger="flwr"):
        told, _ = start(STRATEGIES[name](), SIZES)
    plain, _ = start(STRATEGIES[name]())

    assert model(told).tobytes() == model(plain).tobytes()
    assert sum("Incoming message size" in line for line in caplog.messages) == SITES * ROUNDS
    assert sum("Total array elements sent" in line for line in caplog.messages) == SITES * ROUNDS


@pytest.mark.parametrize("mod", [fixedclipping_mod, adaptiveclipping_mod])
@pytest.mark.parametrize("name", STRATEGIES)
def test_clipping_at_the_sites_bounds_what_a_comm_round_changes_in_every_model(name, mod):
    strategy = STRATEGIES[name]()
    result, grid = start(strategy, [mod])
    _, free = start(STRATEGIES[name]())

    steps = [np.linalg.norm(sent - received) for comm_round in grid.comm_rounds for received, sent in comm_round]
    assert max(steps) == pytest.approx(NORM)
    assert (
        max(np.linalg.norm(sent - received) for comm_round in free.comm_rounds for received, sent in comm_round)
        > 2 * NORM
    )
    assert strategy.events == []
    assert sorted(result.train_metrics_clientapp) == list(range(1, ROUNDS + 1))


def test_clipping_at_the_sites_does_not_bound_what_a_chain_changes():
    """Why the noise of central privacy, made for one clipped update a model, is too little for a daisy chain."""
    chained, _ = start(FedDC(1, 3), [fixedclipping_mod], rounds=3)
    averaged, _ = start(Averaging(), [fixedclipping_mod], rounds=1)

    assert np.linalg.norm(model(chained)) > 1.5 * NORM  # three clipped communication rounds
    assert np.linalg.norm(model(averaged)) <= NORM * (1 + 1e-9)


@pytest.mark.parametrize("name", STRATEGIES)
def test_local_noise_is_on_every_model_that_leaves_a_site(name):
    np.random.seed(0)  # noqa: NPY002  # Flower's mod draws from the global generator
    sensitivity, epsilon, delta = 0.1, 10.0, 1e-5
    spread = sensitivity * np.sqrt(2 * np.log(1.25 / delta)) / epsilon
    mods = [LocalDpMod(NORM, sensitivity, epsilon, delta)]
    size = 1000 if "Radon" not in name else SIZE  # r = size + 2 models make a Radon point

    _, grid = start(STRATEGIES[name](), mods, size=size, rounds=3)

    noises = [
        noise_of(received, sent, k + 1)
        for comm_round in grid.comm_rounds
        for k, (received, sent) in enumerate(comm_round)
    ]
    assert len(noises) == 3 * SITES
    assert np.std(noises) == pytest.approx(spread, rel=0.05 if size > 100 else 0.7)


def noise_of(received, sent, target):
    """What is in a model that left a site beside its clipped update."""
    update = (target - received) / 2
    return sent - received - update * min(1, NORM / np.linalg.norm(update))


def test_a_wrapper_for_clipping_at_the_sites_tells_them_the_norm_and_leaves_travelling_models_without_noise():
    private = DifferentialPrivacyClientSideFixedClipping(FedAvg(), 0.1, NORM / 2, num_sampled_clients=SITES)
    grid = Watched(pulling([fixedclipping_mod]))
    start_at = ArrayRecord({"w": Array(np.zeros(SIZE))})

    result = DaisyChain(private, Schedule(1, 3)).start(grid, start_at, num_rounds=3)

    assert max(np.linalg.norm(sent - received) for comm_round in grid.comm_rounds for received, sent in comm_round) == (
        pytest.approx(NORM / 2)
    )
    left = {sent.tobytes() for _, sent in grid.comm_rounds[0]}
    assert {received.tobytes() for received, _ in grid.comm_rounds[1]} == left  # handed on as they left
    mean = np.mean([sent for _, sent in grid.comm_rounds[2]], axis=0)
    assert not np.allclose(model(result), mean, atol=1e-6)  # the average has noise


@pytest.mark.parametrize(
    "wrapper",
    [
        lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(), 0.0, NORM, num_sampled_clients=SITES),
        lambda: DifferentialPrivacyServerSideAdaptiveClipping(
            FedAvg(), 0.0, num_sampled_clients=SITES, initial_clipping_norm=NORM
        ),
    ],
)
def test_clipping_at_the_server_undoes_most_of_what_a_chain_has_learnt(wrapper):
    clipped, _ = start(DaisyChain(wrapper(), Schedule(1, 3)), rounds=3)
    free, _ = start(DaisyChain(FedAvg(), Schedule(1, 3)), rounds=3)

    assert np.linalg.norm(model(clipped)) <= NORM * (1 + 1e-9)  # all three communication rounds together
    assert np.linalg.norm(model(free)) > 4 * NORM


def test_what_cannot_be_is_said_in_one_line():
    adaptive = DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(), 0.1, num_sampled_clients=SITES)
    around = DifferentialPrivacyClientSideFixedClipping(FedDC(1, 3), 0.1, NORM, num_sampled_clients=SITES)

    with pytest.raises(PlanError, match=r"^DifferentialPrivacyClientSideAdaptiveClipping counts the norm_bit.*Fixed"):
        DaisyChain(adaptive, Schedule(1, 3))
    for of_trees in (FedXgbBagging, FedXgbCyclic):
        with pytest.raises(PlanError, match=rf"^{of_trees.__name__} joins trees, .* use it by itself"):
            DaisyChain(of_trees(), Schedule(1, 3))
    fair = DifferentialPrivacyServerSideFixedClipping(QFedAvg(0.1), 0.1, NORM, num_sampled_clients=SITES)
    with pytest.raises(PlanError, match=r"^QFedAvg weighs sites by the loss in every reply, .* use another strategy"):
        DaisyChain(fair, Schedule(1, 3))
    with pytest.raises(PlanError, match=r"^a daisy chain goes around other strategies, not within one"):
        start(around)


def with_mods(mods) -> ClientApp:
    """fedsmall's own clients, with mods around their training."""
    app = ClientApp()
    app.query()(our_app)
    app.train(mods=[*mods])(our_app)
    app.evaluate()(our_app)
    return app


def ours(strategy, name, mods, **parts):
    plan = Plan(
        name="mods",
        task="breast_cancer",
        model="linear",
        sites=3,
        samples_per_site=4,
        rounds=2,
        recipe=Recipe(lr=0.5, local_steps=2),
        method=method(name, aggregate_every=1, **parts),
    )
    federation = build_federation(plan)
    give_federation(plan, federation)
    config = ConfigRecord({PLAN: plan.model_dump_json(exclude_defaults=True), "clipping_norm": 0.01})
    grid = InProcessGrid(with_mods(mods), 3)
    return strategy.start(grid, to_record(initial_model(plan, federation.task)), num_rounds=2, train_config=config)


@pytest.mark.parametrize("mods", [SIZES, [fixedclipping_mod]])
def test_our_own_clients_take_mods(mods):
    result = ours(FedDC(1, 2), "FedDC", mods, permute_every=1)

    assert len(result.train_metrics_clientapp) == 2
    assert all(np.isfinite(told["train-loss"]) for told in result.train_metrics_clientapp.values())


def test_control_variates_are_a_second_record_which_flowers_mods_for_privacy_refuse(caplog):
    assert len(ours(SCAFFOLD(), "SCAFFOLD", SIZES).train_metrics_clientapp) == 2
    with pytest.raises(ReplyError, match="No site gave a model"):
        ours(SCAFFOLD(), "SCAFFOLD", [fixedclipping_mod])
    assert "fixedclipping_mod expects exactly one ArrayRecord, but found 2 ArrayRecord(s)." in caplog.messages


def test_flowers_clipping_cannot_scale_a_counter():
    grid = InProcessGrid(pulling([fixedclipping_mod]), SITES)
    with_counter = ArrayRecord({"w": Array(np.zeros(2)), "num_batches_tracked": Array(np.array([5]))})

    with pytest.raises(ReplyError, match="UFuncTypeError"):
        FedDC(1, 3).start(grid, with_counter, num_rounds=3, train_config=ConfigRecord({"clipping_norm": NORM}))
    assert FedDC(1, 3).start(InProcessGrid(pulling(), SITES), with_counter, num_rounds=3).arrays


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_servers_own_evaluation_and_the_result_are_as_in_plain_flower(name):
    judged = {}

    def evaluate(server_round, arrays):
        judged[server_round] = arrays["w"].numpy().copy()
        return MetricRecord({"mean": float(judged[server_round].mean())})

    strategy = STRATEGIES[name]()
    result, _ = start(strategy, evaluate_fn=evaluate)
    plain = FedAvg().start(Watched(pulling()), ArrayRecord({"w": Array(np.zeros(SIZE))}), num_rounds=ROUNDS)

    assert type(result) is type(plain)
    assert {t: told["mean"] for t, told in result.evaluate_metrics_serverapp.items()} == {
        t: pytest.approx(arrays.mean()) for t, arrays in judged.items()
    }
    assert sorted(judged) == list(range(ROUNDS + 1))
    every = 3 if strategy.schedule.aggregate_every == 3 else 1
    for t in range(1, ROUNDS + 1):  # between two averages it is shown the last one
        assert (judged[t].tobytes() == judged[t - 1].tobytes()) == (t % every != 0)
    assert sorted(result.train_metrics_clientapp) == sorted(plain.train_metrics_clientapp)
    assert sorted(result.evaluate_metrics_clientapp) == list(range(every, ROUNDS + 1, every))
    assert model(result).tobytes() == judged[ROUNDS].tobytes()
