"""What hospitals' files are like: each case is files, a scenario's keys, and what becomes of it."""

import csv
import gzip
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

Content = str | bytes | None  # None is a folder


class Case(NamedTuple):
    """``files`` by their paths, the scenario's ``keys``, and what comes: samples, classes and a note, or a ``line``."""

    files: dict[str, Content]
    keys: str
    samples: int | None = None
    note: str = ""
    line: str = ""
    prepare: Callable[[Path], None] | None = None
    classes: int = 2


DROPPED = ", drop_unlabelled = true"


def with_the_limit_of_csv(_: Path) -> None:
    """Python's own limit of a cell, which scipy.io raises for all modules where a test imports it."""
    csv.field_size_limit(131_072)


def rows(count: int = 24, line: str = "{age},{dose},{ill}", head: str = "age,dose,ill", start: int = 0) -> str:
    """A table of patients, no two alike."""
    lines = [
        line.format(age=30 + row, dose=(row * row % 17) + 0.5, ill=row % 2, word=("no", "yes")[row % 2], row=row)
        for row in range(start, start + count)
    ]
    return "\n".join([head, *lines]) + "\n"


GOOD = rows()
WORDS = rows(line="{age},{dose},{word}")
TABLE = 'task = {csv = "t.csv", label = "ill"}\nsites = 3\n'
SITES = 'task = {csv = "h", label = "ill"}\npartition = {natural = "file"}\n'
SCANS = 'task = {images = "scans"}\nsites = 2\nmodel = "linear"\n'
ARRAYS = 'task = {npz = "a.npz"}\nsites = 3\n'


def table(content: str | bytes, more: str = "", label: str = "ill", keys: str = "sites = 3\n", **expected: Any) -> Case:
    """A case of one table."""
    return Case({"t.csv": content}, f'task = {{csv = "t.csv", label = "{label}"{more}}}\n{keys}', **expected)


def target(content: str, more: str, key: str = 'target = "ill"', **expected: Any) -> Case:
    """A case of one table that holds no label."""
    return Case({"t.csv": content}, f'task = {{csv = "t.csv", {key}, {more}}}\nsites = 3\n', **expected)


def good(content: str | bytes, samples: int = 24, more: str = "", **settings: Any) -> Case:
    """A table that is read as it should be."""
    return table(content, more, samples=samples, **settings)


def bad(content: str | bytes, line: str, more: str = "", **settings: Any) -> Case:
    """A table that is refused."""
    return table(content, more, line=line, **settings)


def noted(content: str | bytes, note: str, more: str = "", samples: int = 24, **settings: Any) -> Case:
    """A table that is read, and of which something is said."""
    return table(content, more, note=note, samples=samples, **settings)


def hospitals(more: dict[str, Content], keys: str = SITES, **expected: Any) -> Case:
    """A folder of two good hospitals and ``more``."""
    files: dict[str, Content] = {"h/essen.csv": GOOD, "h/liege.csv": rows(start=40)}
    return Case({**files, **{f"h/{name}": content for name, content in more.items()}}, keys, **expected)


def png(shade: int = 0, size: tuple[int, int] = (6, 5), mode: str = "L", kind: str = "PNG") -> bytes:
    """An image that no other is like."""
    pixels = np.random.default_rng(shade).integers(0, 256, (*size, 4), dtype=np.uint8)
    image = Image.fromarray(pixels, "RGBA") if mode != "deep" else None
    if image is None:
        deep = Image.fromarray(pixels[..., 0].astype(np.uint16) * 16)
    else:
        deep = image.convert("RGB").convert(mode) if mode != "RGBA" else image
    held = io.BytesIO()
    deep.save(held, kind)
    return held.getvalue()


def scans(more: dict[str, Content] | None = None, each: int = 8, keys: str = SCANS, **expected: Any) -> Case:
    """A folder of two classes, and ``more`` in it."""
    files: dict[str, Content] = {
        f"scans/{label}/{index}.png": png(100 * place + index)
        for place, label in enumerate(("ill", "well"))
        for index in range(each)
    }
    return Case({**files, **{f"scans/{name}": content for name, content in (more or {}).items()}}, keys, **expected)


