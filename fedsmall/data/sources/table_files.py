"""A table in a text file as cells: what is no table, or would be read wrongly in silence, is an error with its line."""

import codecs
import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedsmall.data.sources.sheets import EXCEL, OLD_EXCEL, PARQUET, read_excel, read_parquet
from fedsmall.errors import DataError
from fedsmall.files import check_is_regular

if TYPE_CHECKING:
    from pandas import DataFrame

SEPARATORS = ",;\t|"
SPREADSHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # how files of Excel begin, whatever they are called
LINE_BREAKS = re.compile(r"[\r\n\t\v\f]+")
UNNAMED = "Unnamed: "
UTF_32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
FIXED_BLANKS = str.maketrans({"\xa0": " ", "\u202f": " "})  # as browsers and word processors write them
LOCK = "~$"
LISTED = 12  # columns in a line to be copied
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_table(
    path: Path,
    separator: str | None = None,
    decimal: str = ".",
    names: Sequence[str] = (),
    sheet: str | None = None,
) -> "DataFrame":
    """The cells of a CSV file as text, with its header's names, or ``names`` where it has no header.

    The same of a ``sheet`` of an Excel workbook; a Parquet file holds numbers, and names of its own. Raises DataError,
    with the file's name, where it is no table: other than text, empty, or with rows of several lengths.
    """
    check_is_regular(path)
    try:
        if path.name.startswith(LOCK):
            raise DataError("it is what Excel leaves beside a file that is open, and no table; close Excel")
        if (ending := path.suffix.lower()) in OLD_EXCEL:
            raise DataError(f"{ending} files are not read; save it as .xlsx or CSV")
        if ending in PARQUET:
            return read_parquet(path)
        if ending in EXCEL:
            return _framed([(line + 1, row) for line, row in enumerate(read_excel(path, sheet)) if any(row)], names, "")
        return _read(path, separator, decimal, names)
    except DataError as wrong:
        raise DataError(wrong.words, file=path.name) from wrong


def check_header(frame: "DataFrame") -> None:
    """Raise DataError where two columns have one name, or the header is made of a patient's numbers."""
    names = [str(name) for name in frame.columns]
    unnamed = sum(name.startswith(UNNAMED) for name in names)
    if unnamed * 2 > len(names):
        raise DataError(f"the first line is no header: {unnamed} of its {len(names)} cells are empty")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{len(twice)} names stand over two columns, {twice[0]!r} first; give every column its own")
    numbers = [name for name in names if _is_number(name)]
    counted = {str(place) for place in range(len(names) + 1)}  # as a program names columns that have no names
    if len(numbers) * 2 >= len(names) and not set(numbers) <= counted:
        raise DataError(
            f"the first line looks like a patient and not like a header: {len(numbers)} of its {len(names)} names are "
            "numbers. Put a line with the columns' names before it"
        )


def common_columns(frames: Mapping[str, "DataFrame"], left_out: set[str]) -> list[str]:
    """The columns of all sites in the order of the first, without those ``left_out``.

    Raises DataError where they differ: it names a site that is not as most are, and the line that says what is meant.
    """
    columns = {site: [column for column in frame.columns if column not in left_out] for site, frame in frames.items()}
    having = Counter(chain.from_iterable(columns.values()))
    shared = [column for column in having if having[column] == len(frames)]
    if len(shared) == len(having):
        return shared
    usual = {column for column, sites in having.items() if 2 * sites > len(frames)}
    apart = {site: usual.symmetric_difference(held) for site, held in columns.items()}
    site = max(apart, key=lambda site: len(apart[site]))
    column = next(column for column in having if column in apart[site])
    has = "has a column" if column in columns[site] else "has no column"
    others = {name.lower(): name for name in having if name not in (column, *shared)}
    near = get_close_matches(column.lower(), list(others), n=1)
    alike = f" Is {others[near[0]]!r} the same?" if near else ""
    line = f", or take those that all have: {_line(shared, [*having])}" if shared else ""
    raise DataError(
        f"site {site!r} {has} {column!r}, which is at {having[column]} of {len(frames)} sites.{alike} "
        f"Give all sites the same columns{line}"
    )


