"""Replica trees: their nodes, and the samples that each node trains on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.errors import PlanError
from fedsmall.parts import Tree
from fedsmall.replicas import (
    ReplicaTree,
    block_size,
    forest,
    idle,
    level_of,
    parent_of,
    row_name,
    split_row,
    subsets,
    tree_at,
)
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.scenario import build


def labels(zeros: int, ones: int) -> np.ndarray:
    return np.repeat([0, 1], [zeros, ones])


def test_nodes_are_named_by_the_way_from_the_anchor():
    assert ReplicaTree(fanout=2, depth=2).nodes == ("", "0", "1", "0.0", "0.1", "1.0", "1.1")


def test_a_tree_of_depth_zero_is_its_anchor_under_the_sites_own_name():
    assert ReplicaTree(depth=0).nodes == ("",)
    assert row_name("site-3", "") == "site-3"


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(0, 3))
def test_a_tree_has_as_many_nodes_as_the_paper_counts(fanout, depth):
    tree = ReplicaTree(fanout, depth)

    assert len(tree) == len(tree.nodes) == len(set(tree.nodes)) == 1 + sum(fanout**k for k in range(1, depth + 1))
    for node in tree.nodes:
        for child in tree.children(node):
            assert parent_of(child) == node
            assert level_of(child) == level_of(node) + 1
        assert split_row(row_name("a.b", node)) == ("a.b", node)


def test_sites_may_have_trees_of_their_own():
    trees = forest(Tree(fanout=(3, 2, 1), depth=(1, 2, 0), drop=0.1), sites=3)

    assert [len(tree) for tree in trees] == [1 + 3, 1 + 2 + 4, 1]  # 1 + r + r**2 + ... + r**d


def test_the_block_perturbation_by_hand():
    held = subsets(ReplicaTree(fanout=3, depth=1, drop=0.1), labels(10, 10), seed=0, site="a")

    lacked = [set(range(20)) - set(held[node]) for node in ("0", "1", "2")]

    assert [len(block) for block in lacked] == [2, 2, 2]  # floor(0.1 * 20)
    assert len(set.union(*lacked)) == 6  # disjoint
    assert list(held[""]) == list(range(20))


def test_the_stratified_perturbation_by_hand():
    y = labels(15, 5)

    held = subsets(ReplicaTree(fanout=3, depth=1, drop=0.2, perturbation="stratified"), y, seed=0, site="a")

    for node in ("0", "1", "2"):
        assert [int((y[held[node]] == value).sum()) for value in (0, 1)] == [12, 4]  # 4 dropped, 3 : 1 as the classes
    lacked = [set(range(20)) - set(held[node]) for node in ("0", "1", "2")]
    assert len(set.union(*lacked)) == 12


@settings(deadline=None)
@given(st.integers(4, 40), st.integers(4, 40), st.integers(1, 4), st.integers(0, 2), st.floats(0, 0.4), st.booleans())
def test_children_are_cut_from_their_parents_samples(zeros, ones, fanout, depth, drop, stratified):
    tree = ReplicaTree(fanout, depth, drop, "stratified" if stratified else "random")
    y = labels(zeros, ones)
    try:
        held = subsets(tree, y, seed=3, site="a")
    except PlanError:
        assert stratified
        return

    for node in tree.nodes:
        assert (np.diff(held[node]) > 0).all()
        size = block_size(len(held[node]), drop)
        lacked = np.zeros(len(y), dtype=int)
        for child in tree.children(node):
            assert set(held[child]) <= set(held[node])
            assert len(held[node]) - len(held[child]) == size
            lacked[np.setdiff1d(held[node], held[child])] += 1
        if tree.children(node) and not stratified:  # every sample is lacked equally often, to within one
            assert np.ptp(lacked[held[node]]) <= 1


@settings(deadline=None)
@given(st.integers(6, 40), st.integers(6, 40), st.floats(0, 0.5))
def test_stratified_blocks_keep_class_shares_to_within_one_sample(zeros, ones, drop):
    y = labels(zeros, ones)

    held = subsets(ReplicaTree(3, 1, drop, "stratified"), y, seed=0, site="a")

    for node in ("0", "1", "2"):
        kept = (y[held[node]] == 0).sum()
        assert abs(kept - len(held[node]) * zeros / len(y)) <= 1


@pytest.mark.parametrize("rare", [1, 2, 3, 5])
@pytest.mark.parametrize("drop", [0.1, 0.5, 0.7, 0.9])
def test_stratified_blocks_are_as_large_whatever_the_classes_and_keep_the_rare_one_while_they_can(rare, drop):
    held, even = (
        subsets(ReplicaTree(2, 3, drop, "stratified"), labels(*of), 0, "a") for of in ((20 - rare, rare), (10, 10))
    )

    assert {node: len(rows) for node, rows in held.items()} == {node: len(rows) for node, rows in even.items()}
    assert all(len(np.unique(labels(20 - rare, rare)[rows])) == 2 for rows in held.values() if len(rows) > 1)


def test_random_blocks_do_not_keep_class_shares_where_stratified_ones_do():
    y = labels(30, 30)

    def ones_lacked(perturbation: str) -> set[int]:
        held = subsets(ReplicaTree(5, 1, 0.2, perturbation), y, seed=1, site="a")
        return {int(y.sum() - y[held[node]].sum()) for node in ("0", "1", "2", "3", "4")}

    assert ones_lacked("stratified") == {6}
    assert len(ones_lacked("random")) > 1


def test_sites_and_seeds_draw_blocks_of_their_own():
    tree, y = ReplicaTree(1, 1, 0.5), labels(10, 10)

    draws = {tuple(subsets(tree, y, seed, site)["0"]) for seed in (0, 1) for site in ("a", "b")}

    assert len(draws) == 4
    assert (subsets(tree, y, 0, "a")["0"] == subsets(tree, y, 0, "a")["0"]).all()


def test_a_larger_tree_leaves_the_blocks_of_other_parents_alone():
    y = labels(20, 20)

    small, large = (subsets(ReplicaTree(2, depth), y, seed=0, site="a") for depth in (1, 2))

    assert all((small[node] == large[node]).all() for node in small)


@pytest.mark.parametrize(("samples", "drop", "size"), [(100, 0.29, 29), (30, 0.1, 3), (9, 0.1, 0), (1, 0.9, 0)])
def test_a_block_is_the_floor_of_the_share_whatever_the_floats_say(samples, drop, size):
    assert block_size(samples, drop) == size


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_no_replica_of_the_smallest_sites_is_empty(samples):
    held = subsets(ReplicaTree(3, 3, 0.9), np.zeros(samples, dtype=int), seed=0, site="a")

    assert min(map(len, held.values())) >= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tree_at(Tree(drop=(0.1, 1.0)), 1, 2), "drop = 1 would leave a replica without samples"),
        (lambda: tree_at(Tree(fanout=(2, 3)), 0, 3), "tree.fanout has 2 values for 3 sites"),
        (lambda: ReplicaTree(fanout=0), "fanout >= 1"),
    ],
)
def test_impossible_trees_are_refused(make, message):
    with pytest.raises(PlanError, match=message):
        make()


def test_replicas_that_lack_no_sample_are_told_with_the_drop_that_would_do():
    told = idle(Tree(drop=0.1, fanout=3), [4, 9, 10])

    assert told is not None
    assert "\n" not in told
    assert "at 2 of 3 sites" in told
    assert "at 4 times the work; take drop = 0.25 or more" in told
    assert idle(Tree(drop=0.25), [4, 9, 10]) is None
    assert idle(Tree(drop=0.1), [10, 100]) is None
    assert idle(Tree(drop=0.1, depth=0), [4]) is None


def test_replicas_that_lack_no_sample_are_plain_averaging_and_the_run_says_so():
    scenario = build(
        {
            "name": "copies",
            "task": "breast_cancer",
            "sites": 4,
            "samples_per_site": 5,
            "rounds": 3,
            "method": [{"name": "FedAvg", "aggregate_every": 1}, {"name": "RepTreeFL", "aggregate_every": 1}],
        }
    )

    run = execute(scenario)

    average, tree = (run.model_of(one) for one in run.done)
    for name, array in average.items():
        np.testing.assert_allclose(array, tree[name], atol=1e-6)
    assert [note for note in run.about["notes"] if "replicas lack no sample of their anchor at 4 of 4 sites" in note]
