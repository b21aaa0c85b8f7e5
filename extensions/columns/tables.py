"""Parties' tables from files: who each row is, the columns that are numbers, and at one party the labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsmall.data.table_files import as_numbers, check_header, is_missing, number_block, plain, read_table
from fedsmall.errors import DataError
from fedsmall.extensions.columns.intersection import check_distinct
from fedsmall.extensions.columns.plan import Reading


@dataclass(frozen=True)
class Table:
    """A party's own rows: ``values`` (rows, columns) with NaN where one is missing, and whose each row is."""

    identifiers: tuple[str, ...]
    columns: tuple[str, ...]
    values: np.ndarray


class Target(NamedTuple):
    """What is to be predicted of each row of the active party's table; ``classes`` are empty for a number."""

    values: np.ndarray
    classes: tuple[str, ...]


def read_party_table(path: Path, reading: Reading, columns: Sequence[str] | None = None) -> Table:
    """A party's table; all columns but the identifier, the label and those that are dropped, or just ``columns``.

    Raises DataError, by column and count, for what is no number and for what is not there.
    """
    frame = read_table(path)
    check_header(frame)
    _check_columns(path, list(frame.columns), [reading.id, *(columns or ())])
    left_out = {reading.id, reading.label, reading.target, *reading.drop}
    names = list(columns) if columns is not None else [str(name) for name in frame.columns if name not in left_out]
    values, text = number_block(frame[names], reading.missing)
    if wrong := [name for name, count in zip(names, text.sum(axis=0), strict=True) if count]:
        raise DataError(
            f"text where numbers are expected, in column {wrong[0]!r} and {len(wrong) - 1} more; make it numbers, "
            "name the column in drop = [...], or the word for a missing value in missing = [...]",
            file=path.name,
        )
    if gaps := int(is_missing(frame[reading.id]).sum()):
        raise DataError(f"{gaps} rows have no identifier", file=path.name)
    identifiers = tuple(plain(cell) for cell in frame[reading.id])
    check_distinct(identifiers, path.name)
    return Table(identifiers, tuple(names), values)


def read_target(path: Path, reading: Reading) -> Target:
    """The labels, or the numbers, of the active party's rows; DataError where a row has none."""
    frame, column = read_table(path), str(reading.label if reading.target is None else reading.target)
    _check_columns(path, list(frame.columns), [column])
    if reading.target is not None:
        numbers = as_numbers(frame[column], reading.missing)
        if np.isnan(numbers).any():
            raise DataError(f"{int(np.isnan(numbers).sum())} rows have no number in {column!r}", file=path.name)
        return Target(numbers, ())
    if gaps := int(is_missing(frame[column], reading.missing).sum()):
        raise DataError(f"{gaps} rows have no label in {column!r}", file=path.name)
    words = [plain(cell) for cell in frame[column]]
    classes = reading.classes or tuple(sorted(set(words)))
    if len(classes) < 2 or set(words) - set(classes):
        raise DataError(f"{column!r} has classes that are not listed, or one class alone", file=path.name)
    return Target(np.array([classes.index(word) for word in words], float), classes)


def _check_columns(path: Path, present: Sequence[str], wanted: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in present]:
        raise DataError(f"there is no column {missing[0]!r}", file=path.name)
