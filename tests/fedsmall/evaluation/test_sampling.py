"""Seeds that share patients: how often methods that are equal are told apart, and how often intervals hold."""

import numpy as np
import pytest
from scipy.special import expit

from fedsmall.evaluation.clinical import auc
from fedsmall.evaluation.metrics import area
from fedsmall.evaluation.sampling import GROUPS, jackknife, patients_behind, worth_without
from fedsmall.evaluation.statistics import NOTHING, Shared, interval, paired

NULLS = 400
SLACK = 3 * np.sqrt(0.05 * 0.95 / NULLS)
SEEDS, PATIENTS = 10, 100


def right(rng: np.random.Generator, patients: int, seeds: int) -> np.ndarray:
    """Who is right about whom, (methods, seeds, patients): two methods of equal accuracy among all patients."""
    hard = rng.normal(1.5, 1.0, patients) + rng.normal(0, 1.0, (2, 1, patients))  # some are hard for one method alone
    return rng.random((2, seeds, patients)) < expit(2 * hard)


def without_groups(ahead: np.ndarray) -> np.ndarray:
    """The mean of ``ahead``, (patients,), without each group of them."""
    groups = np.arange(len(ahead)) % GROUPS
    return np.array([ahead[groups != group].mean() for group in range(GROUPS)])


def false_rate(draw, shared) -> float:
    """How often two equal methods are told apart."""
    found = []
    for null in range(NULLS):
        a, b = draw(np.random.default_rng(null))
        gap = paired(a.mean(axis=1), b.mean(axis=1), test="t", scale="gain", shared=shared(a, b))
        found.append(gap.decides())
    return float(np.mean(found))


def one_test_set(rng):
    return right(rng, PATIENTS, SEEDS)


def drawn_anew(rng):
    """A quarter of 400 patients by each seed."""
    everybody = right(rng, 4 * PATIENTS, SEEDS)
    mine = np.array([rng.permutation(4 * PATIENTS)[:PATIENTS] for _ in range(SEEDS)])
    return np.take_along_axis(everybody, mine[None], axis=2)


def of_patients(a, b):
    return Shared(0.0, *jackknife(without_groups(a.mean(axis=0) - b.mean(axis=0))))


def test_equal_methods_on_one_test_set_are_told_apart_in_five_of_a_hundred_runs():
    assert false_rate(one_test_set, of_patients) <= 0.05 + SLACK
    assert false_rate(one_test_set, lambda a, b: NOTHING) > 0.3  # seeds alone


@pytest.mark.thorough
def test_equal_methods_on_test_sets_drawn_anew_are_told_apart_in_five_of_a_hundred_runs():
    def crossed(a, b):
        errors = [jackknife(without_groups(gap))[0] for gap in a.astype(float) - b]
        return Shared(0.0, np.sqrt(0.25 * np.mean(np.square(errors))), GROUPS - 1)

    assert false_rate(drawn_anew, crossed) <= 0.05 + SLACK
    assert false_rate(drawn_anew, lambda a, b: Shared(overlap=0.25)) <= 0.05 + SLACK  # without predictions
    assert false_rate(drawn_anew, lambda a, b: NOTHING) > 0.1


def test_a_difference_that_patients_bear_out_is_told():
    rng = np.random.default_rng(0)
    a, b = right(rng, 400, SEEDS)

    gap = paired(
        a.mean(axis=1), (b & (rng.random(b.shape) < 0.8)).mean(axis=1), test="t", scale="gain", shared=of_patients(a, b)
    )

    assert gap.decides(4)


def test_one_test_set_without_predictions_gives_no_verdict():
    gap = paired([0.9, 0.91, 0.9, 0.92, 0.9], [0.1, 0.12, 0.1, 0.1, 0.1], test="t", shared=Shared(error=np.inf))

    assert gap.is_of_one_test_set
    assert not gap.decides()
    assert gap.corrected_p() == 1.0


def test_p_and_interval_agree_where_patients_are_shared():
    rng = np.random.default_rng(1)
    for error in (0.001, 0.01, 0.05):
        a, b = rng.normal(0.8, 0.02, 8), rng.normal(0.78, 0.02, 8)
        gap = paired(a, b, test="t", scale="gain", shared=Shared(error=error, freedom=24))

        for comparisons in (1, 3, 7):
            assert gap.decides(comparisons) == (gap.corrected_p(comparisons) < 0.05)


@pytest.mark.parametrize(("share", "patients"), [(0.99, 50), (0.95, 50), (0.9, 40), (0.7, 60)])
def test_seeds_that_agree_on_everybody_still_have_an_interval_that_holds(share, patients):
    rng = np.random.default_rng(0)
    made = []
    for _ in range(1000):
        hits = (rng.random(patients) < share).astype(float)
        error, freedom = jackknife(without_groups(hits))
        made.append(interval([hits.mean()] * 5, scale="share", shared=Shared(0.0, error, freedom, patients)))

    assert np.mean([each.contains(share) for each in made]) >= 0.93  # three standard errors are two points
    assert min(each.width for each in made) > 0
    assert all(0 <= each.low < each.high <= 1 for each in made)


def test_the_jackknife_is_the_standard_error_of_a_mean_and_delongs_of_an_area():
    rng = np.random.default_rng(0)
    y = rng.random(300) < 0.4
    p = expit(rng.normal(size=300) + 1.5 * y)
    told = {"probabilities": np.stack([1 - p, p], axis=1), "labels": y.astype(int)}

    without, right_ = worth_without(["accuracy", "auc"], told), (p > 0.5) == y

    assert jackknife(without["accuracy"])[0] == pytest.approx(right_.std() / np.sqrt(300), rel=0.3)
    found, delong = jackknife(without["auc"])[0], auc(p, y)
    assert delong.value == pytest.approx(area(p[None], y)[0])
    assert 4 * found == pytest.approx(delong.high - delong.low, rel=0.4)


def test_a_recall_rests_on_the_patients_of_its_class():
    y = np.array([0] * 30 + [1] * 7)

    names = ("accuracy", "sensitivity", "specificity", "auc")

    assert [patients_behind(name, {"labels": y}) for name in names] == [37, 7, 30, 7]
    whose = {"patients": np.arange(37) // 2, "labels": y}  # one patient has both
    assert [patients_behind(name, whose) for name in names] == [19, 4, 15, 4]


@pytest.mark.parametrize("samples", [1, 3, 8])
def test_patients_are_left_out_whole(samples):
    rng = np.random.default_rng(0)
    right_ = np.repeat(rng.random(100) < 0.7, samples)
    p = np.where(right_, 0.9, 0.1)
    predictions = {"probabilities": np.stack([1 - p, p], axis=1), "labels": np.ones(len(p), dtype=int)}

    whole = predictions | {"patients": np.repeat(rng.permutation(100), samples)}
    error, freedom = jackknife(worth_without(["accuracy"], whole)["accuracy"])

    assert error == pytest.approx(right_.std() / 10, rel=0.3)  # samples that always agree add nothing
    assert freedom == GROUPS - 1
    if samples > 1:
        assert error > 1.3 * jackknife(worth_without(["accuracy"], predictions)["accuracy"])[0]


def test_one_patient_alone_leaves_the_error_open():
    told = {"probabilities": np.eye(2)[[0, 1, 1]], "labels": np.array([0, 1, 0]), "patients": np.zeros(3, dtype=int)}

    assert jackknife(worth_without(["accuracy"], told)["accuracy"]) == (np.inf, 0.0)
