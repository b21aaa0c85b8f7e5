"""What sites keep back, when a run looks at it, and which plans could never stop."""

from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import ValidationError

from fedsmall.data.splits import keep_back
from fedsmall.errors import PlanError
from fedsmall.evaluation.stopping import best_round, check_stop, has_run_dry, looks, loss_of
from fedsmall.parts import EarlyStop
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_run
from fedsmall.sim.runs.scenario import build
from tests.sim.engines.harness import plan_of

STOP = EarlyStop(patience=2, hold_out=0.25)


def patient(name: str = "FedAvg", settings: dict | None = None, **changes) -> Plan:
    return plan_of(name, settings or {"aggregate_every": 1}, **({"evaluate_every": 3, "stop": STOP} | changes))


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5])
@pytest.mark.parametrize("sizes", [(20, 20), (7, 3), (1, 0), (4, 4), (30, 1)])
def test_a_site_keeps_back_its_share_of_every_class_and_half_at_most(share, sizes):
    y = np.random.default_rng(1).permutation(np.repeat([0, 1], sizes))

    out = keep_back(y, share, np.random.default_rng(0))

    assert len(out) == min(int(share * len(y) + 0.5), len(y) // 2)
    assert len(set(out.tolist())) == len(out)
    assert (np.diff(out) > 0).all()
    for label, size in enumerate(sizes):
        assert abs((y[out] == label).sum() - len(out) * size / len(y)) < 1


def test_which_class_gives_the_odd_sample_is_drawn():
    y = np.array([0, 0, 1, 1])

    firsts = [int(y[keep_back(y, 0.25, np.random.default_rng(seed))][0]) for seed in range(200)]

    assert 70 < sum(firsts) < 130  # else the sites' samples together would be of one class


def test_all_of_a_patient_is_kept_back_or_nothing():
    whose = np.repeat(np.arange(10), 3)
    y = whose % 2

    out = keep_back(y, 0.2, np.random.default_rng(0), whose)

    assert len(out) == 6
    assert sorted(whose[out].tolist()) == sorted(np.repeat(np.unique(whose[out]), 3).tolist())
    assert set(y[out].tolist()) == {0, 1}


def test_what_is_kept_back_is_trained_on_by_nobody_and_is_no_test_sample():
    plain, plan = patient(stop=None), patient()

    whole, federation = build_federation(plain), build_federation(plan)

    assert [len(part) for part in federation.kept_back] == [2] * 5
    for before, train, apart in zip(whole.train, federation.train, federation.kept_back, strict=True):
        assert sorted(before.y.tolist()) == sorted([*train.y.tolist(), *apart.y.tolist()])
    assert np.array_equal(whole.test.y, federation.test.y)
    assert plan.data_key != plain.data_key
    pooled = federation.pooled()
    assert (len(pooled.train[0]), len(pooled.kept_back[0])) == (30, 10)


def test_with_routes_nobody_keeps_anything_back():
    plan = patient(settings={"aggregate_every": 1, "validate": {"routes": 2}})

    assert build_federation(plan).kept_back == ()
    assert plan.data_key == patient(stop=None).data_key


def test_looks_are_averages_at_or_after_evaluations_whatever_the_engine_cuts():
    plan = patient("FedDC", {"permute_every": 1, "aggregate_every": 4}, rounds=18, evaluate_every=3)

    assert looks(plan) == {4, 8, 12, 16, 18}
    assert looks(plan.model_copy(update={"evaluate_every": 6})) == {8, 12, 18}
    assert looks(patient("Standalone", rounds=8)) == {3, 6, 8}
    assert looks(patient(stop=None)) == set()


def test_the_best_is_the_first_of_the_lowest_and_patience_counts_evaluations_that_told():
    def judged(*losses):
        return [
            SimpleNamespace(t=3 * k, stop={} if loss is None else {"loss": loss}) for k, loss in enumerate(losses, 1)
        ]

    assert best_round(judged(None, 0.5, 0.3, 0.3)) == 9
    assert best_round(judged(None)) is None
    assert not has_run_dry(patient(), judged(0.5, 0.3, None, 0.4))
    assert has_run_dry(patient(), judged(0.5, 0.3, None, 0.4, 0.3))
    assert not has_run_dry(patient(stop=None), judged(0.1, 0.2, 0.3, 0.4))


def test_the_loss_is_that_of_all_samples_together():
    told = {"b": {"count": np.array(3.0), "loss": np.array(6.0)}, "a": {"count": np.array(1.0), "loss": np.array(0.0)}}

    assert loss_of(told) == {"loss": 1.5, "samples": 4, "sites": 2}
    assert loss_of({}) == {}


REFUSED = {
    "nothing to look at": (patient(stop=EarlyStop(patience=2)), "stop has no samples to look at for 'FedAvg'"),
    "no evaluation": (patient(evaluate_every=None), "stop compares evaluations, and the only one is at the end"),
    "no average": (patient("DaisyChain", {"permute_every": 1}), "'DaisyChain' has one at its end alone"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_plan_that_could_never_stop_is_refused(case):
    plan, words = REFUSED[case]

    with pytest.raises(PlanError, match=words) as error:
        check_stop(plan)

    assert "\n" not in str(error.value)


def test_it_is_refused_before_a_site_trains():
    plan = patient(evaluate_every=None)

    with pytest.raises(PlanError, match="stop compares evaluations"):
        check_run(plan, build_federation(plan))


def test_sites_too_small_to_keep_anything_back_are_refused():
    plan = patient(samples_per_site=1)

    with pytest.raises(PlanError, match=r"hold_out = 0.25 of the few samples of a site is nobody"):
        check_run(plan, build_federation(plan))


SCENARIO = {"name": "s", "task": "breast_cancer", "sites": 5, "rounds": 9, "evaluate_every": 3}
GIVEN = {"stop": {"patience": 2, "hold_out": 0.25}}


def test_a_method_has_the_scenarios_stop_its_own_or_none():
    methods = [
        {"name": "FedAvg"},
        {"name": "FedDC", "stop": {"patience": 5}},
        {"name": "DaisyChain", "stop": False},
    ]

    plans = build({**SCENARIO, **GIVEN, "method": methods}).plans()

    assert [plan.stop for plan in plans] == [STOP, EarlyStop(patience=5), None]
    assert Plan.model_validate_json(plans[0].model_dump_json(exclude_defaults=True)) == plans[0]


WRONG = [
    (GIVEN | {"method": [{"name": "FedAvg", "stop": 3}]}, "Method 'FedAvg': stop is .*, or false; got 3"),
    (GIVEN | {"method": [{"name": "FedAvg", "stop": {"hold_out": 0.2}}]}, "Method 'FedAvg', stop: patience"),
    ({"stop": {"patience": 2, "hold_out": 0.7}, "method": [{"name": "FedAvg"}]}, "hold_out.*0.5"),
    ({"stop": {"patience": 2, "holdout": 0.2}, "method": [{"name": "FedAvg"}]}, "unknown key 'stop.holdout'"),
    ({"method": [{"name": "FedAvg", "validate": {"routes": 3, "patience": 2}}]}, r"stop = \{patience = 2\}"),
]


@pytest.mark.parametrize(("given", "words"), WRONG)
def test_what_a_scenario_cannot_mean_is_one_line(given, words):
    with pytest.raises(PlanError, match=words) as error:
        build(SCENARIO | given)

    assert "\n" not in str(error.value)


def test_patience_is_at_least_one():
    with pytest.raises(ValidationError):
        EarlyStop(patience=0)
