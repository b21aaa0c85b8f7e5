"""Models that are kept from the server: every engine has the same numbers, and they are those of the clear run."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsmall.aggregation.combiners import Summed, combiner_for
from fedsmall.algorithm.model_states import ModelStates
from fedsmall.errors import ReplyError
from fedsmall.methods import METHODS
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.travel.journey import journey
from tests.sim.engines.harness import (
    BLUR,
    MOMENTUM,
    SETTINGS,
    assert_alike,
    assert_equal_bits,
    batched,
    federation_of,
    loop_of,
    plan_of,
    table,
)
from tests.sim.engines.on_ray import on_ray
from tests.sim.engines.plans import BOTH, SEALED, SECURE

CHAIN = SETTINGS["FedDC"]
SUMMED = (
    *("FedAvg", "FedProx", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi", "FedNova", "SCAFFOLD", "FedDyn"),
    *("DaisyChain", "FedDC", "RepTreeFL"),
)


@pytest.mark.thorough
@pytest.mark.parametrize("name", SUMMED)
def test_sums_are_the_same_on_a_stack_and_with_messages_and_near_the_clear_run(name: str) -> None:
    settings = SETTINGS.get(name, {})
    secure, clear = plan_of(name, {**settings, **BOTH}), plan_of(name, settings)

    one, other, open_ = batched(secure), loop_of(secure).run(), batched(clear)

    assert_alike(one, other)
    assert one.model is not None
    assert open_.model is not None
    for key, array in open_.model.items():
        np.testing.assert_allclose(one.model[key], array, rtol=0, atol=1e-6)
    assert any(not np.array_equal(one.model[key], array) for key, array in open_.model.items())


def test_sealed_models_are_those_of_the_clear_run_to_the_bit() -> None:
    sealed, clear = plan_of(settings={**CHAIN, **SEALED}, recipe=MOMENTUM), plan_of(settings=CHAIN, recipe=MOMENTUM)

    assert_equal_bits(batched(sealed).model or {}, batched(clear).model or {})


@pytest.mark.thorough
@pytest.mark.parametrize("hidden", [SEALED, SECURE], ids=["sealed", "secure"])
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("FedDC", CHAIN),
        ("FedDC", {**CHAIN, "fraction": 0.75}),
        ("FedAvg", {"aggregate_every": 2}),
        ("SCAFFOLD", {"aggregate_every": 2}),
        ("TravellingGroups", {"groups": 2, "permute_every": 1, "aggregate_every": 3}),
    ],
)
@pytest.mark.parametrize("every", [None, 3])
def test_a_model_that_did_not_come_to_an_average_does_not_count_there(
    name: str, settings: dict[str, Any], hidden: dict[str, Any], every: int | None
) -> None:
    recipe = Recipe(**METHODS[name].recipe | {"lr": 0.05})
    more: dict[str, Any] = {"sites": None, "samples_per_site": None, "evaluate_every": every, "recipe": recipe}
    plan, clear = plan_of(name, {**settings, **hidden}, **more), plan_of(name, settings, **more)
    federation = table(plan, 8, wild=(1,), scale=1e6)

    one, other, open_ = batched(plan, federation), loop_of(plan, federation).run(), batched(clear, federation)

    assert_alike(one, other)
    assert {event["site"] for event in one.events} == {"site-1"}
    travels = plan.method.permute_every is not None
    assert one.model is not None
    assert open_.model is not None
    apart = max(float(np.abs(one.model[key] - array).max()) for key, array in open_.model.items())
    # in the clear the traveller that came to site-1 counts as it was sent; without a chain that is no model at all
    assert (apart > 1e-4) == travels


def test_what_counts_are_the_models_of_the_sites_that_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, tuple[str, ...]]] = []
    combine = Summed.combine

    def watched(self: Summed, global_model: Any, updates: Any, t: int) -> Any:
        seen.append((t, updates.sites))
        return combine(self, global_model, updates, t)

    monkeypatch.setattr(Summed, "combine", watched)
    plan = plan_of(settings={**CHAIN, **BOTH}, sites=None, samples_per_site=None, rounds=8)
    federation = table(plan, 5, wild=(1,), scale=1e6)

    batched(plan, federation)
    loop_of(plan, federation).run()

    others = ("site-0", "site-2", "site-3", "site-4")
    assert seen == [(4, others), (8, others)] * 2


def test_a_site_that_fails_in_the_last_piece_of_a_comm_round_leaves_the_others_controls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged = ModelStates._check_norms
    calls: list[int] = []

    def fails_at_last(self: ModelStates, received: Any) -> Any:
        good, grown = judged(self, received)
        calls.append(len(calls))
        good[1] = len(calls) % 2 == 1  # every second piece ends a communication round
        return good, grown

    monkeypatch.setattr(ModelStates, "_check_norms", fails_at_last)
    plan = plan_of("SCAFFOLD", {"aggregate_every": 2, **SECURE}, rounds=4, evaluate_every=1)

    outcome = batched(plan)

    assert [(event["t"], event["site"]) for event in outcome.events] == [(2, "site-001"), (4, "site-001")]


def test_a_sum_of_which_too_few_are_left_ends_the_run_in_a_line() -> None:
    plan = plan_of("FedAvg", {"aggregate_every": 2, **SECURE}, sites=None, samples_per_site=None)
    federation = table(plan, 4, wild=(0, 1))

    for run in (lambda: batched(plan, federation), loop_of(plan, federation).run):
        with pytest.raises(ReplyError, match="At round 2 a secure sum has 2 of the 3 sites"):
            run()


@pytest.mark.thorough
@pytest.mark.parametrize("hidden", [SEALED, BOTH], ids=["sealed", "both"])
def test_a_hidden_run_that_is_stopped_at_every_comm_round_and_resumed_is_the_run_in_one_go(
    tmp_path: Path, hidden: dict[str, Any]
) -> None:
    settings = {**CHAIN, **hidden, "fraction": 0.8, "server": "momentum"}
    plan = plan_of(settings=settings, rounds=9, evaluate_every=2, sites=None, samples_per_site=None)
    federation = table(plan, 6, wild=(2,), scale=1e6)
    whole = loop_of(plan, federation).run()

    for _ in range(20):
        part = loop_of(plan, federation, journal=FileJournal(tmp_path), stop=lambda: True).run()
        if not part.stopped:
            break

    assert_equal_bits(whole.model or {}, part.model or {})
    assert part.events == whole.events


@pytest.mark.slow
@on_ray
def test_sums_have_the_same_bits_on_ray_and_in_one_process() -> None:
    plan = plan_of(settings={**CHAIN, **BOTH}, rounds=5)

    one, other = (run_plan(plan, federation_of(plan), engine=engine) for engine in ("inprocess", "ray"))

    assert_equal_bits(one.model or {}, other.model or {})


def test_a_route_seed_moves_the_models_and_nothing_else() -> None:
    def first_steps(**seeds: int) -> Any:
        return batched(plan_of("FedAvg", {"aggregate_every": 1}, rounds=2, **seeds)).model

    assert_equal_bits(first_steps(seed=3), first_steps(seed=3, route_seed=9))
    one, other = (batched(plan_of(route_seed=seed)).model or {} for seed in (0, 9))
    assert any(not np.array_equal(one[key], other[key]) for key in one)
    assert [at.tolist() for _, at in journey(plan_of(route_seed=9), 5)] == [
        at.tolist() for _, at in journey(plan_of(seed=9), 5)
    ]


def test_the_combiner_of_a_plan_sums_where_the_plan_says_so() -> None:
    plans: list[Plan] = [plan_of(settings={**CHAIN, **privacy}) for privacy in ({}, SEALED, SECURE, BOTH, BLUR)]

    assert [isinstance(combiner_for(plan), Summed) for plan in plans] == [False, False, True, True, False]
