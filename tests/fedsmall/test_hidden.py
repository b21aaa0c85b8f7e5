"""What keeps single models from the server: two words of a method's privacy, and a seed of its own for the routes."""

import re
import tomllib
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedsmall.data.federation import Task
from fedsmall.errors import PlanError
from fedsmall.methods import METHODS, method
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Plan
from fedsmall.planning.validation import check_plan, check_real_sites
from fedsmall.privacy.site_level import as_blur, tells_loss
from fedsmall.travel.journey import folds_of, journey
from fedsmall.travel.schedule import comm_rounds_of

SEALED, SECURE = Privacy(sealed=True), Privacy(secure=True)


def plan_of(name: str = "FedDC", plan: dict[str, Any] | None = None, **settings: Any) -> Plan:
    return Plan(name="p", task="breast_cancer", rounds=12, method=method(name, **settings), **(plan or {}))


@pytest.mark.parametrize("privacy", [SEALED, SECURE, Privacy(sealed=True, secure=True)])
def test_hidden_alone_adds_no_noise_and_keeps_the_loss_back(privacy: Privacy) -> None:
    plan = plan_of(privacy=privacy)

    assert privacy.open
    assert privacy.hidden
    assert not privacy.counted
    assert not privacy.at_comm_rounds
    assert not plan.privacy.at_comm_rounds
    assert as_blur(privacy, 100) == 0
    assert not tells_loss(plan)
    assert tells_loss(plan_of(privacy=Privacy(blur=0)))


@pytest.mark.parametrize(
    "noise",
    [{"blur": 1.0}, {"clip": 1.0, "noise": 2.0}, {"level": "patient", "clip": 1.0, "epsilon": 3.0, "lot": 4}],
)
def test_hidden_beside_noise_changes_nothing_of_the_noise(noise: dict[str, Any]) -> None:
    plain, hidden = Privacy(**noise), Privacy(**noise, sealed=True, secure=True)

    assert (plain.open, plain.counted, plain.at_comm_rounds) == (hidden.open, hidden.counted, hidden.at_comm_rounds)
    assert not plain.hidden
    assert hidden.hidden
    assert plan_of(privacy=hidden).method.hidden
    assert not plan_of("Standalone", privacy=hidden).method.hidden, "who trains alone sends nothing"


@pytest.mark.parametrize(
    "values",
    [{}, {"noise": 1.0}, {"budget": 2.0}, {"level": "patient", "epsilon": 3.0}, {"sealed": False}],
)
def test_noise_is_never_half_said(values: dict[str, Any]) -> None:
    sealed = {"sealed": True} if values and "sealed" not in values else {}
    with pytest.raises(ValidationError, match="give one of them"):
        Privacy(**values, **sealed)


def test_a_sealed_model_that_is_handed_on_without_noise_must_be_written_down_all_the_same() -> None:
    for privacy in (SEALED, SECURE):
        with pytest.raises(PlanError, match="the next site could read whole patients"):
            check_real_sites(plan_of(privacy=privacy))
    check_real_sites(plan_of(privacy=Privacy(blur=0, sealed=True)))
    check_real_sites(plan_of(privacy=Privacy(clip=1, noise=1, sealed=True)))
    check_real_sites(plan_of("FedAvg", privacy=SECURE))


@pytest.mark.parametrize("name", sorted(name for name in METHODS if method(name).permutes))
def test_the_noise_that_is_advised_is_one_that_the_method_takes(name: str) -> None:
    with pytest.raises(PlanError, match="the next site could read") as told:
        check_real_sites(plan_of(name))

    advised = re.findall(r"\{[^}]*\}", str(told.value))
    assert advised[-1] == "{blur = 0}"
    assert name not in ("FedDC", "TravellingPosterior", "FedXGBCyclic") or len(advised) == 1 + (name == "FedDC")
    for words in advised:
        privacy = Privacy(**tomllib.loads(f"privacy = {words}")["privacy"])
        covered = plan_of(name, {"model": "linear"}, privacy=privacy)
        check_plan(covered, Task("t", (5,), 2, "cross_entropy", ("accuracy",)), 1000)
        check_real_sites(covered)


JOURNEYS: dict[str, dict[str, Any]] = {
    "permutations": {},
    "drawn sites": {"fraction": 0.5},
    "few models": {"models": 3},
    "groups": {"groups": 2},
    "routes": {"groups": 2, "validate": {"routes": 2}},
    "routes over drawn sites": {"groups": 2, "validate": {"routes": 2}, "fraction": 0.75},
}


