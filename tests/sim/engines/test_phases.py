"""Runs in phases: each has sites and a schedule of its own, and sets out from what the one before has made."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from fedsmall.errors import PlanError
from fedsmall.federation import Federation, Samples
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.sim.engines.cohort import run_cohort
from fedsmall.sim.engines.run import run_plan
from fedsmall.strategies.daisy_chain import DaisyChain
from fedsmall.strategies.server.journal import FileJournal
from fedsmall.training.trees import cohort_for
from fedsmall.travel.journey import journey, taking_part
from fedsmall.travel.schedule import Action, contacts_of
from fedsmall.validation import check_plan
from tests.sim.engines.test_one_algorithm import (
    ADAM,
    BLUR,
    MOMENTUM,
    PATIENTS,
    PRIVATE,
    SGD,
    assert_alike,
    assert_equal_bits,
    batched,
    federation_of,
    loop_of,
    plan_of,
)

SIZES = (4, 8, 6, 8, 3)  # so that the largest two are sites 1 and 3
WARM_UP = {"rounds": 4, "sites": 2, "aggregate_every": 1}
ROUND_TRIP = {"permute_every": 1, "models": 1, "route": "cyclic"}
FEDTM: dict[str, Any] = {"phases": [WARM_UP, ROUND_TRIP]}


def uneven(plan: Plan) -> Federation:
    federation = federation_of(plan)
    train = tuple(Samples(s.x[:n], s.y[:n]) for s, n in zip(federation.train, SIZES, strict=True))
    return replace(federation, train=train)


def phased(settings: dict[str, Any] | None = None, name: str = "FedTM", **changes: Any) -> Plan:
    return plan_of(name, FEDTM | (settings or {}), **changes)


CASES = {
    "warm-up and travel": phased(),
    "moments": phased(recipe=MOMENTUM, evaluate_every=2),
    "Adam in batches": phased(recipe=ADAM, evaluate_every=3),
    "starting apart": phased(initial_models="independent"),
    "clip and noise": phased(PRIVATE, evaluate_every=2),
    "blur": phased(BLUR),
    "patients": phased({"phases": [WARM_UP | {"sites": "all"}, ROUND_TRIP], **PATIENTS}, recipe=SGD),
    "shares": phased({"phases": [WARM_UP | {"rounds": 0.5, "sites": 0.6}, ROUND_TRIP]}),
    "a chain at the largest, then all": phased(
        {"phases": [{"rounds": 5, "sites": 3, "permute_every": 1, "aggregate_every": 3}, {"aggregate_every": 2}]},
        recipe=MOMENTUM,
    ),
    "three of which the last is small": phased(
        {"phases": [{"rounds": 3, "permute_every": 1}, {"rounds": 3, "models": 2, "permute_every": 1}, {"sites": 2}]},
        recipe=ADAM,
    ),
    "what FedDC says holds where a phase is silent": phased(
        {"phases": [{"rounds": 4, "sites": 3}, {"models": 2}]}, "FedDC", evaluate_every=3
    ),
    "two groups": phased({"phases": [WARM_UP | {"sites": 4}, {"aggregate_every": 1}], "groups": 2}),
    "a random schedule": phased({"permute_every": 1, "aggregate_every": 2, "random_schedule": True}),
    "moving average": phased({"ema": 0.5}),
    "SCAFFOLD": phased({"phases": [WARM_UP, {"models": 2}]}, "SCAFFOLD"),
    "server momentum": phased({"server": "momentum"}),
    "one phase": phased({"phases": [{"sites": 2, "aggregate_every": 2}]}),
}


@pytest.mark.parametrize("case", CASES)
def test_a_stack_and_messages_agree_on(case: str) -> None:
    plan = CASES[case]
    federation = uneven(plan)

    assert_alike(batched(plan, federation), loop_of(plan, federation).run())


def test_warm_up_and_travel_are_two_runs_one_after_the_other() -> None:
    # on whole sites a round draws nothing, so that its number does not matter
    plan = phased(rounds=9)
    federation = uneven(plan)
    largest = replace(federation, names=federation.names[1::2], train=federation.train[1::2])

    warm = batched(plan_of("FedAvg", {"aggregate_every": 1}, rounds=4), largest).model
    rest = plan_of("TravellingModel", {}, rounds=5)
    trainer = cohort_for(rest, federation.task, federation.names, federation.train)
    travelled = run_cohort(rest, trainer, lambda site: warm).model

    assert_equal_bits(travelled, batched(plan, federation).model)


def test_all_sites_in_two_phases_of_one_schedule_are_the_run_without_phases() -> None:
    plain = plan_of("FedAvg", {"aggregate_every": 1})
    cut = plan_of("FedAvg", {"aggregate_every": 1, "phases": [{"rounds": 4}, {}]})

    one, other = batched(plain), batched(cut)

    assert_equal_bits(one.model, other.model)
    assert (one.contacts, one.bytes_sent) == (other.contacts, other.bytes_sent)


def test_a_phase_is_for_the_sites_with_the_most_samples_and_of_equals_for_the_first() -> None:
    three = method("FedAvg", phases=[{"sites": 3}])

    assert taking_part(three, 0, 5, SIZES).tolist() == [1, 2, 3]
    assert taking_part(three, 0, 5, [7] * 5).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="numbers of samples"):
        taking_part(three, 0, 5)


@pytest.mark.parametrize("sites", [2, 3, 5])
@pytest.mark.parametrize("rounds", [1, 3])
def test_nobody_trains_in_a_phase_who_is_not_in_it(sites: int, rounds: int) -> None:
    plan = phased({"phases": [{"rounds": rounds, "sites": sites, "permute_every": 1}, ROUND_TRIP]})
    largest = set(np.argsort(-np.array(SIZES), kind="stable")[:sites].tolist())

    for contact, at in journey(plan, 5, SIZES):
        assert len(at) == (sites if contact.phase == 0 else 1)
        assert contact.phase == int(contact.t > rounds)
        assert set(at.tolist()) <= (largest if contact.phase == 0 else set(range(5)))


def test_a_phase_ends_with_an_aggregation_and_counts_its_own_rounds() -> None:
    phases = [{"rounds": 5, "aggregate_every": 2}, {"permute_every": 3}]
    contacts = contacts_of(phased({"phases": phases}, rounds=12, evaluate_every=100), in_pieces=True)

    assert [(contact.t, contact.phase) for contact in contacts] == [(2, 0), (4, 0), (5, 0), (8, 1), (11, 1), (12, 1)]
    assert [contact.t for contact in contacts if contact.action is Action.PERMUTE] == [8, 11]


@pytest.mark.parametrize("case", ["moments", "two groups", "what FedDC says holds where a phase is silent"])
def test_a_run_in_phases_that_is_stopped_and_resumed_is_the_run_in_one_go(tmp_path, case: str) -> None:
    plan = CASES[case]
    federation = uneven(plan)
    whole = loop_of(plan, federation).run()

    for _ in range(20):
        part = loop_of(plan, federation, journal=FileJournal(tmp_path), stop=lambda: True).run()
        if not part.stopped:
            break

    assert_alike(whole, part, atol=0)
    assert_equal_bits(whole.model, part.model)


def test_who_is_largest_stays_settled_when_sites_say_otherwise_after_a_restart(tmp_path) -> None:
    plan = phased()
    loop_of(plan, uneven(plan), journal=FileJournal(tmp_path), stop=lambda: True).run()
    again = loop_of(plan, uneven(plan), journal=FileJournal(tmp_path), stop=lambda: True)
    again.sites.roster.samples = dict.fromkeys(again.sites.names, 99)

    again.run()

    assert again.sites.samples == SIZES


@pytest.mark.parametrize(
    ("name", "settings", "changes", "line"),
    [
        ("FedTM", {"phases": [WARM_UP | {"sites": 6}, {}]}, {}, "Phase 1 takes the 6 largest of 5 sites"),
        ("FedTM", {"phases": [WARM_UP | {"sites": 0}, {}]}, {}, "a share"),
        ("FedTM", {"phases": [WARM_UP | {"rounds": 1.5}, {}]}, {}, "a share"),
        ("FedTM", {"phases": [WARM_UP | {"rounds": 9}, {}]}, {}, "take 9 rounds, and the run has 9"),
        ("FedTM", {"phases": [{"sites": 2}, {}]}, {}, "every phase but the last says its rounds"),
        ("FedTM", {"phases": [WARM_UP]}, {}, "every phase but the last says its rounds"),
        ("FedTM", {"phases": [WARM_UP, {"model": 1}]}, {}, "unknown key 'phases.1.model'"),
        ("FedTM", {"phases": [WARM_UP | {"models": 3}, {}]}, {}, "3 models cannot sit at 2 sites"),
        ("FedTM", FEDTM | {"groups": 2}, {}, "1 models cannot make 2 groups"),
        ("FedTM", FEDTM | {"groups": "each"}, {}, "groups outlast a phase"),
        ("FedTM", FEDTM | {"groups": 2, "turns": True}, {}, "groups outlast a phase"),
        ("FedTM", FEDTM | {"fraction": 0.5}, {}, "leave fraction out"),
        ("FedTM", FEDTM | PATIENTS, {"recipe": SGD}, "nobody knows which are the largest"),
        ("FedTM", {}, {"recipe": MOMENTUM.model_copy(update={"optimizer_state": "stay"})}, "destroys daisy-chaining"),
        ("SCAFFOLD", FEDTM, {}, "SCAFFOLD has no meaning with permute_every"),
        ("Standalone", FEDTM, {}, "phases are for models that travel"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(
    name: str, settings: dict[str, Any], changes: dict[str, Any], line: str
) -> None:
    def build_and_check() -> None:
        plan = plan_of(name, settings, **changes)
        check_plan(plan, federation_of(plan).task, 5)

    with pytest.raises((PlanError, ValueError), match=line):
        build_and_check()


def test_who_could_be_read_is_counted_through_all_phases() -> None:
    plan = phased({"phases": [WARM_UP | {"permute_every": 1, "aggregate_every": 2}, ROUND_TRIP]}, dtype="float32")
    federation = uneven(plan)
    few = tuple(Samples(s.x[:n], s.y[:n]) for s, n in zip(federation.train, (2, 4, 3, 4, 1), strict=True))
    tiny = replace(federation, train=few)

    one, other = (run_plan(plan, tiny, engine, exposed=True).read for engine in ("cohort", "inprocess"))

    assert one == other
    assert one["looked"] == one["contacts"] == 9
    assert one["server"] > 0


def test_flowers_own_loop_refuses_phases() -> None:
    with pytest.raises(PlanError, match="run a plan"):
        DaisyChain(FedAvg(), method=phased().method).start(None, None)
