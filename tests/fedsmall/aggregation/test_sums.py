"""Exact sums in fixed point: what sites add up and what the server makes of it, against whole numbers."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedsmall.aggregation.combiners import Combiner, Summed, combiner_for
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.aggregation.sums import length, mean_of, summand
from fedsmall.errors import ReplyError
from fedsmall.methods import METHODS, method
from fedsmall.parts import Privacy, Recipe
from fedsmall.plan import Plan
from fedsmall.wire import Arrays

HALF = 2.0**-33  # the most that rounding to fixed point moves a number
SECURE = Privacy(secure=True)
COMMON: Arrays = {
    "b.weight": np.array([[0.5, -1.25, 3.0], [1e-3, 0.0, -7.0]]),
    "a.bias": np.array([0.25, -0.125]),
    "norm.running_mean": np.array([1.0, 2.0]),
    "norm.num_batches_tracked": np.array(3),
}
# every method whose server does something of its own with a communication round's models
NAMES = ("FedAvg", "FedProx", "FedAvgM", "FedAdagrad", "FedAdam", "FedYogi", "FedNova", "SCAFFOLD", "FedDyn", "FedDC")


def plan_of(name: str = "FedAvg", secure: bool = True, **parts: Any) -> Plan:
    privacy = SECURE if secure else None
    recipe = Recipe(**METHODS[name].recipe)
    return Plan(name="test", task="t", sites=5, recipe=recipe, method=method(name, privacy=privacy, **parts))


def updates_of(sites: int = 5, spread: float = 1.0, seed: int = 0, counter: int = 7) -> Updates:
    """What so many sites of unequal samples and steps send, of seven in all; SCAFFOLD's controls among it."""
    rng = np.random.default_rng(seed)
    stack: Arrays = {
        name: np.stack([array + spread * rng.standard_normal(array.shape) for _ in range(sites)])
        for name, array in COMMON.items()
    }
    stack["norm.num_batches_tracked"] = np.full(sites, counter)
    rule = {f"control/{name}": rng.standard_normal((sites, *COMMON[name].shape)) for name in ("b.weight", "a.bias")}
    names = tuple(f"site-{number}" for number in range(sites))
    return Updates(names, stack, None, rng.integers(1, 9, sites), rule, sites_in_all=7)


def weighted(updates: Updates) -> Updates:
    return replace(updates, weights=np.arange(len(updates.sites), dtype=np.float64) * 3 + 2)


def rows(plan: Plan, updates: Updates, among: int | None = 7) -> list[np.ndarray]:
    counts = np.ones(len(updates.sites)) if updates.weights is None else updates.weights
    return [
        summand(
            plan,
            {name: array[row] for name, array in updates.stack.items()},
            COMMON,
            {name: array[row] for name, array in updates.rule.items()},
            counts[row],
            updates.steps[row],
            among,
        )
        for row in range(len(updates.sites))
    ]


def taken(updates: Updates, order: list[int]) -> Updates:
    return replace(
        updates,
        sites=tuple(updates.sites[row] for row in order),
        stack={name: array[order] for name, array in updates.stack.items()},
        weights=None if updates.weights is None else updates.weights[order],
        steps=updates.steps[order],
        rule={name: array[order] for name, array in updates.rule.items()},
    )


def same(one: Arrays, other: Arrays) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and np.array_equal(one[name], other[name]) for name in one
    )


@pytest.mark.parametrize("by_samples", [False, True])
def test_a_sum_is_that_of_whole_numbers(by_samples: bool) -> None:
    plan, updates = plan_of(weighted=by_samples), weighted(updates_of())
    times = [int(n) if by_samples else 1 for n in updates.weights] if updates.weights is not None else []

    total = np.sum(rows(plan, updates), axis=0, dtype=np.uint64)

    names = sorted(COMMON)
    scale = {name: 2**32 if COMMON[name].dtype.kind == "f" else 1 for name in names}
    expected = [
        sum(n * round(Fraction(float(value)) * scale[name]) for n, value in zip(times, column, strict=True)) % 2**64
        for name in names
        for column in updates.stack[name].reshape(5, -1).T
    ]
    assert [int(number) for number in total] == expected
    assert len(total) == length(plan, COMMON)


