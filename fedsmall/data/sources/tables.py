"""Tables in files of CSV, Parquet or Excel, one file or one for each site in a folder, and pandas tables in Python.

What cannot be used is said by column and count, never by value: a message may travel further than the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmall.data.cells import is_missing
from fedsmall.data.folds import classes_of
from fedsmall.data.forms import Columns, need
from fedsmall.data.outcomes import DEFAULT_LOSS, ORDINAL, Outcome
from fedsmall.data.sources import sheets
from fedsmall.data.sources.class_spelling import Classes, check_sites, check_spelling, lone_classes, read_classes
from fedsmall.data.sources.column_notes import column_notes
from fedsmall.data.sources.files import MOST_CLASSES, as_classes, at_site, class_names, locate, plain, site_files
from fedsmall.data.sources.outcome_columns import asked_outcome, check_filled, check_label, in_order, read_outcome
from fedsmall.data.sources.patient_column import check_no_feature, patients_of
from fedsmall.data.sources.pool import NOWHERE, Part, Pool
from fedsmall.data.sources.table_files import check_header, common_columns, read_table
from fedsmall.data.sources.table_options import check_options
from fedsmall.data.subgroups import of_table, read_subgroups
from fedsmall.errors import DataError, PlanError

if TYPE_CHECKING:
    from pandas import DataFrame

ENDINGS = (".csv", ".csv.gz", ".data", *sheets.ENDINGS)
Categorical = Sequence[str] | Mapping[str, Sequence[object]]
Tables = Mapping[str, "DataFrame"]


def csv(
    root: Path | None,
    seed: int,
    path: "str | Tables",
    *,
    label: str | None = None,
    target: str | None = None,
    order: Classes | None = None,
    targets: Sequence[str] | None = None,
    time: str | None = None,
    event: str | None = None,
    cuts: Sequence[float] | None = None,
    intervals: int | None = None,
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

    In Python ``path`` is pandas tables by the names of their sites, one without a site under the empty name; a column
    of pandas' type of categories is one of ``categorical`` there.

    ``label`` names the column of the classes, or ``target`` that of a number that is to be predicted (with ``order``
    that of a grade, whose names it lists from the lowest to the highest, as ``classes`` would), ``targets`` those of
    several labels of 0 and 1, or ``time`` and
    ``event`` those of a time until an event (``cuts`` are the ends of its intervals, or ``intervals`` says how many;
    :class:`fedsmall.data.outcomes.Survival`). Every other column is a feature unless ``features`` names them or
    ``drop`` leaves it out. ``classes`` fixes the classes and their order. ``categorical`` lists columns of text, or
    gives the values of each: such a column becomes one feature of 0 and 1 for each value. ``separator`` is found from
    the header unless given, ``decimal`` is ".". Empty cells, "?", "NA" and the like are missing values, and what
    ``missing`` lists is, too. ``classes`` may say which spellings mean one class, {"ill": ["Ill", "krank"]}.
    ``site_column`` names the site of each row and ``patient`` the patient, who may have several; neither is a feature.
    ``sheet`` names the sheet of an Excel workbook, where several hold something.
    ``subgroups`` are columns by which a report divides the patients (:mod:`fedsmall.data.subgroups`); they may be
    features, or not.

    Raises DataError for a column that is not there or holds text, for sites whose columns differ, where ``features``
    does not say which are meant, and for a row without a label or target.
    """
    words = {"label": label, "patient": patient, "sheet": sheet}
    check_options(separator, decimal, features=features, drop=drop, categorical=categorical, **words)
    label, target, classes = in_order(label, target, classes, order)
    survival = {"time": time, "event": event, "cuts": cuts, "intervals": intervals}
    outcome = asked_outcome(label, target, targets, survival, classes)
    tables = _tables(path, root, separator, decimal, sheet)
    split = site_column is not None and NOWHERE in tables
    frames = _by_site(tables[NOWHERE], str(site_column)) if split else tables
    whose = patients_of(frames, patient, one_table=split)
    check_no_feature(patient, str(label), features, categorical, outcome.columns if outcome else ())
    said: dict[str, Any] = {"features": features, "classes": classes, "categorical": _declared(path, categorical)}
    said |= {"drop": [*drop, *(column for column in (site_column, patient) if column)]}
    said |= {"separator": separator, "decimal": decimal, "markers": _markers(missing)}
    schema = Schema.of(frames, outcome or str(label), **said)
    parts = _parts(frames, schema, whose, subgroups)
    pool = _pool(parts, schema, outcome, _notes(frames, parts, schema, classes))
    return pool if order is None else replace(pool, loss=ORDINAL)


def _tables(
    path: str | Tables, root: Path | None, separator: str | None, decimal: str, sheet: str | None
) -> dict[str, "DataFrame"]:
    """The table of each site, or the one of all, in order of their names; each has a header and a row."""
    if isinstance(path, Mapping):
        tables = {name: sheets.as_table(path[name]) for name in sorted(path)}
    else:
        found = locate(path, root)
        files = site_files(found, ENDINGS) if found.is_dir() else {NOWHERE: found}
        tables = {name: read_table(file, separator, decimal, sheet=sheet) for name, file in files.items()}
    for name, table in tables.items():
        with at_site(name):
            check_header(table)
            if not len(table):
                raise DataError("there is no row under the header; a site needs at least one patient")
    return tables


