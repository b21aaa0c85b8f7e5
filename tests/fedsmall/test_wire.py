"""Sets of arrays come back from the one list in which they travel."""

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedsmall.clients.client_app import arrays_of, records_of
from fedsmall.wire import join, parts, split


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
