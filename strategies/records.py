"""Flower's records as plain named arrays."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from fedsmall.wire import EXAMPLES, METRICS, Arrays, is_buffer, read_npy


class SendingGrid(Grid):
    """A grid that is asked to send and receive in one call, and for nothing else that Flower has every grid do."""

    def _never(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    run = property(_never)
    set_run = create_message = push_messages = pull_messages = send_and_receive = _never


DTYPE = re.compile(r"(float|int|uint|complex)[0-9]{1,3}|bool")


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    """The arrays as a Flower record, in their order; a numpy scalar becomes an array of no dimensions."""
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


def to_arrays(record: ArrayRecord) -> Arrays:
    """The record's arrays by name."""
    return {name: read_npy(array.data) for name, array in record.items()}


def parameters_of(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """The float arrays that are no buffers: what a server optimizer may move."""
    return {name: a for name, a in arrays.items() if np.issubdtype(a.dtype, np.floating) and not is_buffer(name)}


def array_records(content: RecordDict) -> dict[str, ArrayRecord]:
    """The array records of a message by key; Flower's own view copies and checks them at every look."""
    return {key: record for key, record in content.items() if isinstance(record, ArrayRecord)}


def size_in_bytes(records: Mapping[str, ArrayRecord]) -> int:
    """Bytes of the arrays in a message as numbers, without framing and headers: the same on every engine."""
    arrays = (array for record in records.values() for array in record.values())
    return sum(math.prod(array.shape) * np.dtype(array.dtype).itemsize for array in arrays)


def shape_and_dtype(array: Array) -> tuple[tuple[int, ...], np.dtype] | None:
    """The shape and dtype that an array states, in numpy's own words ("float32"); None where it states none."""
    shape, dtype = array.shape, array.dtype
    if not (isinstance(shape, tuple | list) and all(type(size) is int and size >= 0 for size in shape)):
        return None
    try:
        return (tuple(shape), np.dtype(dtype)) if isinstance(dtype, str) and DTYPE.fullmatch(dtype) else None
    except TypeError:
        return None


def count_of(reply: Message, key: str) -> Any:
    """The number under ``key`` in a reply's metrics, or None."""
    metrics = reply.content.get(METRICS)
    return metrics.get(key) if isinstance(metrics, MetricRecord) else None


def with_our_count(reply: Message, key: str) -> Message:
    """The reply with its number of samples under our name as well."""
    if key != EXAMPLES and not reply.has_error() and (count := count_of(reply, key)) is not None:
        reply.content[METRICS] = MetricRecord({**reply.content.metric_records[METRICS], EXAMPLES: count})
    return reply