def arrays(line: str = "", samples: int | None = None, keys: str = ARRAYS, note: str = "", **held: Any) -> Case:
    """An .npz of these arrays."""
    file = io.BytesIO()
    np.savez(file, **held)
    return Case({"a.npz": file.getvalue()}, keys, samples=samples, note=note, line=line)


def lone() -> bytes:
    """One array as numpy saves it, in no .npz."""
    file = io.BytesIO()
    np.save(file, X)
    return file.getvalue()


def scenario(keys: str, line: str) -> Case:
    """A good table, and a scenario that cannot be run."""
    return Case({"t.csv": GOOD}, keys, line=line)


def linked(name: str, to: str) -> Callable[[Path], None]:
    """Make a symbolic link."""
    return lambda folder: os.symlink(to, folder / name)


X, Y = np.random.default_rng(0).normal(size=(24, 3)), np.arange(24) % 2
GERMAN = rows(line="{age};{dose};{ill}", head="alter;dosis;ill")
HEAD, BODY = GOOD.split("\n", 1)
NUMBERS = "text where numbers are expected, in column 'dose'"

ENCODINGS = {
    "UTF-8": good(GOOD.replace("dose", "größe")),
    "UTF-8 with its mark": good(GOOD.encode("utf-8-sig")),
    "UTF-16 with its mark": good(GOOD.encode("utf-16")),
    "UTF-16 of the other end": good(b"\xfe\xff" + GOOD.encode("utf-16-be")),
    "UTF-16 without a mark": bad(GOOD.encode("utf-16-le"), "it holds zero bytes"),
    "UTF-32": bad(GOOD.encode("utf-32"), "zero bytes|not a table of text"),
    "what Windows writes": good(GOOD.replace("dose", "größe").encode("cp1252")),
    "a letter that is in no encoding": bad(
        GOOD.replace("dose", "d").encode() + b"\x81\x8d,1,0\n", "not a table of text in"
    ),
    "lines that end as on Windows": good(GOOD.replace("\n", "\r\n")),
    "lines that end as on an old Mac": good(GOOD.replace("\n", "\r")),
    "lines that end in two ways": good(GOOD.replace("\n", "\r\n", 5)),
    "no end of the last line": good(GOOD.rstrip("\n")),
    "empty lines": good(GOOD.replace("\n", "\n\n", 3) + "\n\n"),
    "a zero byte": bad(GOOD.replace("31,", "3\x001,"), "zero bytes"),
    "compressed": Case({"t.csv.gz": gzip.compress(GOOD.encode())}, TABLE.replace("t.csv", "t.csv.gz"), samples=24),
    "compressed and cut short": Case(
        {"t.csv.gz": gzip.compress(GOOD.encode())[:40]}, TABLE.replace("t.csv", "t.csv.gz"), line="or is cut short"
    ),
    "compressed by its name only": Case(
        {"t.csv.gz": GOOD}, TABLE.replace("t.csv", "t.csv.gz"), line="is not compressed"
    ),
    "a PDF": bad(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n", "there is no column 'ill'"),
    "a picture": bad(png(), "zero bytes|not a table"),
    "a workbook called csv": bad(b"PK\x03\x04rest", "name it .xlsx, or save it as CSV"),
    "an old workbook called csv": bad(b"\xd0\xcf\x11\xe0rest", "name it .xlsx, or save it as CSV"),
    "an empty file": bad("", "it is empty"),
    "a file of empty lines": bad("\n\n\n", "it is empty"),
    "a file of blanks": bad("   \n  \n", "no column 'ill'|empty"),
    "a header only": bad(HEAD + "\n", "there is no row under the header"),
}

SEPARATORS = {
    "semicolons": good(GERMAN),
    "tabs": good(GOOD.replace(",", "\t")),
    "bars": good(GOOD.replace(",", "|")),
    "blanks after commas": good(GOOD.replace(",", ", ")),
    "blanks for separators": good(GOOD.replace(",", " ")),
    "columns set by blanks": good("".join(f"  {line}  \n" for line in GOOD.replace(",", "    ").splitlines())),
    "blanks in quotes": good('"age at visit" dose ill\n' + BODY.replace(",", " ")),
    "a blank in one cell of many": bad("age group dose ill\n" + BODY.replace(",", " "), "no column 'ill'"),
    "a name with blanks, and tabs": good(GOOD.replace("dose", "dose in mg").replace(",", "\t")),
    "a separator that is said": good(GOOD.replace(",", ":"), more=', separator = ":"'),
    "a separator of two letters": bad(GOOD, "separator", more=', separator = "::"'),
    "a separator of none": bad(GOOD, "separator", more=", separator = 5"),
    "the wrong separator": bad(GOOD, "there is no column 'ill'", more=', separator = ";"'),
    "a comma within quotes": good(GOOD.replace("age,", '"age, in years",').replace("\n31,", '\n"31",')),
    "quotes within quotes": good(GOOD.replace("age", '"the ""age"""')),
    "a line break within quotes": good(GOOD.replace("age,", '"age\nin years",')),
    "a quote that is not closed": bad(GOOD.replace("\n40,", '\n"40,'), "line 12|differ in length|no line of a table"),
    "a comma at the end of every line": good(GOOD.replace("\n", ",\n")),
    "a comma at the end of the header": bad(GOOD.replace("ill\n", "ill,\n"), "line 2 has 3 cells and the header 4"),
    "a decimal comma without quotes": bad(
        GOOD.replace(".", ","), "line 2 has 4 cells and the header 3, and so do 23 more"
    ),
    "a row too long": bad(GOOD + "1,2,0,9\n", "line 26 has 4 cells and the header 3"),
    "a row too short": bad(GOOD + "1,2\n", "line 26 has 2 cells and the header 3"),
    "rows too short": bad(GOOD + "1,2\n1\n1,2\n", "and so do 2 more"),
    "a remark at the end": bad(GOOD + "exported by the ward\n", "line 26 has 1 cells"),
    "a title over the header": bad("Patients of 2024\n" + GOOD, "line 2 has 3 cells and the header 1"),
    "a title with commas over the header": bad("Patients of 2024,,\n" + GOOD, "the first line is no header"),
    "a cell of 200,000 letters": bad(
        GOOD.replace("\n31,", f"\n{'9' * 200_000},"), "field larger than field limit", prepare=with_the_limit_of_csv
    ),
}

NUMBERS_AS_WRITTEN = {
    "decimal commas": bad(GERMAN.replace(".", ","), 'decimal comma: decimal = ","'),
    "decimal commas that are said": good(GERMAN.replace(".", ","), more=', decimal = ","'),
    "a decimal mark of no use": bad(GERMAN, "decimal", more=", decimal = 5"),
    "thousands in points": bad(GERMAN.replace("16.5", "1.016,5"), "'dosis'", more=', decimal = "."'),
    "thousands in commas": bad(GOOD.replace("16.5", '"1,016.5"'), NUMBERS),
    "exponents": good(GOOD.replace("16.5", "1.65e+01")),
    "a plus": good(GOOD.replace("16.5", "+16.5")),
    "no digit before the point": good(GOOD.replace("0.5", ".5")),
    "no digit after the point": good(GOOD.replace("16.5", "16.")),
    "blanks around a number": good(GOOD.replace("16.5", " 16.5 ")),
    "a blank that does not break": good(GOOD.replace("16.5", "16.5\xa0")),
    "a percent": bad(GOOD.replace("16.5", "16.5%"), NUMBERS),
    "a unit": bad(GOOD.replace("16.5", "16.5 mg"), NUMBERS),
    "below a limit": bad(GOOD.replace("16.5", "<5"), r"missing = \[\.\.\.\]"),
    "below a limit, as missing": noted(
        GOOD.replace("16.5", "<5"), "Taken as missing values: '<5'", ', missing = ["<5"]'
    ),
    "a long minus": bad(GOOD.replace("16.5", "\u221216.5"), NUMBERS),
    "underscores": bad(GOOD.replace("16.5", "1_6.5"), NUMBERS),
    "a number in base 16": bad(GOOD.replace("16.5", "0x10"), NUMBERS),
    "infinity": bad(GOOD.replace("16.5", "inf"), NUMBERS),
    "a number too large": bad(GOOD.replace("16.5", "1e400"), NUMBERS),
    "a number of 40 digits": good(GOOD.replace("16.5", "1" * 40)),
    "TRUE and FALSE": bad(GOOD.replace("16.5", "TRUE"), NUMBERS),
    "an error of Excel": bad(GOOD.replace("16.5", "#DIV/0!"), NUMBERS),
    "dates": bad(GOOD.replace("16.5", "12.04.1950"), "It looks like dates"),
    "dates with times": bad(GOOD.replace("16.5", "2024-05-01 12:30"), "It looks like dates"),
    "dates of America": bad(GOOD.replace("16.5", "4/12/50"), "It looks like dates"),
}

MISSING = {
    **{
        f"missing as {word!r}": good(GOOD.replace("16.5", word))
        for word in ("", "?", "-", "--", "NA", "n/a", "N/A", "k.A.", "NULL", "None", "nan", "NaN", "#N/A", "<NA>", " ")
    },
    "what was taken as missing is said": noted(GOOD.replace("16.5", "k.A."), "Taken as missing values: 'k.A.'"),
    "a point": bad(GOOD.replace("16.5", "."), NUMBERS),
    "a word that nobody knows": bad(GOOD.replace("16.5", "unbekannt"), NUMBERS),
    "a word that is said": noted(GOOD.replace("16.5", "unbekannt"), "'unbekannt'", ', missing = ["unbekannt"]'),
    "a code": noted(GOOD.replace("16.5", "-9"), "'-9'", ", missing = [-9]"),
    "a code with a point": noted(GOOD.replace("16.5", "-9.0"), "'-9.0'", ', missing = ["-9"]'),
    "a code that is no list": bad(GOOD, "missing lists words and codes", more=", missing = -9"),
    "a column without a value": noted(rows(line="{age},,{ill}"), "hold one value only, and say nothing: dose"),
    "a row without a value": good(GOOD + ",,0\n", samples=25),
    "a label that is missing": bad(GOOD + "40,1,\n", "column 'ill' is empty in 1 of 25 rows; drop those rows"),
    "a label that is missing, left out": noted(
        GOOD + "40,1,\n,,NA\n", "Rows without an outcome, left out: 2 of 26", DROPPED
    ),
    "a label missing by a code, left out": noted(GOOD + "40,1,-9\n", "left out: 1 of 25", ", missing = [-9]" + DROPPED),
    "no label that is missing": good(GOOD, more=DROPPED),
    "all labels are missing": bad(rows(line="{age},{dose},"), "no row has an outcome: 'ill'", more=DROPPED),
    "no column of labels": bad(GOOD.replace("ill", "il"), "there is no column 'ill'", more=DROPPED),
    "a number that is missing, left out": target(
        GOOD + "40,1,\n", DROPPED[2:], samples=24, note="left out: 1 of 25", classes=0
    ),
    "left out by a word": bad(GOOD, "drop_unlabelled is true or false; got 'yes'", more=', drop_unlabelled = "yes"'),
    "labels missing by a code": bad(GOOD + "40,1,-9\n", "'ill' is empty in 1 of 25", more=", missing = [-9]"),
}

HEADERS = {
    "no header": bad(BODY, "the first line looks like a patient", label="0"),
    "no header, and a patient of whom two values are alike": bad("50,1,1\n" + BODY, "looks like a patient", label="1"),
    "a header of numbers that count": good("0,1,2\n" + BODY, label="2"),
    "a column twice": bad(GOOD.replace("age,dose", "age,age"), "column 'age': 1 duplicate column names"),
    "a column without a name": good(rows(line="{row},{age},{dose},{ill}", head=",age,dose,ill")),
    "most columns without a name": bad(GOOD.replace("age,dose,ill", ",,ill"), "the first line is no header"),
    "blanks around names": good(GOOD.replace("age,dose,ill", " age , dose , ill ")),
    "a name in another case": bad(GOOD.replace("ill", "Ill"), "no column 'ill' .* Did you mean 'Ill'"),
    "a name with a slip": bad(GOOD.replace("ill", "il"), "Did you mean 'il'"),
    "names that differ in case": good(GOOD.replace("age,dose", "age,Age")),
    "a name of 400 letters": good(GOOD.replace("dose", "d" * 400)),
    "names in other scripts": good(GOOD.replace("age,dose", "年齢,доза")),
    "a name with a line break": good(GOOD.replace("dose", '"dose\n(mg)"')),
    "the header in the middle": bad(GOOD + GOOD, "text where numbers are expected"),
    "a label and nothing else": bad(rows(line="{ill}", head="ill"), "no column besides"),
    "a column that is only separators": good(rows(line="{age},{ill},", head="age,ill,")),
}

GRADED = WORDS + "70,1,maybe\n"
ORDER = 'order = ["no", "maybe", "yes"]'
LABELLED = "\n".join(["age,a,b", *(f"{30 + row},{row % 2},{int(row % 3 > 0)}" for row in range(24))]) + "\n"
TWO = 'targets = ["a", "b"]'
OUTCOMES = {
    "grades": target(GRADED, ORDER, samples=25, classes=3),
    "grades in two spellings": target(
        GRADED + "71,1,No\n", 'order = {no = ["No"], maybe = [], yes = []}', samples=26, classes=3
    ),
    "a grade that is not listed": target(GRADED + "71,1,often\n", ORDER, line="1 of 26 labels are none of the classes"),
    "a grade that is empty": target(GRADED + "71,1,\n", ORDER, line="column 'ill' is empty in 1 of 26 rows"),
    "a grade that nobody has": target(WORDS, ORDER, samples=24, classes=3),
    "labels": target(LABELLED, "drop = []", TWO, samples=24, classes=0),
    "labels in words": target(
        LABELLED.replace(",1", ",yes").replace(",0", ",No"), "drop = []", TWO, samples=24, classes=0
    ),
    "a label of two that is missing, left out": target(LABELLED + "70,1,\n", DROPPED[2:], TWO, samples=24, classes=0),
    "a label that is missing": target(LABELLED + "70,1,\n", "drop = []", TWO, line="'b' is empty in 1 of 25 rows"),
    "a label that is doubtful": target(LABELLED + "70,1,-1\n", "drop = []", TWO, line="'b' is neither 1 (there) nor 0"),
    "one label alone": target(LABELLED, "drop = []", 'targets = ["b"]', line="targets lists 2 columns or more"),
    "labels and a label": target(LABELLED, 'label = "a"', TWO, line="this one has label, targets"),
    "an order of two": target(WORDS, 'order = ["no", "yes"]', line="order lists 3 grades or more"),
    "an order of numbers": target(GOOD, "order = [0, 1, 2]", samples=24, classes=3),
    "an order in one word": target(GRADED, 'order = "no, maybe, yes"', line="order lists 3 grades or more"),
    "an order and squares": target(
        GRADED, ORDER + ', loss = "mse"', line="is for numbers, and this task predicts classes"
    ),
}

LABELS = {
    "words": good(WORDS),
    "numbers with a point": good(rows(line="{age},{dose},{ill}.0")),
    "TRUE and FALSE for classes": good(WORDS.replace("yes", "TRUE").replace("no", "FALSE")),
    "blanks around classes": good(WORDS.replace("yes", " yes ")),
    "one class": bad(WORDS.replace("yes", "no"), "all samples have one label"),
    "a class of one patient": good(WORDS + "70,1,maybe\n", samples=25, classes=3),
    "classes in two cases": bad(WORDS + "70,1,Yes\n", 'classes = {"yes" = ["Yes"], "no" = []}'),
    "classes with and without a mark": bad(WORDS + "70,1,yes.\n", "look like one in two spellings"),
    "spellings that are said": good(WORDS + "70,1,Yes\n", 25, ', classes = {no = [], yes = ["Yes"]}'),
    "a spelling of two classes": bad(WORDS, "is two classes", more=', classes = {no = ["x"], yes = ["x"]}'),
    "a class that is not listed": bad(
        WORDS, "12 of 24 labels are none of the classes", more=', classes = ["no", "ja"]'
    ),
    "a class that nobody has": good(WORDS, more=', classes = ["no", "yes", "maybe"]', classes=3),
    "one class listed": bad(WORDS.replace("yes", "no"), "at least two classes", more=', classes = ["no"]'),
    "a class listed twice": bad(WORDS, "twice", more=', classes = ["no", "no", "yes"]'),
    "classes that are no list": bad(WORDS, "classes are a list", more=', classes = "no"'),
    "as many labels as patients": bad(rows(120, line="{age},{dose},{row}.5"), "120 different values"),
    "a label that is also a feature": bad(WORDS, "label", more=', features = ["age", "ill"]'),
}

COLUMNS = {
    "a number for each row": noted(
        rows(line="{row},{age},{ill}", head="record,dose,ill"), "a number for each row: record"
    ),
    "a name of a patient's number": noted(GOOD.replace("age", "patient_id"), "identifiers by their names: patient_id"),
    "one value": noted(rows(line="{age},7,{ill}"), "hold one value only, and say nothing: dose"),
    "the class by another name": noted(rows(line="{ill},{dose},{ill}"), "say the class by themselves: age"),
    "words that are not said": bad(rows(line="{age},{word},{ill}"), r"categorical = \[\.\.\.\]"),
    "words that are said": good(rows(line="{age},{word},{ill}"), more=', categorical = ["dose"]'),
    "words with a gap": good(rows(line="{age},{word},{ill}") + "3,,0\n", 25, ', categorical = ["dose"]'),
    "a word for each row": noted(
        rows(line="{age},w{row},{ill}"),
        "nearly as many values as rows, a feature for each: dose",
        ', categorical = ["dose"]',
    ),
    "words of one kind": bad(
        rows(line="{age},x,{ill}"), "is constant, so it is no category", more=', categorical = ["dose"]'
    ),
    "a category that is no column": bad(GOOD, "there is no column 'sex'", more=', categorical = ["sex"]'),
    "a category that is no list": bad(GOOD, "categorical", more=", categorical = 5"),
    "a feature that is no column": bad(GOOD, "no column 'doze' .* Did you mean 'dose'", more=', features = ["doze"]'),
    "features that are no list": bad(GOOD, "features", more=', features = "dose"'),
    "a column to drop": good(rows(line="{age},{word},{ill}"), more=', drop = ["dose"]'),
    "a column to drop that is not there": bad(GOOD, "to be left out with drop", more=', drop = ["doze"]'),
    "a drop that is no list": bad(GOOD, "drop", more=', drop = "dose"'),
    "every column dropped": bad(GOOD, "no column besides", more=', drop = ["age", "dose"]'),
    "rows twice": noted(GOOD + BODY, "Samples that equal another to the last bit: 24", samples=48),
    "a row with two labels": good(GOOD + "30,0.5,1\n", samples=25),
    "a patient with several rows": noted(
        rows(line="p{age},{dose},{ill}", head="who,dose,ill") + rows(line="p{age},{dose},{ill}").split("\n", 1)[1],
        "Split by patients",
        ', patient = "who"',
        samples=48,
    ),
    "rows without a patient": bad(
        GOOD.replace("\n31,", "\n,"), "names no patient in 1 of 24", more=', patient = "age"'
    ),
    "ranges": good(GOOD, more=", ranges = {age = [0, 120], dose = [0, 20]}"),
    "a range that is none": bad(
        GOOD, r"the range of age is \[lowest, highest\]", more=", ranges = {age = [9, 1], dose = [0, 1]}"
    ),
    "a range of no feature": bad(GOOD, "which is no feature", more=", ranges = {ages = [0, 1]}"),
}
