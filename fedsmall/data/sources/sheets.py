"""Tables that are no text: Parquet files, and sheets of Excel workbooks where openpyxl is installed."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmall.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

PARQUET, EXCEL, OLD_EXCEL = (".parquet", ".pq"), (".xlsx", ".xlsm"), (".xls", ".xlsb", ".ods", ".numbers")
ENDINGS = (*PARQUET, *EXCEL)
Row = list[str]


def read_parquet(path: Path) -> "DataFrame":
    """A Parquet file: numbers as they are held, all else as text; a named index is a column.

    Raises DataError where it is none.
    """
    import pandas
    from pyarrow import ArrowException

    try:
        frame = pandas.read_parquet(path)
    except (ArrowException, OSError, ValueError) as wrong:
        raise DataError("the file is not Parquet, or is damaged") from wrong
    return as_table(frame.reset_index() if frame.index.names != [None] else frame)


def as_table(frame: "DataFrame") -> "DataFrame":
    """A pandas table as those of files are: numbers (true is 1) as they are held, all else as text, names as text."""
    frame = frame.reset_index(drop=True)
    frame.columns = [str(name) for name in frame.columns]
    if len(set(frame.columns)) < frame.shape[1]:  # the header is refused in any case
        return frame
    nullable = [name for name, kind in frame.dtypes.items() if kind.kind in "fiub" and not isinstance(kind, np.dtype)]
    frame = frame.astype(dict.fromkeys(nullable, "float64"))  # a missing value is NaN
    odd = [name for name, kind in frame.dtypes.items() if kind.kind not in "fiub"]
    cells = {name: frame[name].astype(object).where(frame[name].notna(), None) for name in odd}
    return frame.assign(**{name: [as_text(cell) for cell in column] for name, column in cells.items()})


def read_excel(path: Path, sheet: str | None) -> list[Row]:
    """The rows of the one visible sheet with anything in it, or of the ``sheet`` of that name, as text.

    Rows and columns at the end that hold nothing are left out. Raises DataError where there is no such sheet, or the
    file cannot be read.
    """
    try:
        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException
    except ImportError as wrong:
        raise DataError("Excel is read by openpyxl: pip install 'fedsmall[excel]', or save it as CSV") from wrong
    from xml.etree.ElementTree import ParseError
    from zipfile import BadZipFile

    unreadable = (InvalidFileException, BadZipFile, ParseError, OSError, ValueError, LookupError, TypeError)
    try:
        book = load_workbook(path, read_only=True, data_only=True)
        visible = {each.title: _rows(each) for each in book.worksheets if each.sheet_state == "visible"}
        book.close()
    except unreadable as wrong:
        raise DataError("the file is no Excel workbook, is damaged, or is protected by a password") from wrong
    filled = {title: rows for title, rows in visible.items() if rows}
    if sheet is not None:
        if sheet not in filled:
            raise DataError(f"there is no visible sheet {sheet!r} with anything in it")
        return filled[sheet]
    if len(filled) > 1:
        raise DataError(f"{len(filled)} sheets hold something; say which is meant: sheet = ... (--sheet, to predict)")
    return next(iter(filled.values()), [])


def as_text(cell: Any) -> str:
    """A cell as a CSV file would hold it."""
    if cell is None or cell != cell:
        return ""
    if hasattr(cell, "isoformat"):
        return str(cell.isoformat()).removesuffix("T00:00:00")
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15 else str(cell)


def _rows(sheet: Any) -> list[Row]:
    if not hasattr(sheet, "iter_rows"):  # a sheet that is a chart
        return []
    rows = [[as_text(cell).strip() for cell in row] for row in sheet.iter_rows(values_only=True)]
    width = max((_filled(row) for row in rows), default=0)
    while rows and not _filled(rows[-1]):
        rows.pop()
    return [(row + [""] * width)[:width] for row in rows]


def _filled(row: Sequence[str]) -> int:
    """How many cells there are up to the last that holds something."""
    there = np.flatnonzero([bool(cell) for cell in row])
    return int(there[-1]) + 1 if len(there) else 0
