"""Whole runs under attack: what is refused leaves no trace in the model, and what sites are told apart comes out."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedsmall.audit_log import digest_of
from fedsmall.clients.data_process import DataProcess
from fedsmall.clients.site_request import Answer
from fedsmall.planning.run_sheet import SITES
from fedsmall.sealing.routing import RoutingTable
from fedsmall.sealing.terms import ENVELOPE, KEY, MODEL_ENVELOPE, SEALED
from fedsmall.strategies.records import to_arrays, to_record
from fedsmall.strategies.sealed_models import DecryptorError
from fedsmall.wire import CONFIG, IS_GLOBAL, MODEL, ROUND, ROUNDS, Arrays
from tests.attacks.test_envelopes import flipped, line
from tests.attacks.world import MOMENTUM, Heard
from tests.sim.engines.harness import assert_equal_bits
from tests.sim.sealing.federation import Federation, drawn, plan_of, run, simulated

CHAIN = {"permute_every": 1, "aggregate_every": 2}


def attacks(order: Heard) -> Iterator[Heard]:
    """What a server may try before it sends an order as it should be."""
    yield order.but_plan(seed=5)
    yield order.but_plan(rounds=99)
    yield order.but(**{SITES: order.config[SITES][:-1]})
    yield order.but_told(nonces={})
    yield order.but_run("trial", "elsewhere")
    if order.kind == "train":
        yield order.but(**{ROUNDS: 2})
        if order.config[IS_GLOBAL]:
            yield order._replace(arrays={name: array * 2 for name, array in order.arrays.items()})
    if order.kind == "help":
        yield order._replace(arrays=dict(list(order.arrays.items())[1:]))


@pytest.mark.thorough
def test_a_run_that_is_attacked_at_every_step_ends_with_the_same_bits(tmp_path, monkeypatch):
    answer, tried = DataProcess.answer, []

    def attacked(self: DataProcess, kind: str, config: Mapping[str, Any], arrays: Arrays) -> Answer:
        order = Heard(self.name, kind, dict(config), dict(arrays), {}, {})
        for wrong in attacks(order) if SEALED in config else ():
            header, sent = answer(self, wrong.kind, wrong.config, wrong.arrays)
            assert list(header) == ["error"]
            assert not sent
            tried.append(wrong)
        return answer(self, kind, config, arrays)

    monkeypatch.setattr(DataProcess, "answer", attacked)
    federation = Federation(tmp_path, 3, monkeypatch)

    outcome = run(federation, plan_of("FedDC", 3, rounds=3, method=CHAIN, **MOMENTUM))

    assert len(tried) > 60
    assert outcome.events == []
    assert_equal_bits(outcome.model, simulated(federation).model)


def test_a_changed_envelope_is_told_and_its_traveller_set_out_anew(tmp_path, monkeypatch):
    def change(site: str, order: Message) -> Message:
        if site == "site-001" and order.metadata.message_type == "train" and order.content[CONFIG][ROUND] == 2:
            envelope = order.content[MODEL][ENVELOPE].numpy().tobytes()
            order.content[MODEL] = to_record({ENVELOPE: np.frombuffer(flipped(envelope, 1500), np.uint8)})
        return order

    federation = Federation(tmp_path, 3, monkeypatch, change=change)

    outcome = run(federation, plan_of("FedDC", 3, rounds=2, method=CHAIN))

    [event] = outcome.events
    sender = event["site"]
    assert (event["t"], event["kind"]) == (2, "replaced")
    assert event["reason"] == "site-001 could not use its encrypted message; it took the last global model"
    told = [entry for entry in federation.there["site-001"].log.entries() if entry["event"] == "not used"]
    assert [entry["reason"] for entry in told] == [line(MODEL_ENVELOPE, 1, sender)]
    assert all(np.isfinite(array).all() for array in outcome.model.values())


def test_a_site_that_was_sent_another_common_model_is_found_at_the_next_hop_and_sum(tmp_path, monkeypatch):
    made: list[str] = []

    def change(site: str, order: Message) -> Message:
        config = order.content.get(CONFIG, {})
        if site != "site-001" or SEALED not in config or config[ROUND] < 4:
            return order
        if config.get(IS_GLOBAL):
            model = {name: array * 0 for name, array in to_arrays(order.content[MODEL]).items()}
            made[:], order.content[MODEL] = [digest_of(model)], to_record(model)
        told = json.loads(str(config[SEALED]))
        told["average"]["global_models"] = made
        config[SEALED] = json.dumps(told)
        return order

    federation = Federation(tmp_path, 3, monkeypatch, "check_models = false\n", change)

    with pytest.raises(DecryptorError) as told:
        run(federation, plan_of("FedDC", 3, rounds=6, method={**CHAIN, "aggregate_every": 3}))

    assert f"site-000 does not help: site-000: {line(KEY, 6, 'site-001')}" in str(told.value)
    ways = RoutingTable(drawn(federation), federation.names)
    hops = [(t, name, ways.next_site(t, name)) for t in (4, 5) for name in federation.names]
    for t, sender, receiver in hops:
        log = federation.there[receiver].log.entries()
        not_used = [each["reason"] for each in log if each["event"] == "not used" and each["t"] == t + 1]
        apart = (sender == "site-001") != (receiver == "site-001")
        assert not_used == ([line(MODEL_ENVELOPE, t, sender)] if apart else [])
