from collections import Counter
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from fedsmall.aggregation.radon import Filling, check_radon, iterated_radon_point, radon, radon_point
from fedsmall.errors import PlanError
from fedsmall.randomness import rng_for

DIMENSIONS = [1, 2, 5, 19, 100]


def normal(d):
    return rng_for(0, "points", d).normal(size=(d + 2, d))


def duplicated(d):
    points = normal(d)
    points[1::2] = points[:-1:2]
    return points


def collinear(d):
    rng = rng_for(1, "points", d)
    return rng.normal(size=d) + rng.normal(size=(d + 2, 1)) * rng.normal(size=d)


def in_a_plane(d):
    rng = rng_for(2, "points", d)
    return rng.normal(size=(d + 2, 2)) @ rng.normal(size=(2, d)) + 3


def all_equal(d):
    return np.tile(rng_for(3, "points", d).normal(size=d), (d + 2, 1))


def all_but_one_equal(d):
    points = all_equal(d)
    points[d // 2] += 1
    return points


def on_a_grid(d):
    return rng_for(4, "points", d).integers(-1, 2, size=(d + 2, d)).astype(float)


def of_many_scales(d):
    return (normal(d) + 3) * np.logspace(-6, 6, d)


SETS = [normal, duplicated, collinear, in_a_plane, all_equal, all_but_one_equal, on_a_grid, of_many_scales]


def hull_distance(point, points):
    """How far ``point`` is from the convex hull of ``points`` in the largest coordinate: a linear program."""
    k, d = points.shape
    offsets, slack = (points - point).T, np.ones((d, 1))
    solved = linprog(
        np.append(np.zeros(k), 1),
        A_ub=np.block([[offsets, -slack], [-offsets, -slack]]),
        b_ub=np.zeros(2 * d),
        A_eq=[[1] * k + [0]],
        b_eq=[1],
    )
    assert solved.status == 0, solved.message
    return solved.fun


def two_parts(point, points, attempts=50):
    """A mask that splits ``points`` so that ``point`` is in the hull of either part; None where none was found.

    Linear programs alone: ``point`` as a mean of as few points as a random cost allows, then as one of those left over.
    """
    lifted, rhs = np.vstack([points.T, np.ones(len(points))]), np.append(point, 1)
    for attempt in range(attempts):
        cost = rng_for(attempt, "cost").random(len(points))
        solved = linprog(cost, A_eq=lifted, b_eq=rhs)
        assert solved.status == 0, solved.message
        part = solved.x > 1e-7
        if not part.all() and max(hull_distance(point, points[part]), hull_distance(point, points[~part])) < 1e-9:
            return part
    return None


def exact_radon_point(points):
    """The Radon point of points in general position, in rational numbers: Gaussian elimination and nothing else."""
    r, d = points.shape
    rows = [[Fraction(float(x)) for x in column] for column in points.T] + [[Fraction(1)] * r]
    for pivot in range(d + 1):
        best = max(range(pivot, d + 1), key=lambda i: abs(rows[i][pivot]))
        rows[pivot], rows[best] = rows[best], rows[pivot]
        rows[pivot] = [x / rows[pivot][pivot] for x in rows[pivot]]
        for i in set(range(d + 1)) - {pivot}:
            rows[i] = [x - rows[i][pivot] * y for x, y in zip(rows[i], rows[pivot], strict=True)]
    null = [-row[-1] for row in rows] + [Fraction(1)]
    weights = [max(w, Fraction(0)) for w in null]
    columns = [[Fraction(float(x)) for x in column] for column in points.T]
    return np.array([float(sum(w * x for w, x in zip(weights, c, strict=True)) / sum(weights)) for c in columns])


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("make", SETS)
def test_a_radon_point_lies_in_the_hulls_of_two_disjoint_parts(make, d):
    points = make(d)
    spread = np.where(np.ptp(points, axis=0) > 0, np.ptp(points, axis=0), 1)

    point = radon_point(points)

    scaled, middle = (points - points[0]) / spread, (point - points[0]) / spread
    assert two_parts(middle, scaled) is not None


def test_the_oracle_tells_a_radon_point_from_a_mean():
    points = np.array([[0.0, 0], [4, 0], [0, 4], [1, 2]])  # the last lies in the triangle of the others

    assert two_parts(points.mean(axis=0), points) is None
    assert two_parts(np.array([1.0, 2]), points) is not None
    np.testing.assert_allclose(radon_point(points), [1, 2], atol=1e-12)


def test_in_the_plane_it_is_where_the_diagonals_cross():
    square = np.array([[0.0, 0], [2, 2], [0, 2], [2, 0]])

    np.testing.assert_allclose(radon_point(square), [1, 1], atol=1e-12)


@settings(deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=3, max_size=3))
def test_on_a_line_it_is_the_median(numbers):
    points = np.array(numbers, dtype=float)[:, None]

    assert radon_point(points)[0] == pytest.approx(np.median(numbers), abs=1e-12)


