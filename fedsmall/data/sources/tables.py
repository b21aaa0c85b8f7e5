"""Tables in files of CSV, Parquet or Excel: one file, or a folder with one file for each site.

What cannot be used is said by column and count, never by value: a message may travel further than the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmall.data.cells import is_missing
from fedsmall.data.forms import Columns, need
from fedsmall.data.sources import sheets
from fedsmall.data.sources.class_spelling import Classes, check_sites, check_spelling, lone_classes, read_classes
from fedsmall.data.sources.column_notes import column_notes
from fedsmall.data.sources.files import MOST_CLASSES, as_classes, at_site, class_names, locate, plain, site_files
from fedsmall.data.sources.patient_column import check_no_feature, patients_of
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.data.sources.table_files import check_header, read_table
from fedsmall.data.sources.table_options import check_options
from fedsmall.data.subgroups import of_table, read_subgroups
from fedsmall.errors import DataError, PlanError

if TYPE_CHECKING:
    from pandas import DataFrame

ENDINGS = (".csv", ".csv.gz", ".data", *sheets.ENDINGS)
Categorical = Sequence[str] | Mapping[str, Sequence[object]]


def csv(
    root: Path | None,
    seed: int,
    path: str,
    *,
    label: str,
    features: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    classes: Classes | None = None,
    categorical: Categorical = (),
    missing: Sequence[object] = (),
    separator: str | None = None,
    decimal: str = ".",
    patient: str | None = None,
    sheet: str | None = None,
    site_column: str | None = None,
    subgroups: Sequence[str] = (),
) -> Pool:
    """The table at ``path``, or one for each site where that is a folder.

    ``label`` names the column of the classes; every other column is a feature unless ``features`` names them or
    ``drop`` leaves it out. ``classes`` fixes the classes and their order. ``categorical`` lists columns of text, or
    gives the values of each: such a column becomes one feature of 0 and 1 for each value. ``separator`` is found from
    the header unless given, ``decimal`` is ".". Empty cells, "?", "NA" and the like are missing values, and what
    ``missing`` lists is, too. ``classes`` may say which spellings mean one class, {"ill": ["Ill", "krank"]}.
    ``site_column`` names the site of each row and ``patient`` the patient, who may have several; neither is a feature.
    ``sheet`` names the sheet of an Excel workbook, where several hold something.
    ``subgroups`` are columns by which a report divides the patients (:mod:`fedsmall.data.subgroups`); they may be
    features, or not.

    Raises DataError for a column that is not there or holds text, and for a row without a label.
    """
    words = {"label": label, "patient": patient, "sheet": sheet}
    check_options(separator, decimal, features=features, drop=drop, categorical=categorical, **words)
    found = locate(path, root)
    files = site_files(found, ENDINGS) if found.is_dir() else {NOWHERE: found}
    frames = {name: read_table(file, separator, decimal, sheet=sheet) for name, file in files.items()}
    for name, frame in frames.items():
        with at_site(name):
            check_header(frame)
            if not len(frame):
                raise DataError("there is no row under the header; a site needs at least one patient")
    if site_column is not None and NOWHERE in frames:
        frames = _by_site(frames[NOWHERE], site_column)
    whose = patients_of(frames, patient, one_table=NOWHERE not in frames and not found.is_dir())
    left_out = [*drop, *(column for column in (site_column, patient) if column)]
    check_no_feature(patient, label, features, categorical)
    reading = {"separator": separator, "decimal": decimal, "markers": _markers(missing)}
    schema = Schema.of(
        frames, label, features=features, drop=left_out, classes=classes, categorical=categorical, **reading
    )
    parts = {}
    for name, frame in frames.items():
        with at_site(name):
            parts[name] = replace(schema.part(frame), patients=whose.get(name))
    parts = of_table(frames, parts, read_subgroups(subgroups), schema.form.markers)
    notes = column_notes(
        frames,
        {name: part.x for name, part in parts.items()},
        np.concatenate([part.y for part in parts.values()]),
        schema.form,
    )
    if classes is None and schema.classes:
        held = {name: {schema.classes[place] for place in np.unique(part.y)} for name, part in parts.items()}
        notes = (*notes, *lone_classes(held))
    features = schema.form.feature_names
    return Pool(parts, schema.classes, feature_names=features, standardise=True, form=schema.form, notes=notes)


def _markers(missing: Sequence[object]) -> tuple[str, ...]:
    if isinstance(missing, str) or not isinstance(missing, Sequence):
        raise PlanError(f'missing lists words and codes that stand for no value, as in ["-9", "<5"]; got {missing!r}')
    return tuple(plain(marker) for marker in missing)


def _by_site(frame: "DataFrame", column: str) -> dict[str, "DataFrame"]:
    need(frame, [column], "the partition's")
    sites = frame[column].map(plain)
    if (missing := is_missing(frame[column])).any():
        raise DataError(f"column {column!r} names no site in {missing.sum()} of {len(frame)} rows")
    check_sites(column, set(sites))
    return {name: frame[sites == name] for name in sorted(set(sites))}


@dataclass(frozen=True)
class Schema:
    """What the columns of a table are, the same at all sites."""

    label: str
    classes: tuple[str, ...]
    form: Columns
    means: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        frames: Mapping[str, "DataFrame"],
        label: str,
        *,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        classes: Classes | None = None,
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
        for column in drop:
            if not any(column in frame.columns for frame in frames.values()):
                need(first, [column], "to be left out with drop")
        given, means = read_classes(classes)
        labels = {name: _labels(frame, label, means, reading.get("markers", ())) for name, frame in frames.items()}
        if given is None:
            check_spelling(labels)
        names = class_names(set().union(*labels.values()), given)
        fixed = isinstance(categorical, Mapping)
        categories = {name: values for name, values in _categories(frames, categorical).items() if name in chosen}
        form = Columns(columns=chosen, categories=categories, unlisted="none" if fixed else "refuse", **reading)
        return cls(label, names, form, means)

    def part(self, frame: "DataFrame") -> Part:
        """The samples of one table; DataError for text among numbers and for rows without a label."""
        unlabelled = is_missing(frame[self.label], self.form.markers)
        if unlabelled.any():
            raise DataError(
                f"column {self.label!r} is empty in {unlabelled.sum()} of {len(frame)} rows; drop those rows"
            )
        labels = [self.means.get(plain(label), label) for label in frame[self.label]]
        return Part(self.form.numbers(frame), as_classes(labels, self.classes))


def _labels(frame: "DataFrame", label: str, means: Mapping[str, str], markers: Sequence[str]) -> set[str]:
    """The classes of a table, in the spelling that counts."""
    there = frame.loc[~is_missing(frame[label], markers), label]
    return {means.get(word, word) for word in map(plain, there.unique())}


def _categories(frames: Mapping[str, "DataFrame"], categorical: Categorical) -> dict[str, tuple[str, ...]]:
    if isinstance(categorical, Mapping):
        return {column: tuple(plain(value) for value in values) for column, values in categorical.items()}
    for column in categorical:
        if not 2 <= (found := len(set(map(plain, _present(frames, column))))) <= MOST_CLASSES:
            raise DataError(f"column {column!r} holds {found} different values, so it is no category; leave it out")
    return {column: class_names(_present(frames, column), None) for column in categorical}


def _present(frames: Mapping[str, "DataFrame"], column: str) -> list[str]:
    return [value for frame in frames.values() for value in frame.loc[~is_missing(frame[column]), column].unique()]
