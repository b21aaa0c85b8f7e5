"""Folds are even in sites and samples, and no model is ever at a site of the fold of its route."""

from typing import Any

import numpy as np
import pytest

from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_plan
from fedsmall.travel.journey import assign_sites, deal_folds, folds_of, has_room, journey, routes_of


def plan_of(name: str = "TravellingGroups", rounds: int = 40, **settings: Any) -> Plan:
    return Plan(name="p", task="breast_cancer", rounds=rounds, method=method(name, **settings))


@pytest.mark.parametrize("sites", [2, 3, 5, 7, 11, 50])
@pytest.mark.parametrize("routes", [2, 3, 5])
def test_folds_differ_by_a_site_at_most_and_the_larger_ones_come_last(sites: int, routes: int) -> None:
    if routes > sites:
        pytest.skip("of fewer sites than routes there are no folds of sites")
    sizes = np.random.default_rng(sites).integers(1, 100, sites)

    counts = np.bincount(deal_folds(0, sizes, routes), minlength=routes)

    assert counts.sum() == sites
    assert counts.max() - counts.min() <= 1
    assert (np.diff(counts) >= 0).all()


def test_folds_are_evener_in_samples_than_chance_makes_them() -> None:
    def unevenness(folds: np.ndarray) -> float:
        held = np.bincount(folds, weights=sizes)
        return float(held.max() / held.min())

    ours, by_chance = [], []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        sizes = rng.lognormal(3, 0.6, 30).astype(int) + 1
        ours.append(unevenness(deal_folds(seed, sizes, 5)))
        by_chance.append(unevenness(rng.permutation(np.arange(30) % 5)))

    assert np.median(ours) < 1.3 < np.median(by_chance)


def test_who_is_in_which_fold_is_drawn() -> None:
    draws = np.array([deal_folds(seed, [8] * 10, 5) for seed in range(400)])

    shares = np.stack([(draws == fold).mean(axis=0) for fold in range(5)])
    np.testing.assert_allclose(shares, 0.2, atol=0.08)  # four standard errors
    together = (draws[:, :1] == draws[:, 1:]).mean(axis=0)  # one of nine others is in the same fold
    np.testing.assert_allclose(together, 1 / 9, atol=0.065)


METHODS: dict[str, dict[str, Any]] = {
    "averages at every communication round": {"groups": 1},
    "two groups a route": {"groups": "twice"},
    "each": {"groups": "each", "aggregate_every": None, "permute_every": 1},
    "now and then": {"groups": 1, "aggregate_every": 3, "permute_every": 1},
    "some of the sites": {"groups": 1, "fraction": 0.5},
    "few models": {"groups": 1, "models": 6},
}


@pytest.mark.parametrize("sites", [2, 3, 4, 5, 6, 7, 12, 13, 41])
@pytest.mark.parametrize("routes", [2, 3, 5])
@pytest.mark.parametrize("case", METHODS)
def test_no_model_is_ever_at_a_site_of_the_fold_of_its_route(sites: int, routes: int, case: str) -> None:
    settings = dict(METHODS[case])
    settings["groups"] = 2 * routes if settings["groups"] == "twice" else settings["groups"]
    plan = plan_of(validate={"routes": routes}, **settings)
    travelling = plan.method.travelling(sites)
    if plan.method.models not in (None, travelling) or plan.method.group_count(sites) > travelling or routes > sites:
        pytest.skip("more groups, or models, than there is room for are refused, and more routes are of samples")
    samples = np.random.default_rng(sites).integers(5, 50, sites).tolist()
    folds = folds_of(plan, samples)

    way = np.array([at for _, at in journey(plan, sites, samples)])  # (communication rounds, travellers)

    assert all(len(set(at.tolist())) == travelling for at in way)
    assert not (folds[way] == routes_of(plan.method, sites)).any()


def test_a_way_without_folds_would_be_found_out() -> None:
    plan = plan_of(validate={"routes": 5})
    folds = folds_of(plan, [8] * 20)

    way = np.array([at for _, at in journey(plan_of(), 20)])

    assert (folds[way] == routes_of(plan.method, 20)).any()


def test_a_model_is_equally_often_at_every_site_that_it_may_be_at() -> None:
    routes = folds = np.arange(20) % 5
    seen = np.zeros((20, 20))
    for draw in range(8000):
        seen[np.arange(20), assign_sites(np.random.default_rng(draw), routes, folds)] += 1

    allowed = routes[:, None] != folds[None]

    assert not seen[~allowed].any()
    np.testing.assert_allclose(seen[allowed] / 8000, 1 / 16, atol=5 * np.sqrt(1 / 16 / 8000))


def test_where_two_routes_leave_no_choice_models_go_where_they_must() -> None:
    assert has_room(np.array([0, 1, 1]), np.array([0, 0, 1]))
    assert not has_room(np.array([0, 0, 1]), np.array([0, 0, 1]))
    with pytest.raises(ValueError, match="cannot all be at sites"):
        assign_sites(np.random.default_rng(0), np.array([0, 0, 1]), np.array([0, 0, 1]))


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"groups": 5, "validate": {"routes": 6}}, "5 groups make no 6 routes"),
        ({"groups": 1, "models": 3, "validate": {"routes": 4}}, "4 routes need a model each, and 3 travel"),
        ({"groups": "each", "validate": {"routes": 6}}, "no two models are averaged"),
        (
            {"groups": 1, "aggregate_every": 10, "validate": {"routes": 6}},
            "Of 5 sites 6 routes take turns, one after every average, and this run averages 4 times where 6 are needed",
        ),
        ({"groups": 1, "validate": {"routes": 1}}, "at least 2"),
        ({"groups": 1, "validate": {"folds": 2}}, "unknown key|is missing"),
    ],
)
def test_what_has_no_meaning_is_refused_in_one_line(settings: dict[str, Any], line: str) -> None:
    def build_and_check() -> None:
        plan = plan_of(**settings)
        plan = plan.model_copy(update={"sites": 5, "samples_per_site": 8})
        check_plan(plan, build_federation(plan).task, 5)

    with pytest.raises(PlanError, match=line) as error:
        build_and_check()
    assert "\n" not in str(error.value)


def test_a_plan_travels_as_json_and_says_the_same() -> None:
    plan = plan_of(groups=3, validate={"routes": 3, "floor": 4})

    assert Plan.model_validate_json(plan.model_dump_json(exclude_defaults=True)) == plan
    assert plan.method.validation.floor == 4
