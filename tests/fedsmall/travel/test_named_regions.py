"""Regions whose sites are named: a simulation of them, what a region's own server draws, and what is refused."""

from typing import Any

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.exact import exact_sum, in_parts
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.privacy.site_level import hands_on
from fedsmall.travel.journey import check_apart, check_region_names, differences, plan_above, regions_of, route_within

SITES = {"north": ["a", "d", "f"], "south": ["b", "c", "e"]}


def plan_of(regions: Any, **more: Any) -> Plan:
    settings = {"permute_every": 1, "aggregate_every": 2} | more
    return Plan(name="test", task="breast_cancer", rounds=9, method=method("FedDC", regions=regions, **settings))


def test_named_regions_are_numbered_in_the_order_of_their_names():
    plan = plan_of({"sites": {"south": ["b", "c", "e"], "north": ["f", "a", "d"]}})

    assert regions_of(plan, 6).tolist() == [0, 1, 1, 0, 1, 0]
    assert plan.method.region_count == 2
    assert Plan.model_validate_json(plan.model_dump_json(exclude_defaults=True)) == plan


def test_a_region_draws_for_its_sites_what_all_draw_for_them():
    plan = plan_of({"sites": SITES, "across": 0})
    routes = [route_within(plan, sites, t) for t in range(1, 30) for sites in SITES.values()]

    assert all(route.keys() == set(route.values()) for route in routes), "no model leaves its region"
    assert len({tuple(route.values()) for route in routes[::2]}) == 6, "all orders of three sites come"


def test_sums_of_regions_are_the_sum_of_all_sites_to_the_bit():
    rng = np.random.default_rng(0)
    numbers = [rng.normal(size=8) * 10.0 ** rng.integers(-12, 12, size=8) for _ in range(9)]
    rounded = exact_sum([exact_sum(numbers[:4]), exact_sum(numbers[4:])])
    whole = exact_sum(numbers)

    assert (exact_sum([*in_parts(numbers[:4]), *in_parts(numbers[4:])]) == whole).all()
    assert (rounded != whole).any(), "which rounded sums are not"
    assert in_parts([np.zeros(2)]).shape == (1, 2)


def test_above_regions_goes_a_mean_of_what_they_are_made_of():
    above = plan_above(plan_of({"sites": SITES, "average_every": 4}, privacy={"clip": 1.0, "noise": 1.0}))

    assert (above.method.aggregate_every, above.method.permute_every) == (4, None)
    assert above.method.weighted
    assert above.method.gate is False
    assert above.method.privacy is None, "what leaves the sites was charged to their region's ledger"
    assert plan_above(plan_of({"sites": SITES})).method.aggregate_every == 2


def test_a_small_region_hands_on_what_few_have_made():
    wide = plan_of({"sites": {"north": ["a", "b", "c"], "south": ["d", "e", "f"]}}, permute_every=None).method
    narrow = plan_of({"sites": {"north": ["a"], "south": ["b", "c", "d", "e", "f"]}}, permute_every=None).method

    assert not hands_on(wide, 6, 3)
    assert hands_on(narrow, 6, 3)


def test_differences_name_what_decides_numbers_alone():
    plan = plan_of({"sites": SITES})
    other = plan.model_copy(update={"name": "other", "evaluate_every": 3, "seed": 2})

    assert differences(plan, plan) == []
    assert differences(plan, other) == ["seed is 0 and 2"]


WRONG = {
    "an empty region": ({"sites": {"north": ["a"], "south": []}}, "region 'south' has no site"),
    "a site in two": ({"sites": {"north": ["a"], "south": ["a"]}}, "site 'a' is named twice"),
    "another number": ({"number": 3, "sites": SITES}, "number is 3, and sites names 2 regions"),
    "a name that is none": ({"sites": {"The North": ["a"]}}, "String should match pattern"),
}


@pytest.mark.parametrize("case", WRONG)
def test_regions_that_cannot_be_are_refused(case):
    regions, line = WRONG[case]
    with pytest.raises(ValueError, match=line):
        plan_of(regions)


def test_sites_that_are_not_those_named_are_refused():
    plan = plan_of({"sites": SITES})

    check_region_names(plan, list("abcdef"))
    with pytest.raises(PlanError, match=r"there is no site 'f'\. There are: a, b, c, d, e, g\."):
        check_region_names(plan, list("abcdeg"))
    with pytest.raises(PlanError, match="site 'g' is in no region"):
        check_region_names(plan, list("abcdefg"))


APART = {
    "regions that are dealt": ({"number": 2, "across": 0}, {}, "does not say which hospitals are in which"),
    "one region": ({"sites": {"north": ["a", "b"]}, "across": 0}, {}, "does not say which hospitals are in which"),
    "models that cross": ({"sites": SITES}, {}, "Write across = 0"),
    "random rounds": ({"sites": SITES, "across": 0}, {"random_schedule": True}, "leave random_schedule out"),
    "secure sums": (
        {"sites": SITES, "across": 0},
        {"privacy": {"sealed": True, "secure": True}},
        "(sealed|secure) needs one server",
    ),
}


@pytest.mark.parametrize("case", APART)
def test_what_several_real_servers_cannot_do_is_refused_in_one_line(case):
    regions, more, line = APART[case]
    with pytest.raises(PlanError, match=line):
        check_apart(plan_of(regions, **more))


def test_a_region_that_the_scenario_does_not_name_is_refused():
    with pytest.raises(PlanError, match="has no region 'west'; it has north, south"):
        check_apart(plan_of({"sites": SITES, "across": 0}), "west")