@pytest.mark.parametrize("d", [1, 2, 5, 12])
def test_it_agrees_with_rational_arithmetic(d):
    points = normal(d)

    np.testing.assert_allclose(radon_point(points), exact_radon_point(points), rtol=0, atol=1e-12)


@pytest.mark.parametrize("coordinates", [slice(None), slice(3, 4)])
def test_an_absurd_point_does_not_blur_the_others(coordinates):
    naive = []

    for draw in range(20):
        points = rng_for(draw, "points").normal(size=(7, 5))
        points[2, coordinates] *= 1e30
        exact = exact_radon_point(points)
        np.testing.assert_allclose(radon_point(points), exact, rtol=0, atol=1e-10)
        naive.append(np.abs(radon_point_by_unsorted_svd(points) - exact).max())

    assert np.median(naive) > 0.1  # how far off a single one is depends on the library's SVD


def radon_point_by_unsorted_svd(points):
    centred = points - points.mean(axis=0)
    lifted = np.vstack([(centred / np.abs(centred).max(axis=0)).T, np.ones(len(points))])
    weights = np.maximum(np.linalg.svd(lifted).Vh[-1], 0)
    return weights @ points / weights.sum()


@pytest.mark.parametrize("make", [duplicated, collinear, in_a_plane, all_equal])
def test_solving_for_the_weights_fails_where_models_coincide(make):
    points = make(5)
    lifted = np.vstack([points.T, np.ones(7)])  # (d + 1, d + 2)

    try:
        null = np.append(np.linalg.solve(lifted[:, :-1], -lifted[:, -1]), 1)
        worst = np.abs(lifted @ null).max() / np.abs(null).max()
    except np.linalg.LinAlgError:
        worst = np.inf

    assert np.linalg.cond(lifted[:, :-1]) > 1e12 or worst > 1e-9


@pytest.mark.parametrize("d", DIMENSIONS)
def test_equal_points_give_that_point_to_the_bit(d):
    points = all_equal(d)

    np.testing.assert_array_equal(radon_point(points), points[0])


@pytest.mark.parametrize("d", [1, 2, 5, 19])
def test_it_follows_affine_maps_and_is_blind_to_order(d):
    points = normal(d)
    rng = rng_for(5, "points", d)
    turned, shift = rng.normal(size=(d, d)), rng.normal(size=d)

    np.testing.assert_allclose(radon_point(rng.permutation(points)), radon_point(points), atol=1e-9)
    np.testing.assert_allclose(radon_point(points @ turned + shift), radon_point(points) @ turned + shift, atol=1e-7)


def test_a_batch_is_its_members_one_by_one():
    batch = np.stack([make(4) for make in SETS] * 2).reshape(2, len(SETS), 6, 4)

    one_by_one = [[radon_point(points) for points in row] for row in batch]

    np.testing.assert_array_equal(radon_point(batch), one_by_one)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_dtype_given_is_returned(dtype):
    points = normal(2).astype(dtype)

    assert radon_point(points).dtype == dtype
    assert iterated_radon_point(points, 1).dtype == dtype
    assert radon(points, rng_for(0, "radon")).dtype == dtype


def test_whole_numbers_are_worked_in_floating_point():
    assert radon_point(np.array([[0, 0], [3, 3], [0, 3], [3, 0]])).tolist() == pytest.approx([1.5, 1.5])


def test_points_are_not_changed():
    points = normal(3)
    before = points.copy()

    radon_point(points)

    np.testing.assert_array_equal(points, before)


def test_a_wrong_number_of_points_is_refused():
    with pytest.raises(ValueError, match="a Radon point in 3 dimensions takes exactly 5 points; got 4"):
        radon_point(np.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"height 2 in 19 dimensions takes exactly 21\*\*2 = 441 points; got 25"):
        iterated_radon_point(np.zeros((25, 19)), 2)


