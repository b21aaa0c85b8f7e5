"""Cells of a table as they were read: which hold no value, which are numbers, and which are neither."""

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedsmall.data.sources.files import plain
from fedsmall.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MISSING = frozenset(("", "?", "-", "--", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "k.a.", "k. a.", "n.a."))
GAPS = dict.fromkeys((word for known in MISSING for word in (known, known.upper())), "nan")
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}( .*)?")
COMMA = re.compile(r"[-+]?\d+,\d+")


def is_missing(cells: "Series", markers: Collection[str] = ()) -> "Series":
    """Which cells hold no value: empty ones, "?" and "NA" in a file, NaN in Python, and what ``markers`` name."""
    if cells.dtype.kind not in "OUT" and not markers:
        return cells.isna()
    known = MISSING | {marker.lower() for marker in markers}
    gaps = [str(cell).strip().lower() in known for cell in cells]  # pandas takes longer for a site's few rows
    if markers:
        gaps = [gap or plain(cell) in markers for gap, cell in zip(gaps, cells, strict=True)]  # "-9.0" is "-9"
    missing: Series = cells.isna() | np.array(gaps, dtype=bool)
    return missing


def as_numbers(cells: "Series", markers: Collection[str] = ()) -> np.ndarray:
    """Numbers in float64, NaN where a cell is missing or is no finite number."""
    return number_block(cells.to_frame(), markers)[0][:, 0]


def number_block(frame: "DataFrame", markers: Collection[str] = ()) -> tuple[np.ndarray, np.ndarray]:
    """All cells of a table as numbers, (rows, columns) in float64 with NaN for none, and which cells are text.

    A table is read in one go, for column by column ten thousand columns take seconds.
    """
    import pandas

    if all(kind.kind in "fiub" for kind in frame.dtypes):
        values = frame.to_numpy(dtype=np.float64, na_value=np.nan)
        text = np.isinf(values)
    else:
        flat = frame.to_numpy(dtype=object).ravel()
        cells = pandas.Series(flat, dtype=object)
        numbers = _floats(flat)
        if numbers is None:
            numbers = pandas.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        odd = np.flatnonzero(~np.isfinite(numbers))
        text = np.zeros(len(cells), dtype=bool)
        text[odd] = ~is_missing(cells.iloc[odd], markers).to_numpy(dtype=bool)
        values, text = numbers.reshape(frame.shape), text.reshape(frame.shape)
    coded = [float(marker) for marker in markers if _is_number(marker)]
    gone = ~np.isfinite(values) | (np.isin(values, coded) if coded else False)
    return np.where(gone, np.nan, values), text


def _floats(cells: np.ndarray) -> np.ndarray | None:
    """Cells of text as numbers, NaN where one is empty or NA; None where it takes pandas to tell what they are.

    Both round to the nearest number; this one is four times as fast, and knows no text.
    """
    try:
        text = "".join(cells)
    except TypeError:  # not all are text
        return None
    if "_" in text or not text.isascii():  # Python reads 1_000 and numbers in other scripts
        return None
    try:
        return cells.astype(np.float64)
    except ValueError:
        filled = np.array([GAPS.get(cell, cell) for cell in cells], dtype=object)
    try:
        return filled.astype(np.float64)
    except ValueError:
        return None


def check_no_text(frame: "DataFrame", columns: Sequence[str], text: np.ndarray) -> None:
    """Raise DataError, by column and count, where cells among numbers are ``text``, and say what they look like."""
    counts = {columns[place]: int(count) for place, count in enumerate(text.sum(axis=0)) if count}
    if not counts:
        return
    found = ", ".join(f"{column!r} ({count} of {len(frame)} rows)" for column, count in list(counts.items())[:8])
    more = f" and {len(counts) - 8} more columns" if len(counts) > 8 else ""
    raise DataError(f"text where numbers are expected, in column {found}{more}. {_cure(frame, columns, text)}")


def _cure(frame: "DataFrame", columns: Sequence[str], text: np.ndarray) -> str:
    row, place = (int(found[0]) for found in np.nonzero(text))
    cell = str(frame[columns[place]].iloc[row]).strip()
    if DATE.fullmatch(cell):
        return "It looks like dates: make them numbers (an age, days since), or leave them out with drop = [...]"
    if COMMA.fullmatch(cell):
        return 'It looks like numbers with a decimal comma: decimal = ","'
    return (
        "Make it numbers, or name the column in categorical = [...] or in drop = [...]; where the text stands for a "
        "missing value, name it in missing = [...]"
    )


def _is_number(marker: str) -> bool:
    try:
        float(marker)
    except ValueError:
        return False
    return True
