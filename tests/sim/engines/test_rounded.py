"""Models in fewer bits: one algorithm on every engine, and the bytes that it counts are those of its messages."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict

from fedsmall.algorithm.departing import Egress
from fedsmall.audit_log import digest_of
from fedsmall.clients.client_app import app
from fedsmall.codec import GAPS, SCALES, VALUES, Known, pack
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.records import array_records, to_arrays, to_record
from fedsmall.training.trees import cohort_for
from fedsmall.wire import CARRIED, MODEL, ModelState, join
from tests.sim.engines.harness import (
    Weighed,
    assert_alike,
    assert_equal_bits,
    batched,
    federation_of,
    loop_of,
    plan_of,
    table,
)
from tests.sim.engines.plans import CHAIN
from tests.sim.engines.plans import ROUNDED as CASES
from tests.sim.engines.stations import Stations
from tests.sim.engines.test_routes import conduct


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", ["FedDC, 8 bits", "FedAvg", "Adam travels", "starting apart", "FedDC, a tenth", "a third, Adam travels"]
)
def test_real_sites_have_the_bits_of_a_simulation(case: str, tmp_path, monkeypatch) -> None:
    plan = in_single(CASES[case])
    federation = federation_of(plan)
    simulated = run_plan(plan, federation, "inprocess")

    real = conduct(plan, Stations(tmp_path, federation.names, monkeypatch))

    assert not real.events
    assert_equal_bits(real.model or {}, simulated.model)
    assert real.bytes_sent == simulated.bytes_sent == batched(plan, federation).bytes_sent


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, "in full"])
def test_the_bytes_that_are_counted_are_those_of_the_arrays_in_the_frames(case: str) -> None:
    plan = (CASES | {"in full": plan_of()})[case].model_copy(update={"evaluate_every": None})
    loop = loop_of(plan)
    loop.grid = Weighed(len(federation_of(plan).names))

    counted = loop.run().bytes_sent

    padded = loop.grid.arrays - counted  # safetensors fills up what is not a whole number of words
    assert 0 <= padded < 0.02 * loop.grid.arrays
    assert batched(plan).bytes_sent == counted


def test_eight_bits_are_a_quarter_of_the_bytes() -> None:
    big = {"rounds": 4, "dtype": "float32", "model_options": {"hidden": [128, 64]}}
    weighed = {}
    for wire in ("full", "half", "int8"):
        loop = loop_of(plan_of(settings={**CHAIN, "wire": wire}, **big))
        loop.grid = Weighed(5)
        weighed[wire] = (loop.run().bytes_sent, loop.grid.frames)

    for wire, share in (("half", 1 / 2), ("int8", 1 / 4)):
        counted, frames = (of / whole for of, whole in zip(weighed[wire], weighed["full"], strict=True))
        assert counted == pytest.approx(share, rel=0.005)
        assert share < frames < share + 0.03  # words, the plan among them, are not rounded


def test_a_model_that_hops_is_rounded_once_for_each_training(monkeypatch) -> None:
    plan = CASES["FedDC, 8 bits"].model_copy(update={"evaluate_every": None})
    loop, sent, came = loop_of(plan), [], []
    honest = loop.grid.send_and_receive

    def seen(orders: Iterable[Message], **more: Any) -> list[Message]:
        orders = list(orders)
        if all(MODEL in order.content for order in orders):
            sent.append(sorted(digest(order) for order in orders))
        replies = list(honest(orders, **more))
        if sent:
            came.append(sorted(digest(reply) for reply in replies))
        return replies

    monkeypatch.setattr(loop.grid, "send_and_receive", seen)
    loop.run()

    assert sent[1] == came[0]  # a permutation hands on what came, to the bit
    assert sent[2] == came[1]
    assert len(set(sent[4])) == 1  # an average is one for all
    assert sent[4] != came[3]


@pytest.mark.parametrize("wire", ["half", "int8"])
def test_a_model_that_is_not_finite_is_set_aside_where_it_arose(wire: str) -> None:
    plan = plan_of(settings={**CHAIN, "wire": wire}, sites=None, samples_per_site=None)
    federation = table(plan, 4, wild=(1,))

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    assert {event["site"] for event in one.events} == {"site-1"}


BROKEN: dict[str, Callable[[dict[str, np.ndarray]], object]] = {
    "in full": lambda sent: sent.update({name: a.astype(np.float32) for name, a in sent.items()}),
    "without scales": lambda sent: sent.pop(SCALES),
    "cut": lambda sent: sent.update({next(iter(sent)): next(iter(sent.values()))[:1]}),
    "with scales that are not finite": lambda sent: sent[SCALES].fill(np.nan),
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("part", [MODEL, CARRIED])
def test_a_reply_that_cannot_be_read_is_set_aside_and_named(how: str, part: str, monkeypatch) -> None:
    plan = CASES["momentum travels"]
    loop = loop_of(plan)
    honest = loop.grid.send_and_receive

    def broken(orders: Iterable[Message], **more: Any) -> list[Message]:
        replies = list(honest(orders, **more))
        if part in replies[1].content:
            arrays = {name: array.copy() for name, array in to_arrays(replies[1].content[part]).items()}
            BROKEN[how](arrays)
            replies[1].content[part] = to_record(arrays)
        return replies

    monkeypatch.setattr(loop.grid, "send_and_receive", broken)
    events = loop.run().events

    assert {(event["site"], event["kind"]) for event in events} == {("site-001", "set aside")}


def test_every_site_round_and_record_has_draws_of_its_own() -> None:
    plan, zeros = CASES["FedDC, 8 bits"], {"0.weight": np.full((40,), 0.5), "0.bias": np.ones(1)}
    zeros["0.weight"][0] = 1.0
    keys = [("a", 1), ("b", 1), ("a", 2)]

    draws = [pack(plan, join(**{MODEL: zeros, CARRIED: zeros}), site, t) for site, t in keys]

    codes = [array.tobytes() for sent in draws for name, array in sent.items() if name.endswith("0.weight")]
    assert len(set(codes)) == 6


@pytest.mark.thorough
def test_adams_moments_go_in_half_precision_whatever_the_model_goes_in() -> None:
    orders: list[RecordDict] = []

    class Seen(InProcessGrid):
        def send_and_receive(self, messages: Iterable[Message], **more: Any) -> list[Message]:
            messages = list(messages)
            orders.extend(message.content for message in messages)
            return list(super().send_and_receive(messages, **more))

    loop = loop_of(CASES["Adam travels"])
    loop.grid = Seen(app, 5)
    loop.run()

    carried = [to_arrays(array_records(content)[CARRIED]) for content in orders if CARRIED in content]
    assert {array.dtype.name for array in carried[0].values()} == {"float16", "float32", "int64"}  # scales, steps
    assert carried[0]["exp_avg/0.weight"].dtype == np.float16
    assert to_arrays(array_records(orders[-1])[MODEL])["0.weight"].dtype == np.int8


def test_rounding_to_eight_bits_is_not_the_same_run() -> None:
    one, other = (batched(plan_of(settings={**CHAIN, "wire": wire})) for wire in ("full", "int8"))

    assert any(np.abs(one.model[name] - other.model[name]).max() > 1e-4 for name in one.model)


class Cut(InProcessGrid):
    """Sites of which one, at one round, is not reached, or its answer is lost, or it has forgotten everything."""

    def __init__(self, sites: int, site: int, t: int, how: str) -> None:
        super().__init__(app, sites)
        self.site, self.t, self.how, self.sent = site, t, how, []

    def send_and_receive(self, messages: Iterable[Message], **more: Any) -> list[Message]:
        orders = list(messages)
        self.sent.append([dict(order.content.config_records["config"]) for order in orders])
        now = "round" in self.sent[-1][0] and self.sent[-1][0]["round"] == self.t and MODEL in orders[0].content
        if now and self.how == "forgotten":
            self._contexts[self.nodes[self.site]].state.clear()
        if now and self.how == "unreached":
            orders.pop(self.site)
        replies = list(super().send_and_receive(orders, **more))
        if now and self.how == "lost":
            replies.pop(self.site)
        return replies


def cut_off(case: str, t: int, how: str) -> tuple[Any, Cut]:
    plan = CASES[case].model_copy(update={"evaluate_every": None})
    loop = loop_of(plan)
    loop.grid = grid = Cut(5, 2, t, how)
    return loop.run(), grid


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["FedDC, a tenth", "FedAvg, a tenth", "a third, Adam travels"])
@pytest.mark.parametrize("t", [2, 4])
def test_an_answer_that_was_lost_has_happened_for_nobody(case: str, t: int) -> None:
    (lost, _), (unreached, _) = (cut_off(case, t, how) for how in ("lost", "unreached"))

    assert_equal_bits(lost.model or {}, unreached.model or {})
    assert [event["kind"] for event in lost.events] == ["silent"]


def test_a_site_that_has_forgotten_all_is_told_all_at_the_next_comm_round() -> None:
    outcome, grid = cut_off("FedAvg, a tenth", 4, "forgotten")

    assert [(event["t"], event["site"], event["kind"]) for event in outcome.events] == [(4, "site-002", "set aside")]
    assert "global model that this site does not have" in outcome.events[0]["reason"]
    bases = [orders[2]["base"] for orders in grid.sent if "base" in orders[2]]
    assert bases[:4] == [-1, 0, -1, 4]  # the first in full, then changes; in full; changes again


def test_a_site_that_has_forgotten_all_within_a_chain_is_sent_whole_models_until_the_next_average() -> None:
    outcome, grid = cut_off("FedDC, a tenth", 2, "forgotten")

    assert [(event["t"], event["site"]) for event in outcome.events] == [(2, "site-002")]
    average = next(number for number, orders in enumerate(grid.sent) if orders[2].get("made", 0) > 0)
    bases = [orders[2]["base"] for orders in grid.sent if "base" in orders[2]]
    skipped = len(grid.sent) - len(bases)  # the handshake
    assert bases[:2] == [-1, 0]
    assert set(bases[2 : average - skipped + 1]) == {-1}
    assert bases[average - skipped + 1] > 0


def test_on_a_stack_what_is_left_of_a_model_that_is_not_used_is_left_of_nothing() -> None:
    plan = plan_of(settings={**CHAIN, "wire": "top50%"})
    federation = federation_of(plan)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    model, at = initial_model(plan, federation.task), np.arange(5)
    door, came = Egress(plan, federation.names, Known()), trainer.stack([ModelState(model)] * 5)
    trained, later = came.clone(), came.clone()
    for number, tensor in enumerate(trained.state.values(), start=1):
        tensor += number  # the last array leaves, the first waits

    for stack, t in ((trained, 1), (later, 2)):
        door.arrive(stack, at, np.ones(5, dtype=bool))
        door.leave(stack, lambda: came, at, t)
        door.close(at, np.array([True, True, False, True, True]))

    moved = [
        any(not np.array_equal(a, model[name]) for name, a in later.model_state(k).model.items()) for k in range(5)
    ]
    assert moved == [True, True, False, True, True]


def test_of_models_with_layers_of_their_own_the_shared_part_goes_as_changes() -> None:
    own = {"model": "shared_part", "model_options": {"sites": ["mlp"] * 5, "shared": ["0"]}}
    plan = plan_of(settings={**CHAIN, "wire": "top10%"}, **own, evaluate_every=None)
    one, other = (run_plan(plan, federation_of(plan), engine) for engine in ("cohort", "inprocess"))

    for name, array in one.model.items():
        np.testing.assert_allclose(array, other.model[name], rtol=0, atol=1e-9)
    assert one.bytes_sent == other.bytes_sent


@pytest.mark.parametrize("name", ["FedDC", "FedAvg"])
def test_all_of_what_changed_is_the_run_in_full(name: str) -> None:
    settings = {**CHAIN} if name == "FedDC" else {"aggregate_every": 2}
    whole, changes = (batched(plan_of(name, {**settings, "wire": wire})) for wire in ("full", "top100%"))

    for array, in_full in zip((changes.model or {}).values(), (whole.model or {}).values(), strict=True):
        np.testing.assert_array_equal(array, in_full)


def test_a_tenth_of_the_changes_is_a_small_part_of_the_bytes() -> None:
    big = {"rounds": 40, "dtype": "float32", "model_options": {"hidden": [64, 32]}}
    average, chain = {"aggregate_every": 1}, {"permute_every": 1, "aggregate_every": 10}

    for name, settings, most in (("FedAvg", average, 0.16), ("FedDC", chain, 0.30)):
        whole, tenth = (batched(plan_of(name, {**settings, "wire": wire}, **big)) for wire in ("full", "top10%"))
        assert tenth.bytes_sent < most * whole.bytes_sent


def test_a_model_in_changes_that_is_not_finite_is_set_aside_where_it_arose() -> None:
    plan = plan_of(settings={**CHAIN, "wire": "top20%"}, sites=None, samples_per_site=None)
    federation = table(plan, 4, wild=(1,))

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    assert {event["site"] for event in one.events} == {"site-1"}


SPOILT: dict[str, Callable[[dict[str, np.ndarray]], object]] = {
    "a value too many": lambda sent: sent.update({VALUES: np.append(sent[VALUES], 1.0)}),
    "values of another kind": lambda sent: sent.update({VALUES: sent[VALUES].astype(np.float32)}),
    "values for all models there are": lambda sent: sent.update({VALUES: np.zeros(10_000)}),
    "a place outside": lambda sent: sent.update({GAPS: np.full(len(sent[VALUES]), 254, np.uint8)}),
    "an array of its own": lambda sent: sent.update({"more": np.ones(3)}),
    "numbers that are not finite": lambda sent: sent.update({VALUES: sent[VALUES] * np.nan}),
}


@pytest.mark.thorough
@pytest.mark.parametrize("how", SPOILT)
def test_changes_that_cannot_be_read_are_set_aside_and_named(how: str, monkeypatch) -> None:
    loop = loop_of(CASES["FedDC, a tenth"].model_copy(update={"evaluate_every": None}))
    honest = loop.grid.send_and_receive

    def spoilt(orders: Iterable[Message], **more: Any) -> list[Message]:
        replies = list(honest(orders, **more))
        if MODEL in replies[1].content:
            arrays = to_arrays(replies[1].content[MODEL])
            assert GAPS in arrays
            SPOILT[how](arrays)
            replies[1].content[MODEL] = to_record(arrays)
        return replies

    monkeypatch.setattr(loop.grid, "send_and_receive", spoilt)

    assert {(event["site"], event["kind"]) for event in loop.run().events} == {("site-001", "set aside")}


def in_single(plan: Plan) -> Plan:
    return plan.model_copy(update={"dtype": "float32", "evaluate_every": None})


def digest(message: Message) -> str:
    return digest_of(to_arrays(message.content[MODEL]))