@pytest.mark.parametrize("by_samples", [False, True])
def test_what_comes_of_a_sum_is_the_mean_to_half_a_unit(by_samples: bool) -> None:
    plan, updates = plan_of(weighted=by_samples), updates_of()
    updates = weighted(updates) if by_samples else updates
    counts = [1] * 5 if updates.weights is None else [int(n) for n in updates.weights]

    made = combiner_for(plan).combine(COMMON, updates, 1)

    for name in ("b.weight", "a.bias", "norm.running_mean"):
        for got, column in zip(made[name].ravel(), updates.stack[name].reshape(5, -1).T, strict=True):
            exact = sum(n * Fraction(float(value)) for n, value in zip(counts, column, strict=True)) / sum(counts)
            assert abs(Fraction(float(got)) - exact) <= Fraction(1, 2**33) * (1 + Fraction(1, 2**10))
    assert made["norm.num_batches_tracked"] == 7


@pytest.mark.parametrize("name", NAMES)
def test_a_server_that_is_told_the_sum_has_the_bits_of_one_that_makes_it(name: str) -> None:
    plan = plan_of(name, weighted=METHODS[name].parts.get("server") == "fednova")
    updates = weighted(updates_of()) if plan.method.weighted else updates_of()
    told, makes = combiner_for(plan), combiner_for(plan)
    global_model = COMMON

    for t in (1, 2):  # what the server remembers of the first is in the second
        total = np.sum(rows(plan, updates), axis=0, dtype=np.uint64)
        one = makes.combine(global_model, updates, t)
        other = told.combine(global_model, replace(updates, stack={}, rule={}, total=total), t)
        assert same(one, other)
        assert same(makes.state()[0], told.state()[0])
        global_model = one


@pytest.mark.parametrize(
    ("name", "by_samples"),  # a weighted FedDyn would need two sums, and is refused
    [(name, by_samples) for name in NAMES for by_samples in (False, True) if not (by_samples and name == "FedDyn")],
)
def test_every_server_goes_where_it_goes_in_the_clear(name: str, by_samples: bool) -> None:
    clear, secure = (combiner_for(plan_of(name, secure=hidden, weighted=by_samples)) for hidden in (False, True))
    updates = weighted(updates_of()) if by_samples else updates_of()
    one = other = COMMON

    for t in (1, 2, 3):
        one, other = clear.combine(one, updates, t), secure.combine(other, updates, t)

    assert isinstance(secure, Summed)
    for key, array in one.items():
        np.testing.assert_allclose(other[key], array, rtol=0, atol=2e-7)
        assert other[key].dtype == array.dtype
    for (key, array), (_, held) in zip(
        clear.state()[0].items(), secure.state()[0].items(), strict=True
    ):  # moments, controls, histories
        np.testing.assert_allclose(held, array, rtol=1e-8, atol=1e-8, err_msg=key)
    assert list(clear.order_rule()) == list(secure.order_rule())


@pytest.mark.parametrize("name", ["FedAvg", "FedNova", "SCAFFOLD"])
def test_no_order_of_the_sites_changes_a_bit(name: str) -> None:
    plan, updates = plan_of(name, weighted=True), weighted(updates_of())
    first = combiner_for(plan).combine(COMMON, updates, 1)

    for order in ([4, 3, 2, 1, 0], [2, 0, 4, 1, 3]):
        again = taken(updates, order)
        assert np.array_equal(
            np.sum(rows(plan, again), axis=0, dtype=np.uint64), np.sum(rows(plan, updates), axis=0, dtype=np.uint64)
        )
        if name != "FedNova":  # whose server works with steps in floats
            assert same(combiner_for(plan).combine(COMMON, again, 1), first)


