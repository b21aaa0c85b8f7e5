"""Several servers: regions that average by themselves, now and then together, and models that cross over."""

import itertools
from typing import Any

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.planning.validation import check_plan
from fedsmall.travel.journey import journey, meet, passage, regions_of
from fedsmall.travel.schedule import Action, comm_rounds_of
from tests.sim.engines.test_no_server import UNEVEN, build_federation, initial_model, plan_of, run_plan, walked


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray], **within: float) -> bool:
    compare = (lambda a, b: np.allclose(a, b, **within)) if within else np.array_equal
    return all(compare(array, other[name]) for name, array in one.items())


@pytest.mark.parametrize("name", ["FedDC", "FedAvg", "DaisyChain", "FedMedian", "FedAdam", "FedProx"])
def test_one_region_is_the_plain_method_to_the_bit(name: str) -> None:
    plain, one = walked(plan_of(name)), walked(plan_of(name, regions={"number": 1, "average_every": 4}))

    assert [result.bytes_sent for result in plain.moments] == [result.bytes_sent for result in one.moments]
    for result, other, models, others in zip(plain.moments, one.moments, plain.models, one.models, strict=True):
        assert other.bytes_between == 0
        assert same(models, others)
        assert (result.global_model is None) == (other.global_model is None)
        assert result.global_model is None or same(result.global_model, other.global_model)


@pytest.mark.parametrize("settings", [{}, {"weighted": True}])
def test_regions_that_always_meet_are_federated_averaging(settings: dict[str, Any]) -> None:
    plain, regions = (walked(plan_of("FedAvg", plan=UNEVEN, **settings, **way)) for way in ({}, {"regions": 4}))

    assert same(plain.moments[-1].global_model, regions.moments[-1].global_model, atol=1e-12)


def test_between_their_averages_regions_know_nothing_of_each_other() -> None:
    settings = {"aggregate_every": 2, "regions": {"number": 2, "average_every": 8, "across": 0.5}}
    plan = plan_of(plan={"rounds": 8}, **settings)
    seen = walked(plan)
    region = regions_of(plan, 6)

    assert [result.global_model is not None for result in seen.moments] == [False] * 7 + [True]
    for t in (1, 3, 5):
        global_models = seen.moments[t].global_models
        assert len(global_models) == 2
        own = seen.models[t]["0.weight"]
        for k in range(2):
            assert np.allclose(global_models[k]["0.weight"], own[region == k].mean(0), atol=1e-12)
        assert not np.allclose(global_models[0]["0.weight"], global_models[1]["0.weight"])
    last = seen.models[7]["0.weight"].mean(0)
    assert np.allclose(seen.moments[7].global_model["0.weight"], last, atol=1e-12)


@pytest.mark.parametrize("across", [0.0, 0.1, 1.0])
def test_models_cross_over_as_often_as_is_said(across: float) -> None:
    plan = plan_of(plan={"sites": 60, "rounds": 400}, regions={"number": 3, "across": across})
    region, crossed = regions_of(plan, 60), []
    assert np.bincount(region).tolist() == [20, 20, 20]
    for t in range(1, 200):
        to = passage(plan, 60, t)
        assert sorted(to) == list(range(60)), "one model to each site"
        crossed.append((region[to] != region).mean())

    assert np.mean(crossed) == pytest.approx(across * 2 / 3, abs=0.02), "two of three places are in other regions"


def test_the_journey_of_a_plan_goes_by_its_regions() -> None:
    plan = plan_of(regions={"number": 2, "across": 0.0})
    region = regions_of(plan, 6)
    places = [at for _, at in journey(plan, 6)]

    assert all((region[at] == region[places[0]]).all() for at in places)
    assert any((at != places[0]).any() for at in places)


def test_bytes_between_servers_are_counted_apart() -> None:
    regions = {"number": 3, "average_every": 8, "across": 1.0}
    plan = plan_of(plan={"rounds": 8}, regions=regions)
    seen, plain = walked(plan), walked(plan_of(plan={"rounds": 8}))
    model = sum(array.nbytes for array in initial_model(plan, build_federation(plan).task, None).values())
    region, places = regions_of(plan, 6), [at for _, at in journey(plan, 6)]
    crossed = [0] + [int((region[a] != region[b]).sum()) for a, b in itertools.pairwise(places)]

    assert [result.bytes_sent for result in seen.moments] == [result.bytes_sent for result in plain.moments]
    between = [hops * model for hops in crossed]
    between[-1] += 2 * 3 * model
    assert [result.bytes_between for result in seen.moments] == between
    assert sum(crossed) > 6
    record = run_plan(plan, build_federation(plan), "cohort")
    assert record.bytes_between == sum(between)


def test_the_last_average_is_always_of_all_regions() -> None:
    plan = plan_of(plan={"rounds": 10}, aggregate_every=2, regions={"number": 2, "average_every": 4})
    averages = [comm_round for comm_round in comm_rounds_of(plan) if comm_round.action is Action.AGGREGATE]

    assert [comm_round.t for comm_round in averages if meet(plan, comm_round)] == [4, 8, 10]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too many": ({"regions": 7}, "7 regions need a site each, and there are 6"),
    "a period that is none": ({"regions": {"number": 2, "average_every": 6}}, "every 4 rounds. Give a multiple"),
    "chance": ({"regions": {"number": 2, "average_every": 8}, "random_schedule": True}, "random_schedule"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_in_regions_is_refused_in_one_line(case: str) -> None:
    settings, line = REFUSED[case]
    with pytest.raises(PlanError, match=line):
        check_plan(plan_of(**settings), build_federation(plan_of()).task, 6)
