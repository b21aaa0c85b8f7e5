"""Between a message's records and its arrays by one name each, "arrays/0.weight"."""

from collections.abc import Mapping

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedsmall.wire import Arrays, join, parts


def arrays_of(content: RecordDict) -> Arrays:
    """All arrays of a message, named with the record they come from."""
    return {name: array.numpy() for name, array in join(**content.array_records).items()}


def records_of(arrays: Mapping[str, np.ndarray]) -> dict[str, ArrayRecord]:
    """The records that hold these arrays, each in the order given; a record without arrays is left out."""
    return {
        part: ArrayRecord({name: Array(np.asarray(array)) for name, array in own.items()})
        for part, own in parts(arrays).items()
    }
