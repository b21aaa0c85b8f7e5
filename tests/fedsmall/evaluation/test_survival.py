import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsmall.data.federation import Task
from fedsmall.data.outcomes import Survival, survival_of
from fedsmall.evaluation import survival
from fedsmall.evaluation.baselines import constant
from fedsmall.evaluation.metrics import evaluate, evaluate_many

metrics = pytest.importorskip("sksurv.metrics")
nonparametric = pytest.importorskip("sksurv.nonparametric")

CUTS = (2.0, 4.0, 6.0, 8.0)
TASK = Task("t", (3,), 4, "hazard", ("c_index", "ibs", "loss"), cuts=CUTS)


def drawn(seed, samples, whole):
    """Times on a grid where ``whole``, so that many are equal, and events; the last was seen longest, without it."""
    rng = np.random.default_rng(seed)
    time = rng.uniform(0.1, 9.5, samples)
    time, event = np.ceil(time) if whole else time, rng.random(samples) < 0.6
    return np.append(time, 11.0), np.append(event, False), rng.normal(size=(3, samples + 1, 4))


@given(seed=st.integers(0, 10**6), samples=st.integers(6, 40), whole=st.booleans())
@settings(max_examples=30, deadline=None)
def test_concordance_is_scikit_survivals(seed, samples, whole):
    time, event, outputs = drawn(seed, samples, whole)
    curves = survival_of(outputs)
    curves[:, 1] = curves[:, 0]  # two risks are equal

    found = survival.concordance(curves, np.array(CUTS), time, event)

    for own, value in zip(curves, found, strict=True):
        if not event.any():
            assert np.isnan(value)
            continue
        risk = -survival.mean_time(own, np.array(CUTS)) / CUTS[-1]
        assert value == pytest.approx(metrics.concordance_index_censored(event, time, risk)[0])


@given(seed=st.integers(0, 10**6), samples=st.integers(6, 40), whole=st.booleans())
@settings(max_examples=30, deadline=None)
def test_the_integrated_brier_score_is_scikit_survivals(seed, samples, whole):
    time, event, outputs = drawn(seed, samples, whole)
    curves, cuts = survival_of(outputs), np.array(CUTS)
    judged = cuts[cuts > time.min()]  # scikit-survival judges from the first time on
    assume(((judged > time.min()) & (judged < time.max())).sum() > 1)  # and takes no integral over one time
    seen = np.array(list(zip(event, time, strict=True)), dtype=[("event", bool), ("time", float)])

    found = survival.integrated_brier(curves[..., cuts > time.min()], judged, time, event)

    for own, value in zip(curves[..., cuts > time.min()], found, strict=True):
        assert value == pytest.approx(metrics.integrated_brier_score(seen, seen, own, judged))


def test_steps_of_kaplan_and_meier_are_scikit_survivals():
    time, event, _ = drawn(3, 30, True)

    times, shares = survival.kaplan_meier(time, event)
    expected = nonparametric.kaplan_meier_estimator(event, time)

    np.testing.assert_array_equal(times, expected[0])
    np.testing.assert_allclose(shares, expected[1])
    np.testing.assert_allclose(survival.at((times, shares), np.array([0.0, 100.0])), [1, shares[-1]])


def test_two_pairs_in_order_and_one_not_are_two_thirds():
    curves = np.array([[0.1, 0.1], [0.5, 0.2], [0.4, 0.4]])
    seen = np.array([1.0, 2.0, 3.0]), np.array([1, 1, 0])

    mean = survival.mean_time(curves, np.array([1.0, 2.0]))

    assert mean.tolist() == pytest.approx([0.65, 1.1, 1.1])
    assert survival.concordance(curves[None], np.array([1.0, 2.0]), *seen).tolist() == pytest.approx([2.5 / 3])


def test_a_known_hazard_is_better_than_the_curve_of_all_and_that_than_nonsense():
    rng = np.random.default_rng(0)
    x = rng.normal(size=2000)
    hazard = 1 / (1 + np.exp(2 - 1.5 * x))  # of each interval, whatever its number
    interval = rng.geometric(hazard)  # in which the event comes
    outcome = Survival(name="t", event="e", stated=tuple(float(k) for k in range(1, 9)))
    y = outcome.targets(np.stack([np.minimum(interval, 12), interval <= 12], axis=1).astype(float))
    task = Task("t", (1,), 8, "hazard", TASK.metrics, cuts=outcome.cuts)
    odds = np.log(hazard / (1 - hazard))[:, None] + np.zeros(8)

    known, all_alike = evaluate(odds, y, task), evaluate(np.tile(constant(y, task), (2000, 1)), y, task)
    wrong = evaluate(-odds, y, task)

    assert known["c_index"] > 0.7 > all_alike["c_index"] == 0.5 > wrong["c_index"]
    assert known["ibs"] < all_alike["ibs"] < wrong["ibs"]
    assert known["loss"] < all_alike["loss"] < wrong["loss"]


def test_a_model_that_has_diverged_has_no_concordance_and_spoils_no_other():
    time, event, outputs = drawn(0, 20, False)
    y = Survival(name="t", event="e", stated=CUTS).targets(np.stack([time, event], axis=1))
    outputs[1, 3] = np.nan

    found = evaluate_many(outputs, y, TASK)

    assert np.isnan(found["c_index"]).tolist() == [False, True, False]


def test_without_intervals_only_the_loss_is_told():
    y = np.array([[1.0, 1.0, 3.0, 1.0]])

    assert set(evaluate(np.zeros((1, 4)), y, Task("t", (3,), 4, "hazard", TASK.metrics))) == {"loss"}
