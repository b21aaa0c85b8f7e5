import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedMedian, FedProx

from fedsmall.errors import ReplyError
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.strategies import Averaging, DaisyChain, FedDC
from fedsmall.travel.schedule import Schedule
from fedsmall.wire import CARRIED, METRICS, MODEL
from tests.oracles import permutation
from tests.strategies.toy import append_digit, half_way, moments_of, toy_grid, trained_in, walk, weights


def final(strategy, grid, arrays, rounds):
    for _, aggregated in walk(strategy, grid, arrays, rounds):
        last = aggregated
    return {name: array.numpy() for name, array in last.items()}


def test_a_model_visits_the_sites_that_the_named_permutation_names():
    chain = FedDC(permute_every=1, aggregate_every=None, seed=7)
    grid = toy_grid(3, append_digit)
    sites = ["site-0", "site-1", "site-2"]
    paths = {site: "" for site in sites}

    for result in moments_of(chain, grid, weights(0.0), rounds=6):
        visited = {site: paths[site] + str(int(site[-1]) + 1) for site in sites}
        assert {site: str(int(w[0])) for site, w in trained_in(result).items()} == visited
        route = permutation(7, result.comm_round.t, sites)
        paths = {route[site]: visited[site] for site in sites}


@pytest.mark.parametrize("sites", [1, 2, 3])
def test_feddc_without_permutation_is_fedavg_to_the_bit(sites):
    start = weights(0.5, -1.0)

    plain = final(DaisyChain(Averaging(), Schedule(aggregate_every=4)), toy_grid(sites), start, 8)
    chain = final(FedDC(permute_every=None, aggregate_every=4), toy_grid(sites), start, 8)

    np.testing.assert_array_equal(plain["w"], chain["w"])


def test_our_mean_agrees_with_flowers_fedavg():
    start = weights(0.5, -1.0)

    ours = final(DaisyChain(Averaging(), Schedule(1, 3)), toy_grid(4), start, 9)
    flowers = final(DaisyChain(FedAvg(), Schedule(1, 3)), toy_grid(4), start, 9)

    np.testing.assert_allclose(ours["w"], flowers["w"], rtol=1e-12)


def test_weights_are_equal_unless_asked_for():
    start = weights(0.0)
    targets = np.array([1.0, 2.0, 3.0]) / 2

    equal = final(DaisyChain(FedAvg(), Schedule(aggregate_every=1)), toy_grid(3), start, 1)
    weighted = final(DaisyChain(FedAvg(), Schedule(aggregate_every=1), weighted=True), toy_grid(3), start, 1)

    assert equal["w"][0] == pytest.approx(targets.mean())
    assert weighted["w"][0] == pytest.approx(np.average(targets, weights=[1, 2, 3]))


class ShuffledGrid(InProcessGrid):
    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages)
        random.Random(len(replies)).shuffle(replies)
        return replies


class TwiceGrid(InProcessGrid):
    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages)
        return [*replies, replies[0]]


def test_arrival_order_does_not_matter_to_the_bit():
    start = weights(0.1, 0.7)

    in_order = final(FedDC(1, 3, seed=1), toy_grid(5), start, 10)
    shuffled = final(FedDC(1, 3, seed=1), ShuffledGrid(toy_grid(5).app, 5), start, 10)

    np.testing.assert_array_equal(in_order["w"], shuffled["w"])


def test_integer_buffers_are_carried_and_dtypes_kept():
    start = ArrayRecord(
        {
            "w": Array(np.zeros(2, dtype=np.float32)),
            "bn.running_mean": Array(np.zeros(2, dtype=np.float32)),
            "bn.num_batches_tracked": Array(np.array(0, dtype=np.int64)),
        }
    )

    for inner in (Averaging(), FedAvg(), FedAdam(), FedMedian()):
        model = final(DaisyChain(inner, Schedule(1, 2)), toy_grid(3), start, 4)

        assert {name: str(a.dtype) for name, a in model.items()} == {
            "w": "float32",
            "bn.running_mean": "float32",
            "bn.num_batches_tracked": "int64",
        }
        assert int(model["bn.num_batches_tracked"]) == 4


def test_a_server_optimizer_moves_parameters_and_never_running_statistics():
    start = ArrayRecord({"w": Array(np.zeros(1)), "bn.running_mean": Array(np.zeros(1))})

    model = final(DaisyChain(FedAdam(eta=0.01), Schedule(aggregate_every=1)), toy_grid(2), start, 1)

    assert model["bn.running_mean"][0] == pytest.approx(0.75)
    assert model["w"][0] != pytest.approx(0.75)


def test_fedprox_mu_reaches_the_sites():
    chain = DaisyChain(FedProx(proximal_mu=0.3), Schedule(1, 2))
    grid, orders = toy_grid(2), []
    ask = grid.send_and_receive
    grid.send_and_receive = lambda messages, **more: ask([orders.append(order) or order for order in messages], **more)

    final(chain, grid, weights(0.0), 2)

    told = [order.content["config"] for order in orders if order.metadata.message_type == "train"]
    assert [config["proximal-mu"] for config in told] == [0.3] * 4
    assert [config["server-round"] for config in told] == [1, 1, 2, 2]