def test_sums_of_parts_add_up_and_masks_go_again_without_a_trace() -> None:
    plan, updates = plan_of("SCAFFOLD"), updates_of()
    vectors = rows(plan, updates)
    whole = np.sum(vectors, axis=0, dtype=np.uint64)
    masks = np.random.default_rng(0).integers(0, 2**64, (5, len(whole)), dtype=np.uint64)

    parts = np.sum(vectors[:2], axis=0, dtype=np.uint64) + np.sum(vectors[2:], axis=0, dtype=np.uint64)
    masked = np.sum([v + m for v, m in zip(vectors, masks, strict=True)], axis=0, dtype=np.uint64)

    assert np.array_equal(parts, whole)
    assert not np.array_equal(masked, whole)
    assert np.array_equal(masked - masks.sum(axis=0, dtype=np.uint64), whole)


NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


@pytest.mark.thorough
@given(
    models=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=3, max_size=12),
    counts=st.lists(st.integers(0, 10**3), min_size=12, max_size=12),
    by_samples=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_a_mean_is_within_half_a_unit_of_the_exact_one(
    models: list[tuple[float, float]], counts: list[int], by_samples: bool
) -> None:
    plan, global_model = plan_of(weighted=by_samples), {"w": np.zeros(2)}
    times = [n + 1 if by_samples else 1 for n in counts[: len(models)]]
    sites = len(models)

    room = 2**31 / sites - 1
    held = [(model, n) for model, n in zip(models, times, strict=True) if max(map(abs, model)) * n < room]
    assume(len(held) >= 3)
    vectors = [summand(plan, {"w": np.array(model)}, global_model, {}, n, 1, sites) for model, n in held]
    weights = np.array([float(n) for _, n in held]) if by_samples else None
    total = np.sum(vectors, axis=0, dtype=np.uint64)
    mean = mean_of(plan, global_model, total, len(held), weights, np.ones(len(held))).model["w"]

    for place in (0, 1):
        exact = sum(n * Fraction(model[place]) for model, n in held) / sum(n for _, n in held)
        spacing = abs(exact) * Fraction(1, 2**51)  # of float64, in which the mean is given
        assert abs(Fraction(float(mean[place])) - exact) <= Fraction(1, 2**33) + spacing


def test_negative_numbers_wrap_around_and_come_back() -> None:
    plan, global_model = plan_of(), {"w": np.zeros(2)}
    models = [{"w": np.array([-3.0, 5.0])}, {"w": np.array([1.0, -9.5])}, {"w": np.array([-1.0, -1.0])}]

    vectors = [summand(plan, model, global_model, {}, 1, 1) for model in models]
    mean = mean_of(plan, global_model, np.sum(vectors, axis=0, dtype=np.uint64), 3, None, np.ones(3))

    assert vectors[0][0] == 2**64 - 3 * 2**32
    assert mean.model["w"].tolist() == [-1.0, -5.5 / 3]


def test_counters_are_averaged_and_rounded() -> None:
    updates = updates_of(3)
    updates.stack["norm.num_batches_tracked"] = np.array([4, 6, 7])

    made = combiner_for(plan_of()).combine(COMMON, updates, 1)

    assert made["norm.num_batches_tracked"] == 6  # of 5.67
    assert made["norm.num_batches_tracked"].dtype == COMMON["norm.num_batches_tracked"].dtype


def test_a_float32_model_is_rounded_once() -> None:
    global_model = {"w": np.zeros(1, np.float32)}
    models = np.array([[0.1], [0.2], [0.4]], np.float32)
    updates = Updates(("a", "b", "c"), {"w": models}, None, np.ones(3), sites_in_all=3)

    made = combiner_for(plan_of()).combine(global_model, updates, 1)

    assert made["w"] == np.float32(models.astype(np.float64).mean())
    assert made["w"].dtype == np.float32


def test_the_largest_numbers_that_are_let_in_cannot_overflow() -> None:
    global_model, sites = {"w": np.zeros(1)}, 256
    most = float(np.nextafter(2.0**23, 0))  # "no clipping below eight million"
    vector = summand(plan_of(), {"w": np.array([most])}, global_model, {}, 1, 1)

    total = np.sum([vector] * sites, axis=0, dtype=np.uint64)

    mean = mean_of(plan_of(), global_model, total, sites, None, np.ones(sites)).model["w"]
    assert mean == pytest.approx(most, abs=HALF)


