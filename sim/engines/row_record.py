"""A Flower record that stands for one row of a stack, and becomes bytes only when someone reads them."""

from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord

from fedsmall.training.stack import Rows


class RowArray(Array):
    """An array that is serialised when its bytes are asked for; whoever wants its numbers gets a copy of them."""

    def __init__(self, values: np.ndarray) -> None:
        self.__dict__.update(dtype=str(values.dtype), shape=values.shape, stype="numpy.ndarray", _values=values)

    @property
    def data(self) -> bytes:  # type: ignore[override]
        """The array in numpy's own format."""
        out = BytesIO()
        np.save(out, self.__dict__["_values"], allow_pickle=False)
        return out.getvalue()

    def __eq__(self, other: object) -> bool:
        """Whether the other array has the same description and the same bytes."""
        if not isinstance(other, Array):
            return NotImplemented
        mine, theirs = ((a.dtype, tuple(a.shape), a.stype, a.data) for a in (self, other))
        return mine == theirs

    def numpy(self) -> np.ndarray:
        """The numbers, in an array of the caller's own."""
        return np.array(self.__dict__["_values"])


class RowRecord(ArrayRecord):
    """The record of row ``row`` of ``rows``; :attr:`stack_row` tells which, as long as nobody has written to it.

    The rows must not change while a record stands for them.
    """

    def __init__(self, rows: Rows, row: int) -> None:
        super().__init__()
        self.__dict__["_row"] = (rows, row)

    @property
    def stack_row(self) -> Callable[[], tuple[Rows, int]]:
        """A function that gives the rows and the number of this one. Raises AttributeError once it was written to."""
        place = self.__dict__["_row"]
        if place is None:
            raise AttributeError("this record was written to and stands for no row any more")
        return lambda: place

    def __len__(self) -> int:
        """The number of arrays."""
        return super().__len__() if self._data else len(self.stack_row()[0].tensors)

    @property
    def _data(self) -> dict[str, Array]:
        data: dict[str, Array] = self.__dict__["_data"]
        return data

    def _fill(self) -> None:
        if not self._data and self.__dict__["_row"] is not None:
            rows, row = self.__dict__["_row"]
            self._data.update({name: RowArray(array) for name, array in rows.row(row).items()})


def _filled(name: str, writes: bool) -> Callable[..., Any]:
    plain = getattr(ArrayRecord, name)

    def method(self: RowRecord, *args: Any) -> Any:
        self._fill()
        if writes:
            self.__dict__["_row"] = None
        return plain(self, *args)

    method.__name__, method.__doc__ = name, plain.__doc__
    return method


for _name in ("__getitem__", "__iter__", "__contains__", "__eq__", "__repr__", "keys", "values", "items", "copy"):
    setattr(RowRecord, _name, _filled(_name, writes=False))
for _name in ("__setitem__", "__delitem__"):
    setattr(RowRecord, _name, _filled(_name, writes=True))
