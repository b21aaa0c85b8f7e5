"""What bad tables get: a table of cases with the line that each is told, and notes on columns that are odd."""

import csv as csv_files
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsmall.data.preparation import Columns
from fedsmall.data.sources import tables
from fedsmall.data.sources.labels import spelling_key
from fedsmall.data.sources.tables import csv
from fedsmall.data.table_files import MISSING, NONE, is_missing, number_block, plain, read_table
from fedsmall.errors import DataError, PlanError
from fedsmall.planning.tasks import build_federation
from tests.fedsmall.data.test_sources import plan

GOOD = "age,dose,ill\n50,1.5,0\n61,2.5,1\n47,0.5,0\n70,3.5,1\n"
OTHER = "age,dose,ill\n51,1.0,0\n66,2.0,1\n"

ERRORS: dict[str, tuple[dict[str, str | bytes], dict[str, Any], str]] = {
    "two files of one site": (
        {"essen.csv": GOOD, "essen.data": OTHER},
        {},
        "site 'essen' has two files, essen.csv and essen.data; keep one of them",
    ),
    "one site in two cases": (
        {"Essen.csv": GOOD, "essen.csv": OTHER},
        {},
        "site 'Essen' has two files, Essen.csv and essen.csv; keep one of them",
    ),
    "classes in two spellings": (
        {
            "a.csv": GOOD.replace(",0\n", ",well\n").replace(",1\n", ",ill\n"),
            "b.csv": "age,dose,ill\n5,1,Ill\n6,2,well\n",
        },
        {},
        'classes \'ill\' and \'Ill\' look like one in two spellings. Say so: classes = {"ill" = ["Ill"], "well" = []}',
    ),
    "classes in two languages": (
        {"a.csv": "x,ill\n1,ill\n2,well\n", "b.csv": "x,ill\n1,gesund\n2,krank\n"},
        {},
        "sites 'a' and 'b' have no class in common: ill, well and gesund, krank. Say which mean the same: "
        'classes = {"ill" = [...], "well" = [...]}',
    ),
    "one spelling is two classes": (
        {"a.csv": GOOD},
        {"classes": {"0": ["1"], "1": []}},
        "classes says that '1' is two classes, '1' and '0'",
    ),
    "no header": (
        {"a.csv": "50,1.5,0\n61,2.5,1\n"},
        {"label": "0"},
        "site 'a': the first line looks like a patient and not like a header: 3 of its 3 names are numbers. Put a line "
        "with the columns' names before it",
    ),
    "a row that is too long": (
        {"a.csv": GOOD + "71,3.5,1,1\n"},
        {},
        "a.csv, line 6 has 4 cells and the header 3: its rows differ in length. A separator within a cell needs quotes "
        "around the cell",
    ),
    "rows that are too short": (
        {"a.csv": GOOD + "71,3.5\n72\n"},
        {},
        "a.csv, line 6 has 2 cells and the header 3, and so does 1 more: its rows differ in length. A separator within "
        "a cell needs quotes around the cell",
    ),
    "a column twice": (
        {"a.csv": "age,age,ill\n1,2,0\n3,4,1\n"},
        {},
        "site 'a', column 'age': 1 duplicate column names; give every column its own",
    ),
    "a column to drop that is not there": (
        {"a.csv": GOOD},
        {"drop": ["doze"]},
        "there is no column 'doze' (to be left out with drop). Did you mean 'dose'?",
    ),
    "UTF-16 without its mark": (
        {"a.csv": GOOD.encode("utf-16-le")},
        {},
        "a.csv: the file is not a table of text: it holds zero bytes; save it as CSV in UTF-8",
    ),
    "a spreadsheet called csv": (
        {"a.csv": b"PK\x03\x04more"},
        {},
        "a.csv: the file is not a table of text but a spreadsheet; name it .xlsx, or save it as CSV",
    ),
    "a decimal comma": (
        {"a.csv": GOOD.replace(",", ";").replace(".", ",")},
        {},
        "site 'a': text where numbers are expected, in column 'dose' (4 of 4 rows). It looks like numbers with a "
        'decimal comma: decimal = ","',
    ),
    "dates": (
        {"a.csv": "born,ill\n12.04.1950,0\n13.05.1961,1\n"},
        {},
        "site 'a': text where numbers are expected, in column 'born' (2 of 2 rows). It looks like dates: make them "
        "numbers (an age, days since), or leave them out with drop = [...]",
    ),
    "a missing marker that nobody knows": (
        {"a.csv": GOOD + "<5,1.0,0\n"},
        {},
        "site 'a': text where numbers are expected, in column 'age' (1 of 5 rows). Make it numbers, or name the column "
        "in categorical = [...] or in drop = [...]; where the text stands for a missing value, name it "
        "in missing = [...]",
    ),
    "missing is no list": (
        {"a.csv": GOOD},
        {"missing": "-9"},
        'missing lists words and codes that stand for no value, as in ["-9", "<5"]; got \'-9\'',
    ),
    "a header and nothing else": (
        {"a.csv": GOOD, "b.csv": "age,dose,ill\n"},
        {},
        "site 'b': there is no row under the header; a site needs at least one patient",
    ),
    "compressed and cut short": (
        {"a.csv.gz": b"\x1f\x8b\x08\x00"},
        {},
        "a.csv.gz: the file is not a table: it ends in .gz and is not compressed, or is cut short",
    ),
}


