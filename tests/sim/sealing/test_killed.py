"""Servers and sites that are killed in a sealed run: it goes on to the same bits, and tells nothing twice."""

import json

import pytest

from fedsmall.sealing.terms import OF
from fedsmall.strategies.sealed_models import FILE
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.wire import CONFIG, ROUND
from tests.sim.engines.harness import assert_equal_bits
from tests.sim.sealing.federation import Federation, plan_of, run, simulated

pytestmark = pytest.mark.slow

KINDS = ("train", "query.help", "query.before", "evaluate")
METHOD = {"permute_every": 1, "aggregate_every": 3}


class Killed(BaseException):
    """The server's end."""


def run_to_the_end(federation, plan, most=40):
    for _ in range(most):
        try:
            return run(federation, plan)
        except Killed:
            continue
    raise AssertionError("it never ends")


def kills(federation, when):
    """Let the server be killed once before each message for which ``when`` holds."""
    done = set()

    def change(site, order):
        config = order.content[CONFIG]
        mark = (order.metadata.message_type, config.get(ROUND), site, config.get(OF, ""))
        if mark not in done and when(*mark[:3]):
            done.add(mark)
            raise Killed
        return order

    federation.change = change
    return done


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_server_killed_in_the_middle_of_every_exchange_goes_on_to_the_same_bits(tmp_path, monkeypatch, momentum):
    federation = Federation(tmp_path, 3, monkeypatch, anew=True)
    done = kills(federation, lambda kind, t, site: site == "site-001" and kind in KINDS)

    plan = plan_of(method=METHOD, recipe={"lr": 0.1, "batch": 4, "momentum": momentum})
    outcome = run_to_the_end(federation, plan)

    assert len(done) == 6 + 4 + 2  # orders, sums of which two are of models, and questions
    assert_equal_bits(outcome.model, simulated(federation).model)


def test_a_sum_is_asked_for_of_the_same_sites_after_a_crash_though_others_answer_then(tmp_path, monkeypatch):
    """Killed after the first decryptor had answered, when one site was silent; it is back when the server is."""
    federation = Federation(tmp_path, 5, monkeypatch)
    asked, away = [], {"site-003"}

    def change(site, order):
        kind, t = order.metadata.message_type, order.content[CONFIG].get(ROUND)
        if kind == "train" and t == 3 and site in away:
            return None
        if kind == "query.help" and t == 3:
            asked.append(sorted(order.content["seeds"]))
            if len(asked) == 2 and away:
                away.clear()
                raise Killed
        return order

    federation.change = change
    with pytest.raises(Killed):
        run(federation, plan_of(sites=5, method=METHOD), round_deadline_s=10)
    outcome = run(federation, plan_of(sites=5, method=METHOD), round_deadline_s=10)

    assert all(sites == ["site-000", "site-001", "site-002", "site-004"] for sites in asked)
    assert any("asked for without it before" in event["reason"] for event in outcome.events)
    assert outcome.rounds == 6


def test_a_damaged_file_of_summands_ends_the_run_in_one_line(tmp_path, monkeypatch):
    federation = Federation(tmp_path, 3, monkeypatch)
    kills(federation, lambda kind, t, site: kind == "query.help")
    with pytest.raises(Killed):
        run(federation, plan_of(method=METHOD))
    (tmp_path / "server" / "trial" / FILE).write_bytes(b"not this")
    federation.change = None

    with pytest.raises(ValueError, match=r"summands\.safetensors in the run's folder is damaged; put a copy back"):
        run(federation, plan_of(method=METHOD))


def test_the_keys_of_a_run_go_when_the_next_begins(tmp_path, monkeypatch):
    federation = Federation(tmp_path, 3, monkeypatch)
    run(federation, plan_of(method=METHOD))
    (kept,) = (tmp_path / "site-000" / "runs").glob("*/letters")
    before = {path.name for path in kept.rglob("*") if path.is_file()}

    run(federation, plan_of(method=METHOD), "another")

    assert {"own.json", "seeds.json", "ended"} < before
    assert [path.name for path in kept.rglob("*") if path.is_file()] == ["ended"]


def test_a_run_is_taken_back_to_an_average_and_ends_with_the_same_bits(tmp_path, monkeypatch):
    federation = Federation(tmp_path, 3, monkeypatch)
    plan = plan_of(method=METHOD, rounds=9)
    first = run(federation, plan)

    journal = FileJournal(tmp_path / "server" / "trial" / "journal")
    journal.go_back(6)
    again = run(federation, plan)

    assert again.rounds == 9
    assert_equal_bits(first.model, again.model)


def test_the_record_of_a_run_holds_the_routes_that_its_sites_drew(tmp_path, monkeypatch):
    federation = Federation(tmp_path, 3, monkeypatch)
    run(federation, plan_of(method=METHOD))
    orders = [order for _, order, _ in federation.passed if order.metadata.message_type == "train"]

    seeds = {json.loads(str(order.content[CONFIG]["plan"]))["route_seed"] for order in orders}

    assert len(seeds) == 1
    assert 0 <= seeds.pop() < 2**63
