"""A model as changes of another: what comes out is what went in, to the bit, and is never larger than the model."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsmall.codec import BITS, GAPS, VALUES, CodecError, completed, difference

ODD = [0.0, -0.0, 1.5, -2.0, np.nan, np.inf, 1e-40]


def model_of(numbers: list[float], dtype: str = "float32") -> dict[str, np.ndarray]:
    """A model with weights, a bias, running statistics, a counter and a number by itself."""
    return {
        "0.weight": np.array(numbers, dtype=dtype).reshape(1, -1),
        "0.bias": np.array([0.5], dtype=dtype),
        "1.running_var": np.array([2.0], dtype=dtype),
        "1.num_batches_tracked": np.array(3),
        "scale": np.array(1.0, dtype=dtype),
    }


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    assert all(a.tobytes() == other[name].tobytes() and a.dtype == other[name].dtype for name, a in one.items())


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ODD), st.sampled_from(ODD)), min_size=1, max_size=40), st.booleans())
def test_whoever_has_the_one_reads_the_other_to_the_bit(pairs, double):
    dtype = "float64" if double else "float32"
    model, reference = (model_of([pair[k] for pair in pairs], dtype) for k in (0, 1))

    sent = difference(model, reference)

    assert_same(completed(sent, reference), model)
    assert sum(a.nbytes for a in sent.values()) <= sum(a.nbytes for a in model.values())


@pytest.mark.parametrize("places", [[], [0], [999], [0, 999], [254, 255, 256], [300, 900], list(range(0, 1000, 2))])
def test_places_are_kept_however_far_apart(places):
    old = model_of([0.0] * 1000)
    new = model_of([0.0] * 1000)
    new["0.weight"][0, places] = np.arange(1, len(places) + 1)

    assert_same(completed(difference(new, old), old), new)


def test_places_take_a_byte_for_each_of_few_and_a_bit_for_each_of_all():
    old, some, many = (np.zeros(8000, np.float32) for _ in range(3))
    some[::100], many[::4] = 1, 1

    few, half = (difference({"w": new}, {"w": old}) for new in (some, many))

    assert (few[VALUES].nbytes, few[GAPS].nbytes) == (4 * 80, 80)
    assert (half[VALUES].nbytes, half[BITS].nbytes) == (4 * 2000, 1000)


def test_what_changed_throughout_goes_as_it_is_and_so_does_what_builds_on_nothing():
    new = model_of([1.0, 2.0, 3.0])

    assert_same(difference(new, model_of([0.0, 0.0, 0.0]) | {"0.bias": np.zeros(1, np.float32)}), new)
    assert_same(difference(new, None), new)
    assert_same(completed(new, None), new)


OLD = model_of([0.0] * 100)
BROKEN = {
    "nothing to build on": ({}, None),
    "no places": ({GAPS: None}, OLD),
    "places twice": ({BITS: np.zeros(13, np.uint8)}, OLD),
    "a place outside": ({GAPS: np.array([200], np.uint8)}, OLD),
    "places that do not end": ({GAPS: np.array([255], np.uint8)}, OLD),
    "places that are no bytes": ({GAPS: np.array([3.0])}, OLD),
    "bits of another model": ({GAPS: None, BITS: np.zeros(2, np.uint8)}, OLD),
    "a value too many": ({VALUES: np.ones(2, np.float32)}, OLD),
    "values of another kind": ({VALUES: np.ones(1)}, OLD),
    "an array too many": ({"2.weight": np.ones(2)}, OLD),
    "an array that should be whole": ({"1.running_var": None}, OLD),
}


@pytest.mark.parametrize("how", BROKEN)
def test_what_is_no_change_of_the_model_is_refused(how):
    new = model_of([0.0] * 99 + [1.0])
    change, reference = BROKEN[how]
    sent = {name: array for name, array in (difference(new, OLD) | change).items() if array is not None}

    with pytest.raises(CodecError):
        completed(sent, reference)