def folder(path: Path, files: dict[str, str | bytes]) -> str:
    for name, content in files.items():
        (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize("case", ERRORS)
def test_a_bad_table_is_one_line(tmp_path: Path, case: str) -> None:
    files, options, line = ERRORS[case]

    with pytest.raises((DataError, PlanError)) as caught:
        csv(None, 0, folder(tmp_path, files), **{"label": "ill", **options})

    assert str(caught.value) == line
    assert not isinstance(caught.value, DataError) or "a.csv" not in caught.value.words or "two files" in line


@pytest.mark.parametrize("name", [".~lock.essen.csv#", "._essen.csv", "~$essen.csv"])
def test_files_that_programs_leave_are_no_sites(tmp_path: Path, name: str) -> None:
    pool = csv(None, 0, folder(tmp_path, {"essen.csv": GOOD, name: b"\x00x"}), label="ill")

    assert list(pool.train) == ["essen"]


def test_spellings_of_a_class_are_one_class(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {"a.csv": "x,ill\n1,ill\n2,well\n", "b.csv": "x,ill\n1,Krank\n2,gesund\n"}
    classes = {"well": ["gesund"], "ill": ["Krank"]}

    pool = csv(None, 0, folder(tmp_path, files), label="ill", classes=classes)

    assert pool.class_names == ("well", "ill")
    assert [part.y.tolist() for part in pool.train.values()] == [[1, 0], [1, 0]]


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        *(("HER2+", "HER2-", False), ("ER-/PR+", "ER+/PR+", False), ("0 -", "0 +", False), ("<5", ">=5", False)),
        *(("T1.5", "T15", False), ("1-2 drinks", "12 drinks", False), ("1,5 mg", "15 mg", False), ("-1", "1", False)),
        *(("Ill", "ill ", True), ("non-small cell", "Non small_cell", True), ("Covid-19", "COVID 19", True)),
        *(("n/a", "NA", True), ("5 - 10", "5-10", True), ("pre - op", "pre-op.", True)),
        *(("ER\N{MINUS SIGN}", "er-", True), ("1_2", "12", False), ("a_b", "AB", True)),
    ],
)
def test_signs_are_no_spelling(one: str, other: str, are_alike: bool) -> None:
    assert (spelling_key(one) == spelling_key(other)) == are_alike


@pytest.mark.parametrize(
    ("cell", "label"),
    [
        *(("1.0", "1"), ("007", "7"), ("-9.00", "-9"), ("+3", "3"), ("-0", "0"), (2.0, "2"), ("0.50", "0.50")),
        ("Gro\u0308\u00dfe", "Gr\u00f6\u00dfe"),  # as macOS names a folder
        *(("1E50", "1E50"), ("12e5", "12e5"), ("1_23", "1_23"), ("9" * 5000, "9" * 5000)),  # codes, as ICD-11 has them
    ],
)
def test_a_label_is_a_whole_number_or_what_it_says(cell: object, label: str) -> None:
    assert plain(cell) == label


