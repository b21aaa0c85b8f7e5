"""Parquet files and Excel workbooks are read as the CSV of the same table is, and refused in one line as it is."""

import datetime
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from fedsmall.data.sources.tables import csv
from fedsmall.errors import DataError

FRAME = pandas.DataFrame(
    {
        "age": [50, 61, 47, 70, 33, 58],
        "dose": [1.5, None, 0.125, 3.5e-7, 1e10, 2.0],
        "sex": ["f", "m", "m", None, "f", "m"],
        "ill": ["yes", "no", "yes", "no", "yes", "no"],
    }
)
WRITE: dict[str, Callable[[pandas.DataFrame, Path], None]] = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path, index=False),
    "xlsx": lambda frame, path: frame.to_excel(path, index=False),
}
KINDS = ("parquet", "xlsx")


def written(folder: Path, kind: str, frame: pandas.DataFrame = FRAME, name: str = "a") -> str:
    if kind == "xlsx":
        pytest.importorskip("openpyxl")
    path = folder / f"{name}.{kind}"
    WRITE[kind](frame, path)
    return str(path)


def workbook(path: Path, *sheets: tuple[str, list[list[Any]], str]) -> str:
    book = pytest.importorskip("openpyxl").Workbook()
    book.remove(book.active)
    for title, rows, state in sheets:
        sheet = book.create_sheet(title)
        sheet.sheet_state = state
        for row in rows:
            sheet.append(row)
    book.save(path)
    return str(path)


