"""Tables in files as cells: text, Parquet and Excel; and which cells are numbers, text or missing."""

import codecs
import csv
import gzip
import json
import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

import numpy as np

from fedsmall.entry_points import TABLES, extensions, import_extra, load_extension
from fedsmall.errors import DataError, as_data_error
from fedsmall.files import UTF_16, in_file

if TYPE_CHECKING:
    from pandas import DataFrame, Series


MISSING = frozenset(("", "?", "-", "--", "na", "n/a", "#n/a", "<na>", "nan", "null", "k.a.", "k. a.", "n.a."))
HUGE = 1e100  # from which on a number is none: no measurement is as large, and codes for no value are
NONE = "none"  # a missing value among numbers; among words it is one, as in "none, mild, severe"
GAPS = dict.fromkeys((word for known in (*MISSING, NONE) for word in (known, known.upper())), "nan")
DATE = re.compile(r"\d{4}-\d{1,2}-\d{1,2}([T ].*)?|\d{1,2}[./]\d{1,2}[./]\d{2,4}( .*)?")
COMMA = re.compile(r"[-+]?\d+,\d+")
WHOLE = re.compile(r"[-+]?\d{1,300}(\.0*)?")
PARQUET, EXCEL, OLD_EXCEL = (".parquet", ".pq"), (".xlsx", ".xlsm"), (".xls", ".xlsb", ".ods", ".numbers")
SHEETS = (*PARQUET, *EXCEL)
SEPARATORS = ",;\t|"
HEAD = 100_000  # characters in which a header is looked for
SPREADSHEETS = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0")  # how files of Excel begin, whatever they are called
LINE_BREAKS = re.compile(r"[\r\n\t\v\f]+")
UNNAMED = "Unnamed: "
REMARKS = re.compile(r"\A(#.*\n){2,}(?=[^#])")  # above a header, as cBioPortal writes them; one line is a header
MARKUP = re.compile(rb"(\xef\xbb\xbf)?\s*(<[!?]|<\w+[\s>]|\{\s*[\"}]|\[\s*[\[{\"])")  # a header may begin so: [age]
UTF_32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
FIXED_BLANKS = str.maketrans({"\xa0": " ", "\u202f": " "})  # as browsers and word processors write them
LOCK = "~$"
NO_NUMBERS = ("nan", "inf", "infinity")  # in a header these are words
LISTED = 12  # columns in a line to be copied


def is_missing(cells: "Series", markers: Collection[str] = ()) -> "Series":
    """Which cells hold no value: empty ones, "?" and "NA" in a file, NaN in Python, and what ``markers`` name."""
    if cells.dtype.kind not in "OUT" and not markers:
        return cells.isna()
    words = [str(cell).strip().lower() for cell in cells]  # pandas takes longer for a site's few rows
    known = MISSING | {marker.lower() for marker in markers}
    known |= {NONE} if NONE in words and any(is_number(word) for word in words if word not in known) else set()
    gaps = [word in known for word in words]
    if markers:
        gaps = [gap or plain(cell) in markers for gap, cell in zip(gaps, cells, strict=True)]  # "-9.0" is "-9"
    missing: Series = cells.isna() | np.array(gaps, dtype=bool)
    return missing


def as_numbers(cells: "Series", markers: Collection[str] = ()) -> np.ndarray:
    """Numbers in float64, NaN where a cell is missing or is no finite number."""
    return number_block(cells.to_frame(), markers)[0][:, 0]