def test_names_in_two_ways_of_writing_an_umlaut_are_one(tmp_path: Path) -> None:
    table = "gr\u00f6\u00dfe,state\n1,kr\u00e4nker\n2,well\n"
    files: dict[str, str | bytes] = {
        "a.csv": table,
        "b.csv": table.replace("\u00f6", "o\u0308").replace("\u00e4", "a\u0308"),
    }

    pool = csv(None, 0, folder(tmp_path, files), label="state")

    assert (pool.class_names, pool.feature_names) == (("kr\u00e4nker", "well"), ("gr\u00f6\u00dfe",))


@pytest.mark.parametrize("pair", [("1_23", "12_3"), ("12e4", "120e3"), ("1E2", "100")])
def test_patients_whose_names_python_reads_as_one_number_are_two(tmp_path: Path, pair: tuple[str, str]) -> None:
    rows = [f"{number},{pair[number % 2]},{'ill' if number % 3 else 'well'}" for number in range(12)]
    files: dict[str, str | bytes] = {"a.csv": "\n".join(["x,pid,state", *rows])}

    pool = csv(None, 0, folder(tmp_path, files), label="state", patient="pid")

    assert len(set(np.asarray(pool.train["a"].patients).tolist())) == 2


def test_sites_of_one_class_each_are_no_languages(tmp_path: Path) -> None:
    pool = csv(None, 0, folder(tmp_path, {"a.csv": "x,ill\n1,no\n2,no\n", "b.csv": "x,ill\n1,yes\n"}), label="ill")

    assert pool.class_names == ("no", "yes")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings_are_told_apart(tmp_path: Path, encoding: str) -> None:
    text = GOOD.replace("dose", "größe")

    pool = csv(None, 0, folder(tmp_path, {"a.csv": text.encode(encoding)}), label="ill")

    assert pool.feature_names == ("age", "größe")


@pytest.mark.parametrize(
    ("header", "is_read"),
    [
        ("[age],[dose]", True),  # as SQL Server writes names
        ("<LLOQ,dose", True),
        ("{id},dose", True),
        ("<!DOCTYPE html>", False),
        ("<table class='x'>", False),
        ('{ "age": [1] }', False),
        ('\ufeff[{"age": 1}]', False),
        ("[[1, 2]]", False),
    ],
)
def test_a_header_in_brackets_is_no_web_page(tmp_path: Path, header: str, is_read: bool) -> None:
    (tmp_path / "t.csv").write_text(header + "\n50,1.5\n", encoding="utf-8")
    if is_read:
        assert list(read_table(tmp_path / "t.csv").columns) == header.split(",")
        return
    with pytest.raises(DataError, match="web page, XML or JSON"):
        read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
@pytest.mark.parametrize("names", [["a,b", "c"], ["a, b;c;d|e", "f\tg"], ["a\nb, c", 'so-called "d, e"'], ["x y,z"]])
def test_marks_within_quotes_separate_nothing(tmp_path: Path, mark: str, names: list[str]) -> None:
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv_files.writer(file, delimiter=mark, quoting=csv_files.QUOTE_NONNUMERIC).writerows([names, range(len(names))])

    assert list(read_table(tmp_path / "t.csv").columns) == [re.sub(r"[\n\t]", " ", name) for name in names]


@pytest.mark.parametrize("mark", [";", "\t", "|"])
def test_of_marks_in_a_header_the_one_of_the_next_line_separates(tmp_path: Path, mark: str) -> None:
    (tmp_path / "t.csv").write_text(f"age, years{mark}dose, mg\n50{mark}1.5\n", encoding="utf-8")

    assert list(read_table(tmp_path / "t.csv").columns) == ["age, years", "dose, mg"]


