"""Cross-validation over sites: nothing that is tested was ever trained on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.data.splits import fold_pool, fold_split, stratified_folds
from fedsmall.errors import PlanError


def labels(zeros: int, ones: int) -> np.ndarray:
    return np.repeat([0, 1], [zeros, ones])


@settings(deadline=None)
@given(st.integers(5, 40), st.integers(5, 40), st.integers(2, 5), st.integers(1, 6), st.integers(0, 3))
def test_sites_and_test_set_are_a_partition_of_all_samples(zeros, ones, folds, sites, seed):
    y = labels(zeros, ones)
    for fold in range(folds):
        train, test = fold_split(y, folds, fold, sites if sites <= 4 else folds - 1, seed)
        together = np.concatenate([*train, test])
        assert sorted(together) == list(range(len(y)))


def test_no_sample_is_tested_twice_over_the_folds():
    y = labels(30, 50)

    tested = np.concatenate([fold_split(y, 4, fold, 3, seed=1)[1] for fold in range(4)])

    assert sorted(tested) == list(range(80))


@settings(deadline=None)
@given(st.integers(4, 60), st.integers(4, 60), st.integers(2, 4), st.integers(0, 3))
def test_folds_keep_class_shares_to_within_one_sample(zeros, ones, folds, seed):
    parts = stratified_folds(labels(zeros, ones), folds, seed)

    for value, count in ((0, zeros), (1, ones)):
        held = [int((labels(zeros, ones)[part] == value).sum()) for part in parts]
        assert sum(held) == count
        assert max(held) - min(held) <= 1
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_every_site_holds_every_other_fold_once_as_folds_rotate():
    y = labels(20, 20)
    parts = stratified_folds(y, 4, seed=0)

    for site in range(3):
        held = [fold_split(y, 4, fold, 3, seed=0)[0][site] for fold in range(4)]
        assert sorted(map(tuple, held)) == sorted(map(tuple, parts))


def test_folds_do_not_depend_on_which_one_is_tested():
    y = labels(12, 28)

    first = {tuple(part) for fold in range(2) for part in fold_split(y, 2, fold, 1, seed=5)[0]}

    assert first == {tuple(part) for part in stratified_folds(y, 2, seed=5)}


def test_another_seed_draws_other_folds():
    y = labels(20, 20)

    assert any((a != b).any() for a, b in zip(stratified_folds(y, 4, 0), stratified_folds(y, 4, 1), strict=True))


def test_targets_that_are_graphs_are_split_without_classes():
    train, test = fold_split(np.zeros((8, 6, 6)), folds=4, fold=0, sites=3, seed=0)

    assert [len(part) for part in (*train, test)] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((labels(3, 20), 4, 0, 3), "class 0 has 3"),
        ((labels(20, 20), 4, 4, 3), "fold = 4 is none of the folds 0 to 3"),
        ((labels(2, 2), 2, 0, 3), "3 sites cannot share the 2 training samples"),
    ],
)
def test_impossible_folds_are_refused(arguments, message):
    with pytest.raises(PlanError, match=message):
        fold_split(*arguments, seed=0)


@settings(deadline=None)
@given(st.integers(20, 200), st.integers(20, 200), st.integers(2, 5), st.integers(1, 4), st.integers(1, 4))
def test_a_pool_gives_every_site_its_samples_and_keeps_class_shares(zeros, ones, folds, sites, per_site):
    y = labels(zeros, ones)
    if sites * per_site * folds / (folds - 1) > len(y) // 2:
        return

    pool = fold_pool(y, folds, sites, per_site, seed=0)

    assert len(set(pool)) == len(pool)
    assert abs((y[pool] == 1).sum() - len(pool) * ones / len(y)) <= 1
    assert len(pool) - -(-len(pool) // folds) >= sites * per_site - 1


def test_the_papers_pool_is_eight_hundred_and_leaves_the_rest_unused():
    pool = fold_pool(labels(1214, 3494), folds=4, sites=3, samples_per_site=200, seed=0)

    train, test = fold_split(labels(1214, 3494)[pool], folds=4, fold=2, sites=3, seed=0)

    assert len(pool) == 800
    assert [len(part) for part in (*train, test)] == [200, 200, 200, 200]


def test_a_pool_larger_than_the_data_is_refused():
    with pytest.raises(PlanError, match="take 8; the data have 6"):
        fold_pool(labels(3, 3), folds=4, sites=3, samples_per_site=2, seed=0)
