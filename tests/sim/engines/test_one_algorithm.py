"""What a run of Algorithm 1 does in single cases, on a stack and with messages."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedsmall.errors import PlanError, ReplyError
from fedsmall.models.registry import initial_model
from fedsmall.parts import Recipe
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.strategies.server.run_loop import run_rounds
from fedsmall.travel.journey import journey
from fedsmall.wire import EXAMPLES, METRICS, STEPS
from tests import only_quick
from tests.sim.engines.harness import (
    ADAM,
    MOMENTUM,
    PRIVATE,
    SETTINGS,
    assert_alike,
    assert_equal_bits,
    batched,
    federation_of,
    loop_of,
    plan_of,
    table,
)


def test_who_trains_alone_releases_nothing() -> None:
    outcome = batched(plan_of("Standalone", PRIVATE, evaluate_every=3))

    assert (outcome.comm_rounds, outcome.privacy["releases"], outcome.bytes_sent) == (0, 0, 0)


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_an_evaluation_is_no_release(fraction: float) -> None:
    settings = {"permute_every": 3, "aggregate_every": 6, **PRIVATE, "fraction": fraction}
    seldom, often = (plan_of(settings=settings, evaluate_every=every) for every in (None, 1))

    one, other = batched(seldom), batched(often)

    assert one.privacy == other.privacy
    assert one.privacy["releases"] == one.comm_rounds
    assert_equal_bits(one.model or {}, other.model or {})


@pytest.mark.parametrize(
    "settings",
    [SETTINGS["FedDC"], {"permute_every": None, "aggregate_every": 2}, {**SETTINGS["FedDC"], "fraction": 0.75}],
)
def test_a_model_that_is_not_finite_is_set_aside_where_it_arose(settings: dict[str, Any]) -> None:
    plan = plan_of(settings=settings, sites=None, samples_per_site=None, evaluate_every=3)
    federation = table(plan, 4, wild=(1,))

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    assert {event["site"] for event in one.events} == {"site-1"}
    assert all(np.isfinite(array).all() for array in one.model.values())


@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS["FedDC"],
        {**SETTINGS["FedDC"], "fraction": 0.75},
        {"permute_every": None, "aggregate_every": 1},
        {"permute_every": 2, "aggregate_every": None},
    ],
)
@pytest.mark.parametrize("recipe", only_quick([MOMENTUM], [Recipe(lr=0.05), MOMENTUM]))
@pytest.mark.parametrize("every", only_quick([3], [None, 3]))
def test_a_site_of_absurd_numbers_is_set_aside_and_named(
    settings: dict[str, Any], recipe: Recipe, every: int | None
) -> None:
    plan = plan_of(settings=settings, sites=None, samples_per_site=None, evaluate_every=every, recipe=recipe)
    federation = table(plan, 6, wild=(2,), scale=1e6)

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    assert {(event["site"], event["kind"]) for event in one.events} == {("site-2", "set aside")}
    assert [event["reason"] for event in one.events] == [event["reason"] for event in other.events]


@pytest.mark.parametrize(
    ("metric", "value", "reason"),
    [
        (EXAMPLES, 9, "more than the site said at the handshake"),
        (STEPS, 4 * 2 + 1, "more than were ordered"),
        ("age", 71, "none that a site of this run has"),
    ],
)
def test_a_site_that_says_more_than_its_order_and_the_roll_call_allow_is_set_aside(
    monkeypatch: pytest.MonkeyPatch, metric: str, value: int, reason: str
) -> None:
    # 8 samples in batches of 2 are 4 steps a round, and each order is for 2 rounds
    plan = plan_of("FedAvg", {"aggregate_every": 2}, rounds=2, recipe=Recipe(batch=2, local_epochs=1))
    loop = loop_of(plan)
    honest = loop.grid.send_and_receive

    def lying(orders: Any, **more: Any) -> Any:
        replies = list(honest(orders, **more))
        replies[1].content[METRICS][metric] = value
        return replies

    assert loop.sites.names[1] == "site-001"
    monkeypatch.setattr(loop.grid, "send_and_receive", lying)
    events = loop.run().events

    assert [(event["site"], event["kind"]) for event in events] == [("site-001", "set aside")]
    assert reason in events[0]["reason"]


def test_without_the_gate_one_site_of_absurd_numbers_decides_the_mean() -> None:
    settings = {"permute_every": None, "aggregate_every": 1}
    plans = [plan_of(settings={**settings, "gate": gate}, sites=None, samples_per_site=None) for gate in (20.0, False)]
    federation = table(plans[0], 6, wild=(2,), scale=1e6)

    with_gate, without = (batched(plan, federation) for plan in plans)

    norms = [max(np.abs(array).max() for array in run.model.values()) for run in (with_gate, without)]
    assert norms[0] < 10
    assert norms[1] > 1000
    assert not without.events


def test_an_aggregate_that_has_outgrown_the_last_common_model_is_refused_on_a_stack_and_with_messages() -> None:
    plan = plan_of("FedAvg", {"aggregate_every": 2}, sites=None, samples_per_site=None, recipe=MOMENTUM)
    federation = table(plan, 4, wild=(0, 1, 2, 3), scale=1e6)

    one, other = batched(plan, federation), loop_of(plan, federation).run()

    assert_alike(one, other)
    assert {(event["site"], event["kind"]) for event in one.events} == {("server", "refused")}
    for name, array in initial_model(plan, federation.task).items():
        np.testing.assert_array_equal(one.model[name], array)


def test_a_run_in_which_no_model_is_finite_ends_and_says_so() -> None:
    plan = plan_of(sites=None, samples_per_site=None)
    federation = table(plan, 2, wild=(0, 1))

    with pytest.raises(ReplyError, match="No site gave a model that may be used at round 1"):
        batched(plan, federation)
    with pytest.raises(ReplyError, match="No site gave a model that may be used at round 1"):
        loop_of(plan, federation).run()


@pytest.mark.parametrize("fraction", [1.0, 0.6, 0.2])
def test_the_map_of_a_chain_is_where_its_models_trained(fraction: float) -> None:
    plan = plan_of(settings={"permute_every": 2, "aggregate_every": 6, "fraction": fraction}, rounds=9)
    trained: list[list[str]] = []
    loop = loop_of(plan, in_pieces=False)
    federation = federation_of(plan)
    watcher = SimpleNamespace(needs=lambda comm_round: True, see=lambda result: trained.append(list(result.sites)))

    run_rounds(plan, loop.sites, loop.initial, watcher=watcher, in_pieces=False)

    names = federation.names
    assert trained == [sorted(names[site] for site in at) for _, at in journey(plan, 5)]


@pytest.mark.parametrize("fraction", [1.0, 0.6, 0.4])
def test_under_a_fraction_as_many_models_travel_as_sites_are_drawn_and_all_train_at_every_comm_round(
    fraction: float,
) -> None:
    plan = plan_of(settings={"permute_every": 1, "aggregate_every": 6, "fraction": fraction}, rounds=12)

    for _, at in journey(plan, 5):
        assert len(at) == round(fraction * 5)
        assert Counter(at.tolist()).most_common(1)[0][1] == 1  # no two models at one site


@pytest.mark.parametrize("name", ["FedDC", "FedAvg"])
def test_a_run_that_is_taken_back_to_an_earlier_comm_round_goes_on_to_the_same_bits(tmp_path, name: str) -> None:
    plan = plan_of(name, {"permute_every": None if name == "FedAvg" else 1, "aggregate_every": 2}, recipe=ADAM)
    whole = loop_of(plan, journal=FileJournal(tmp_path), in_pieces=False).run()
    journal = FileJournal(tmp_path)
    comm_round = journal.comm_rounds()[0]

    journal.go_back(comm_round)
    again = loop_of(plan, journal=journal, in_pieces=False).run()

    assert comm_round < whole.comm_rounds - 3
    assert_equal_bits(whole.model or {}, again.model or {})
    assert again.bytes_sent == whole.bytes_sent


def test_a_state_whose_travellers_have_outgrown_the_common_model_is_not_journalled(tmp_path) -> None:
    settings = {"permute_every": 1, "aggregate_every": 4}
    plan = plan_of(settings=settings, sites=None, samples_per_site=None)
    federation = table(plan, 4, wild=(0, 1, 2, 3), scale=1e9)
    journal = FileJournal(tmp_path, keep=99)

    outcome = loop_of(plan, federation, journal=journal).run()

    assert journal.comm_rounds() == [4, 8, 9]  # after an aggregation that was refused all have the last global model
    assert {event["kind"] for event in outcome.events} == {"refused"}


def test_a_journal_of_an_earlier_release_is_refused_in_one_line(tmp_path) -> None:
    plan, journal = plan_of(), FileJournal(tmp_path)
    journal.save(2, {"record/0/w": np.zeros(2)}, {"slots": {}, "common": 0})

    with pytest.raises(PlanError, match=r"written by an earlier release of fedsmall\. Go on with that release"):
        loop_of(plan, journal=journal).run()