@pytest.mark.parametrize("wrong", [2.0**23 + 1, -(2.0**23) - 1, 1e300, np.inf, np.nan])
def test_a_number_too_large_for_the_sum_is_refused(wrong: float) -> None:
    with pytest.raises(ReplyError, match="A number of 'w' is not finite, or above 8,388,608, the most") as error:
        summand(plan_of(), {"w": np.array([0.0, wrong])}, {"w": np.zeros(2)}, {}, 1, 1)

    assert "\n" not in str(error.value)


def test_more_sites_and_more_samples_leave_less_room() -> None:
    model, global_model = {"w": np.array([1e6])}, {"w": np.zeros(1)}

    summand(plan_of(), model, global_model, {}, 50, 1, among=2000)
    summand(plan_of(weighted=True), model, global_model, {}, 50, 1, among=40)
    with pytest.raises(ReplyError, match="above"):
        summand(plan_of(weighted=True), model, global_model, {}, 50, 1, among=2000)
    with pytest.raises(ReplyError, match="above"):
        summand(plan_of(), model, global_model, {}, 50, 1, among=4000)


def test_the_server_leaves_room_for_the_sites_of_the_federation_as_each_of_them_does() -> None:
    updates = replace(updates_of(3), sites_in_all=4000)
    updates.stack["a.bias"][1, 0] = 1e6

    assert combiner_for(plan_of()).combine(COMMON, replace(updates, sites_in_all=300), 1)
    with pytest.raises(ReplyError, match="is not finite, or above"):
        combiner_for(plan_of()).combine(COMMON, updates, 1)


def test_a_float32_model_is_scaled_in_float64() -> None:
    plan, global_model = plan_of("FedNova"), {"w": np.zeros(1, np.float32)}
    model = {"w": np.array([0.7], np.float32)}

    vector = summand(plan, model, global_model, {}, 1, 7)

    assert int(vector[0]) == round(Fraction(float(model["w"][0])) / 7 * 2**32)


@pytest.mark.parametrize("sites", [1, 2])
def test_fewer_than_three_sites_make_no_sum(sites: int) -> None:
    with pytest.raises(ReplyError, match=f"At round 4 a secure sum has {sites} of the 3 sites"):
        combiner_for(plan_of()).combine(COMMON, updates_of(sites), 4)
    assert combiner_for(plan_of()).combine(COMMON, updates_of(3), 4)


def test_a_sum_that_is_none_of_the_plan_is_refused() -> None:
    combiner: Combiner = combiner_for(plan_of())
    for total in (np.zeros(4, np.uint64), np.zeros(11, np.int64), np.zeros((11, 1), np.uint64)):
        with pytest.raises(ReplyError, match="A sum of this plan's models has 11 numbers of type uint64; came"):
            combiner.combine(COMMON, replace(updates_of(), stack={}, total=total), 1)


def test_a_weighted_sum_of_no_samples_is_refused() -> None:
    updates = replace(updates_of(), weights=np.zeros(5))
    with pytest.raises(ReplyError, match="no sample between them"):
        combiner_for(plan_of(weighted=True)).combine(COMMON, updates, 1)


@pytest.mark.parametrize("word", ["a model", "controls"])
def test_arrays_that_are_not_the_common_models_are_refused(word: str) -> None:
    if word == "a model":
        with pytest.raises(ReplyError, match=r"expects 'w' of shape \(2,\); came \(3,\)"):
            summand(plan_of(), {"w": np.zeros(3)}, {"w": np.zeros(2)}, {}, 1, 1)
    else:
        with pytest.raises(ReplyError, match=r"expects 'control/w' of shape \(2,\); came nothing"):
            summand(plan_of("SCAFFOLD"), {"w": np.zeros(2)}, {"w": np.zeros(2)}, {}, 1, 1)
