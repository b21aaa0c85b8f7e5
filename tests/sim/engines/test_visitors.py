"""What sites keep of a run: their last visitors, as they left them."""

from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedsmall.algorithm.daisy_chain import daisy_chain, topology_for
from fedsmall.data.federation import Federation
from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.outputs import answer, members_of
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.sim.engines.run import run_plan
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import Visitors, last_visits
from fedsmall.travel.schedule import contacts_of
from tests.sim.engines.harness import ADAM, BLUR, MOMENTUM, assert_equal_bits, federation_of, plan_of

KEEP = {"keep_last": 3}
APART: dict[str, Any] = {
    "model": "shared_part",
    "model_options": {"sites": ["mlp"] * 5, "shared": ["0"]},
}


def keeping(name: str = "FedDC", settings: dict[str, Any] | None = None, **changes: Any) -> Plan:
    return plan_of(name, KEEP | (settings or {}), **changes)


CASES = {
    "a chain": keeping(settings={"permute_every": 1, "aggregate_every": 4}, recipe=ADAM, evaluate_every=2),
    "averages": keeping("FedAvg"),
    "one model": keeping("TravellingModel", rounds=13),
    "groups": keeping("TravellingGroups", {"groups": 2}, recipe=MOMENTUM),
    "some of the sites": keeping(settings={"fraction": 0.4, "permute_every": 1, "aggregate_every": 6}, rounds=12),
    "blur": keeping(settings=BLUR | {"aggregate_every": 4}),
}


def with_held_out(federation: Federation) -> Federation:
    test = federation.test
    parts = [replace(test, x=test.x[k::5], y=test.y[k::5]) for k in range(len(federation.names))]
    return replace(federation, held_out=tuple(parts))


def by_hand(plan: Plan, federation: Federation) -> dict[str, list[dict[str, np.ndarray]]]:
    """Every model that ever left each site, from a walk in which each contact is looked at."""
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    left: dict[str, list[dict[str, np.ndarray]]] = defaultdict(list)
    walk = daisy_chain(
        topology_for(plan, trainer, lambda site: initial_model(plan, federation.task, site)),
        contacts_of(plan),
        lambda contact: True,
    )
    for moment in walk:
        models = moment.models()
        for row, site in enumerate(moment.sites):
            left[site].append({name: array[row].copy() for name, array in models.items()})
    return left


def kept(plan: Plan, federation: Federation, engine: str) -> dict[str, Any]:
    return run_plan(plan, federation, engine).evaluations[-1].kept


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_a_sites_last_visitors_are_judged_together_on_every_engine(case: str) -> None:
    plan = CASES[case]
    federation = with_held_out(federation_of(plan))

    one, other = kept(plan, federation, "cohort"), kept(plan, federation, "inprocess")

    assert one["names"] == other["names"]
    for name in ("loss_mean", "accuracy_mean", "accuracy_sd"):
        assert one[name] == pytest.approx(other[name], abs=1e-9)
    left = by_hand(plan, federation)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    for place, site in enumerate(one["names"]):
        held_out = federation.held_out[federation.names.index(site)]
        outputs = np.stack([trainer.predict_at(0, model, federation.test.x, {}) for model in left[site][-3:]])
        own = np.stack([trainer.predict_at(0, model, held_out.x, {}) for model in left[site][-3:]])
        loss = federation.task.loss
        on_all = evaluate(answer(outputs, loss), federation.test.y, federation.task)
        on_own = evaluate(answer(own, loss), held_out.y, federation.task)
        assert one["per_site"]["loss"][place] == pytest.approx(on_all["loss"], abs=1e-9)
        assert one["held_out"][site]["loss"] == pytest.approx(on_own["loss"], abs=1e-9)
    assert one["spread"]["deviation"] > 0


@pytest.mark.parametrize("case", CASES)
def test_keeping_changes_no_number_and_sends_no_byte(case: str) -> None:
    plan = CASES[case]
    federation = federation_of(plan)
    bare = plan.model_copy(update={"method": plan.method.model_copy(update={"keep_last": None})})

    one, other = run_plan(plan, federation, "cohort"), run_plan(bare, federation, "cohort")

    assert_equal_bits(one.model, other.model)
    assert one.bytes_sent == other.bytes_sent
    assert other.evaluations[-1].kept == {}


def test_no_contact_is_looked_at_that_nobody_keeps() -> None:
    assert last_visits(keeping(rounds=40), 5) == {38, 39, 40}
    assert last_visits(keeping("TravellingModel", rounds=40), 5) == set(range(26, 41))


def test_sites_that_nobody_has_visited_keep_nothing() -> None:
    plan = keeping("TravellingModel", rounds=3)

    told = kept(plan, federation_of(plan), "cohort")

    assert len(told["names"]) == 3


def test_a_site_with_one_visitor_is_worth_what_it_is() -> None:
    plan = keeping("FedAvg", {"keep_last": 1, "aggregate_every": 1})
    record = run_plan(plan, federation_of(plan), "cohort")

    last = record.evaluations[-1]
    assert last.kept["per_site"]["loss"] == pytest.approx(last.sites["per_site"]["loss"], abs=1e-12)
    assert last.kept["spread"]["deviation"] == 0


def test_members_of_a_site_are_those_that_left_it_oldest_first() -> None:
    plan = keeping(settings={"permute_every": 1, "aggregate_every": 4})
    federation = federation_of(plan)
    visitors = Visitors(plan, federation.names)
    trainer = cohort_for(plan, federation.task, federation.names, federation.train)
    start = initial_model(plan, federation.task)
    for moment in daisy_chain(
        topology_for(plan, trainer, lambda _: start),
        contacts_of(plan),
        visitors.needs,
    ):
        visitors.see(moment)

    for site, left in by_hand(plan, federation).items():
        for mine, theirs in zip(members_of(visitors.members()[site], True), left[-3:], strict=True):
            for name, array in mine.items():
                np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-12)


def test_no_visitors_are_none_to_keep() -> None:
    with pytest.raises(PlanError, match="at least 1"):
        plan_of("FedAvg", {"keep_last": 0})