def test_iterating_takes_consecutive_groups():
    points = rng_for(6, "points").normal(size=(27, 1))

    by_hand = np.median(np.median(np.median(points.reshape(3, 3, 3), axis=2), axis=1))

    assert iterated_radon_point(points, 3)[0] == pytest.approx(by_hand)


def test_height_zero_is_the_point_itself():
    assert iterated_radon_point(np.array([[1.0, 2]]), 0).tolist() == [1, 2]


def test_the_iterated_point_survives_absurd_models_where_the_mean_does_not():
    models = rng_for(7, "points").normal(size=(441, 19))
    models[:8] = 1e20  # at most seven of the 21 groups could be ruled by three or more of them

    aggregated = radon(models, rng_for(0, "radon"))

    assert np.abs(aggregated).max() < 1
    assert np.abs(models.mean(axis=0)).max() > 1e17


@given(st.integers(1, 9), st.integers(0, 120), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_every_model_comes_alike_often_and_never_twice_in_a_group(parameters, more, seed):
    filling = Filling(models=parameters + 2 + more, parameters=parameters)

    places = filling.draw(rng_for(seed, "radon"))

    counts = Counter(places.tolist())
    often = filling.places // filling.models
    assert len(places) == filling.radon_number**filling.height
    assert set(counts) == set(range(filling.models))
    assert set(counts.values()) <= {often, often + 1}
    assert all(len(set(group)) == len(group) for group in places.reshape(-1, filling.radon_number).tolist())


@pytest.mark.parametrize(("models", "height"), [(3, 1), (4, 2), (9, 2), (10, 3), (27, 3), (28, 4)])
def test_the_height_is_the_smallest_with_a_place_for_every_model(models, height):
    assert check_radon(models, 1).height == height


def test_with_exactly_enough_models_each_is_used_once():
    places = check_radon(441, 19).draw(rng_for(0, "radon"))

    assert sorted(places) == list(range(441))
    assert sorted(places) != list(places)


def test_pairs_of_models_meet_alike_often():
    counts = Counter()
    for seed in range(300):
        for group in check_radon(5, 1).draw(rng_for(seed, "radon")).reshape(-1, 3).tolist():
            counts.update(combinations(sorted(group), 2))

    expected = 300 * 9 / 10  # nine pairs in three groups, ten kinds of pair
    assert len(counts) == 10
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in counts.values())


def test_the_aggregate_can_be_replayed_from_its_filling():
    models = rng_for(8, "points").normal(size=(50, 3))

    aggregated = radon(models, rng_for(0, "radon", 7))

    by_hand = iterated_radon_point(models[check_radon(50, 3).draw(rng_for(0, "radon", 7))], 3)
    np.testing.assert_array_equal(aggregated, by_hand)


def test_chunks_change_nothing(monkeypatch):
    models = rng_for(9, "points").normal(size=(100, 3))
    whole = radon(models, rng_for(0, "radon"))

    monkeypatch.setattr("fedsmall.aggregation.radon._CHUNK", 60)

    np.testing.assert_array_equal(radon(models, rng_for(0, "radon")), whole)


@pytest.mark.parametrize(
    ("models", "sentence"),
    [
        (441, "Radon point of height 2 with r = 21: 21**2 = 441 places, each of the 441 models in them once"),
        (50, "Radon point of height 2 with r = 21: 21**2 = 441 places, each of the 50 models in them 8 or 9 times"),
        (49, "Radon point of height 2 with r = 21: 21**2 = 441 places, each of the 49 models in them 9 times"),
        (440, "Radon point of height 2 with r = 21: 21**2 = 441 places, each of the 440 models in them once or twice"),
    ],
)
def test_the_report_says_how_the_places_were_filled(models, sentence):
    assert str(check_radon(models, 19)) == sentence


def test_too_few_models_are_refused_when_planned():
    with pytest.raises(
        PlanError, match=r"a 19-parameter model takes at least r = parameters \+ 2 = 21 models; this run has"
    ):
        check_radon(20, 19)
    with pytest.raises(PlanError, match=r"Use a smaller model .at most 18 parameters., more sites, or another"):
        check_radon(20, 19)
    with pytest.raises(PlanError, match="even one parameter takes three models"):
        check_radon(2, 1)