def _line(shared: Sequence[str], known: Sequence[str]) -> str:
    """The line of a scenario that takes only the ``shared`` columns of those that are ``known``."""
    name, columns = ("features", shared) if len(shared) <= LISTED else ("drop", sorted({*known} - {*shared}))
    return f"{name} = {json.dumps(list(columns), ensure_ascii=False)}"


def _read(path: Path, separator: str | None, decimal: str, names: Sequence[str]) -> "DataFrame":
    text = _text(path)
    text = text if text.isascii() else text.translate(FIXED_BLANKS)
    return _framed(list(_rows(text, separator or _separator(text))), names, decimal)


def _framed(rows: Sequence[tuple[int, list[str]]], names: Sequence[str], decimal: str) -> "DataFrame":
    """Rows with their lines as a table, under the first of them or ``names``."""
    import pandas

    if not rows:
        raise DataError("the file is not a table: it is empty")
    header = list(names) or [LINE_BREAKS.sub(" ", cell.strip()) for cell in rows[0][1]]
    body = rows if names else rows[1:]
    _check_lengths(len(header), body)
    cells = np.array([row for _, row in body], dtype=object).reshape(len(body), len(header))
    if decimal not in (".", ""):
        cells = np.array([cell.replace(decimal, ".") for cell in cells.ravel()], dtype=object).reshape(cells.shape)
    columns = [name or f"{UNNAMED}{place}" for place, name in enumerate(header)]
    frame = pandas.DataFrame(cells, columns=columns, dtype=object)
    if frame.shape[1] > 1 and not header[-1] and (frame.iloc[:, -1] == "").all():
        frame = frame.iloc[:, :-1]  # every line ends with a separator
    return frame


def _rows(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The lines that are not empty, each with its number."""
    reader = csv.reader(text.splitlines(keepends=True), delimiter=separator, skipinitialspace=True)
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as wrong:
        raise DataError(f"line {reader.line_num} is no line of a table: {wrong}") from wrong


def _check_lengths(width: int, rows: Sequence[tuple[int, list[str]]]) -> None:
    odd = [(line, len(row)) for line, row in rows if len(row) != width]
    if odd:
        line, cells = odd[0]
        more = f", and so {'do' if len(odd) > 2 else 'does'} {len(odd) - 1} more" if len(odd) > 1 else ""
        raise DataError(
            f"its rows differ in length: line {line} has {cells} cells and the header {width}{more}. A separator "
            "within a cell needs quotes around the cell"
        )


def _text(path: Path) -> str:
    """The file as text: UTF-8, UTF-16 with its mark, or else what spreadsheets on Windows still write."""
    raw = path.read_bytes()
    if path.suffix.lower() == ".gz":
        try:
            raw = gzip.decompress(raw)
        except (OSError, EOFError, zlib.error) as wrong:
            raise DataError("the file is not a table: it ends in .gz and is not compressed, or is cut short") from wrong
    if raw.startswith(SPREADSHEETS):
        raise DataError("the file is not a table of text but a spreadsheet; name it .xlsx, or save it as CSV")
    if raw.startswith(UTF_16) and not raw.startswith(UTF_32):
        return _decoded(raw, "utf-16")
    if b"\x00" in raw[:10_000]:
        raise DataError("the file is not a table of text: it holds zero bytes; save it as CSV in UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return _decoded(raw, "cp1252")


def _decoded(raw: bytes, encoding: str) -> str:
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as wrong:
        raise DataError("the file is not a table of text in UTF-8; save it as CSV in UTF-8") from wrong


def _separator(text: str) -> str:
    """The separator that occurs most often in the first line."""
    return max(SEPARATORS, key=text.partition("\n")[0].count)


def _is_number(name: str) -> bool:
    try:
        float(name.replace(",", "."))
    except ValueError:
        return False
    return name.lower() not in ("nan", "inf", "infinity")
