import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats
from scipy.optimize import minimize

from fedsmall.aggregation.aggregate import AGGREGATORS, aggregate, check_aggregator
from fedsmall.aggregation.radon import iterated_radon_point
from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for
from fedsmall.wire import is_buffer

few = settings(max_examples=25, deadline=None)
NAMES = sorted(AGGREGATORS)
ROBUST = sorted(set(AGGREGATORS) - {"mean"})


def models_of(seed, models=25, parameters=3):
    return rng_for(seed, "models").normal(size=(models, parameters))


def combine(name, points, weights=None, **options):
    return AGGREGATORS[name](points, weights, rng_for(0, "radon"), options)


@pytest.mark.parametrize("name", NAMES)
@few
@given(st.integers(5, 30), arrays(np.float64, 3, elements=st.floats(-1e6, 1e6, width=32)))
def test_equal_models_are_a_fixed_point(name, models, model):
    points = np.tile(model, (models, 1))

    np.testing.assert_allclose(combine(name, points), model, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"radon"}))
@few
@given(st.integers(0, 99))
def test_the_order_of_the_models_does_not_matter(name, seed):
    points = models_of(seed)

    np.testing.assert_allclose(
        combine(name, rng_for(seed, "order").permutation(points)), combine(name, points), atol=1e-9
    )


def test_the_order_of_the_models_does_not_matter_to_one_radon_point():
    points = models_of(0, models=5)

    np.testing.assert_allclose(combine("radon", points[::-1]), combine("radon", points), atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@few
@given(st.integers(0, 99), st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
def test_shift_and_scale_go_through(name, seed, shift, scale):
    points = models_of(seed)

    moved = combine(name, points * scale + shift)

    np.testing.assert_allclose(moved, combine(name, points) * scale + shift, atol=1e-8 * (scale + abs(shift)))


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"krum"}))
def test_mirroring_goes_through(name):
    points = models_of(1)

    np.testing.assert_allclose(combine(name, -points), -combine(name, points), atol=1e-9)


@pytest.mark.parametrize("absurd", [1e6, -1e15, 1e30])
@pytest.mark.parametrize("name", ROBUST)
def test_the_robust_survive_absurd_models_where_the_mean_does_not(name, absurd):
    points = models_of(2)
    points[[3, 11]] = absurd

    assert np.abs(combine(name, points)).max() < 1.5
    assert np.abs(combine("mean", points)).max() > 1e4


@pytest.mark.parametrize("name", ["median", "geometric_median", "krum"])
def test_one_absurd_model_of_five_beside_models_that_agree_changes_nothing(name):
    points = np.ones((5, 2))
    points[1] = 1e20

    assert combine(name, points).tolist() == [1, 1]


@pytest.mark.parametrize("name", ["mean", "median", "trimmed_mean", "geometric_median"])
@pytest.mark.parametrize("models", [1, 2])
def test_one_and_two_models_have_a_middle(name, models):
    points = models_of(3, models=models)

    np.testing.assert_allclose(combine(name, points), points.mean(axis=0))


@pytest.mark.parametrize("name", ["mean", "geometric_median"])
def test_a_weight_counts_like_copies(name):
    points = models_of(4, models=4)
    copies = np.array([3, 1, 2, 1])

    weighted = combine(name, points, copies)

    np.testing.assert_allclose(weighted, combine(name, np.repeat(points, copies, axis=0)), atol=1e-6)


@pytest.mark.parametrize("models", [1, 2, 7, 8])
def test_the_median_is_numpys(models):
    points = models_of(15, models=models)

    np.testing.assert_array_equal(combine("median", points), np.median(points, axis=0))


def test_the_geometric_median_solves_the_fermat_weber_problem():
    points, weights = models_of(5, models=9), np.arange(1.0, 10)

    def cost(point):
        return weights @ np.linalg.norm(points - point, axis=1)

    searched = minimize(cost, points.mean(axis=0), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-12})

    assert cost(combine("geometric_median", points, weights)) <= searched.fun + 1e-9


def test_the_geometric_median_of_a_triangle_sees_its_sides_under_equal_angles():
    corners = np.array([[0.0, 0], [4, 0], [1, 3]])

    to_corners = corners - combine("geometric_median", corners)

    unit = to_corners / np.linalg.norm(to_corners, axis=1, keepdims=True)
    np.testing.assert_allclose(unit @ unit.T, 1.5 * np.eye(3) - 0.5, atol=1e-6)  # the cosine of 120 degrees


