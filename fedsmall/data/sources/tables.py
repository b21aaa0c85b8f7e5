"""Tables in CSV files: one file, or a folder with one file for each site.

What cannot be used is said by column and count, never by value: a message may travel further than the data.
"""

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsmall.data.forms import MISSING, Columns, is_missing, need
from fedsmall.data.sources.files import as_classes, class_names, locate, plain, site_files
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.errors import DataError

if TYPE_CHECKING:
    from pandas import DataFrame

Categorical = Sequence[str] | Mapping[str, Sequence[object]]


def csv(
    root: Path | None,
    seed: int,
    path: str,
    *,
    label: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    classes: Sequence[object] | None = None,
    categorical: Categorical = (),
    separator: str | None = None,
    decimal: str = ".",
    site_column: str | None = None,
) -> Pool:
    """The table at ``path``, or one for each site where that is a folder.

    ``label`` names the column of the classes; every other column is a feature unless ``features`` names them or
    ``drop`` leaves it out. ``classes`` fixes the classes and their order. ``categorical`` lists columns of text, or
    gives the values of each: such a column becomes one feature of 0 and 1 for each value. ``separator`` is found from
    the header unless given, ``decimal`` is ".". Empty cells, "?" and "NA" are missing values. ``site_column`` names the
    site of each row, and is no feature.

    Raises DataError for a column that is not there or holds text, and for a row without a label.
    """
    found = locate(path, root)
    files = site_files(found, [".csv", ".csv.gz", ".data"]) if found.is_dir() else {NOWHERE: found}
    frames = {name: read_table(file, separator, decimal) for name, file in files.items()}
    if site_column is not None and NOWHERE in frames:
        frames = _by_site(frames[NOWHERE], site_column)
    left_out = [*drop, *([site_column] if site_column else [])]
    reading = {"separator": separator, "decimal": decimal}
    schema = Schema.of(
        frames, label, features=features, drop=left_out, classes=classes, categorical=categorical, **reading
    )
    return Pool(
        {name: schema.part(frame) for name, frame in frames.items()},
        schema.classes,
        feature_names=schema.form.feature_names,
        standardise=True,
        form=schema.form,
    )


def read_table(path: Path, separator: str | None = None, decimal: str = ".", names: Sequence[str] = ()) -> "DataFrame":
    """The cells of a CSV file as text, with its header's names, or ``names`` where it has no header."""
    import pandas

    options: dict[str, Any] = {"dtype": str, "keep_default_na": False, "skipinitialspace": True, "index_col": False}
    if names:
        options |= {"header": None, "names": list(names)}
    try:
        frame = _read(path, separator, options)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError) as wrong:
        raise DataError("the file is not a table: it is empty, or its rows differ in length") from wrong
    frame.columns = frame.columns.str.strip()
    return frame if decimal == "." else frame.apply(lambda column: column.str.replace(decimal, "."))


def _read(path: Path, separator: str | None, options: dict[str, Any]) -> "DataFrame":
    import pandas

    try:
        return pandas.read_csv(path, sep=separator or _separator(path, "utf-8-sig"), encoding="utf-8-sig", **options)
    except UnicodeDecodeError:  # spreadsheets on Windows still write this
        return pandas.read_csv(path, sep=separator or _separator(path, "cp1252"), encoding="cp1252", **options)


def _separator(path: Path, encoding: str) -> str:
    """The separator that occurs most often in the first line."""
    with gzip.open(path, "rt", encoding=encoding) if path.suffix == ".gz" else path.open(encoding=encoding) as file:
        first = str(file.readline())
    return max(",;\t|", key=first.count)


def _by_site(frame: "DataFrame", column: str) -> dict[str, "DataFrame"]:
    need(frame, [column], "the partition's")
    sites = frame[column].map(plain)
    if (missing := sites.str.lower().isin(MISSING)).any():
        raise DataError(f"column {column!r} names no site in {missing.sum()} of {len(frame)} rows")
    return {name: frame[sites == name] for name in sorted(set(sites))}


@dataclass(frozen=True)
class Schema:
    """What the columns of a table are, the same at all sites."""

    label: str
    classes: tuple[str, ...]
    form: Columns

    @classmethod
    def of(
        cls,
        frames: Mapping[str, "DataFrame"],
        label: str,
        *,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        classes: Sequence[object] | None = None,
        categorical: Categorical = (),
        **reading: Any,
    ) -> "Schema":
        """The schema that all ``frames`` share: what the scenario says, else what they hold together.

        ``reading`` are further fields of :class:`~fedsmall.data.forms.Columns`.
        """
        first = next(iter(frames.values()))
        left_out = {label, *drop}
        chosen = tuple(features or (column for column in first.columns if column not in left_out))
        for name, frame in frames.items():
            need(frame, [label], "the label")
            need(frame, [*chosen, *categorical], f"a feature; site {name!r}" if name else "a feature")
        if not chosen:
            raise DataError("the table has no column besides the label; there is nothing to learn from")
        labels = {value for frame in frames.values() for value in frame[label].unique()}
        names = class_names((value for value in labels if str(value).strip().lower() not in MISSING), classes)
        fixed = isinstance(categorical, Mapping)
        categories = {name: values for name, values in _categories(frames, categorical).items() if name in chosen}
        form = Columns(columns=chosen, categories=categories, unlisted="none" if fixed else "refuse", **reading)
        return cls(label, names, form)

    def part(self, frame: "DataFrame") -> Part:
        """The samples of one table; DataError for text among numbers and for rows without a label."""
        unlabelled = is_missing(frame[self.label])
        if unlabelled.any():
            raise DataError(
                f"column {self.label!r} is empty in {unlabelled.sum()} of {len(frame)} rows; drop those rows"
            )
        return Part(self.form.numbers(frame), as_classes(list(frame[self.label]), self.classes))


def _categories(frames: Mapping[str, "DataFrame"], categorical: Categorical) -> dict[str, tuple[str, ...]]:
    if isinstance(categorical, Mapping):
        return {column: tuple(plain(value) for value in values) for column, values in categorical.items()}
    return {column: class_names(_present(frames, column), None) for column in categorical}


def _present(frames: Mapping[str, "DataFrame"], column: str) -> list[str]:
    return [value for frame in frames.values() for value in frame.loc[~is_missing(frame[column]), column].unique()]
