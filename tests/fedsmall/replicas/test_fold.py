"""The fold of replica trees into their anchors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.errors import PlanError
from fedsmall.replicas import FLOOR, Divergence, ReplicaTree, fold_trees, measure, row_name, shared_layers, weights


def stack_of(models: list[dict[str, list[float]]]) -> dict[str, np.ndarray]:
    return {name: np.array([model[name] for model in models], dtype=np.float64) for name in models[0]}


def rows_of(*trees: tuple[str, ReplicaTree]) -> list[str]:
    return [row_name(site, node) for site, tree in trees for node in tree.nodes]


def random_stack(rows: int, rng: np.random.Generator, dtype: str = "float64") -> dict[str, np.ndarray]:
    return {
        "layer.weight": rng.normal(size=(rows, 3, 2)).astype(dtype),
        "layer.bias": rng.normal(size=(rows, 3)).astype(dtype),
        "norm.running_mean": rng.normal(size=(rows, 3)).astype(dtype),
        "norm.num_batches_tracked": np.arange(rows),
    }


def test_a_fold_by_hand():
    stack = stack_of([{"w": [0, 0]}, {"w": [3, 4]}, {"w": [0, 15]}])  # distances 5 and 15: alpha = 1/4, 3/4

    anchor = fold_trees(stack, ["a", "a#0", "a#1"])

    np.testing.assert_allclose(anchor["w"], [[(3 / 4) / 2, (4 / 4 + 45 / 4) / 2]])


def test_a_fold_of_depth_two_by_hand():
    # parent 0, child 4 with one child 8: the child becomes (8 + 4) / 2 = 6, then the parent (6 + 0) / 2 = 3
    stack = stack_of([{"w": [0]}, {"w": [4]}, {"w": [8]}])

    assert fold_trees(stack, ["a", "a#0", "a#0.0"])["w"] == 3


def test_divergence_is_measured_after_the_replicas_own_fold():
    # "0" folds with its child to (9 + 3) / 2 = 6; distances to the parent 6 and 2: alpha = 3/4, 1/4
    stack = stack_of([{"w": [0]}, {"w": [3]}, {"w": [2]}, {"w": [9]}, {"w": [2]}])

    anchor = fold_trees(stack, ["a", "a#0", "a#1", "a#0.0", "a#1.0"])

    np.testing.assert_allclose(anchor["w"], [[(6 * 3 / 4 + 2 / 4) / 2]])


def test_the_simple_fold_is_the_mean_of_parent_and_replicas():
    stack = random_stack(4, np.random.default_rng(0))

    anchor = fold_trees(stack, rows_of(("a", ReplicaTree(3, 1))), fold="simple")

    np.testing.assert_allclose(anchor["layer.weight"], stack["layer.weight"].mean(axis=0, keepdims=True))


def test_layers_count_alike_whatever_their_size():
    # child 0 differs by 6 in a layer of one number, child 1 by 6 spread over a layer of nine
    stack = stack_of([{"a": [0], "b": [0] * 9}, {"a": [6], "b": [0] * 9}, {"a": [0], "b": [2] * 9}])

    anchor = fold_trees(stack, ["s", "s#0", "s#1"])

    np.testing.assert_allclose(anchor["a"], [[1.5]])


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 99), st.sampled_from(["l2", "cosine"]))
def test_all_sites_at_once_give_what_each_gives_alone(fanout, depth, seed, diversity):
    trees = [("a", ReplicaTree(fanout, depth)), ("b", ReplicaTree(2, 1)), ("c", ReplicaTree(1, 0))]
    rows = rows_of(*trees)
    stack = random_stack(len(rows), np.random.default_rng(seed))

    together = fold_trees(stack, rows, diversity=diversity)

    start = 0
    for place, (site, tree) in enumerate(trees):
        part = {name: array[start : start + len(tree)] for name, array in stack.items()}
        alone = fold_trees(part, rows_of((site, tree)), diversity=diversity)
        start += len(tree)
        for name, array in alone.items():
            assert (together[name][place] == array[0]).all()


@pytest.mark.parametrize("diversity", ["l2", "cosine", "tests_helper_own:distance"])
@pytest.mark.parametrize("fold", ["diversity", "simple"])
def test_replicas_equal_to_their_anchor_leave_it_as_it_is(fold, diversity, own_measure):
    stack = {
        name: np.repeat(array[:1], 13, axis=0) for name, array in random_stack(1, np.random.default_rng(0)).items()
    }

    anchor = fold_trees(stack, rows_of(("a", ReplicaTree(3, 2))), fold, diversity)

    for name, array in anchor.items():
        assert not np.isnan(array).any()
        np.testing.assert_allclose(array, stack[name][:1], rtol=1e-12)


@settings(deadline=None)
@given(st.integers(0, 99), st.sampled_from(["l2", "cosine"]))
def test_the_folded_anchor_lies_between_the_least_and_greatest_of_its_tree(seed, diversity):
    rows = rows_of(("a", ReplicaTree(2, 2)))
    stack = random_stack(len(rows), np.random.default_rng(seed))

    anchor = fold_trees(stack, rows, diversity=diversity)

    for name in ("layer.weight", "norm.running_mean"):
        assert (anchor[name][0] <= stack[name].max(axis=0) + 1e-12).all()
        assert (anchor[name][0] >= stack[name].min(axis=0) - 1e-12).all()


def test_integers_are_the_anchors_and_dtypes_are_kept():
    stack = random_stack(4, np.random.default_rng(0), "float32")

    anchor = fold_trees(stack, ["a", "a#0", "a#1", "a#2"])

    assert anchor["norm.num_batches_tracked"] == 0
    assert {array.dtype for array in anchor.values()} == {np.dtype("float32"), stack["norm.num_batches_tracked"].dtype}


def test_the_stack_that_was_given_is_left_alone():
    stack = random_stack(3, np.random.default_rng(0))
    before = {name: array.copy() for name, array in stack.items()}

    fold_trees(stack, ["a", "a#0", "a#1"])

    assert all((stack[name] == before[name]).all() for name in stack)


def test_only_shared_layers_decide_the_weights_but_all_are_folded():
    stack = stack_of([{"body": [0], "head": [0]}, {"body": [1], "head": [90]}, {"body": [3], "head": [0]}])

    anchor = fold_trees(stack, ["a", "a#0", "a#1"], shared=lambda name: name == "body")

    np.testing.assert_allclose(anchor["head"], [[90 / 4 / 2]])


def test_converged_replicas_weigh_alike_instead_of_by_their_noise():
    noise = FLOOR / 100
    stack = stack_of([{"w": [1]}, {"w": [1 + noise]}, {"w": [1 - 9 * noise]}])

    np.testing.assert_allclose(weights(Divergence(np.array([[noise, 9 * noise]]))), [[0.1, 0.9]])
    np.testing.assert_allclose(fold_trees(stack, ["a", "a#0", "a#1"])["w"], [[1 + (noise - 9 * noise) / 4]], rtol=1e-14)


def test_weights_sum_to_one_and_follow_divergence():
    alpha = weights(Divergence(np.array([[1.0, 3.0], [0.0, 0.0], [0.0, 5.0]]), 0.0))

    np.testing.assert_allclose(alpha, [[0.25, 0.75], [0.5, 0.5], [0.0, 1.0]])


def test_cosine_sees_direction_and_not_length():
    stack = stack_of([{"w": [1, 0]}, {"w": [9, 0]}, {"w": [0, 1]}])  # divergences 0 and 1

    anchor = fold_trees(stack, ["a", "a#0", "a#1"], diversity="cosine")

    np.testing.assert_allclose(anchor["w"], [[0.5, 0.5]], atol=1e-7)


def test_kl_compares_predictions_on_the_anchors_samples():
    x = np.array([[1.0], [2.0]])
    stack = stack_of([{"w": [0]}, {"w": [1]}, {"w": [3]}])

    def predict(site: str, models: dict[str, np.ndarray]) -> np.ndarray:
        return models["w"][:, None, :] * x  # (models, samples, 1): one score, two classes

    anchor = fold_trees(stack, ["a", "a#0", "a#1"], diversity="kl", predict=predict)

    def symmetric(w: float) -> float:
        p = 1 / (1 + np.exp(-w * x))
        return float(np.mean((p - 0.5) * (np.log(p / 0.5) - np.log((1 - p) / 0.5))))

    near, far = symmetric(1), symmetric(3)
    np.testing.assert_allclose(anchor["w"], [[(near * 1 + far * 3) / (near + far) / 2]])


def test_kl_gives_the_same_for_one_score_and_for_two():
    stack = stack_of([{"w": [0.0]}, {"w": [1]}, {"w": [3]}])

    def one(site: str, models: dict[str, np.ndarray]) -> np.ndarray:
        return models["w"][:, None, :] * np.ones((5, 1))

    def two(site: str, models: dict[str, np.ndarray]) -> np.ndarray:
        scores = one(site, models)
        return np.concatenate([scores * 0 + 7, scores + 7], axis=-1)

    folded = [fold_trees(stack, ["a", "a#0", "a#1"], diversity="kl", predict=p)["w"] for p in (one, two)]

    np.testing.assert_allclose(*folded)


@pytest.fixture
def own_measure(tmp_path, monkeypatch):
    (tmp_path / "tests_helper_own.py").write_text(
        "import numpy as np\n"
        "def distance(parent, child):\n    return max(np.abs(parent[k] - child[k]).max() for k in parent)\n"
        "def negative(parent, child):\n    return -1.0\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_a_users_own_function_decides_the_weights(own_measure):
    stack = stack_of([{"w": [0, 0]}, {"w": [1, 1]}, {"w": [0, 3]}])

    anchor = fold_trees(stack, ["a", "a#0", "a#1"], diversity="tests_helper_own:distance")

    np.testing.assert_allclose(anchor["w"], [[1 / 8, (1 / 4 + 9 / 4) / 2]])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("l3", "There is no diversity 'l3'; use l2, cosine, kl"),
        ("no_such_module:f", "diversity 'no_such_module:f' was not found: No module named 'no_such_module'"),
        ("tests_helper_own:missing", "diversity 'tests_helper_own:missing' was not found: .* has no attribute"),
    ],
)
def test_an_unknown_measure_is_refused(own_measure, name, message):
    with pytest.raises(PlanError, match=message):
        measure(name)


def test_a_users_function_must_not_return_negative_numbers(own_measure):
    with pytest.raises(PlanError, match=r"numbers >= 0; it returned -1"):
        fold_trees(stack_of([{"w": [0]}, {"w": [1]}]), ["a", "a#0"], diversity="tests_helper_own:negative")


def test_kl_without_samples_says_where_to_fold():
    with pytest.raises(PlanError, match='use fold_at = "site"'):
        fold_trees(stack_of([{"w": [0]}, {"w": [1]}]), ["a", "a#0"], diversity="kl")


def test_shared_layers_that_match_nothing_are_refused():
    with pytest.raises(PlanError, match="shared matches none of the model's parameters, which are w"):
        shared_layers({"w": np.zeros(2), "norm.running_mean": np.zeros(2)}, lambda name: name == "conv")
