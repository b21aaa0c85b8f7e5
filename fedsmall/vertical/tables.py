"""Parties' tables from files: who each row is, the columns that are numbers, and at one party the labels."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedsmall.data.table_files import as_numbers, check_header, is_missing, number_block, plain, read_table
from fedsmall.errors import DataError
from fedsmall.parts import Frozen
from fedsmall.vertical.party import Table


class Reading(Frozen):
    """How parties read their tables: ``id`` names whose a row is, ``label`` (or ``target``, a number) what is learnt.

    ``classes`` fixes the classes and their order, ``drop`` leaves columns out, ``missing`` are words for no value.
    """

    id: str
    label: str | None = None
    target: str | None = None
    classes: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class Target(NamedTuple):
    """What is to be predicted of each row of the active party's table; ``classes`` are empty for a number."""

    values: np.ndarray
    classes: tuple[str, ...]


def party_table(path: Path, reading: Reading, columns: Sequence[str] | None = None) -> Table:
    """A party's table; all columns but the identifier, the label and those that are dropped, or just ``columns``.

    Raises DataError, by column and count, for what is no number and for what is not there.
    """
    frame = read_table(path)
    check_header(frame)
    _need(path, list(frame.columns), [reading.id, *(columns or ())])
    left_out = {reading.id, reading.label, reading.target, *reading.drop}
    names = list(columns) if columns is not None else [str(one) for one in frame.columns if one not in left_out]
    values, text = number_block(frame[names], reading.missing)
    if wrong := [name for name, count in zip(names, text.sum(axis=0), strict=True) if count]:
        raise DataError(
            f"text where numbers are expected, in column {wrong[0]!r} and {len(wrong) - 1} more; make it numbers, "
            "name the column in drop = [...], or the word for a missing value in missing = [...]",
            file=path.name,
        )
    if is_missing(frame[reading.id]).any():
        raise DataError(f"{int(is_missing(frame[reading.id]).sum())} rows have no identifier", file=path.name)
    identifiers = tuple(plain(one) for one in frame[reading.id])
    if len(set(identifiers)) < len(identifiers):
        raise DataError(
            f"{len(identifiers) - len(set(identifiers))} identifiers stand in more than one row; a patient has one row",
            file=path.name,
        )
    return Table(identifiers, tuple(names), values)


def target_of(path: Path, reading: Reading) -> Target:
    """The labels, or the numbers, of the active party's rows; DataError where a row has none."""
    frame, column = read_table(path), str(reading.label if reading.target is None else reading.target)
    _need(path, list(frame.columns), [column])
    gaps = int(is_missing(frame[column], reading.missing).sum())
    if reading.target is not None:
        numbers = as_numbers(frame[column], reading.missing)
        if np.isnan(numbers).any():
            raise DataError(f"{int(np.isnan(numbers).sum())} rows have no number in {column!r}", file=path.name)
        return Target(numbers, ())
    if gaps:
        raise DataError(f"{gaps} rows have no label in {column!r}", file=path.name)
    words = [plain(one) for one in frame[column]]
    classes = reading.classes or tuple(sorted(set(words)))
    if len(classes) < 2 or set(words) - set(classes):
        raise DataError(f"{column!r} has classes that are not listed, or one class alone", file=path.name)
    return Target(np.array([classes.index(one) for one in words], float), classes)


def _need(path: Path, there: Sequence[str], wanted: Sequence[str]) -> None:
    if lacking := [one for one in wanted if one not in there]:
        raise DataError(f"there is no column {lacking[0]!r}", file=path.name)
