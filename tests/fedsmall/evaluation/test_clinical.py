"""Every number of the clinical page is scikit-learn's."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from sklearn import calibration, metrics

from fedsmall.evaluation import clinical
from fedsmall.evaluation.clinical import best_threshold, least_sensitivity
from tests import only_quick


@st.composite
def predictions(draw):
    """Probabilities with ties, and both classes."""
    size = draw(st.integers(4, 60))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    positive = rng.random(size) < 0.3
    positive[:2] = [True, False]
    p = np.round(np.clip(0.35 * positive + rng.random(size) * 0.65, 0, 1), draw(st.sampled_from([1, 2, 9])))
    return p, positive


@pytest.mark.thorough
@given(predictions())
def test_ranking_and_calibration_are_scikit_learns(made):
    p, positive = made

    assert clinical.auc(p, positive).value == pytest.approx(metrics.roc_auc_score(positive, p))
    assert clinical.VALUES["average precision"](p, positive) == pytest.approx(
        metrics.average_precision_score(positive, p)
    )
    assert clinical.brier(p, positive) == pytest.approx(metrics.brier_score_loss(positive, p))
    observed, predicted = calibration.calibration_curve(positive, p, n_bins=10)
    bins = clinical.calibration(p, positive)
    assert [each.predicted for each in bins] == pytest.approx(predicted.tolist())
    assert [each.observed.value for each in bins] == pytest.approx(observed.tolist())
    weights = np.array([each.samples for each in bins]) / len(p)
    assert clinical.calibration_error(p, positive) == pytest.approx((weights * abs(observed - predicted)).sum())


@pytest.mark.thorough
@given(predictions())
def test_curves_are_scikit_learns(made):
    p, positive = made

    false, true, _ = metrics.roc_curve(positive, p, drop_intermediate=False)
    precision, recall, _ = metrics.precision_recall_curve(positive, p)
    ours, pr = clinical.roc(p, positive), clinical.precision_recall(p, positive)

    assert np.allclose(ours.x, false)
    assert np.allclose(ours.y, true)
    assert np.allclose(pr.x[::-1], recall[:-1])
    assert np.allclose(pr.y[::-1], precision[:-1])


@pytest.mark.thorough
@given(predictions(), st.floats(0.05, 0.95))
def test_what_happens_at_a_threshold_is_scikit_learns(made, threshold):
    p, positive = made
    called = p >= threshold

    found = clinical.at_threshold(p, positive, threshold)

    (tn, fp), (fn, tp) = metrics.confusion_matrix(positive, called, labels=[False, True])
    assert (found.true_negative, found.false_positive, found.false_negative, found.true_positive) == (tn, fp, fn, tp)
    assert found.sensitivity.value == pytest.approx(metrics.recall_score(positive, called))
    assert found.specificity.value == pytest.approx(metrics.recall_score(~positive, ~called))
    if called.any():
        assert found.ppv.value == pytest.approx(metrics.precision_score(positive, called))
    if not called.all():
        assert found.npv.value == pytest.approx(metrics.precision_score(~positive, ~called))
    for share in (found.sensitivity, found.specificity, found.ppv, found.npv):
        assert not share.of or 0 <= share.low <= share.value <= share.high <= 1


@given(predictions())
def test_thresholds_do_what_they_are_chosen_for(made):
    p, positive = made
    false, true, _ = metrics.roc_curve(positive, p, drop_intermediate=False)

    best = clinical.at_threshold(p, positive, best_threshold(p, positive))
    wide = least_sensitivity(p, positive, 0.9)
    count = positive.sum()

    assert best.sensitivity.value + best.specificity.value - 1 == pytest.approx((true - false).max())
    assert (wide is None) == (count < 9)
    if wide is not None:
        wanted = 0.9 * (count + 1) / count - 1e-9
        found = clinical.at_threshold(p, positive, wide)
        assert found.sensitivity.value >= wanted
        assert found.specificity.value == pytest.approx(1 - false[true >= wanted].min())


@pytest.mark.parametrize("p", [(0.0, 0.0), (1.0, 1 - 2.0**-53), (5e-324, 0.0)])
def test_a_model_that_is_quite_sure_has_a_threshold_between_0_and_1(p):
    for positive in (np.array([True, True]), np.array([True, False])):
        assert 0 < best_threshold(np.array(p), positive) < 1
        assert 0 < (least_sensitivity(np.array(p), positive, 0.5) or 0.5) < 1


@pytest.mark.parametrize("count", only_quick([9], [9, 12, 40]))
def test_a_sensitivity_found_on_few_patients_holds_on_others_on_average(count):
    rng, held = np.random.default_rng(0), []
    for _ in range(2000):
        p = np.concatenate([rng.beta(3, 2, count), rng.beta(2, 3, 3 * count)])
        cut = least_sensitivity(p, np.arange(len(p)) < count, 0.9)
        held.append(1 - scipy.stats.beta(3, 2).cdf(cut))

    assert np.mean(held) > 0.9 - 0.004  # three deviations of the mean
    assert np.mean(held) < 0.9 + 2 / (count + 1)


def test_wilsons_interval_is_the_published_one():
    made = clinical.wilson(81, 263)  # Newcombe 1998, table I: 0.2553 to 0.3662

    assert (made.low, made.high) == (pytest.approx(0.2553, abs=1e-4), pytest.approx(0.3662, abs=1e-4))
    assert clinical.wilson(0, 20).low == 0
    assert clinical.wilson(20, 20).high == 1
    assert np.isnan(clinical.wilson(0, 0).value)


@pytest.mark.parametrize("shift", [0.5, 1.5])
def test_delongs_interval_holds_the_area_as_often_as_it_says(shift):
    from scipy.stats import norm

    rng, truth, held = np.random.default_rng(3), norm.cdf(shift / np.sqrt(2)), []
    positive = np.arange(60) < 20

    for _ in range(1000):
        found = clinical.auc(rng.normal(size=60) + shift * positive, positive)
        held.append(found.low <= truth <= found.high)

    assert np.mean(held) == pytest.approx(0.95, abs=0.025)


def test_an_area_of_one_from_a_handful_is_not_certain():
    found = clinical.auc(np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]))

    assert (found.value, found.high) == (1, 1)
    assert found.low < 0.5
    assert np.isnan(clinical.auc(np.array([0.1, 0.2]), np.array([True, True])).value)


def test_a_bootstrapped_interval_is_about_the_value_and_always_the_same():
    rng = np.random.default_rng(0)
    positive = rng.random(200) < 0.4
    p = np.clip(0.3 * positive + 0.7 * rng.random(200), 0, 1)

    one, again = (clinical.estimates_of(p, positive)["Brier score"] for _ in range(2))

    assert one == again
    assert one.low < one.value < one.high


def of_patients(rng, patients, most=8):
    """Probabilities and truths of patients with one to ``most`` - 1 samples each, alike, and whose they are."""
    whose = np.repeat(np.arange(patients), rng.integers(1, most, patients))
    ill, marker = rng.normal(size=(2, patients))
    positive = (ill + 0.5 * rng.normal(size=patients))[whose] + 0.5 * rng.normal(size=len(whose)) > 0
    return scipy.special.expit((ill + marker)[whose] + 0.5 * rng.normal(size=len(whose))), positive, whose


def of_four(p, positive, whose):
    at = clinical.at_threshold(p, positive, 0.5, whose)
    (brier,) = clinical.bootstrap_intervals([clinical.brier], p, positive, whose=whose)
    return [clinical.auc(p, positive, whose), at.sensitivity, at.npv, brier]


@pytest.mark.thorough
def test_intervals_over_patients_hold_where_these_have_several_samples():
    rng = np.random.default_rng(0)
    many = of_patients(rng, 20_000)
    at = clinical.at_threshold(*many[:2], 0.5)
    true = [clinical.auc(*many[:2]).value, at.sensitivity.value, at.npv.value, clinical.brier(*many[:2])]
    held = []
    for _ in range(100):
        p, positive, whose = of_patients(rng, 60)
        found = [of_four(p, positive, each) for each in (whose, None)]
        held.append([[e.low <= t <= e.high for e, t in zip(of_them, true, strict=True)] for of_them in found])

    together, apart = np.mean(held, axis=0)
    assert min(together) > 0.86  # of 95%, less four standard errors of 100 draws
    assert max(apart) < 0.9  # what taking samples for patients would claim


@pytest.mark.thorough
@given(predictions())
def test_where_each_patient_has_one_sample_nothing_is_other(made):
    p, positive = made
    alone = np.random.default_rng(0).permutation(len(p))

    for found, known in zip(of_four(p, positive, alone), of_four(p, positive, None), strict=True):
        assert found.value == pytest.approx(known.value, nan_ok=True)
        assert (found.hits, found.of) == (known.hits, known.of)
    at = [clinical.at_threshold(p, positive, 0.5, whose).specificity for whose in (alone, None)]
    assert at[0].high - at[0].low == pytest.approx(at[1].high - at[1].low, rel=0.3)


@pytest.mark.parametrize("whose", [[0, 0, 0, 0], [0, 0, 1, 1], [3, 1, 2, 0]])
def test_of_a_patient_or_two_nothing_is_certain(whose):
    p, positive, whose = np.array([0.1, 0.2, 0.8, 0.9]), np.array([False, False, True, True]), np.array(whose)

    area, share = clinical.auc(p, positive, whose), clinical.share_of(positive, positive, whose)

    assert area.value == share.value == 1
    assert area.low < 0.5 > share.low
    assert np.isnan(clinical.share_of(positive, positive & ~positive, whose).value)
    assert clinical.calibration(p, positive, whose)[0].samples == 1
