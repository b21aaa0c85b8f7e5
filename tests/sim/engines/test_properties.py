"""What holds for every plan: one table of plans (:mod:`tests.sim.engines.plans`), and six properties of a run.

Quick tests take few plans that have every feature of the table together (a row of :data:`fedsmall.features.FEATURES` is
a feature); all others run with the thorough tests.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsmall.clients.client_app import app
from fedsmall.features import FEATURES
from fedsmall.plan import Plan
from fedsmall.sim.engines.run import run_plan
from tests.sim.engines.harness import (
    OftenSilent,
    Weighed,
    assert_equal_bits,
    batched,
    federation_of,
    loop_of,
    run_in_pieces,
)
from tests.sim.engines.plans import PLANS

COUNTED = ("comm_rounds", "rounds", "bytes_sent", "client_updates", "privacy", "events")
SERVED = {name: plan for name, plan in PLANS.items() if plan.method.family == "federated"}
OF_ONE_SERVER = {
    name: plan
    for name, plan in SERVED.items()
    if not plan.method.topology and plan.method.region_count == 1 and not plan.method.validation and not plan.stop
}


def features_of(plan: Plan) -> set[str]:
    return {feature.name for feature in FEATURES if feature.is_on(plan)} | {
        str(plan.model),
        str(plan.method.fraction < 1),
    }


def cost_of(plan: Plan) -> float:
    """About how long a plan takes, beside the least one: of equal covers the quick tests are to take a short one."""
    times = {3: plan.task == "digits", 4: plan.method.tree is not None, 2: plan.privacy.exposure is not None}
    return math.prod(factor for factor, holds in times.items() if holds) * (plan.sites or 5) / 5 * plan.rounds / 6


def covering(plans: dict[str, Plan]) -> list[Any]:
    """All plans as parameters; those are quick that together have every feature that any of them has."""
    found = {name: features_of(plan) for name, plan in plans.items()}
    left, quick = set().union(*found.values()), set()
    while left:
        best = max(found, key=lambda name: len(found[name] & left) / cost_of(plans[name]))
        quick.add(best)
        left -= found[best]
    return [
        pytest.param(plan, id=name, marks=() if name in quick else pytest.mark.thorough) for name, plan in plans.items()
    ]


def numbers_of(tree: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested tables, by their places."""
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from numbers_of(value, f"{key}/{name}")
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            yield from numbers_of(value, f"{key}/{number}")
    elif tree is not None:
        yield key, tree


@pytest.mark.parametrize("plan", covering(PLANS))
def test_messages_give_what_a_stack_gives(plan: Plan) -> None:
    federation = federation_of(plan)

    stack, messages = (run_plan(plan, federation, engine) for engine in ("cohort", "inprocess"))

    for counted in (*COUNTED, "chosen", "averaged", "bytes_between"):
        assert getattr(stack, counted) == getattr(messages, counted), counted
    assert (stack.model is None) == (messages.model is None)
    for name, array in (stack.model or {}).items():  # a convolution adds in another order on a stack
        np.testing.assert_allclose(array, messages.model[name], rtol=1e-10, atol=1e-8)
    for judged, other in zip(stack.evaluations, messages.evaluations, strict=True):
        assert dict(numbers_of(asdict(judged))) == pytest.approx(dict(numbers_of(asdict(other))), abs=1e-7)


@pytest.mark.parametrize("plan", covering(OF_ONE_SERVER))
def test_a_run_that_is_stopped_at_every_comm_round_and_resumed_is_the_run_in_one_go(plan: Plan, tmp_path: Path) -> None:
    whole = loop_of(plan).run()

    pieces = run_in_pieces(plan, tmp_path)

    assert_equal_bits(whole.model or {}, pieces.model or {})
    for counted in (*COUNTED, "evaluations", "averaged"):
        assert getattr(pieces, counted) == getattr(whole, counted), counted


@pytest.mark.parametrize("plan", covering({name: plan for name, plan in PLANS.items() if not plan.stop}))
def test_an_evaluation_changes_no_number(plan: Plan) -> None:
    seldom, often = (
        batched(plan.model_copy(update={"evaluate_every": every, "rounds": min(plan.rounds, 9)})) for every in (None, 1)
    )

    assert_equal_bits(seldom.model or {}, often.model or {})
    for counted in ("comm_rounds", "bytes_sent", "client_updates", "privacy", "averaged"):
        assert getattr(seldom, counted) == getattr(often, counted), counted
    assert len(often.evaluations) >= max(1, often.comm_rounds)


@pytest.mark.parametrize("plan", covering(PLANS))
def test_the_same_seed_gives_the_same_bits(plan: Plan) -> None:
    single = plan.model_copy(update={"dtype": "float32"})

    one, other = batched(single), batched(single)

    assert_equal_bits(one.model or {}, other.model or {})
    assert one.evaluations == other.evaluations


# Dynamic averages count what sites say in words too (tests/sim/engines/test_dynamic_messages.py).
@pytest.mark.parametrize("plan", covering({name: p for name, p in OF_ONE_SERVER.items() if not p.method.divergence}))
def test_the_bytes_that_are_counted_are_those_of_the_arrays_in_the_messages(plan: Plan) -> None:
    plan = plan.model_copy(update={"evaluate_every": None})
    loop = loop_of(plan)
    loop.grid = Weighed(len(federation_of(plan).names))

    counted = loop.run().bytes_sent

    padded = loop.grid.arrays - counted  # safetensors fills up what is not a whole number of words
    assert 0 <= padded < 0.02 * loop.grid.arrays
    assert batched(plan).bytes_sent == counted


def can_be_silent(plan: Plan) -> bool:
    """Whether a run goes on without some sites: a Radon point, Krum and secure sums need their number."""
    return plan.method.aggregator not in ("radon", "krum") and not (plan.method.hidden and plan.method.privacy.secure)


@pytest.mark.parametrize("plan", covering({name: p for name, p in OF_ONE_SERVER.items() if can_be_silent(p)}))
def test_where_sites_are_silent_nothing_is_lost_and_each_silence_is_an_event(plan: Plan) -> None:
    loop, sound = loop_of(plan), batched(plan)
    loop.grid = grid = OftenSilent(app, len(federation_of(plan).names))

    outcome = loop.run()

    assert all(np.isfinite(array).all() for array in (outcome.model or {}).values())
    if plan.method.regression is None:  # whose fit ends when nothing moves
        assert (outcome.comm_rounds, outcome.rounds) == (sound.comm_rounds, sound.rounds)
    assert len(outcome.events) == grid.silences
    assert grid.silences > 0 or 1 in (plan.method.models, plan.sites)  # where nobody answers a run ends
    assert {event["kind"] for event in outcome.events} <= {"silent"}