@pytest.mark.parametrize("case", JOURNEYS)
def test_who_is_where_is_drawn_from_the_route_seed_alone(case: str) -> None:
    def walked(**plan: int) -> list[list[int]]:
        return [at.tolist() for _, at in journey(plan_of(plan=plan, **JOURNEYS[case]), 8, [9] * 8)]

    assert walked(seed=3) == walked(seed=7, route_seed=3) == walked(seed=3, route_seed=3)
    assert walked(seed=3) != walked(seed=3, route_seed=4)


def test_the_folds_of_routes_are_drawn_from_the_route_seed() -> None:
    def folds(**plan: int) -> np.ndarray | None:
        return folds_of(plan_of("TravellingGroups", plan=plan, validate={"routes": 5}), [8] * 12)

    np.testing.assert_array_equal(folds(seed=3), folds(seed=1, route_seed=3))
    assert not np.array_equal(folds(seed=3), folds(seed=3, route_seed=1))  # type: ignore[arg-type]


def test_when_models_travel_is_drawn_from_the_seed() -> None:
    settings = {"random_schedule": True, "permute_every": 2, "aggregate_every": 5}

    assert comm_rounds_of(plan_of(plan={"seed": 1, "route_seed": 9}, **settings)) == comm_rounds_of(
        plan_of(plan={"seed": 1}, **settings)
    )


def test_a_plan_without_a_route_seed_is_written_as_it_always_was() -> None:
    plan = plan_of()

    assert plan.travel_seed == plan.seed
    assert "route_seed" not in plan.model_dump_json(exclude_defaults=True)
    assert "route_seed" not in plan.data_key
    assert plan_of(plan={"route_seed": 5}).data_key == plan.data_key
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        plan_of(plan={"route_seed": -1})


TASK = Task("small", (4,), 2)
ANY = {"model": "linear"}


def checked(name: str, sites: int, plan: dict[str, Any] | None = None, **settings: Any) -> None:
    check_plan(plan_of(name, {**ANY, **(plan or {})}, **settings), TASK, sites)


MOMENTS = {"recipe": Recipe(momentum=0.5)}
REFUSED: dict[str, tuple[str, int, dict[str, Any], dict[str, Any], str]] = {
    "two sites": ("FedAvg", 2, {}, {"privacy": SECURE}, "this plan has 2 models of 2 sites: have more sites"),
    "two of many": ("FedAvg", 10, {}, {"privacy": SECURE, "fraction": 0.2}, "2 models of 10 sites: let 3 models or"),
    "few models": ("FedDC", 10, {}, {"privacy": SECURE, "models": 2}, "2 models of 10 sites: let 3 models or more"),
    "small groups": ("TravellingGroups", 8, {}, {"privacy": SECURE, "groups": 3}, "groups of 2 models: have 2 groups"),
    "no groups": ("FedDC", 8, {}, {"privacy": SECURE, "groups": "each"}, "groups of 1 model: have 2 groups"),
    "nothing to seal": ("FedAvg", 5, {}, {"privacy": SEALED}, "'FedAvg' hands over none.*Take secure = true"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_hidden_models_do_not_go_with_is_refused_in_a_line(case: str) -> None:
    name, sites, plan, settings, words = REFUSED[case]
    with pytest.raises(PlanError, match=words) as error:
        checked(name, sites, plan, **settings)

    assert "\n" not in str(error.value)


ALLOWED: dict[str, tuple[str, int, dict[str, Any], dict[str, Any]]] = {
    "sums": ("FedAvg", 3, {}, {"privacy": SECURE}),
    "both": ("FedAvg", 3, {}, {"privacy": Privacy(sealed=True, secure=True)}),
    "seals of two sites": ("FedDC", 2, {}, {"privacy": SEALED}),
    "sealed moments": ("FedDC", 5, MOMENTS, {"privacy": SEALED}),
    "sealed medians": ("FedDC", 5, {}, {"privacy": SEALED, "aggregator": "median"}),
    "three of many": ("FedAvg", 10, {}, {"privacy": SECURE, "fraction": 0.3}),
    "groups of three": ("TravellingGroups", 9, {}, {"privacy": SECURE, "groups": 3}),
    "routes over samples": (
        *("FedDC", 4, {}),
        {"privacy": SEALED, "validate": {"routes": 5}, "aggregate_every": 2},
    ),
    "trees": ("RepTreeFL", 5, {}, {"privacy": SECURE}),
    "who trains alone": ("Standalone", 1, {}, {"privacy": SECURE}),
    "Central": ("Central", 1, {}, {"privacy": SEALED}),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_hidden_models_go_with_is_let_through(case: str) -> None:
    name, sites, plan, settings = ALLOWED[case]

    checked(name, sites, plan, **settings)
