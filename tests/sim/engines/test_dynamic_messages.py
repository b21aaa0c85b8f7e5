"""Dynamic averages with messages: sites that forget, are silent or lie; real sites' programs; runs taken up again."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedsmall.clients.hospital import HospitalClient, fit_or_stay
from fedsmall.clients.memory import RECORD, Kept, StayingMemory
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.sim.engines.inprocess import failure
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.records import array_records, size_in_bytes
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.strategies.server.run_loop import Outcome
from fedsmall.wire import (
    ANSWER_BYTES,
    BALANCE,
    FORGOT,
    IS_GLOBAL,
    METRICS,
    MODEL,
    REFERENCE,
    ROUND,
    STEPS,
    WITHIN,
    Arrays,
)
from tests.sim.engines.harness import (
    ByMessages,
    assert_alike,
    assert_equal_bits,
    batched,
    federation_of,
    loop_of,
    table,
)
from tests.sim.engines.on_ray import on_ray
from tests.sim.engines.plans import ALWAYS, BETWEEN, NEVER, STAY, dynamic
from tests.sim.engines.stations import Stations
from tests.sim.engines.test_routes import conduct

ROUNDLY = dynamic(BETWEEN, rounds=8, dtype="float32")
NOW_AND_THEN = dynamic(0.08, 3, rounds=18, dtype="float32", recipe=STAY)
Answer = Callable[[Message], Message]


def asks(order: Message) -> bool:
    """Whether a message asks for a model that has stayed."""
    return order.metadata.message_type == f"query.{BALANCE}"


def tampered(plan: Plan, change: Callable[[ByMessages, Message, Answer], Message | None], **more: Any) -> Outcome:
    """A run of which every message but the handshake goes through ``change``."""
    loop = loop_of(plan, **more)
    honest = loop.grid._answer

    def answer(order: Message) -> Message:
        return honest(order) if order.metadata.message_type == "query" else change(loop, order, honest)

    loop.grid._answer = answer
    return loop.run()


def at(order: Message, t: int) -> bool:
    return order.content.config_records["config"][ROUND] == t


def first(loop: ByMessages, order: Message) -> bool:
    return loop.sites.roster.nodes["site-001"] == order.metadata.dst_node_id


def test_the_bytes_that_are_counted_are_those_of_the_arrays_in_all_messages() -> None:
    weighed = []

    def weigh(loop: ByMessages, order: Message, honest: Answer) -> Message:
        reply = honest(order)
        assert size_in_bytes(array_records(reply.content)) <= order.content.config_records["config"][ANSWER_BYTES]
        weighed.extend(size_in_bytes(array_records(message.content)) for message in (order, reply))
        return reply

    outcome = tampered(ROUNDLY, weigh)

    assert outcome.bytes_sent == sum(weighed)
    assert 0 in weighed


@pytest.mark.thorough
@pytest.mark.parametrize("plan", [ROUNDLY, NOW_AND_THEN])
def test_real_sites_have_the_bits_of_a_simulation(plan: Plan, tmp_path, monkeypatch) -> None:
    federation = federation_of(plan)
    simulated = run_plan(plan, federation, "inprocess")

    real = conduct(plan, Stations(tmp_path, federation.names, monkeypatch))

    assert not real.events
    assert_equal_bits(real.model or {}, simulated.model)
    assert real.bytes_sent == simulated.bytes_sent
    assert real.averaged == simulated.averaged
    assert {bool(models) for models, _ in real.averaged} == {True, False}


def test_a_site_that_keeps_its_model_writes_down_that_nothing_left(tmp_path, monkeypatch) -> None:
    plan = dynamic(NEVER, 2, rounds=4, dtype="float32")
    grid = Stations(tmp_path, federation_of(plan).names, monkeypatch)

    conduct(plan, grid)

    lines = [json.loads(line) for line in next((tmp_path / "site-001").glob("*.jsonl")).read_text().splitlines()]
    sent = {line["t"]: line for line in lines if line.get("kind") == "train" and line["event"] == "sent"}
    assert sent[2]["metrics"][WITHIN] == 1
    assert not sent[2].get("arrays")
    assert sent[4]["arrays"]


@pytest.mark.thorough
@pytest.mark.parametrize("plan", [ROUNDLY, NOW_AND_THEN])
def test_a_run_that_is_taken_up_again_goes_on_to_the_same_bits(plan: Plan, tmp_path, monkeypatch) -> None:
    names = federation_of(plan).names
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = conduct(plan, Stations(tmp_path / "whole", names, monkeypatch))
    grid, task = Stations(tmp_path / "parts", names, monkeypatch), federation_of(plan).task

    grid.agree_on_scaling(plan)
    for _ in range(30):
        loop = ByMessages(plan, grid, lambda site: initial_model(plan, task, site), in_pieces=False)
        loop.journal, loop.stop = FileJournal(tmp_path / "journal"), lambda: True
        part = loop.run()
        if not part.stopped:
            break

    assert_equal_bits(whole.model or {}, part.model or {})
    assert (whole.bytes_sent, whole.averaged) == (part.bytes_sent, part.averaged)


def test_a_site_that_has_forgotten_says_so_and_is_sent_the_last_model_that_all_had() -> None:
    came = {}

    def forget(loop: ByMessages, order: Message, honest: Answer) -> Message:
        if first(loop, order) and not asks(order):
            if at(order, 4):
                loop.grid._contexts[order.metadata.dst_node_id].state.pop(RECORD)
            came[order.content.config_records["config"][ROUND]] = array_records(order.content)
        return honest(order)

    outcome = tampered(dynamic(NEVER, 2), forget)

    assert [(event["t"], event["site"], event["kind"]) for event in outcome.events] == [(4, "site-001", "forgot")]
    assert not came[4].get(MODEL)
    assert len(came[6][MODEL]) == 4
    assert outcome.averaged[-1] == (5, True)


@pytest.mark.parametrize("bound", [ALWAYS, BETWEEN, NEVER])
def test_a_silent_site_is_passed_over_and_comes_back(bound: float) -> None:
    def silent(loop: ByMessages, order: Message, honest: Answer) -> Message:
        return failure(order, "gone") if first(loop, order) and at(order, 4) else honest(order)

    outcome = tampered(dynamic(bound, 2), silent)

    assert {(event["t"], event["site"]) for event in outcome.events} == {(4, "site-001")}
    assert outcome.averaged[-1] == (5, True)
    if bound == ALWAYS:
        assert outcome.averaged == [(5, True), (4, True), (5, True), (5, True), (5, True)]


def test_a_site_that_is_asked_and_does_not_answer_takes_no_part() -> None:
    asked = []

    def silent(loop: ByMessages, order: Message, honest: Answer) -> Message:
        asked.append(asks(order))
        return failure(order, "no") if asks(order) else honest(order)

    outcome = tampered(dynamic(BETWEEN, rounds=24), silent)

    assert any(asked)
    assert {event["kind"] for event in outcome.events} == {"set aside"}
    assert all("asked for its model" in event["reason"] for event in outcome.events)
    assert all(np.isfinite(array).all() for array in outcome.model.values())


def spoil(reply: Message, how: str) -> None:
    content = reply.content
    if how == "a word and a model":
        content[METRICS][WITHIN] = 1
    elif how == "two words":
        content[METRICS][WITHIN], content[METRICS][FORGOT] = 1, 1
        del content[MODEL]
    elif how == "neither":
        del content[MODEL]
    elif how == "no metrics":
        del content[METRICS]
    elif how == "another model":
        content[MODEL] = ArrayRecord({"0.weight": content[MODEL]["0.weight"]})
    elif how == "something beside":
        content["carried"] = content[MODEL]
    elif how == "another word":
        content[METRICS] = MetricRecord({**content[METRICS], "age": 71})


@pytest.mark.parametrize(
    "how",
    ["a word and a model", "two words", "neither", "no metrics", "another model", "something beside", "another word"],
)
def test_what_is_neither_a_model_nor_a_word_is_set_aside(how: str) -> None:
    def lie(loop: ByMessages, order: Message, honest: Answer) -> Message:
        reply = honest(order)
        if first(loop, order) and at(order, 2):
            spoil(reply, how)
        return reply

    outcome = tampered(dynamic(ALWAYS, rounds=4), lie)

    assert [(event["t"], event["site"], event["kind"]) for event in outcome.events] == [(2, "site-001", "set aside")]
    assert [models for models, _ in outcome.averaged] == [5, 4, 5, 5]


@pytest.mark.parametrize("bound", [ALWAYS, 1.0])
@pytest.mark.parametrize("scale", [1.7e308, 1e6])
def test_a_model_that_is_not_sound_is_set_aside_by_its_site_as_on_a_stack(bound: float, scale: float) -> None:
    plan = dynamic(bound, 2, sites=None, samples_per_site=None)
    federation = table(plan, 6, wild=(2,), scale=scale)

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    assert one.averaged == other.averaged
    assert {event["site"] for event in other.events} == {"site-2"}


class Here:
    """Memory in this process."""

    def __init__(self) -> None:
        self.held: Arrays = {}

    def read(self) -> Arrays:
        return self.held

    def write(self, arrays: Arrays) -> None:
        self.held = dict(arrays)


def test_what_training_remembers_and_a_model_that_stays_do_not_mix() -> None:
    memory, model = StayingMemory(store := Here()), {"0.weight": np.ones(2)}

    memory.write({"step": np.array([3.0])})
    memory.keep(kept := Kept(model, model, {"0.weight": np.zeros(2)}, 4, 7))

    again = StayingMemory(store)
    assert list(again.read()) == ["step"]
    assert str(again.read_kept()) == str(kept)
    assert StayingMemory(Here()).read_kept() is None


@pytest.mark.thorough
def test_a_site_checks_what_leaves_against_what_its_receiver_knows(monkeypatch) -> None:
    known: dict[str, tuple[Arrays, int]] = {}  # by site: what it was sent last, and its steps since
    checked, means = [], []

    def seen(client: HospitalClient, arrays: Arrays, config: dict[str, Any]) -> Any:
        site = client.home.site
        if arrays:
            known[site] = arrays, 0
            means.append(not config[IS_GLOBAL])
        done = fit_or_stay(client, arrays, config)
        known[site] = known[site][0], known[site][1] + int(done[2][STEPS])
        if client.sent_names:
            assert_equal_bits(client.set_out, known[site][0])
            assert client.steps == known[site][1]
            checked.append(client.steps)
        return done

    monkeypatch.setattr("fedsmall.clients.client_app.fit_or_stay", seen)

    loop_of(dynamic(BETWEEN, rounds=24)).run()

    assert any(means)
    assert len(set(checked)) > 1


def test_a_site_that_keeps_to_another_model_says_that_it_forgot() -> None:
    def other(loop: ByMessages, order: Message, honest: Answer) -> Message:
        if first(loop, order) and at(order, 6):
            config = ConfigRecord({**order.content.config_records["config"], REFERENCE: 4})
            order.content = RecordDict({**order.content, "config": config})  # others share what was there
        return honest(order)

    outcome = tampered(dynamic(NEVER, 2), other)

    assert [(event["t"], event["site"], event["kind"]) for event in outcome.events] == [(6, "site-001", "forgot")]


@pytest.mark.thorough
def test_orders_name_the_round_of_the_last_model_that_all_had() -> None:
    named = {}

    def look(loop: ByMessages, order: Message, honest: Answer) -> Message:
        if not asks(order):
            config = order.content.config_records["config"]
            named[config[ROUND]] = config[REFERENCE]
        return honest(order)

    outcome = tampered(dynamic(BETWEEN, rounds=24), look)

    last, wanted = 0, {}
    for t, (_, whole) in enumerate(outcome.averaged, start=1):
        wanted[t] = last
        last = t if whole else last
    assert named == wanted
    assert len(set(named.values())) > 1


@on_ray
@pytest.mark.slow
def test_on_ray_sites_keep_their_models_too() -> None:
    plan = dynamic(BETWEEN, rounds=8)
    federation = federation_of(plan)

    one, other = (run_plan(plan, federation, engine) for engine in ("inprocess", "ray"))

    assert_equal_bits(one.model, other.model)
    assert (one.bytes_sent, one.averaged) == (other.bytes_sent, other.averaged)
