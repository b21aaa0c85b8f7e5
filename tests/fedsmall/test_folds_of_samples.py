"""Of fewer sites than routes every site deals its own samples: evenly, by class, and as its own stream says."""

from typing import Any

import numpy as np
import pytest

from fedsmall.algorithm.global_models import GlobalModels
from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.errors import PlanError
from fedsmall.methods import method
from fedsmall.plan import Plan
from fedsmall.planning.validation import among, check_run
from fedsmall.training.in_folds import folds_of_samples
from fedsmall.travel.journey import folds_of, route_at, turn_at
from fedsmall.travel.schedule import Action, comm_rounds_of


def plan_of(routes: int = 5, rounds: int = 40, seed: int = 0, **settings: Any) -> Plan:
    chosen = method("FedDC", validate={"routes": routes}, **settings)
    return Plan(name="p", task="breast_cancer", rounds=rounds, seed=seed, method=chosen)


def of(y: np.ndarray, patients: np.ndarray | None = None) -> Samples:
    """Samples with these targets, of which no two are equal."""
    return Samples(np.arange(2.0 * len(y)).reshape(-1, 2), y, patients=patients)


@pytest.mark.parametrize("samples", [2, 3, 4, 5, 9, 10, 31])
@pytest.mark.parametrize("routes", [2, 3, 5])
def test_folds_differ_by_a_sample_at_most_in_all_and_of_each_class(samples: int, routes: int) -> None:
    y = np.random.default_rng(samples).integers(0, 3, samples)

    folds = folds_of_samples(plan_of(routes), "north", of(y))

    for some in (folds, *(folds[y == label] for label in range(3))):
        counts = np.bincount(some, minlength=routes)
        assert counts.max() - counts.min() <= 1
    assert all((folds != route).any() for route in range(routes))  # every route has somebody to learn from


def test_who_is_in_which_fold_is_drawn_for_each_site_and_seed_alone() -> None:
    y = np.arange(7) % 2

    draws = np.array([folds_of_samples(plan_of(seed=seed), "north", of(y)) for seed in range(600)])
    again, elsewhere = (folds_of_samples(plan_of(), site, of(y)) for site in ("north", "south"))

    shares = np.stack([(draws == fold).mean(axis=0) for fold in range(5)])
    np.testing.assert_allclose(shares, 0.2, atol=0.07)  # four standard errors
    np.testing.assert_array_equal(draws[0], again)
    assert (again != elsewhere).any()


def test_a_patient_s_samples_and_equal_ones_are_in_one_fold() -> None:
    rng = np.random.default_rng(0)
    patients = rng.integers(0, 12, 40)
    own = of(np.arange(40) % 2, patients)
    own.x[[3, 17]] = own.x[8]  # which makes one of three patients

    folds = folds_of_samples(plan_of(), "north", own)

    whose = np.where(np.isin(patients, patients[[3, 8, 17]]), -1, patients)
    for patient in np.unique(whose):
        assert len(set(folds[whose == patient])) == 1
    groups = np.bincount([folds[whose == patient][0] for patient in np.unique(whose)], minlength=5)
    assert groups.max() - groups.min() <= 1


def test_only_of_fewer_sites_than_routes_are_folds_of_samples() -> None:
    plan = plan_of(3)

    assert [among(plan, sites).method.by_samples for sites in (1, 2, 3, 4)] == [True, True, False, False]
    assert among(plan, 3) is plan
    assert folds_of(among(plan, 2), [5, 5]) is None
    assert Plan.model_validate_json(among(plan, 2).model_dump_json(exclude_defaults=True)) == among(plan, 2)
    with pytest.raises(ValueError, match="ask for the plan among so many sites"):
        folds_of(plan, [5, 5])


@pytest.mark.parametrize("random", [False, True])
@pytest.mark.parametrize(("groups", "routes"), [(1, 3), (6, 3)])
def test_the_turn_is_known_from_the_plan_as_the_common_models_know_it(random: bool, groups: int, routes: int) -> None:
    plan = among(plan_of(routes, groups=groups, random_schedule=random, permute_every=1, aggregate_every=3), 2)
    names = range(plan.method.group_count(2))
    global_models = GlobalModels(None, plan.method, [{"w": np.zeros(1)} for _ in names])  # type: ignore[arg-type]

    for comm_round in comm_rounds_of(plan):
        turns = {turn_at(plan, t) for t in range(comm_round.t - comm_round.rounds + 1, comm_round.t + 1)}
        assert turns == {global_models.turn}
        assert route_at(plan, comm_round.t) == global_models.turn % routes
        if comm_round.action is Action.AGGREGATE:
            global_models.aggregate(lambda group: Nobody, comm_round.t, 0.0)  # type: ignore[arg-type, return-value]


class Nobody:
    """Updates of no site, which leave a global model what it is."""

    sites = ()


def test_a_site_of_one_sample_is_told_so_before_the_run() -> None:
    some, one = (of(np.arange(n) % 2) for n in (4, 1))
    task = Task("breast_cancer", (2,), 2, "cross_entropy", ("accuracy",))
    federation = Federation(task, ("north", "south"), (some, one), some)

    with pytest.raises(PlanError, match=r"^south has one sample and folds of samples need two at least"):
        check_run(plan_of(rounds=50).model_copy(update={"model": "linear"}), federation)
    with pytest.raises(PlanError, match=r"^south has samples of one patient, or equal ones, and"):
        folds_of_samples(plan_of(), "south", of(np.arange(6) % 2, np.zeros(6, dtype=np.int64)))
