"""Sites that are silent in a sealed run: no traveller is lost or doubled, and the bits are a simulation's."""

from typing import Any

import numpy as np
import pytest

from fedsmall.clients.client_app import app
from fedsmall.clients.site_data import give_federation
from fedsmall.models.registry import initial_model
from fedsmall.sim.engines.inprocess import InProcessGrid
from fedsmall.strategies.sealed_models import SealedModels
from fedsmall.strategies.server.grid import RetryingGrid
from fedsmall.wire import CONFIG, ROUND
from tests.sim.engines.harness import ByMessages, assert_equal_bits, federation_of
from tests.sim.sealing.federation import Federation, drawn, plan_of, run

pytestmark = pytest.mark.slow

CHAIN = {"permute_every": 1, "aggregate_every": 5}
SHORT = {"round_deadline_s": 10}


def silent_at(t: int, sites: int, seed: int) -> set[str]:
    """A third of the sites; three are always there, for a sum of fewer is opened by nobody."""
    away = np.flatnonzero(np.random.default_rng([seed, t]).random(sites) < 1 / 3)
    return {f"site-{k:03d}" for k in away[: sites - 3].tolist()}


class Silent(InProcessGrid):
    """The same sites of a simulation do not answer an order to train."""

    seed = 0

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        heard = []
        for order in messages:
            t, sites = order.content.config_records[CONFIG].get(ROUND, 0), len(self.nodes)
            away = silent_at(int(t), sites, self.seed) if order.metadata.message_type == "train" else set()
            if f"site-{self.nodes.index(order.metadata.dst_node_id):03d}" not in away:
                heard.append(order)
        return super().send_and_receive(heard, timeout=timeout)


def in_a_simulation(plan, seed):
    federation = federation_of(plan)
    give_federation(plan, federation)
    grid = Silent(app, len(federation.names))
    grid.seed = seed
    return ByMessages(plan, grid, lambda site: initial_model(plan, federation.task, site), in_pieces=False).run()


def away(seed, sites):
    def change(site, order):
        training = order.metadata.message_type == "train"
        return None if training and site in silent_at(order.content[CONFIG][ROUND], sites, seed) else order

    return change


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("secure", [True, False])
def test_who_is_silent_costs_no_bit_and_no_traveller(tmp_path, monkeypatch, seed, secure):
    seen = []
    accept = SealedModels.accept
    monkeypatch.setattr(SealedModels, "accept", lambda *a: (accept(*a), seen.append(list(a[0]._envelopes.values())))[0])
    federation = Federation(tmp_path, 5, monkeypatch, change=away(seed, 5))

    outcome = run(
        federation, plan_of(sites=5, privacy={"sealed": True, "secure": secure}, rounds=10, method=CHAIN), **SHORT
    )

    assert any("readdress" in order.metadata.message_type for _, order, _ in federation.passed)
    assert {each["kind"] for each in outcome.events} == {"silent"}
    envelopes = [[bytes(held.model["letter"].data) for held in lying if held.model is not None] for lying in seen]
    assert max(map(len, envelopes)) == 5
    assert all(len(set(each)) == len(each) for each in envelopes)
    assert_equal_bits(outcome.model, in_a_simulation(drawn(federation), seed).model)


def test_where_its_writer_is_silent_too_a_traveller_begins_from_the_common_model(tmp_path, monkeypatch):
    """At the second hop nobody who wrote envelopes for the silent site writes them anew; all other envelopes go on."""
    gone = set()

    def change(site, order):
        if order.metadata.message_type == "train" and order.content[CONFIG][ROUND] == 2 and not gone:
            gone.add(site)  # the first that is asked
        silent = order.metadata.message_type == "train" and order.content[CONFIG][ROUND] == 2 and site in gone
        return None if silent or "readdress" in order.metadata.message_type else order

    federation = Federation(tmp_path, 5, monkeypatch, change=change)

    outcome = run(federation, plan_of(sites=5, method=CHAIN, rounds=5), **SHORT)

    kinds = [(each["t"], each["kind"]) for each in outcome.events]
    assert (2, "silent") in kinds
    assert (3, "replaced") in kinds
    assert outcome.model is not None
    (reason,) = [each["reason"] for each in outcome.events if each["kind"] == "replaced"]
    assert "did not seal it again; the last global model takes its place" in reason


def test_envelopes_of_several_silent_sites_are_written_anew_at_once(tmp_path, monkeypatch):
    """Two sites are silent at the second hop: their envelopes' two writers are asked in one exchange."""
    exchanges: list[list[str]] = []
    ask = RetryingGrid.send_and_receive

    def asking(self: RetryingGrid, messages: Any, **patience: Any) -> Any:
        messages = list(messages)
        exchanges.append([order.metadata.message_type for order in messages])
        return ask(self, messages, **patience)

    def change(site, order):
        away = order.metadata.message_type == "train" and order.content[CONFIG][ROUND] == 2
        return None if away and site in ("site-000", "site-004") else order

    federation = Federation(tmp_path, 5, monkeypatch, change=change)
    monkeypatch.setattr(RetryingGrid, "send_and_receive", asking)
    run(federation, plan_of(sites=5, method=CHAIN, rounds=4), **SHORT)

    assert [kinds for kinds in exchanges if "query.readdress" in kinds] == [["query.readdress"] * 2]
