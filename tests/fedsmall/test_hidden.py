"""What keeps single models from the server: two words of a method's privacy, and a seed of its own for the routes."""

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.parts import Privacy
from fedsmall.plan import Plan
from fedsmall.privacy.blur import as_blur, check_handed_on
from fedsmall.privacy.site_level import at_contacts, tells_loss
from fedsmall.travel.journey import journey
from fedsmall.travel.routes import folds_of
from fedsmall.travel.schedule import contacts_of

SEALED, SECURE = Privacy(sealed=True), Privacy(secure=True)


def plan_of(name: str = "FedDC", plan: dict[str, Any] | None = None, **settings: Any) -> Plan:
    return Plan(name="p", task="breast_cancer", rounds=12, method=method(name, **settings), **(plan or {}))


@pytest.mark.parametrize("privacy", [SEALED, SECURE, Privacy(sealed=True, secure=True)])
def test_hidden_alone_adds_no_noise_and_keeps_the_loss_back(privacy: Privacy) -> None:
    plan = plan_of(privacy=privacy)

    assert privacy.open
    assert privacy.hidden
    assert not privacy.counted
    assert not privacy.at_contacts
    assert at_contacts(plan) is None
    assert as_blur(privacy, 100) == 0
    assert not tells_loss(plan)
    assert tells_loss(plan_of(privacy=Privacy(blur=0)))


@pytest.mark.parametrize(
    "noise",
    [{"blur": 1.0}, {"clip": 1.0, "noise": 2.0}, {"level": "patient", "clip": 1.0, "epsilon": 3.0, "lot": 4}],
)
def test_hidden_beside_noise_changes_nothing_of_the_noise(noise: dict[str, Any]) -> None:
    plain, hidden = Privacy(**noise), Privacy(**noise, sealed=True, secure=True)

    assert (plain.open, plain.counted, plain.at_contacts) == (hidden.open, hidden.counted, hidden.at_contacts)
    assert not plain.hidden
    assert hidden.hidden


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
            check_handed_on(plan_of(privacy=privacy))
    check_handed_on(plan_of(privacy=Privacy(blur=0, sealed=True)))
    check_handed_on(plan_of(privacy=Privacy(clip=1, noise=1, sealed=True)))
    check_handed_on(plan_of("FedAvg", privacy=SECURE))


JOURNEYS: dict[str, dict[str, Any]] = {
    "permutations": {},
    "drawn sites": {"fraction": 0.5},
    "few models": {"models": 3},
    "groups": {"groups": 2},
}


@pytest.mark.parametrize("case", JOURNEYS)
def test_who_is_where_is_drawn_from_the_route_seed_alone(case: str) -> None:
    def walked(**plan: int) -> list[list[int]]:
        return [at.tolist() for _, at in journey(plan_of(plan=plan, **JOURNEYS[case]), 8)]

    assert walked(seed=3) == walked(seed=7, route_seed=3) == walked(seed=3, route_seed=3)
    assert walked(seed=3) != walked(seed=3, route_seed=4)


def test_the_folds_of_routes_are_drawn_from_the_route_seed() -> None:
    def folds(**plan: int) -> np.ndarray | None:
        return folds_of(plan_of("TravellingGroups", plan=plan, validate={"routes": 5}), [8] * 12)

    np.testing.assert_array_equal(folds(seed=3), folds(seed=1, route_seed=3))
    assert not np.array_equal(folds(seed=3), folds(seed=3, route_seed=1))  # type: ignore[arg-type]


def test_when_models_travel_is_drawn_from_the_seed() -> None:
    settings = {"random_schedule": True, "permute_every": 2, "aggregate_every": 5}

    assert contacts_of(plan_of(plan={"seed": 1, "route_seed": 9}, **settings)) == contacts_of(
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
