"""A daisy chain around other people's clients: Flower's names, no question that they cannot answer, their metrics."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.strategies import Averaging, DaisyChain
from fedsmall.travel.schedule import Schedule
from fedsmall.wire import METRICS, PLAN
from tests.strategies.toy import toy_grid, weights


def template_app(count="num-examples", held_out=(4, 4)) -> ClientApp:
    """What Flower's template for PyTorch answers: ``train_loss`` and ``eval_acc``, and no query at all."""
    app = ClientApp()

    def reply(message, site, **metrics):
        arrays = ArrayRecord({"w": Array(message.content["arrays"]["w"].numpy() + site + 1)})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=message)

    @app.train()
    def train(message, context):
        site = context.node_config["partition-id"]
        return reply(message, site, train_loss=float(site), spread=[1.0, site + 1.0], **{count: 3 * site + 1})

    @app.evaluate()
    def evaluate(message, context):
        site = context.node_config["partition-id"]
        return reply(message, site, eval_acc=0.5 + 0.25 * site, **{count: held_out[site]})

    return app


class Heard(InProcessGrid):
    """A grid that remembers what kinds of messages were sent."""

    kinds: tuple[str, ...] = ()
    configs: tuple[ConfigRecord, ...] = ()

    def send_and_receive(self, messages, *, timeout=None):
        orders = list(messages)
        self.kinds = (*self.kinds, *(order.metadata.message_type for order in orders))
        self.configs = (*self.configs, *(order.content["config"] for order in orders))
        return super().send_and_receive(orders)


def start(strategy, app, rounds=3, **named):
    grid = Heard(app, 2)
    return strategy.start(grid, weights(0.0), num_rounds=rounds, **named), grid


def test_a_template_client_is_asked_no_question_and_its_metrics_come_in_every_round():
    result, grid = start(DaisyChain(FedAvg(), Schedule(1, 3)), template_app())

    assert set(grid.kinds) == {"train", "evaluate"}
    assert not grid.tracebacks
    assert [dict(told) for told in result.train_metrics_clientapp.values()] == [
        {"train_loss": pytest.approx(0.8), "spread": pytest.approx([1.0, 1.8])}  # of 1 and of 4 samples
    ] * 3
    assert {t: dict(told) for t, told in result.evaluate_metrics_clientapp.items()} == {3: {"eval_acc": 0.625}}


@pytest.mark.parametrize("odd", [{"spread": [1.0]}, {"spread": 1.0}, {"else": 1.0}])
def test_a_site_that_tells_other_metrics_than_most_does_not_end_the_run(odd):
    def spoil(site, t, reply):
        told = odd if site == "site-1" else {"spread": [1.0, 2.0]}
        reply.content[METRICS] = MetricRecord({"num-examples": 1, **told})
        return reply

    result = Averaging().start(toy_grid(3, spoil=spoil), weights(0.0), num_rounds=2)

    assert [dict(told) for told in result.train_metrics_clientapp.values()] == [{"spread": [1.0, 2.0]}] * 2
    assert result.arrays["w"].numpy() == pytest.approx([1.5])  # its model counts: the mean of 1, 1.5 and 2


def test_a_second_record_of_metrics_at_one_site_does_not_end_the_run():
    def spoil(site, t, reply):
        if site == "site-0":
            reply.content = RecordDict({"a": MetricRecord({"x": 1.0}), **reply.content})
        return reply

    result = Averaging().start(toy_grid(3, spoil=spoil), weights(0.0), num_rounds=1)

    assert dict(result.train_metrics_clientapp[1]) == {"train-loss": 1.0}


def test_the_wrapped_strategys_own_functions_make_the_metrics():
    def most(contents, key):
        return MetricRecord({"most": max(content["metrics"]["train_loss"] for content in contents), "by": len(key)})

    def best(contents, key):
        return MetricRecord({"best": max(content["metrics"]["eval_acc"] for content in contents)})

    inner = FedAvg(train_metrics_aggr_fn=most, evaluate_metrics_aggr_fn=best)
    result, _ = start(DaisyChain(inner, Schedule(1, 2)), template_app(), rounds=2)

    assert dict(result.train_metrics_clientapp[1]) == {"most": 1.0, "by": len("num-examples")}
    assert dict(result.evaluate_metrics_clientapp[2]) == {"best": 0.75}


def test_the_samples_of_a_site_may_have_another_name():
    result, grid = start(DaisyChain(FedAvg(weighted_by_key="n"), Schedule(1, 2)), template_app(count="n"), rounds=2)
    plain, _ = start(DaisyChain(FedAvg(), Schedule(1, 2)), template_app(), rounds=2)

    assert {t: dict(told) for t, told in result.train_metrics_clientapp.items()} == {
        t: dict(told) for t, told in plain.train_metrics_clientapp.items()
    }
    assert result.arrays["w"].numpy() == plain.arrays["w"].numpy()
    assert not grid.tracebacks


def test_a_strategy_within_a_wrapper_for_privacy_keeps_its_functions():
    inner = FedAvg(train_metrics_aggr_fn=lambda contents, key: MetricRecord({"sites": len(contents)}))
    private = DifferentialPrivacyServerSideFixedClipping(inner, 0.1, 1.0, num_sampled_clients=2)

    result, _ = start(DaisyChain(private, Schedule(1, 2)), template_app(), rounds=2)

    assert [dict(told) for told in result.train_metrics_clientapp.values()] == [{"sites": 2}] * 2


@pytest.mark.parametrize(("held_out", "judged"), [((4, 0), {2: {"eval_acc": 0.5}}), ((0, 0), {})])
def test_sites_that_hold_nothing_out_do_not_end_the_run(held_out, judged):
    result, _ = start(DaisyChain(FedAvg(), Schedule(1, 2)), template_app(held_out=held_out), rounds=2)

    assert {t: dict(told) for t, told in result.evaluate_metrics_clientapp.items()} == judged


def test_the_roll_is_called_where_there_is_a_plan_and_the_evaluation_knows_the_plan_too():
    grid = Heard(toy_grid(2).app, 2)
    chain = Averaging()

    chain.start(grid, weights(0.0), num_rounds=1, train_config=ConfigRecord({PLAN: "a plan"}))

    assert grid.kinds == ("query", "query", "train", "train", "evaluate", "evaluate")
    assert chain.sites == ["site-0", "site-1"]


def test_an_evaluation_carries_the_plan_and_the_round_but_nothing_of_ours_to_other_apps():
    sent = {}
    for name, config in (("ours", {PLAN: "a plan"}), ("theirs", {})):
        grid = Heard(toy_grid(2).app, 2)
        DaisyChain(FedAvg(), Schedule(aggregate_every=2)).start(
            grid, weights(0.0), num_rounds=1, train_config=ConfigRecord(config)
        )
        sent[name] = dict(grid.configs[-1])

    assert sent == {
        "ours": {PLAN: "a plan", "round": 2, "server-round": 1},
        "theirs": {"server-round": 1},
    }


def test_without_a_plan_a_site_is_its_node_and_models_travel_between_nodes():
    chain = DaisyChain(FedAvg(), Schedule(1, 3))

    result, grid = start(chain, template_app())

    assert chain.sites == [str(node) for node in grid.nodes]
    assert np.isfinite(result.arrays["w"].numpy()).all()
