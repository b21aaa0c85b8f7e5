"""What a site works out of the ways of all travellers is where a chain sends them."""

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.errors import PlanError
from fedsmall.plan import Method, Plan
from fedsmall.sealing.masks import ALL_DECRYPT, committee_size
from fedsmall.sealing.routing import RoutingTable, seed_of
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Action

METHODS = {
    "a chain": Method(name="FedDC", permute_every=1, aggregate_every=3),
    "a slow one": Method(name="FedDC", permute_every=2, aggregate_every=5),
    "half of the sites": Method(name="FedDC", permute_every=1, aggregate_every=3, fraction=0.5),
    "four models": Method(name="FedDC", permute_every=1, aggregate_every=3, models=4),
    "round and round": Method(name="TravellingModel", permute_every=1, models=2, route="cyclic"),
    "groups": Method(name="TravellingGroups", permute_every=1, aggregate_every=2, groups=3),
    "turns": Method(name="FedAvg", aggregate_every=1, validate={"routes": 2, "by_samples": True}),
    "averages": Method(name="FedAvg", aggregate_every=1),
}


def ways(method: Method, sites: int, rounds: int = 11, seed: int = 0) -> RoutingTable:
    plan = Plan(name="x", task="breast_cancer", rounds=rounds, method=method, route_seed=seed)
    return RoutingTable(plan, tuple(f"site-{k}" for k in range(sites)))


@pytest.mark.parametrize("name", METHODS)
@given(st.integers(4, 9), st.integers(0, 50))
@settings(max_examples=12, deadline=None)
def test_every_envelope_goes_where_its_traveller_trains_next(name, sites, seed):
    bills = ways(METHODS[name], sites, seed=seed)
    walked = list(journey(bills.plan, sites))

    for (comm_round, at), (_, after) in itertools.pairwise(walked):
        for traveller, site in enumerate(at.tolist()):
            here, there = bills.names[site], bills.names[after[traveller]]
            assert bills.next_site(comm_round.t, here) == there
            assert bills.model_at(comm_round.t, here) == traveller
            assert bills.site_of(comm_round.t, traveller) == here
    assert all(bills.next_site(walked[-1][0].t, bills.names[site]) is None for site in walked[-1][1].tolist())


@pytest.mark.parametrize("name", METHODS)
def test_no_two_envelopes_of_a_comm_round_go_to_one_site(name):
    bills = ways(METHODS[name], 8)

    for comm_round, there in bills.comm_rounds[:-1]:
        goals = [bills.next_site(comm_round.t, site) for site in there]
        assert len(set(goals)) == len(goals)


@pytest.mark.parametrize("name", METHODS)
def test_members_of_all_groups_are_those_who_train(name):
    bills = ways(METHODS[name], 9)

    for comm_round, there in bills.comm_rounds:
        groups = {bills.group(comm_round.t, site) for site in there}
        assert sorted(site for g in groups for site in bills.members(comm_round.t, g)) == sorted(there)


def test_the_last_average_is_that_before_the_round():
    bills = ways(METHODS["a chain"], 5, rounds=9)

    assert [bills.last_average(comm_round.t) for comm_round, _ in bills.comm_rounds] == [0, 0, 0, 3, 3, 3, 6, 6, 6]
    assert [c.t for c, _ in bills.comm_rounds if c.action is Action.AGGREGATE] == [3, 6, 9]


def test_few_sites_all_help_and_of_many_every_one_is_drawn_in_its_turn():
    for n in (1, 2, 3, 4, ALL_DECRYPT):
        assert ways(METHODS["averages"], n).decryptors(1) == sorted(f"site-{k}" for k in range(n))
    bills = ways(METHODS["averages"], 40, rounds=200)

    drawn = [bills.decryptors(t) for t in range(1, 201)]

    size = committee_size(40, 603)
    assert {len(set(each)) for each in drawn} == {size} == {22}
    counts = Counter(site for each in drawn for site in each)
    assert len(counts) == 40
    assert min(counts.values()) > 200 * size / 40 / 2


def test_who_rests_helps_too():
    """The chance of a bad draw is of all sites, be they ever so few who train."""
    bills = ways(METHODS["half of the sites"], 9)

    assert len(bills.members(3, 0)) < 9
    assert bills.decryptors(3) == sorted(bills.names)
    assert bills.summed(3, 0) == bills.members(3, 0)
    assert bills.summed(3, 0, "evaluate") == list(bills.names)


def test_another_seed_of_the_routes_is_another_way_and_the_same_is_the_same():
    one, again, other = (ways(METHODS["a chain"], 8, seed=seed).comm_rounds for seed in (1, 1, 2))

    assert one == again
    assert one != other


def test_what_the_plan_does_not_have_is_refused_in_a_line():
    bills = ways(METHODS["half of the sites"], 6)
    resting = next(site for site in bills.names if site not in bills.comm_rounds[0][1])

    with pytest.raises(PlanError, match="the plan has no communication round after round 99"):
        bills.comm_round(99)
    with pytest.raises(
        PlanError, match=f"by the plan {resting} trains no model for the communication round of round 1"
    ):
        bills.model_at(1, resting)


def test_every_part_decides_the_seed():
    parts = {"a": "00", "b": "11", "c": "22"}

    seeds = {seed_of(parts, 0), seed_of(parts, 1), *(seed_of({**parts, site: "ff"}, 0) for site in parts)}

    assert len(seeds) == 5
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seed_of(dict(reversed(parts.items())), 0) == seed_of(parts, 0)
