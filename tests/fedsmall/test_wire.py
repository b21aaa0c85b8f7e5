"""Sets of arrays come back from the one list in which they travel."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, RecordDict

from fedsmall.clients.client_app import arrays_of, records_of
from fedsmall.wire import join, parts, read_npy, split


def test_sets_that_were_joined_come_back_in_their_order():
    sets = {"arrays": {"b": 1, "a/c": 2}, "carried": {"momentum/b": 3}}

    joined = join(**sets)

    assert list(joined) == ["arrays/b", "arrays/a/c", "carried/momentum/b"]
    assert parts(joined) == sets
    assert [list(own) for own in parts(joined).values()] == [["b", "a/c"], ["momentum/b"]]
    assert split(joined, "carried") == sets["carried"]
    assert split(joined, "rule") == {}


def test_records_that_become_arrays_come_back_to_the_bit():
    arrays = {"w": np.array([[1.5, -0.0]], np.float32), "n": np.array(7, np.int64)}
    content = RecordDict({"arrays": ArrayRecord({name: Array(array) for name, array in arrays.items()})})

    back = records_of(arrays_of(content))

    assert {name: array.numpy().tobytes() for name, array in back["arrays"].items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }
    assert [back["arrays"][name].numpy().shape for name in arrays] == [(1, 2), ()]


ARRAYS = [
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.zeros((0, 4)),
    np.array(True),
    np.array(-7, ">i2"),
    np.array(["a", "bc"]),
]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_an_array_is_read_as_numpy_reads_it_and_may_be_changed(array):
    sent = Array(array)

    read, by_numpy = read_npy(sent.data), sent.numpy()

    assert (read.dtype, read.shape, read.flags.f_contiguous) == (by_numpy.dtype, array.shape, array.flags.f_contiguous)
    assert read.tobytes() == by_numpy.tobytes()
    assert read.flags.writeable


WHOLE = Array(ARRAYS[0]).data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        WHOLE[:60],
        WHOLE[:-1],
        WHOLE + b"more",
        WHOLE.replace(b"\x01\x00", b"\x02\x00", 1),
        WHOLE.replace(b"(2, 3)", b"(2,-3)"),
        WHOLE.replace(b"'<f4'", b"'|O' "),
        WHOLE.replace(b"(2, 3), }" + b" " * 9, b"(2, 3000000000), }"),
    ],
)
def test_what_is_no_array_or_more_than_one_is_none(data):
    assert data != WHOLE
    with pytest.raises((ValueError, TypeError)):
        read_npy(data)