def test_flowers_own_start_runs_a_chain_and_ends_with_an_aggregation():
    result = DaisyChain(FedAdam(eta=0.1), Schedule(1, 10)).start(toy_grid(3), weights(0.0, 0.0), num_rounds=7)

    assert result.arrays["w"].shape == (2,)
    assert list(result.evaluate_metrics_clientapp) == [7]


def spoil_with(kind, victim="site-1", rounds=(2,)):
    def spoil(site, t, reply):
        if site != victim or t not in rounds:
            return None
        record = reply.content[MODEL]
        if kind == "nan":
            record["w"] = Array(np.full(record["w"].shape, np.nan))
        elif kind == "shape":
            record["w"] = Array(np.zeros(7))
        elif kind == "dtype":
            record["w"] = Array(record["w"].numpy().astype(np.float32))
        elif kind == "extra":
            record["more"] = Array(np.zeros(1))
        elif kind == "missing":
            del record["w"]
            record["v"] = Array(np.zeros(1))
        elif kind == "count":
            reply.content[METRICS]["num-examples"] = -3
        elif kind == "bytes":
            record["w"] = Array("float64", record["w"].shape, "numpy.ndarray", b"\x93NUMPY" + b"x" * 100)
        elif kind == "huge":
            record["w"] = Array("float64", (10**9,), "numpy.ndarray", b"")
        elif kind == "no dtype":
            record["w"] = Array("", record["w"].shape, "numpy.ndarray", b"")
        elif kind == "steps":
            reply.content[METRICS]["steps"] = [1, 2]
        elif kind == "carried":  # well formed, but no other site carries it: the next site could not take it up
            reply.content[CARRIED] = ArrayRecord({"momentum/w": Array(np.zeros(record["w"].shape))})
        elif kind == "nothing":
            reply.content = RecordDict({METRICS: MetricRecord({"num-examples": 1})})
        elif kind == "error":
            return Message(Error(code=2, reason="ValueError: disk full\nTraceback ..."), reply_to=_order(reply))
        return reply

    return spoil


def _order(reply):
    order = Message(RecordDict(), reply.metadata.src_node_id, "train")
    order.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return order