def test_missing_markers_are_gaps_and_said(tmp_path: Path) -> None:
    text = "age,dose,ill\n50,k.A.,0\n-9,2.5,1\n<5,-,0\n70,-9.0,1\n"

    pool = csv(None, 0, folder(tmp_path, {"a.csv": text}), label="ill", missing=["<5", -9])

    np.testing.assert_array_equal(pool.train["a"].x, [[50, np.nan], [np.nan, 2.5], [np.nan, np.nan], [70, np.nan]])
    assert pool.notes[-1] == "Taken as missing values: '-', '-9', '-9.0', '<5', 'k.A.'"
    assert pool.form is not None
    frame = pandas.DataFrame({"age": ["<5"], "dose": ["3"]})
    np.testing.assert_array_equal(pool.form.numbers(frame), [[np.nan, 3]])


def test_what_stands_for_no_value_is_no_category(tmp_path: Path) -> None:
    text = "age,diabetes,ill\n50,yes,0\n60,unknown,1\n55,no,0\n70,yes,1\n"

    pool = csv(None, 0, folder(tmp_path, {"a.csv": text}), label="ill", categorical=["diabetes"], missing=["unknown"])

    assert pool.form is not None
    assert pool.form.categories == {"diabetes": ("no", "yes")}
    np.testing.assert_array_equal(pool.train["a"].x[1], [60, np.nan, np.nan])


def test_hospitals_that_have_no_number_in_common_are_told_of_targets(tmp_path: Path) -> None:
    tables = {f"{name}.csv": "age,y\n" + "".join(f"5{n},{n}.{k}5\n" for n in range(4)) for k, name in enumerate("abc")}

    with pytest.raises(DataError, match=r"no class in common: .* Numbers to predict are a target, no label"):
        csv(None, 0, folder(tmp_path, tables), label="y")


def test_a_name_that_looks_like_a_category_s_value_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path, {"a.csv": "age,Rh=D,ill\n50,1000,0\n60,2000,1\n"})

    with pytest.raises(DataError, match="column 'Rh=D': rename it"):
        csv(None, 0, path, label="ill")
    assert csv(None, 0, path, label="ill", drop=["Rh=D"]).feature_names == ("age",)


def test_odd_columns_are_noted_by_name(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = 40
    frame = pandas.DataFrame(
        {
            "patient_id": rng.permutation(rows) + 1000,
            "row": rng.permutation(rows),
            "clinic": 7,
            "visit": [f"2024-01-{day % 28 + 1:02d}" for day in range(rows)],
            "age": rng.integers(20, 90, rows),
            "grade": np.arange(rows) % 2 * 3 + 1,
            "ill": np.arange(rows) % 2,
        }
    )
    frame.to_csv(tmp_path / "a.csv", index=False)

    notes = csv(None, 0, str(tmp_path), label="ill", categorical=["visit"]).notes

    assert notes == (
        "Columns that hold one value only, and say nothing: clinic. Leave them out",
        "Columns that look like identifiers, a number for each row: patient_id, row. Leave them out",
        "Columns that look like identifiers by their names: patient_id. Leave them out",
        "Columns that have nearly as many values as rows, a feature for each: visit. Leave them out",
        "Columns that look like dates, a feature for each: visit. Leave them out",
        "Columns that say the class by themselves: grade. Leave them out",
    )


def test_plain_columns_are_not_noted(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"age": rng.integers(20, 90, 60), "dose": rng.normal(size=60), "ill": np.arange(60) % 2})
    frame.to_csv(tmp_path / "a.csv", index=False)

    assert csv(None, 0, str(tmp_path), label="ill").notes == ()


CELLS = [
    "1",
    "-3.25",
    "1e-7",
    " 2.5",
    "?",
    "",
    "NA",
    "k.A.",
    "x",
    "inf",
    "1_000",
    "\u0663",
    "0x1f",
    "1,5",
    "nan",
    "+4.",
]


@given(st.lists(st.sampled_from(CELLS), min_size=1, max_size=12))
def test_cells_are_the_numbers_that_pandas_makes_of_each(cells: list[str]) -> None:
    values, text = number_block(pandas.DataFrame({"a": cells}, dtype=object))

    for cell, value, odd in zip(cells, values[:, 0], text[:, 0], strict=True):
        alone = pandas.to_numeric(pandas.Series([cell], dtype=object), errors="coerce")[0]
        number = alone if np.isfinite(alone) else np.nan
        assert value == number or (np.isnan(value) and np.isnan(number))
        assert odd == (np.isnan(number) and cell.strip().lower() not in {*MISSING, NONE})


