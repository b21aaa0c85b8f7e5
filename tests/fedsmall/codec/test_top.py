"""The largest changes leave, the rest waits: nothing is lost on the way, and without the memory too much is."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from fedsmall.codec import CodecError, Known, add_residual, base_of, cut, cut_at_site, cut_one, largest
from fedsmall.parts import Wire, share_of
from fedsmall.wire import BASE, IS_GLOBAL, MADE, ROUND, TAKEN

WHOLE = st.integers(-50, 50)


@settings(deadline=None)
@given(st.lists(st.tuples(WHOLE, WHOLE, WHOLE), min_size=1, max_size=30), st.floats(0.01, 1))
def test_what_leaves_and_what_is_left_are_what_was_learnt_and_was_left_before(numbers, share):
    trained, came, before = ({"w": np.array(row, dtype=np.float32)} for row in zip(*numbers, strict=True))

    sent, left = cut_one(trained, came, before, share)

    np.testing.assert_array_equal(sent["w"] - came["w"] + left["w"], trained["w"] - came["w"] + before["w"])
    assert np.count_nonzero(sent["w"] != came["w"]) <= np.ceil(share * len(numbers))
    assert np.abs(left["w"]).max() <= np.abs(trained["w"] + before["w"] - came["w"]).max()


@pytest.mark.parametrize("models", [1, 2, 3])
def test_every_model_of_a_stack_is_cut_as_by_itself(models):
    rng = np.random.default_rng(models)
    trained, came, before = ({"a": rng.normal(size=(models, 3, 4)), "b": rng.normal(size=(models, 2))} for _ in "123")

    sent, left = cut(trained, came, before, 0.3)

    for k in range(models):
        alone = cut_one(*({name: a[k] for name, a in of.items()} for of in (trained, came, before)), 0.3)
        for name in trained:
            np.testing.assert_array_equal(sent[name][k], alone[0][name])
            np.testing.assert_array_equal(left[name][k], alone[1][name])


def test_all_of_it_is_the_model_to_the_bit_and_leaves_nothing():
    rng = np.random.default_rng(0)
    trained, came = ({"w": rng.normal(size=50).astype(np.float32)} for _ in "12")

    sent, left = cut_one(trained, came, {}, 1.0)

    assert sent["w"].tobytes() == trained["w"].tobytes()
    assert not left["w"].any()


def test_of_equal_changes_the_first_leave_and_those_that_differ_in_the_last_digit_are_equal():
    nearly = np.array([0.1, np.nextafter(0.1, 1), 0.3, np.nextafter(0.1, 0)])

    assert largest(nearly, 0.5).tolist() == [True, False, True, False]
    assert largest(np.zeros(3), 0.4).tolist() == [True, True, False]
    assert largest(np.ones(1), 0.01).tolist() == [True]  # a model of one number
    assert largest(np.zeros(0), 0.5).tolist() == []
    assert largest(np.arange(100.0), 0.07).sum() == 7


def test_the_largest_are_of_all_arrays_together():
    trained = {"a": np.array([[1.0, 2.0]]), "b": np.array([9.0, 8.0, 0.5])}

    sent, _ = cut_one(trained, {name: np.zeros_like(a) for name, a in trained.items()}, {}, 0.4)

    assert (sent["a"].tolist(), sent["b"].tolist()) == ([[0.0, 0.0]], [9.0, 8.0, 0.0])


def test_buffers_counters_and_single_numbers_leave_as_they_are():
    trained = {"w": np.ones(4), "1.running_mean": np.full(3, 0.1), "1.num_batches_tracked": np.array(7)}

    sent, left = cut_one(trained, {name: np.zeros_like(a) for name, a in trained.items()}, {}, 0.25)

    assert list(left) == ["w"]
    assert all(sent[name] is not None and (sent[name] == trained[name]).all() for name in trained if name != "w")


def test_a_model_that_is_not_finite_leaves_whole_and_spoils_no_memory():
    trained = {"w": np.array([1.0, np.nan, 3.0])}

    sent, left = cut_one(trained, {"w": np.zeros(3)}, {"w": np.ones(3)}, 0.3)

    np.testing.assert_array_equal(sent["w"], trained["w"])
    np.testing.assert_array_equal(left["w"], np.ones(3))


def descended(share: float, remembers: bool, steps: int = 3000) -> float:
    """How far from the least squares of three unlike sites their averages of one number in a hundred end."""
    rng = np.random.default_rng(3)
    slopes, goals = rng.uniform(0.5, 1.5, (3, 100)), rng.normal(size=(3, 100))
    best = (slopes * goals).sum(0) / slopes.sum(0)
    known, global_model, left = Known(), {"w": np.zeros(100)}, [{}, {}, {}]
    for t in range(steps):
        told, sent = known.tell(global_model, t, share), []
        for site in range(3):
            rate = 0.02 / (1 + t / 300)
            trained = {"w": told["w"] - rate * slopes[site] * (told["w"] - goals[site])}
            model, after = cut_one(trained, told, left[site], share)
            left[site] = after if remembers else {}
            sent.append(model["w"])
        global_model = {"w": add_residual({"w": np.stack(sent)}, global_model, told)["w"].mean(0)}
    return float(np.linalg.norm(global_model["w"] - best) / np.linalg.norm(best))


@pytest.mark.thorough
def test_one_number_in_a_hundred_is_enough_with_a_memory_and_not_without():
    assert descended(1.0, remembers=True) < 1e-4
    assert descended(0.01, remembers=True) < 0.1
    assert descended(0.01, remembers=False) > 0.5


def test_what_sites_were_not_told_counts_in_the_next_average():
    global_model, told = {"w": np.array([5.0, 1.0])}, {"w": np.array([5.0, 0.0])}

    moved = add_residual({"w": np.array([[6.0, 0.0], [5.0, 2.0]])}, global_model, told)

    assert moved["w"].tolist() == [[6.0, 1.0], [5.0, 3.0]]


def test_a_site_is_asked_to_build_on_one_of_the_last_two_common_models_that_it_has():
    known = Known()
    known.tell({"w": np.zeros(4)}, 0, 0.25)
    known.answered(1, {"a": True, "b": True}, ["a"])

    assert known.base_version("a").base == 0
    assert known.base_version("b").base == -1  # silent: it may have nothing
    assert (known.base_version("a").taken, known.base_version("b").taken) == (1, 0)
    for t in (1, 2):
        known.tell({"w": np.arange(4.0) * t}, t, 0.25)
    assert known.base_version("a").base == -1  # too long ago


def test_an_average_tells_as_many_numbers_as_there_were_comm_rounds():
    known = Known()
    known.tell({"w": np.zeros(8)}, 0, 0.25)
    for t in (1, 2, 3):
        known.answered(t, {"a": True}, ["a"])

    told = known.tell({"w": np.arange(1.0, 9.0)}, 3, 0.25)

    assert told["w"].tolist() == [0, 0, 3, 4, 5, 6, 7, 8]


def test_what_the_server_did_not_take_has_happened_for_nobody():
    came, one = {"w": np.zeros(2)}, {"w": np.array([3.0, 2.0])}
    order = {ROUND: 1, IS_GLOBAL: True, MADE: 0, BASE: -1, TAKEN: 0}

    _, kept = cut_at_site(one, came, {}, order, 0.5)
    sent, _ = cut_at_site(one, came, kept, {**order, ROUND: 2, BASE: 0, TAKEN: 1}, 0.5)
    again, _ = cut_at_site(one, came, kept, {**order, ROUND: 2, BASE: 0, TAKEN: 0}, 0.5)

    assert sent["w"].tolist() == [0.0, 4.0]  # with the 2 that were left
    assert again["w"].tolist() == [3.0, 0.0]  # as if the first had not been


def test_a_site_builds_on_the_common_model_that_it_was_told_and_on_no_other():
    came = {"w": np.array([1.0, 2.0])}
    _, kept = cut_at_site(came, came, {}, {ROUND: 4, IS_GLOBAL: True, MADE: 3, TAKEN: 0}, 0.5)

    assert base_of(kept, {BASE: -1}) is None
    assert base_of(kept, {BASE: 3})["w"].tolist() == [1.0, 2.0]
    for memory, base in ((kept, 2), ({}, 3)):
        with pytest.raises(CodecError, match="does not have"):
            base_of(memory, {BASE: base})


def test_a_form_is_a_precision_or_a_share():
    read = TypeAdapter(Wire).validate_python

    assert [share_of(read(wire)) for wire in ("full", "int8", "top1%", "top0.5%", "top100%")] == [
        None, None, 0.01, 0.005, 1.0
    ]  # fmt: skip
    for wire in ("top0%", "top101%", "top", "top1", "gzip", "top1e1%", "top-1%"):
        with pytest.raises(ValidationError, match='wire is "full", "half", "int8" or a share such as "top1%"'):
            read(wire)