def number_block(frame: "DataFrame", markers: Collection[str] = ()) -> tuple[np.ndarray, np.ndarray]:
    """All cells of a table in one go, (rows, columns) in float64 with NaN for none, and which cells are text."""
    import pandas

    if all(kind.kind in "fiub" for kind in frame.dtypes):
        values = frame.to_numpy(dtype=np.float64, na_value=np.nan)
        text = np.abs(values) >= HUGE
    else:
        flat = frame.to_numpy(dtype=object).ravel()
        cells = pandas.Series(flat, dtype=object)
        numbers = _floats(flat)
        if numbers is None:
            numbers = pandas.to_numeric(cells, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
        odd = np.flatnonzero(~(np.abs(numbers) < HUGE))
        text = np.zeros(len(cells), dtype=bool)
        text[odd] = ~is_missing(cells.iloc[odd], (*markers, NONE)).to_numpy(dtype=bool)
        values, text = numbers.reshape(frame.shape), text.reshape(frame.shape)
    coded = [float(marker) for marker in markers if is_number(marker)]
    gone = ~(np.abs(values) < HUGE) | (np.isin(values, coded) if coded else False)
    return np.where(gone, np.nan, values), text


def _floats(cells: np.ndarray) -> np.ndarray | None:
    """Cells of text as numbers, four times as fast as pandas; None where it takes pandas to tell."""
    try:
        text = "".join(cells)
    except TypeError:  # not all are text
        return None
    if "_" in text or not text.isascii():  # Python reads 1_000 and numbers in other scripts
        return None
    with suppress(ValueError):
        return cells.astype(np.float64)
    with suppress(ValueError):
        return np.array([GAPS.get(cell, cell) for cell in cells], dtype=object).astype(np.float64)
    return None


def check_no_text(frame: "DataFrame", columns: Sequence[str], text: np.ndarray) -> None:
    """Raise DataError, by column and count, where cells among numbers are ``text``, and say what they look like."""
    held = [
        f"{columns[place]!r} ({count} of {len(frame)} rows)" for place, count in enumerate(text.sum(axis=0)) if count
    ]
    if not held:
        return
    named, more = ", ".join(held[:8]), f" and {len(held) - 8} more columns" if len(held) > 8 else ""
    raise DataError(f"text where numbers are expected, in column {named}{more}. {_cure(frame, columns, text)}")


def _cure(frame: "DataFrame", columns: Sequence[str], text: np.ndarray) -> str:
    row, place = (int(index[0]) for index in np.nonzero(text))
    cell = str(frame[columns[place]].iloc[row]).strip()
    if DATE.fullmatch(cell):
        return "It looks like dates: make them numbers (an age, days since), or leave them out with drop = [...]"
    if is_number(cell):
        return "It is infinite, or as large as codes for no value: make it a number, or name it in missing = [...]"
    if COMMA.fullmatch(cell):
        return 'It looks like numbers with a decimal comma: decimal = ","'
    return (
        "Make it numbers, or name the column in categorical = [...] or in drop = [...]; where the text stands for a "
        "missing value, name it in missing = [...]"
    )


def plain(label: object) -> str:
    """A label as text, whole numbers without a decimal point: "1.0" and "1" are one; codes as 1E50 and 1_2 stay."""
    text = normalize("NFC", str(label)).strip()  # macOS writes an umlaut in a file's name as two characters
    return str(int(text.partition(".")[0])) if WHOLE.fullmatch(text) else text


def is_number(text: str) -> bool:
    """Whether a text is a number; to Python 1_2 is one, too."""
    with suppress(ValueError):
        float(text)
        return "_" not in text
    return False


def _read_parquet(path: Path) -> "DataFrame":
    """A Parquet file: numbers as they are held, all else as text; a named index is a column."""
    import pandas

    damaged = import_extra("data", "pyarrow").ArrowException
    with as_data_error("the file is not Parquet, or is damaged", damaged, OSError, ValueError):
        frame = pandas.read_parquet(path)
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
    return frame.assign(**{name: [_as_text(cell) for cell in column] for name, column in cells.items()})


def _read_excel(path: Path, sheet: str | None) -> list[list[str]]:
    """The rows of the one visible sheet with anything in it, or of the ``sheet`` of that name, as text."""
    try:
        from openpyxl import load_workbook
        from openpyxl.utils.exceptions import InvalidFileException
    except ImportError as wrong:
        raise DataError("Excel is read by openpyxl: pip install 'fedsmall[excel]', or save it as CSV") from wrong
    from xml.etree.ElementTree import ParseError
    from zipfile import BadZipFile

    unreadable = (InvalidFileException, BadZipFile, ParseError, OSError, ValueError, LookupError, TypeError)
    with as_data_error("the file is no Excel workbook, is damaged, or is protected by a password", *unreadable):
        book = load_workbook(path, read_only=True, data_only=True)
        sheets = [page for page in book.worksheets if page.sheet_state == "visible" and hasattr(page, "iter_rows")]
        filled = {page.title: rows for page in sheets if (rows := _sheet_rows(page))}  # a chart has no rows
        book.close()
    if sheet is not None and sheet not in filled:
        raise DataError(f"there is no visible sheet {sheet!r} with anything in it")
    if sheet is None and len(filled) > 1:
        raise DataError(f"{len(filled)} sheets hold something; say which is meant: sheet = ... in a task, or --sheet")
    return next((rows for title, rows in filled.items() if sheet in (None, title)), [])


def _as_text(cell: Any) -> str:
    if cell is None or cell != cell:
        return ""
    if hasattr(cell, "isoformat"):
        return str(cell.isoformat()).removesuffix("T00:00:00")
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15 else str(cell)


def _sheet_rows(sheet: Any) -> list[list[str]]:
    rows = [[_as_text(cell).strip() for cell in row] for row in sheet.iter_rows(values_only=True)]
    widths = [max((place + 1 for place, cell in enumerate(row) if cell), default=0) for row in rows]
    width, end = max(widths, default=0), max((line + 1 for line, filled in enumerate(widths) if filled), default=0)
    return [(row + [""] * width)[:width] for row in rows[:end]]


def read_table(
    path: Path, separator: str | None = None, decimal: str = ".", names: Sequence[str] = (), sheet: str | None = None
) -> "DataFrame":
    """Cells of a table as text, with its header's names or ``names``; DataError, with the file's name, for no table."""
    with in_file(path):
        if path.name.startswith(LOCK):
            raise DataError("it is what Excel leaves beside a file that is open, and no table; close Excel")
        if (ending := path.suffix.lower()) in OLD_EXCEL:
            raise DataError(f"{ending} files are not read; save it as .xlsx or CSV")
        if is_query(path):
            return load_extension(TABLES, ending[1:]).read(path)
        if ending in PARQUET:
            return _read_parquet(path)
        if ending in EXCEL:
            rows = [(line, row) for line, row in enumerate(_read_excel(path, sheet), 1) if any(row)]
            return _frame_of(rows, names, "")
        text = _text(path)
        return _frame_of(list(_lines(text, separator or _find_separator(text))), names, decimal)


def _find_separator(text: str) -> str:
    """The mark that makes most cells of a header, and as many of the next line; blanks where no mark makes two."""
    widths = {mark: [len(row) for _, row in islice(_lines(text[:HEAD], mark), 2)] for mark in f"{SEPARATORS} "}
    fits = {mark: len(set(found)) == 1 and found[0] > 1 for mark, found in widths.items()}
    best = max(SEPARATORS, key=lambda mark: (fits[mark], widths[mark]))
    return " " if fits[" "] and widths[best][0] == 1 else best


def is_query(path: Path | None) -> bool:
    """Whether a file's rows lie elsewhere, and may be others the next time: an extension reads them."""
    return path is not None and path.suffix.lower()[1:] in extensions(TABLES)


def queries(path: Path | None) -> dict[str, str]:
    """The query of a site's data by the kind of it, for the site's own log; none where a file holds the data."""
    kind = path.suffix.lower()[1:] if path is not None and is_query(path) else ""
    return {kind: load_extension(TABLES, kind).query(path)} if kind else {}


def check_header(frame: "DataFrame") -> None:
    """Raise DataError where two columns have one name, or the header is made of a patient's numbers."""
    names = [str(name) for name in frame.columns]
    unnamed = sum(name.startswith(UNNAMED) for name in names)
    if unnamed * 2 > len(names):
        raise DataError(f"the first line is no header: {unnamed} of its {len(names)} cells are empty")
    numbers = [name for name in names if is_number(name.replace(",", ".")) and name.lower() not in NO_NUMBERS]
    counted = {str(place) for place in range(len(names) + 1)}  # as a program names columns that have no names
    if len(numbers) * 2 >= len(names) and not set(numbers) <= counted:
        raise DataError(
            f"the first line looks like a patient and not like a header: {len(numbers)} of its {len(names)} names are "
            "numbers. Put a line with the columns' names before it"
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(f"{len(twice)} duplicate column names; give every column its own", file=f"column {twice[0]!r}")


def common_columns(frames: Mapping[str, "DataFrame"], left_out: set[str]) -> list[str]:
    """The columns of all sites in the order of the first, without those ``left_out``; DataError where they differ."""
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
    name, listed = ("features", shared) if len(shared) <= LISTED else ("drop", sorted({*having} - {*shared}))
    columns_of = json.dumps(listed, ensure_ascii=False)
    line = f", or take those that all have: {name} = {columns_of}" if shared else ""
    raise DataError(
        f"site {site!r} {has} {column!r}, which is at {having[column]} of {len(frames)} sites.{alike} "
        f"Give all sites the same columns{line}"
    )


def _frame_of(rows: Sequence[tuple[int, list[str]]], names: Sequence[str], decimal: str) -> "DataFrame":
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


def _lines(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    text = re.sub(" +$", "", text, flags=re.M) if separator == " " else text
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
            "its rows differ in length. A separator within a cell needs quotes around the cell",
            file=f"line {line} has {cells} cells and the header {width}{more}",  # of which none leaves a hospital
        )


def _text(path: Path) -> str:
    raw = path.read_bytes()
    if path.suffix.lower() == ".gz":
        words = "the file is not a table: it ends in .gz and is not compressed, or is cut short"
        with as_data_error(words, OSError, EOFError, zlib.error):
            raw = gzip.decompress(raw)
    if MARKUP.match(raw):
        raise DataError("the file is not a table but a web page, XML or JSON; save it as CSV")
    if raw.startswith(SPREADSHEETS):
        raise DataError("the file is not a table of text but a spreadsheet; name it .xlsx, or save it as CSV")
    encodings = ["utf-8-sig", "cp1252"]
    if raw.startswith(UTF_16) and not raw.startswith(UTF_32):
        encodings = ["utf-16"]
    elif b"\x00" in raw[:10_000]:
        raise DataError("the file is not a table of text: it holds zero bytes; save it as CSV in UTF-8")
    for encoding in encodings:
        with suppress(UnicodeDecodeError):
            text = REMARKS.sub(lambda remarks: "\n" * remarks[0].count("\n"), raw.decode(encoding))
            return text if text.isascii() else normalize("NFC", text.translate(FIXED_BLANKS))
    raise DataError("the file is not a table of text in UTF-8; save it as CSV in UTF-8")