ROWS = [["x", "ill"], *([row / 4, row % 2] for row in range(8))]
OTHER = [["remark"], ["by hand"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_the_same_in_every_kind_of_file(tmp_path: Path, kind: str) -> None:
    options: dict[str, Any] = {"label": "ill", "categorical": ["sex"]}

    plain, other = (csv(None, 0, written(tmp_path, each), **options) for each in ("csv", kind))

    np.testing.assert_array_equal(other.train[""].x, plain.train[""].x)
    np.testing.assert_array_equal(other.train[""].y, plain.train[""].y)
    assert (other.form, other.class_names, other.notes) == (plain.form, plain.class_names, plain.notes)


BAD: dict[str, tuple[pandas.DataFrame, str]] = {
    "text among numbers": (
        FRAME.assign(dose=["low"] * 6),
        r"text where numbers are expected, in column 'dose' \(6 of 6",
    ),
    "no finite number": (FRAME.assign(dose=float("inf")), r"It is infinite"),
    "Stata's missing": (FRAME.assign(dose=[1.5, 2, 3, 4, 5, 2.0**1023]), r"or as large as codes for no value"),
    "dates": (FRAME.assign(dose=pandas.Timestamp("2024-05-01")), r"It looks like dates"),
    "a header and no row": (FRAME.iloc[:0], "there is no row under the header"),
    "a patient for a header": (FRAME.set_axis(["50", "1.5", "f", "0"], axis=1), "looks like a patient"),
    "a row without a label": (FRAME.assign(ill=["yes", None, "yes", "no", "yes", "no"]), "'ill' is empty in 1 of 6"),
    "one class": (FRAME.assign(ill="yes"), "all samples have one label"),
    "two spellings": (FRAME.assign(ill=["yes", "no", "Yes", "no", "yes", "no"]), "look like one in two spellings"),
}


@pytest.mark.parametrize("kind", ["csv", *KINDS])
@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_said_as_for_a_csv(tmp_path: Path, kind: str, case: str) -> None:
    frame, words = BAD[case]

    with pytest.raises(DataError, match=words) as caught:
        csv(
            None,
            0,
            written(tmp_path, kind, frame),
            label="ill" if case != "a patient for a header" else "0",
            drop=["sex"],
        )

    assert "\n" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_one_line_with_its_name(tmp_path: Path, kind: str) -> None:
    path = Path(written(tmp_path, kind))
    for broken in (path.read_bytes()[:200], b"", b"age,ill\n1,0\n"):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=rf"^a\.{kind}: the file is (not|no) .* damaged"):
            csv(None, 0, str(path), label="ill")


def test_sites_may_hold_files_of_different_kinds(tmp_path: Path) -> None:
    for name, kind in (("essen", "csv"), ("graz", "parquet"), ("liege", "xlsx")):
        written(tmp_path, kind, FRAME.drop(columns="sex"), name)
    (tmp_path / "~$liege.xlsx").write_bytes(b"\x05owner")

    pool = csv(None, 0, str(tmp_path), label="ill")

    assert list(pool.train) == ["essen", "graz", "liege"]
    np.testing.assert_array_equal(pool.train["essen"].x, pool.train["graz"].x)
    np.testing.assert_array_equal(pool.train["essen"].x, pool.train["liege"].x)
    written(tmp_path, "csv", FRAME, "liege")
    with pytest.raises(DataError, match=r"site 'liege' has two files, liege\.csv and liege\.xlsx"):
        csv(None, 0, str(tmp_path), label="ill")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("~$a.xlsx", "what Excel leaves beside a file that is open"),
        ("a.xls", r"\.xls files are not read; save it as \.xlsx or CSV"),
        ("a.ods", r"\.ods files are not read"),
    ],
)
def test_what_is_no_table_by_its_name_is_one_line(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_bytes(b"\xd0\xcf\x11\xe0")

    with pytest.raises(DataError, match=words):
        csv(None, 0, str(tmp_path / name), label="ill")


def test_a_hidden_sheet_is_no_table(tmp_path: Path) -> None:
    path = workbook(
        tmp_path / "a.xlsx", ("old", OTHER, "hidden"), ("very old", ROWS, "veryHidden"), ("now", ROWS, "visible")
    )

    assert len(csv(None, 0, path, label="ill").train[""]) == 8


def test_sheets_are_told_apart_by_name_or_refused(tmp_path: Path) -> None:
    path = workbook(
        tmp_path / "a.xlsx", ("notes", OTHER, "visible"), ("empty", [], "visible"), ("data", ROWS, "visible")
    )

    assert len(csv(None, 0, path, label="ill", sheet="data").train[""]) == 8
    with pytest.raises(DataError, match=r"a\.xlsx: 2 sheets hold something; say which is meant: sheet = "):
        csv(None, 0, path, label="ill")
    with pytest.raises(DataError, match="there is no visible sheet 'dta' with anything in it"):
        csv(None, 0, path, label="ill", sheet="dta")


def test_a_workbook_of_hidden_sheets_is_empty(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", ("empty", [], "visible"), ("data", ROWS, "hidden"))

    with pytest.raises(DataError, match="it is empty"):
        csv(None, 0, path, label="ill")


def test_a_title_over_the_table_is_no_header(tmp_path: Path) -> None:
    rows = [["Patients of 2024"], ["age", "dose", "ill"], *([40 + row, row / 2, row % 2] for row in range(6))]
    path = workbook(tmp_path / "a.xlsx", ("data", rows, "visible"))

    with pytest.raises(DataError, match="the first line is no header: 2 of its 3 cells are empty"):
        csv(None, 0, path, label="ill")


def test_empty_ends_of_a_sheet_are_left_out_and_dates_are_dates(tmp_path: Path) -> None:
    rows = [[*row, None, ""] for row in ROWS] + [[None] * 4, ["", ""]]
    path = workbook(tmp_path / "a.xlsx", ("data", rows, "visible"))
    dated = [["seen", "ill"], *([datetime.date(2024, 1, 1 + row), row % 2] for row in range(8))]
    of_dates = workbook(tmp_path / "b.xlsx", ("data", dated, "visible"))

    pool = csv(None, 0, path, label="ill")

    assert (len(pool.train[""]), pool.feature_names) == (8, ("x",))
    with pytest.raises(DataError, match="It looks like dates"):
        csv(None, 0, of_dates, label="ill")


def test_a_named_index_of_parquet_is_a_column_and_another_is_none(tmp_path: Path) -> None:
    named = FRAME.drop(columns="sex").set_index("age")
    named.to_parquet(tmp_path / "named.parquet")
    named.reset_index(drop=True).iloc[::-1].to_parquet(tmp_path / "plain.parquet")

    assert csv(None, 0, str(tmp_path / "named.parquet"), label="ill").feature_names == ("age", "dose")
    assert csv(None, 0, str(tmp_path / "plain.parquet"), label="ill").feature_names == ("dose",)


def test_without_openpyxl_it_says_what_to_install(tmp_path: Path, monkeypatch: Any) -> None:
    path = written(tmp_path, "xlsx")
    monkeypatch.setitem(sys.modules, "openpyxl", None)

    with pytest.raises(DataError, match=r"pip install 'fedsmall\[excel\]', or save it as CSV"):
        csv(None, 0, path, label="ill")