def _declared(path: str | Tables, categorical: Categorical) -> Categorical:
    """The categories that are listed, and where tables come from Python the columns that pandas has as such."""
    if not isinstance(path, Mapping) or isinstance(categorical, Mapping):
        return categorical
    kinds = [{str(name) for name, kind in zip(t, t.dtypes, strict=True) if kind == "category"} for t in path.values()]
    return tuple(dict.fromkeys([*categorical, *sorted(set.intersection(*kinds))]))


def _parts(
    frames: Mapping[str, "DataFrame"], schema: "Schema", whose: Mapping[str, np.ndarray], subgroups: Sequence[str]
) -> dict[str, Part]:
    """The samples of each table, with their patients and their subgroups."""
    parts = {}
    for name, frame in frames.items():
        with at_site(name):
            parts[name] = replace(schema.part(frame), patients=whose.get(name))
    return of_table(frames, parts, read_subgroups(subgroups), schema.form.markers)


def _notes(
    frames: Mapping[str, "DataFrame"], parts: Mapping[str, Part], schema: "Schema", classes: Classes | None
) -> tuple[str, ...]:
    """What looks odd in the columns, and classes that only one site holds, unless the task says which there are."""
    labels = np.concatenate([classes_of(part.y) for part in parts.values()])
    notes = column_notes(frames, {name: part.x for name, part in parts.items()}, labels, schema.form)
    if classes is not None or not schema.classes:
        return notes
    held = {name: {schema.classes[place] for place in np.unique(part.y)} for name, part in parts.items()}
    return (*notes, *lone_classes(held))


def _pool(parts: dict[str, Part], schema: "Schema", outcome: Outcome | None, notes: tuple[str, ...]) -> Pool:
    return Pool(
        parts,
        schema.classes,
        feature_names=schema.form.feature_names,
        standardise=True,
        loss="cross_entropy" if outcome is None else DEFAULT_LOSS[outcome.kind],
        form=schema.form,
        notes=notes,
        outcome=outcome,
    )


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
    """What the columns of a table are, the same at all sites; ``learns`` is the label's column, or no class."""

    learns: str | Outcome
    classes: tuple[str, ...]
    form: Columns
    means: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        frames: Mapping[str, "DataFrame"],
        learns: str | Outcome,
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
        wanted = (learns,) if isinstance(learns, str) else learns.columns
        for name, frame in frames.items():
            with at_site(name):
                need(frame, wanted, "the label" if isinstance(learns, str) else "what is to be predicted")
        chosen = tuple(features or common_columns(frames, {*wanted, *drop}))
        for name, frame in frames.items():
            with at_site(name):
                need(frame, [*chosen, *categorical], "a feature")
        if not chosen:
            raise DataError(f"the table has no column besides {' and '.join(wanted)}; there is nothing to learn from")
        for column in drop:
            if not any(column in frame.columns for frame in frames.values()):
                need(first, [column], "to be left out with drop")
        names, means = _classes(frames, learns, classes, reading) if isinstance(learns, str) else ((), {})
        fixed = isinstance(categorical, Mapping)
        categories = _categories(frames, categorical, chosen)
        form = Columns(columns=chosen, categories=categories, unlisted="none" if fixed else "refuse", **reading)
        return cls(learns, names, form, means)

    def part(self, frame: "DataFrame") -> Part:
        """The samples of one table; DataError for text among numbers and for rows without a label."""
        if not isinstance(self.learns, str):
            return Part(self.form.numbers(frame), read_outcome(frame, self.learns, self.form.markers))
        check_filled(frame, self.learns, self.form.markers)
        labels = [self.means.get(plain(label), label) for label in frame[self.learns]]
        return Part(self.form.numbers(frame), as_classes(labels, self.classes))


def _classes(
    frames: Mapping[str, "DataFrame"], label: str, classes: Classes | None, reading: Mapping[str, Any]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The names of the classes in order, and what every further spelling means."""
    given, means = read_classes(classes)
    labels = {name: _labels(frame, label, means, reading.get("markers", ())) for name, frame in frames.items()}
    names = class_names(set().union(*labels.values()), given)
    if given is None:
        check_spelling(labels)
        check_label(label, names)
    return names, means


def _labels(frame: "DataFrame", label: str, means: Mapping[str, str], markers: Sequence[str]) -> set[str]:
    """The classes of a table, in the spelling that counts."""
    there = frame.loc[~is_missing(frame[label], markers), label]
    return {means.get(word, word) for word in map(plain, there.unique())}


def _categories(
    frames: Mapping[str, "DataFrame"], categorical: Categorical, chosen: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """The values of those ``chosen`` columns that are categories."""
    if isinstance(categorical, Mapping):
        given = {column: values for column, values in categorical.items() if column in chosen}
        return {column: tuple(plain(value) for value in values) for column, values in given.items()}
    listed = [column for column in categorical if column in chosen]
    for column in listed:
        if not 2 <= (found := len(set(map(plain, _present(frames, column))))) <= MOST_CLASSES:
            raise DataError(f"column {column!r} holds {found} different values, so it is no category; leave it out")
    return {column: class_names(_present(frames, column), None) for column in listed}


def _present(frames: Mapping[str, "DataFrame"], column: str) -> list[str]:
    return [value for frame in frames.values() for value in frame.loc[~is_missing(frame[column]), column].unique()]
