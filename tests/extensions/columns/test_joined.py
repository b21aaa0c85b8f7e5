"""Boosting on joined columns, against scikit-learn's and against what can be worked out by hand."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.metrics import roc_auc_score

from fedsmall.errors import PlanError
from fedsmall.extensions.columns.boosting import bin_numbers, cut_points, fit_joined, sample_rows, to_fixed_point
from fedsmall.extensions.columns.plan import Boosting, Goss

COMMON = {"max_iter": 5, "max_depth": 3, "max_leaf_nodes": None, "min_samples_leaf": 4}


@pytest.fixture(scope="module")
def cancer() -> tuple[np.ndarray, np.ndarray]:
    return load_breast_cancer(return_X_y=True)


def of_few_values(x: np.ndarray) -> np.ndarray:
    """Columns of at most 16 values, of which all libraries make the same bins."""
    ranks = x.argsort(axis=0).argsort(axis=0) * 16 // len(x)
    return ranks + np.linspace(0.1, 0.9, x.shape[1])


def test_scores_are_those_of_scikit_learn(cancer):
    x, y = of_few_values(cancer[0]), cancer[1]
    settings = Boosting(rounds=5, depth=3, l2=2.0, learning_rate=0.2, least_samples=4)

    ours = fit_joined({"all": x}, y, 2, settings)

    theirs = HistGradientBoostingClassifier(
        **COMMON, l2_regularization=2.0, learning_rate=0.2, early_stopping=False
    ).fit(x, y)
    np.testing.assert_allclose(ours.scores({"all": x})[:, 0], theirs.decision_function(x), atol=1e-5)  # float32 there


def test_numbers_are_those_of_scikit_learn(cancer):
    x, y = of_few_values(cancer[0][:, 1:]), cancer[0][:, 0]
    settings = Boosting(rounds=5, depth=3, l2=1e-9, least_samples=4)

    ours = fit_joined({"all": x}, y, 0, settings)

    theirs = HistGradientBoostingRegressor(**COMMON, l2_regularization=0, learning_rate=0.3, early_stopping=False).fit(
        x, y
    )
    numbers = ours.objective.predict(ours.scores({"all": x}))[:, 0]
    np.testing.assert_allclose(numbers, theirs.predict(x), rtol=1e-5)


@pytest.mark.thorough
def test_it_is_as_good_as_scikit_learn_on_patients_it_never_saw(cancer):
    x, y = cancer
    train = np.arange(len(y)) % 3 > 0

    ours = fit_joined({"all": x[train]}, y[train], 2, Boosting(rounds=20))

    theirs = HistGradientBoostingClassifier(max_iter=20, learning_rate=0.3, max_depth=3).fit(x[train], y[train])
    reached = roc_auc_score(y[~train], theirs.decision_function(x[~train]))
    assert roc_auc_score(y[~train], ours.scores({"all": x[~train]})[:, 0]) > reached - 0.01


def test_whose_a_column_is_changes_no_tree(cancer):
    x, y = cancer

    one = fit_joined({"all": x}, y, 2, Boosting(rounds=3))
    three = fit_joined({"a": x[:, :7], "b": x[:, 7:19], "c": x[:, 19:]}, y, 2, Boosting(rounds=3))

    split = {"a": x[:, :7], "b": x[:, 7:19], "c": x[:, 19:]}
    np.testing.assert_array_equal(one.scores({"all": x}), three.scores(split))


def test_more_rounds_fit_better_and_deeper_trees_too(cancer):
    x, y = cancer

    losses = [
        np.abs(fit_joined({"all": x}, y, 2, Boosting(rounds=r, depth=d)).scores({"all": x})[:, 0] * (1 - 2 * y)).mean()
        for r, d in ((2, 1), (4, 1), (4, 3))
    ]

    assert losses[0] < losses[1] < losses[2]


def test_bins_hold_equal_shares_and_missing_values_lie_lowest():
    values = np.concatenate([np.arange(96.0), np.full(4, np.nan)])

    cuts = cut_points(values, 4)

    assert bin_numbers(np.array([np.nan, -1e9, 22, 1e9]), cuts).tolist() == [0, 0, 1, 3]
    assert np.bincount(bin_numbers(values, cuts)).tolist() == [25, 25, 25, 25]


def test_a_column_of_few_values_has_a_bin_for_each_and_one_for_what_is_missing():
    cuts = cut_points(np.array([1.0, 2.0, np.nan, 2.0, 5.0]), 8)

    assert bin_numbers(np.array([np.nan, 1, 2, 5]), cuts).tolist() == [0, 1, 2, 3]
    assert cut_points(np.array([3.0, 3.0]), 8).size == 0


def test_neighbouring_floats_are_told_apart():
    low = 1.0
    high = np.nextafter(low, 2)

    assert bin_numbers(np.array([low, high]), cut_points(np.array([low, high]), 4)).tolist() == [0, 1]


def test_one_sided_sampling_keeps_the_largest_and_weighs_the_others():
    g = np.arange(100.0)[:, None]

    rows, factors = sample_rows(g, Goss(top=0.2, other=0.1), np.random.default_rng(0))

    assert rows[-20:].tolist() == list(range(80, 100))
    assert len(rows) == 30
    assert factors.tolist() == [8.0] * 10 + [1.0] * 20  # (1 - .2) / .1
    assert factors.sum() == 100


@pytest.mark.parametrize(("rows", "share"), [(13, {}), (14, {}), (47, {"top": 0.11, "other": 0.07})])
def test_one_sided_sampling_counts_for_all_rows_where_their_number_is_rounded_too(rows, share):
    g = np.arange(float(rows))[:, None]

    _, factors = sample_rows(g, Goss(**share), np.random.default_rng(0))

    assert factors.sum() == pytest.approx(rows)


def test_one_sided_sampling_of_all_rows_is_refused():
    with pytest.raises(ValueError, match=r"fewer than all rows: top \+ other is 1, not below 1"):
        Goss(top=0.5, other=0.5)


def test_layers_for_nobody_are_refused():
    with pytest.raises(ValueError, match="passive_levels is 3, and the depth is 3"):
        Boosting(trees="layered", passive_levels=3)


def test_gradients_that_no_64_bits_hold_are_refused():
    with pytest.raises(PlanError, match="Gradients are too large, or too many"):
        to_fixed_point(np.full((10, 1), 1e6))