def test_the_geometric_median_is_a_model_exactly_where_the_others_cannot_pull_it_away():
    points = np.array([[1.0, 0], [-1, 0], [0.1, 0.2], [0, 1], [0, -1]])

    assert combine("geometric_median", points).tolist() == [0.1, 0.2]


@pytest.mark.parametrize("models", [3, 8])
def test_the_geometric_median_of_large_models_is_that_of_their_span(models):
    small = models_of(13, models=models, parameters=2)
    turned = np.linalg.qr(models_of(14, models=50, parameters=2)).Q.T  # (2, 50) with rows of unit norm

    large = combine("geometric_median", small @ turned)

    np.testing.assert_allclose(large @ turned.T, combine("geometric_median", small), atol=1e-9)


def test_heavy_weights_hold_the_geometric_median_where_the_coordinate_median_starts_elsewhere():
    points, weights = np.array([[0.0, 0], [1, 0], [1, 1]]), np.array([5.0, 1, 1])

    np.testing.assert_allclose(combine("geometric_median", points, weights), [0, 0], atol=1e-5)


@settings(deadline=None)
@given(st.integers(1, 40), st.floats(0, 0.49))
def test_the_trimmed_mean_is_scipys(models, trim):
    points = models_of(6, models=models)

    np.testing.assert_allclose(combine("trimmed_mean", points, trim=trim), stats.trim_mean(points, trim), atol=1e-12)


def test_trimming_as_much_as_can_be_is_the_median():
    points = models_of(7, models=11)

    np.testing.assert_allclose(combine("trimmed_mean", points, trim=0.4999), combine("median", points))


def test_krum_takes_the_model_with_the_nearest_neighbours():
    points = np.array([[0.0], [1], [1.1], [1.3], [9]])

    # byzantine = 1 leaves 5 - 1 - 2 = 2 neighbours: squared distances .01 + .04 is the least sum
    assert combine("krum", points, byzantine=1).tolist() == [1.1]
    np.testing.assert_allclose(combine("krum", points, byzantine=1, keep=3), [np.mean([1, 1.1, 1.3])])


def test_krum_that_keeps_all_is_the_mean():
    points = models_of(8)

    np.testing.assert_allclose(combine("krum", points, keep=25), points.mean(axis=0), atol=1e-12)


def test_parameters_are_seen_as_one_vector():
    points = models_of(9, models=25, parameters=3)
    stack = {"w": points[:, :2].reshape(25, 2, 1), "b": points[:, 2]}

    for name in ("geometric_median", "krum", "radon"):
        global_model = aggregate(stack, name, rng=rng_for(0, "radon"))
        flat = np.concatenate([global_model["w"].ravel(), global_model["b"].ravel()])
        np.testing.assert_array_equal(flat, combine(name, points))
        assert global_model["w"].shape == (2, 1)
        assert global_model["b"].shape == ()


def test_with_r_to_the_h_models_the_radon_machine_takes_every_model_once():
    points = models_of(10, models=25)
    order = rng_for(0, "radon").permutation(25)

    assert aggregate({"w": points}, "radon", rng=rng_for(0, "radon"))["w"].tolist() == pytest.approx(
        iterated_radon_point(points[order], 2).tolist()
    )


def network(rows):
    rng = rng_for(11, "network")
    return {
        "0.weight": rng.normal(size=(rows, 2, 2)).astype(np.float32),
        "1.running_mean": rng.normal(size=(rows, 2)).astype(np.float32),
        "1.num_batches_tracked": np.arange(rows, dtype=np.int64) % 3,
        "2.bias": rng.normal(size=rows),
        "3.half": rng.normal(size=(rows, 1)).astype(np.float16),
    }


@pytest.mark.parametrize("name", NAMES)
def test_names_shapes_and_dtypes_are_those_given(name):
    stack = network(50)

    global_model = aggregate(stack, name, rng=rng_for(0, "radon"))

    assert list(global_model) == list(stack)
    assert {n: (a.shape, a.dtype) for n, a in global_model.items()} == {
        n: (a.shape[1:], a.dtype) for n, a in stack.items()
    }


@pytest.mark.parametrize("name", NAMES)
def test_running_statistics_are_averaged_and_counters_carried(name):
    stack = network(50)

    global_model = aggregate(stack, name, rng=rng_for(0, "radon"))

    np.testing.assert_allclose(global_model["1.running_mean"], stack["1.running_mean"].mean(axis=0), atol=1e-6)
    assert global_model["1.num_batches_tracked"] == 2