KINDS = [
    "nan",
    "shape",
    "dtype",
    "extra",
    "missing",
    "count",
    "bytes",
    "huge",
    "no dtype",
    "steps",
    "carried",
    "nothing",
    "error",
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_reply_is_set_aside_with_its_site_and_no_traveller_is_lost(kind):
    chain = FedDC(permute_every=1, aggregate_every=None, seed=0, gate=False)  # models of digits grow tenfold a round
    grid = toy_grid(3, append_digit, spoil_with(kind))

    moments, visits = [], []
    for result in moments_of(chain, grid, weights(0.0), rounds=4):
        moments.append(result)
        visits.append(sorted(len(str(int(w[0]))) for w in trained_in(result).values()))

    # the model whose reply was bad has one visit less than the others, and all are still there
    assert visits == [[1, 1, 1], [2, 2], [2, 3, 3], [3, 4, 4]]
    assert np.isfinite(moments[-1].global_model["w"]).all()
    assert [(e["t"], e["site"], e["kind"]) for e in chain.events] == [(2, "site-1", "set aside")]
    assert "\n" not in chain.events[0]["reason"]


def test_stock_fedavg_is_poisoned_by_the_nan_that_a_chain_sets_aside():
    grid = toy_grid(3, half_way, spoil_with("nan", rounds=(0, 1)))
    start = weights(0.0)

    stock = FedAvg(min_available_nodes=3).start(grid, start, num_rounds=1)
    ours = final(DaisyChain(FedAvg(), Schedule(aggregate_every=1)), grid, start, 1)

    assert np.isnan(stock.arrays["w"].numpy()).any()
    assert np.isfinite(ours["w"]).all()


def test_a_run_in_which_every_reply_is_bad_ends_with_their_reasons():
    grid = toy_grid(1, half_way, spoil_with("nan", victim="site-0", rounds=(1,)))

    with pytest.raises(ReplyError, match=r"No site gave a model that may be used at round 1: site-0: .*not finite"):
        final(FedDC(1, 2), grid, weights(0.0), 2)


def test_an_answer_given_twice_counts_once():
    chain = DaisyChain(Averaging(), Schedule(aggregate_every=1))

    once = final(DaisyChain(Averaging(), Schedule(aggregate_every=1)), toy_grid(2), weights(0.0), 1)
    twice = final(chain, TwiceGrid(toy_grid(2).app, 2), weights(0.0), 1)

    np.testing.assert_array_equal(once["w"], twice["w"])
    assert any("twice" in event["reason"] for event in chain.events)


def test_an_untouched_common_model_does_not_count_in_the_next_aggregation():
    grid = toy_grid(2, half_way, spoil_with("error", rounds=(1,)))

    model = final(DaisyChain(Averaging(), Schedule(aggregate_every=1)), grid, weights(0.0), 1)

    assert model["w"][0] == 0.5  # site-0 alone: (0 + 1) / 2


def test_the_same_share_of_sites_is_drawn_whatever_the_global_generator_does():
    drawn = []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        chain = DaisyChain(Averaging(), Schedule(aggregate_every=1), fraction=0.4, seed=5)
        drawn.append([result.sites for result in moments_of(chain, toy_grid(10), weights(0.0), 5)])

    assert drawn[0] == drawn[1]
    assert all(len(present) == 4 for present in drawn[0])
    assert len(set(drawn[0])) > 1


def test_only_what_travels_is_counted_in_bytes():
    chain = FedDC(permute_every=1, aggregate_every=None)

    moments = moments_of(chain, toy_grid(3), weights(0.0, 0.0), rounds=5)

    assert sum(result.bytes_sent for result in moments) == 5 * 3 * 2 * 16  # rounds x sites x both ways x two float64


def test_a_wrapped_strategy_says_nothing_of_replies_that_it_never_saw(caplog):
    chain = DaisyChain(FedAvg(min_available_nodes=3), Schedule(permute_every=1, aggregate_every=2))

    with caplog.at_level("INFO", logger="flwr"):
        list(walk(chain, toy_grid(3), weights(0.0), 2))

    assert not [line for line in caplog.messages if "Received" in line or "Sampled" in line]


def times(factor, victim="site-1", rounds=(2,)):
    """A site that answers its model, some times as large."""

    def spoil(site, t, reply):
        if site == victim and t in rounds:
            reply.content[MODEL]["w"] = Array(reply.content[MODEL]["w"].numpy() * factor)
        return reply

    return spoil


@pytest.mark.parametrize("factor", [1e3, 1e30, -1e5])
@pytest.mark.parametrize("schedule", [(None, 1), (1, 3)])
def test_one_absurd_model_is_set_aside_with_its_site_and_moves_nothing(factor, schedule):
    grid = toy_grid(5, half_way, times(factor))
    chain = FedDC(*schedule)

    model = final(chain, grid, weights(1.0, 2.0), 9)

    assert [(e["t"], e["site"], e["kind"]) for e in chain.events] == [(2, "site-1", "set aside")]
    assert "times the median of this communication round's" in chain.events[0]["reason"]
    assert 0 < model["w"].min() < model["w"].max() < 5


def test_without_the_gate_one_absurd_model_decides_the_mean():
    model = final(FedDC(None, 1, gate=False), toy_grid(5, half_way, times(1e30, rounds=(9,))), weights(1.0, 2.0), 9)

    assert model["w"].min() > 1e28


def overflowing(site, w, rounds):
    """What an honest site makes of a model: half the way to its target, and no number of one that is absurd."""
    return half_way(site, w, rounds) if np.abs(w).max() < 1e100 else w * np.inf


def test_a_traveller_that_diverges_is_charged_to_who_trained_it_last_and_poisons_nobody_else():
    chain = FedDC(1, None, gate=False, seed=3)
    grid = toy_grid(4, overflowing, times(1e200, rounds=(1,)))
    route = permutation(3, 1, [f"site-{k}" for k in range(4)])

    model = final(chain, grid, weights(1.0, 2.0), 6)

    assert [(e["t"], e["site"], e["kind"]) for e in chain.events] == [(2, "site-1", "replaced")]
    assert route["site-1"] in chain.events[0]["reason"]
    assert route["site-1"] != "site-1"
    assert np.abs(model["w"]).max() < 5


def test_a_site_that_spoils_what_comes_to_it_is_charged_itself():
    chain = FedDC(1, None)

    final(chain, toy_grid(4, half_way, spoil_with("nan", rounds=(2, 3))), weights(1.0, 2.0), 6)

    assert [(e["t"], e["site"], e["kind"]) for e in chain.events] == [(t, "site-1", "set aside") for t in (2, 3)]


@pytest.mark.parametrize("inner", [Averaging, FedAvg, lambda: FedAvgM(server_momentum=0.5)])
@pytest.mark.parametrize("absurd", [1e9, 1e308])
def test_an_aggregate_that_is_absurd_is_refused_and_all_keep_the_last_common_model(inner, absurd):
    def all_at_once(site, w, rounds):
        return np.where(w > 1.5, absurd, half_way(site, w, rounds))

    chain = DaisyChain(inner(), Schedule(aggregate_every=1))
    grid = toy_grid(4, all_at_once)
    models = [record["w"].numpy() for _, record in walk(chain, grid, weights(1.4, 1.3), 30)]
    refused = [e for e in chain.events if e["kind"] == "refused"]

    assert refused
    assert {e["site"] for e in refused} == {"server"}
    assert all("all keep the last global model" in e["reason"] for e in refused)
    assert all(np.abs(model).max() < 5 for model in models)
    np.testing.assert_array_equal(models[refused[0]["t"] - 1], models[refused[0]["t"] - 2])