@pytest.mark.parametrize(
    ("cells", "gaps"),
    [
        (["none", "mild", "severe", ""], [False, False, False, True]),
        (["None", "None"], [False, False]),  # a hospital at which nobody has had it
        (["none", "1.5", "NA"], [True, False, True]),
        (["none", "nan", "mild"], [False, True, False]),
        ([None, "mild", "none"], [True, False, False]),
    ],
)
def test_none_among_numbers_is_no_value_and_among_words_it_is_one(cells: list[Any], gaps: list[bool]) -> None:
    assert is_missing(pandas.Series(cells, dtype=object)).tolist() == gaps


def test_none_is_a_category_where_it_is_listed_whatever_other_rows_hold() -> None:
    listed = Columns(columns=("age", "pain"), categories={"pain": ("mild", "none")})
    coded = Columns(columns=("age", "pain"), categories={"pain": ("1", "2")}, missing=False)
    new = pandas.DataFrame({"age": ["50"], "pain": ["none"]}, dtype=object)

    assert listed.numbers(new).tolist() == [[50, 0, 1]]
    assert listed.faults(new) == [""]
    assert coded.faults(new) == ["pain is missing"]


def test_a_hospital_where_all_have_none_trains_with_the_others(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("age,pain\n50,none\n61,severe\n47,none\n70,severe\n")
    (tmp_path / "b.csv").write_text("age,pain\n51,none\n66,none\n")

    federation = build_federation(plan({"csv": str(tmp_path), "label": "pain"}, sites=None, samples_per_site=None))

    assert federation.task.class_names == ("none", "severe")
    assert [set(train.y.tolist()) for train in federation.train] == [{0, 1}, {0}]


def test_numbers_are_rounded_as_pandas_rounds_them() -> None:
    rng = np.random.default_rng(0)
    cells = [repr(float(value)) for value in np.exp(20 * rng.normal(size=5000))]

    fast = number_block(pandas.DataFrame({"a": cells}, dtype=object))[0][:, 0]
    slow = number_block(pandas.DataFrame({"a": [*cells, "x"]}, dtype=object))[0][:-1, 0]

    np.testing.assert_array_equal(fast, slow)
    np.testing.assert_array_equal(fast, [float(cell) for cell in cells])


def test_files_are_read_once_for_all_seeds_and_again_when_they_change(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "a.csv").write_text(GOOD * 1 + "55,1.25,0\n58,2.25,1\n" * 1)
    read: list[str] = []
    monkeypatch.setattr(
        tables.table_files, "read_table", lambda path, *a, **b: read.append(path.name) or read_table(path, *a, **b)
    )
    task = {"csv": str(tmp_path / "a.csv"), "label": "ill"}

    def feature(seed: int, **settings: Any) -> float:
        federation = build_federation(plan({**task, **settings}, sites=2, samples_per_site=None, seed=seed))
        return sum(len(site) for site in federation.train) + len(federation.test)

    assert [feature(seed) for seed in range(3)] == [6, 6, 6]
    assert read == ["a.csv"]
    (tmp_path / "a.csv").write_text(GOOD)
    assert feature(0) == 4
    feature(0, drop=["dose"])
    assert read == ["a.csv"] * 3


def test_a_table_as_a_whole_is_its_columns_one_by_one() -> None:
    rng = np.random.default_rng(1)
    words = np.array(["1", " 2.5", "-3e2", "?", "", "NA", "x", "inf", "-9", "0"], dtype=object)
    frame = pandas.DataFrame(words[rng.integers(0, len(words), (50, 6))])

    values, text = number_block(frame, ["-9"])

    for place in range(6):
        one, its_text = number_block(frame[[place]], ["-9"])
        np.testing.assert_array_equal(values[:, [place]], one)
        np.testing.assert_array_equal(text[:, [place]], its_text)
    np.testing.assert_array_equal(text, frame.isin(["x", "inf"]))
    np.testing.assert_array_equal(np.isnan(values), frame.isin(["?", "", "NA", "x", "inf", "-9"]))