def test_an_absurd_counter_array_is_carried_whole_from_its_row():
    stack = {"table": np.array([[1, 5], [7, 0], [0, 7]])}

    assert aggregate(stack, "mean")["table"].tolist() == [7, 0]


def test_the_mean_weighs_running_statistics_too():
    stack = {"w": np.array([0.0, 4]), "running_var": np.array([0.0, 8])}

    global_model = aggregate(stack, "mean", weights=np.array([3, 1]))

    assert (global_model["w"], global_model["running_var"]) == (1, 2)


def test_sums_are_made_in_float64():
    stack = {"w": np.array([1e8, 1, -1e8, 1], dtype=np.float32)}

    assert aggregate(stack, "mean")["w"] == np.float32(0.5)
    assert stack["w"].sum() / 4 != np.float32(0.5)


@pytest.mark.parametrize("name", ["mean", "median", "trimmed_mean"])
def test_blocks_change_nothing(name, monkeypatch):
    stack = {"w": models_of(12, models=10, parameters=101)}
    whole = aggregate(stack, name)["w"]

    monkeypatch.setattr("fedsmall.aggregation.aggregate._BLOCK", 70)

    np.testing.assert_array_equal(aggregate(stack, name)["w"], whole)


@pytest.mark.parametrize("name", NAMES)
def test_the_stack_is_not_changed(name):
    stack = network(50)
    before = {n: a.copy() for n, a in stack.items()}

    global_model = aggregate(stack, name, rng=rng_for(0, "radon"))
    for array in global_model.values():
        array += 1

    for n in stack:
        np.testing.assert_array_equal(stack[n], before[n])


def test_empty_arrays_pass_through():
    stack = {"w": np.ones((3, 0)), "n": np.ones((3, 0), dtype=np.int64)}

    assert {n: a.shape for n, a in aggregate(stack, "mean").items()} == {"w": (0,), "n": (0,)}


def test_buffers_are_known_by_their_last_word():
    assert is_buffer("features.1.running_var")
    assert is_buffer("num_batches_tracked")
    assert not is_buffer("running_mean.weight")


@pytest.mark.parametrize(
    ("name", "models", "options", "message"),
    [
        (
            "medain",
            5,
            {},
            "there is no aggregator 'medain'; known are mean, median, trimmed_mean, geometric_median, krum",
        ),
        ("mean", 5, {"trim": 0.1}, "the aggregator mean has no option 'trim'; its options: none"),
        ("krum", 5, {"keeps": 1}, "the aggregator krum has no option 'keeps'; its options: byzantine and keep"),
        ("trimmed_mean", 5, {"trim": 0.5}, "trim is the share cut at either end, from 0 to below 0.5; got 0.5"),
        ("krum", 2, {}, r"Krum that bears 0 absurd models takes at least 2 \* 0 \+ 3 = 3 models; got 2. Set byzantine"),
        ("krum", 6, {"byzantine": 2}, r"Krum that bears 2 absurd models takes at least 2 \* 2 \+ 3 = 7 models; got 6"),
        ("krum", 6, {"byzantine": -1}, "Set byzantine from 0"),
        ("krum", 6, {"keep": 7}, "keep is a number of models, from 1 to 6; got 7"),
        ("radon", 6, {}, "takes at least r = parameters . 2 = 12 models; this run has 6"),
    ],
)
def test_what_cannot_work_is_refused_when_planned(name, models, options, message):
    with pytest.raises(PlanError, match=message):
        check_aggregator(name, models, parameters=10, options=options)


@pytest.mark.parametrize("name", NAMES)
def test_what_can_work_is_let_pass(name):
    check_aggregator(name, models=12, parameters=10)


@pytest.mark.parametrize("name", ["median", "trimmed_mean", "krum"])
def test_weights_that_would_not_be_heeded_are_refused(name):
    with pytest.raises(ValueError, match=f"{name} gives every model the same say; leave the weights out"):
        aggregate({"w": models_of(0)}, name, weights=np.ones(25))


def test_the_radon_machine_asks_for_a_generator():
    with pytest.raises(ValueError, match="radon draws the order of the models; pass a generator as rng"):
        aggregate({"w": models_of(0)}, "radon")


@pytest.mark.parametrize("weights", [[1, 2], [1, -1, 1], [0, 0, 0], [1, np.nan, 1]])
def test_weights_must_make_sense(weights):
    with pytest.raises(ValueError, match="weights are 3 finite numbers from 0 on, not all zero; got"):
        aggregate({"w": np.ones((3, 1))}, "mean", weights=np.array(weights))
