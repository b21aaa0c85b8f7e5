"""Tables in files of CSV, Parquet or Excel, by queries, and pandas tables in Python."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmall.data import table_files
from fedsmall.data.outcomes import DEFAULT_LOSS, LEAST_GRADES, LEAST_LABELS, Amount, Findings, Outcome, Survival
from fedsmall.data.preparation import YES_OR_NO, Columns, need
from fedsmall.data.sources.files import at_site, locate, site_files
from fedsmall.data.sources.labels import (
    MOST_CLASSES,
    Classes,
    SharedClasses,
    as_classes,
    check_no_feature,
    check_sites,
    class_names,
    patients_of,
    read_classes,
    share_classes,
)
from fedsmall.data.sources.pool import NOWHERE, Part, Pool, digests_of
from fedsmall.data.splits import classes_of
from fedsmall.data.subgroups import add_groups, read_subgroups
from fedsmall.entry_points import TABLES, extensions
from fedsmall.errors import DataError, PlanError
from fedsmall.files import list_some

if TYPE_CHECKING:
    from pandas import DataFrame


ENDINGS = (".csv", ".csv.gz", ".data", *table_files.SHEETS, *(f".{kind}" for kind in extensions(TABLES)))
Categorical = Sequence[str] | Mapping[str, Sequence[object]]
Tables = Mapping[str, "DataFrame"]
Frames = dict[str, "DataFrame"]
WORDS = {"label": "outcome", "patient": "patient_id", "sheet": "2024"}
MARKS = {"separator": ",;\t| :^~#", "decimal": ".,·٫"}
LISTS = {"features": '["age", "dose"]', "drop": '["remark"]', "categorical": '["sex"]', "unscaled": '["years"]'}
ONE_MARK = str.maketrans(dict.fromkeys(MARKS["decimal"], "."))
OF_SURVIVAL = ("time", "event", "cuts", "intervals")
YES, NO = "1 true yes ja oui si sì dead died deceased event", "0 false no nein non alive living censored"
EVENTS = dict.fromkeys(YES.split(), 1.0) | dict.fromkeys(NO.split(), 0.0)  # by what stands before a colon: "1:DECEASED"
MOST_INTERVALS = 100
BY_FILE = ("file", "folder", "site")  # natural sites where no column of a table has such a name
MANY = 11  # classes that are all numbers, from which on a label looks like a number to be predicted
IDENTIFIER = re.compile(r"(^|[ _-])(id|nr|no|mrn|patient|name|birth|dob|date|zip|postcode|phone)([ _-]|$)", re.I)
MANY_VALUES = 20  # values of a category
LISTED = 12
BY_NAME, CONSTANT = "look like identifiers by their names", "hold one value only, and say nothing"


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
    unscaled: Sequence[str] = (),
    separator: str | None = None,
    decimal: str = ".",
    patient: str | None = None,
    sheet: str | None = None,
    site_column: str | None = None,
    subgroups: Sequence[str] = (),
    drop_unlabelled: bool = False,
    own: bool = False,
) -> Pool:
    """The table at ``path``, or one for each site where that is a folder, or pandas tables by site ("" for one of all).

    What is predicted: ``label`` (classes), ``target`` (a number; with ``order`` a grade), ``targets`` (several of 0 and
    1), or ``time`` and ``event``. Every other column is a feature unless ``features`` or ``drop`` say otherwise.
    ``classes`` fixes the classes, their order and, as {"ill": ["Ill", "krank"]}, their spellings. ``categorical`` lists
    columns of text, or gives their values. ``missing`` are further words for no value, ``unscaled`` columns keep their
    unit. ``site_column`` and ``patient`` name each row's; for ``subgroups`` see :mod:`fedsmall.data.subgroups`.
    A real hospital's ``own`` table is not divided, and need not hold what is left out.

    Raises DataError for a column that is missing or holds text, for sites whose columns differ, and for rows without
    what is predicted, unless ``drop_unlabelled`` leaves them out (of ``own`` ones those alone where nothing stands).
    """
    words = {"label": label, "patient": patient, "sheet": sheet, "unscaled": unscaled}
    _check_options(separator, decimal, features=features, drop=drop, categorical=categorical, **words)
    label, target, classes = _label_of_grades(label, target, classes, order)
    outcome = _asked_outcome(label, target, targets, (time, event, cuts, intervals), classes)
    tables = _given(path) if isinstance(path, Mapping) else read_files(locate(path, root), separator, decimal, sheet)
    columns = {column for table in tables.values() for column in table}
    site_column = site_column if site_column in columns or not (own or site_column in BY_FILE) else None
    split = site_column is not None and NOWHERE in tables and not own
    frames = split_by_site(tables[NOWHERE], str(site_column)) if split else tables
    learns, markers, rows = outcome or str(label), _markers(missing, classes), sum(map(len, frames.values()))
    frames = _labelled(frames, learns, markers, drop_unlabelled, own)
    patients = patients_of(frames, patient, one_table=split)
    check_no_feature(patient, str(label), features, categorical, outcome.columns if outcome else ())
    categories = _read_categorical(path, categorical)
    left_out = [column for column in (*drop, site_column, patient) if column and not (own and column not in columns)]
    reading: dict[str, Any] = {"separator": separator, "decimal": decimal, "markers": markers}
    reading |= {"unscaled": tuple(unscaled), "features": features, "drop": left_out, "categorical": categories}
    schema = Schema.of(frames, learns, classes=classes, **reading)
    pool = _pool_of(frames, schema, patients, subgroups, rows, own)
    return pool if order is None else replace(pool, loss=DEFAULT_LOSS["grades"])


def _given(tables: Tables) -> Frames:
    """Tables in Python as those of files are."""
    return _with_rows({name: table_files.as_table(tables[name]) for name in sorted(tables)})


def _labelled(frames: Frames, learns: str | Outcome, markers: Sequence[str], drop: bool, own: bool) -> Frames:
    """The rows that hold what is predicted; others are a DataError unless they are to go."""
    if type(drop) is not bool:
        raise PlanError(f"drop_unlabelled is true or false; got {drop!r}")
    # at a hospital where nothing stands: words for no value are the coordinator's, who would learn which are there
    gaps = () if own else markers
    number = None if isinstance(learns, str) or learns.kind == "findings" else learns.name
    kept, columns = {}, (learns,) if isinstance(learns, str) else learns.columns
    for name, frame in frames.items():
        with at_site(name):
            need(frame, columns, "the label" if isinstance(learns, str) else "what is to be predicted")
            to_go = [table_files.is_missing(frame[c], gaps) for c in columns if drop]
            kept[name] = frame = frame[~np.any(to_go, axis=0)] if drop else frame
            for column in columns:
                if empty := int(table_files.is_missing(frame[column], markers if column == number else gaps).sum()):
                    cure = "leave those cells empty" if drop else "drop those rows, or say drop_unlabelled = true"
                    raise DataError(f"column {column!r} is empty in {empty} of {len(frame)} rows; {cure}")
            if not len(frame):
                raise DataError(f"no row has an outcome: {', '.join(map(repr, columns))}")
    return kept


def _pool_of(
    frames: Frames, schema: "Schema", whose: dict[str, np.ndarray], subgroups: Any, rows: int, own: bool
) -> Pool:
    """The pool of labelled ``frames``, of so many ``rows`` that were read; those of a hospital's ``own`` are known."""
    parts = {}
    for name, frame in frames.items():
        with at_site(name):
            cells = frame.itertuples(index=False, name=None) if own else ()  # a plan says what a comma in them is
            digests = digests_of("\0".join(map(str, row)).translate(ONE_MARK) for row in cells) if own else None
            parts[name] = replace(schema.part(frame), patients=whose.get(name), digests=digests)
    parts = add_groups(frames, parts, read_subgroups(subgroups), schema.form.markers)
    labels = np.concatenate([classes_of(part.y) for part in parts.values()])
    notes = column_notes(frames, {name: part.x for name, part in parts.items()}, labels, schema.form)
    unlabelled = rows - len(labels)
    left_out = (f"Rows without an outcome, left out: {unlabelled} of {rows}",) * bool(unlabelled)
    return Pool(
        parts,
        schema.shared.names,
        feature_names=schema.form.feature_names,
        standardise=True,
        loss="cross_entropy" if schema.outcome is None else DEFAULT_LOSS[schema.outcome.kind],
        form=schema.form,
        notes=(*left_out, *notes, *schema.shared.notes),
        outcome=schema.outcome,
        unlabelled=unlabelled,
    )


def read_files(path: Path, separator: str | None = None, decimal: str = ".", sheet: str | None = None) -> Frames:
    """The table in a file, under the empty name, or those in a folder by site; DataError where one has no row."""
    files = site_files(path, ENDINGS) if path.is_dir() else {NOWHERE: path}
    return _with_rows(
        {name: table_files.read_table(file, separator, decimal, sheet=sheet) for name, file in files.items()}
    )


def _with_rows(tables: Frames) -> Frames:
    for name, table in tables.items():
        with at_site(name):
            table_files.check_header(table)
            if not len(table):
                raise DataError("there is no row under the header; a site needs at least one patient")
    return tables


def _read_categorical(path: str | Tables, categorical: Categorical) -> Categorical:
    if not isinstance(path, Mapping) or isinstance(categorical, Mapping):
        return categorical
    kinds = [{str(name) for name, kind in zip(t, t.dtypes, strict=True) if kind == "category"} for t in path.values()]
    return tuple(dict.fromkeys([*categorical, *sorted(set.intersection(*kinds))]))


def _markers(missing: Sequence[object], classes: Classes | None) -> tuple[str, ...]:
    if isinstance(missing, str) or not isinstance(missing, Sequence):
        raise PlanError(f'missing lists words and codes that stand for no value, as in ["-9", "<5"]; got {missing!r}')
    markers, (names, means) = tuple(table_files.plain(marker) for marker in missing), read_classes(classes)
    if both := sorted({*(names or ()), *means} & {*markers}):
        raise PlanError(f"{both[0]!r} is one of the classes, and by missing no value; leave it out of one of the two")
    return markers


def split_by_site(frame: "DataFrame", column: str) -> Frames:
    """The rows of a table by the site that a column names; DataError where it names none, or one in two spellings."""
    need(frame, [column], "the partition's")
    sites = frame[column].map(table_files.plain)
    if (missing := table_files.is_missing(frame[column])).any():
        raise DataError(f"column {column!r} names no site in {missing.sum()} of {len(frame)} rows; fill or drop them")
    check_sites(column, set(sites))
    return {name: frame[sites == name] for name in sorted(set(sites))}


@dataclass(frozen=True)
class Schema:
    """What the columns of a table are, the same at all sites; ``learns`` is the label's column, or no class."""

    learns: str | Outcome
    shared: SharedClasses
    form: Columns

    @property
    def outcome(self) -> Outcome | None:
        """What is predicted, where that is no class."""
        return None if isinstance(self.learns, str) else self.learns

    @classmethod
    def of(
        cls,
        frames: Tables,
        learns: str | Outcome,
        *,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        classes: Classes | None = None,
        categorical: Categorical = (),
        **reading: Any,
    ) -> "Schema":
        """The schema that all ``frames`` share; ``reading`` are further fields of ``Columns``."""
        first = next(iter(frames.values()))
        wanted = (learns,) if isinstance(learns, str) else learns.columns
        chosen = tuple(features or table_files.common_columns(frames, {*wanted, *drop}))
        for name, frame in frames.items():
            with at_site(name):
                need(frame, [*chosen, *categorical], "a feature")
        if odd := [column for column in chosen if YES_OR_NO in column]:
            raise DataError(f"column {odd[0]!r}: rename it; = stands between a category and its values")
        if not chosen:
            raise DataError(f"the table has no column besides {' and '.join(wanted)}; there is nothing to learn from")
        for column in drop:
            if not any(column in frame.columns for frame in frames.values()):
                need(first, [column], "to be left out with drop")
        markers = reading.get("markers", ())
        shared = _name_classes(frames, learns, classes, markers)
        reading["categories"] = _categories(frames, categorical, chosen, markers)
        if stray := set(reading.get("unscaled", ())) - (set(chosen) - set(reading["categories"])):
            raise DataError(f"unscaled names {min(stray)!r}, which is no feature of numbers")
        reading["unlisted"] = "none" if isinstance(categorical, Mapping) else "refuse"
        return cls(learns, shared, Columns(columns=chosen, **reading))

    def part(self, frame: "DataFrame") -> Part:
        """The samples of one table, all labelled; DataError for text among numbers."""
        if not isinstance(self.learns, str):
            return Part(self.form.numbers(frame), _read_outcome(frame, self.learns, self.form.markers))
        labels = [self.shared.means.get(table_files.plain(label), label) for label in frame[self.learns]]
        return Part(self.form.numbers(frame), as_classes(labels, self.shared.names))


def _name_classes(
    frames: Tables, label: str | Outcome, classes: Classes | None, markers: Sequence[str]
) -> SharedClasses:
    if not isinstance(label, str):
        return SharedClasses((), {})
    words = {name: map(table_files.plain, _present(frame, label, markers)) for name, frame in frames.items()}
    shared = share_classes(words, classes)
    if classes is None and len(shared.names) >= MANY and all(map(table_files.is_number, shared.names)):
        target = json.dumps(label, ensure_ascii=False)
        raise DataError(
            f"column {label!r} holds {len(shared.names)} different numbers. To predict the number itself: target = "
            f"{target} in place of label. If each is a class, list them: classes = [{', '.join(shared.names)}]"
        )
    return shared


def _categories(
    frames: Tables, categorical: Categorical, chosen: Sequence[str], markers: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    if isinstance(categorical, Mapping):
        given = {column: values for column, values in categorical.items() if column in chosen}
        return {column: tuple(table_files.plain(value) for value in values) for column, values in given.items()}
    categories = {}
    for column in [column for column in categorical if column in chosen]:
        present = [value for frame in frames.values() for value in _present(frame, column, markers)]
        if not 2 <= (count := len(set(map(table_files.plain, present)))) <= MOST_CLASSES:
            what = "is constant" if count == 1 else f"holds {count} different values"
            raise DataError(f"column {column!r} {what}, so it is no category; leave it out")
        categories[column] = class_names(present, None)
    return categories


def _present(frame: "DataFrame", column: str, markers: Sequence[str]) -> Any:
    return frame.loc[~table_files.is_missing(frame[column], markers), column].unique()


def _check_options(separator: Any, decimal: Any, **options: Any) -> None:
    """Raise PlanError for an option that is not of its kind; an option that is None was not given."""
    if options["features"] is not None and not len(options["features"]):
        raise PlanError("features lists no column; leave it out to take all")
    for (name, marks), mark in zip(MARKS.items(), (separator, decimal), strict=True):
        if mark is not None and mark not in tuple(marks):  # no letter: rows with one would be known by their length
            raise PlanError(f'{name} is one of {" ".join(map(repr, marks))}, as in {name} = ","; got {mark!r}')
    for name, value in options.items():
        if name in WORDS and value is not None and not isinstance(value, str):
            raise PlanError(f'{name} is text, as in {name} = "{WORDS[name]}"; got {value!r}')
        if name in LISTS and value is not None and not _lists_columns(value):
            raise PlanError(f"{name} lists columns, as in {name} = {LISTS[name]}; got {value!r}")
    if options.get("label") is not None and options["label"] in (options.get("features") or ()):
        raise PlanError(f"{options['label']!r} is the label, and can be no feature: a model would be told the answer")


def _lists_columns(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(known, Sequence) and not isinstance(known, str) for known in value.values())
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(item, str) for item in value)


def _label_of_grades(
    label: str | None, target: str | None, classes: Any, order: Any
) -> tuple[str | None, str | None, Any]:
    """Label, target and classes where a target's grades are in ``order``: it is a label then, of these classes."""
    if order is None:
        return label, target, classes
    if target is None or label is not None or classes is not None:
        example = 'target = "grade", order = ["0", "I", "II"]; leave label and classes out'
        raise PlanError(f"order lists the grades of a target, from the lowest to the highest: {example}")
    if isinstance(order, str) or not isinstance(order, Sequence | Mapping) or len(order) < LEAST_GRADES:
        raise PlanError(
            f'order lists {LEAST_GRADES} grades or more, from the lowest to the highest, as in ["0", "I", "II"]; '
            f"two are classes of a label; got {order!r}"
        )
    return target, None, order


def _asked_outcome(
    label: str | None, target: str | None, targets: Any, survival: tuple[Any, Any, Any, Any], classes: Any
) -> Outcome | None:
    """What a task's table asks to be predicted, None for classes; PlanError where it asks for two things or none."""
    columns = {"label": label, "target": target, "targets": targets}
    asked = [name for name, column in columns.items() if column is not None]
    if stated := [name for name, value in zip(OF_SURVIVAL, survival, strict=True) if value is not None]:
        asked.append(" and ".join(stated))
    if len(asked) != 1:
        raise PlanError(
            'task \'csv\' needs one of label, as in label = "disease" (classes), target, as in target = "age" (a '
            "number), targets, a list of columns of 0 and 1, and time with event (survival); this one has "
            f"{', '.join(asked) or 'none'}"
        )
    if classes is not None and label is None:
        raise PlanError("classes are for a label; leave classes out")
    if stated:
        return _survival(*survival)
    if targets is not None:
        return _findings(targets)
    return None if target is None else Amount(name=target)


def _findings(targets: Any) -> Findings:
    if not _lists_columns(targets) or isinstance(targets, Mapping) or len(targets) < LEAST_LABELS:
        raise PlanError(
            f"targets lists {LEAST_LABELS} columns or more that hold 0 or 1; one is a label, or a number as target; "
            f"got {targets!r}"
        )
    if twice := [name for name in targets if targets.count(name) > 1]:
        raise PlanError(f"targets lists {twice[0]!r} twice; each label is there once")
    return Findings(names=tuple(targets))


def _survival(time: str | None, event: str | None, cuts: Any, intervals: Any) -> Survival:
    if time is None or event is None:
        raise PlanError('survival is time and event, as in time = "months", event = "died" (1: it happened, 0: not)')
    if cuts is not None and intervals is not None:
        raise PlanError("cuts say what the intervals are, and intervals how many; remove one of them")
    if intervals is not None and (type(intervals) is not int or not 1 <= intervals <= MOST_INTERVALS):
        raise PlanError(f"intervals is a whole number from 1 to {MOST_INTERVALS}; got {intervals!r}")
    if cuts is None:
        return Survival(name=time, event=event, intervals=intervals or 10)
    good = isinstance(cuts, Sequence) and len(cuts) > 0 and all(type(cut) in (int, float) for cut in cuts)
    if not good or not all(low < high < float("inf") for low, high in pairwise([0, *cuts])):
        example = "from low to high and above 0, as in [12, 24, 60]"
        raise PlanError(f"cuts are the ends of intervals, {example}; got {cuts!r}")
    return Survival(name=time, event=event, intervals=len(cuts), stated=tuple(map(float, cuts)))


def _read_outcome(frame: "DataFrame", outcome: Outcome, markers: Sequence[str] = ()) -> np.ndarray:
    """What is predicted as it was read, in float64: a number (rows, 1), a time and its event (rows, 2), or labels."""
    if outcome.kind == "findings":
        return np.stack([_yes_or_no(frame, column, "there", "absent") for column in outcome.names], axis=1)
    numbers, text = table_files.number_block(frame[[outcome.name]], markers)  # (rows, 1)
    table_files.check_no_text(frame, [outcome.name], text)
    if outcome.kind == "amount":
        return numbers
    if below := int((numbers < 0).sum()):
        raise DataError(f"column {outcome.name!r} is below 0 in {below} of {len(frame)} rows; it is a time")
    return np.stack([numbers[:, 0], _yes_or_no(frame, outcome.event, "it happened", "not yet")], axis=1)


def _yes_or_no(frame: "DataFrame", column: str, one: str, zero: str) -> np.ndarray:
    words = map(str.lower, map(table_files.plain, frame[column]))
    answers = np.array([EVENTS.get(word.partition(":")[0], np.nan) for word in words])
    if (odd := np.isnan(answers)).any():
        raise DataError(f"column {column!r} is neither 1 ({one}) nor 0 ({zero}) in {odd.sum()} of {len(frame)} rows")
    return answers


def column_notes(frames: Tables, parts: Mapping[str, np.ndarray], y: np.ndarray, form: Columns) -> tuple[str, ...]:
    """Notes on all sites together; ``parts`` are their samples (rows, features), ``y`` (rows,) all classes."""
    x = np.concatenate(list(parts.values()))
    numeric = [column for column in form.columns if column not in form.categories]
    where = {name: place for place, name in enumerate(form.feature_names)}
    values = x[:, [where[column] for column in numeric]]  # (rows, numeric columns)
    steps, many = np.diff(np.sort(values, axis=0), axis=0), len(x) >= MANY_VALUES
    counts = (steps == 1).mean(axis=0) > 0.9 if many else np.zeros(len(numeric), dtype=bool)
    suspects = {
        CONSTANT: list(compress(numeric, _constant(values))),
        "look like identifiers, a number for each row": list(compress(numeric, counts)),
        BY_NAME: [name for name in form.columns if IDENTIFIER.search(name)],
        "have nearly as many values as rows, a feature for each": [
            name for name, known in form.categories.items() if len(known) > max(MANY_VALUES, len(x) / 2)
        ],
        "look like dates, a feature for each": [
            name
            for name, known in form.categories.items()
            if len(known) > 1 and all(map(table_files.DATE.fullmatch, known))
        ],
        "say the class by themselves": (
            list(compress(numeric, _telling(values, y))) if many and len(np.unique(y)) > 1 else []
        ),
    }
    notes = [
        f"Columns that {what}: {list_some(names, LISTED)}. Leave them out" for what, names in suspects.items() if names
    ]
    words = sorted({word for name, frame in frames.items() for word in _missing(frame, parts[name], form)})
    return (*notes, *([f"Taken as missing values: {list_some(list(map(repr, words)), LISTED)}"] if words else ()))


def _missing(frame: "DataFrame", x: np.ndarray, form: Columns) -> set[str]:
    """The words and codes of a table that became missing values; an empty cell is none."""
    widths = [len(form.categories.get(column, ("itself",))) for column in form.columns]
    gaps = np.isnan(x[:, np.cumsum([0, *widths[:-1]])])
    if not gaps.any():
        return set()
    rows, columns = np.nonzero(gaps)
    cells = frame[list(form.columns)].to_numpy(dtype=object)[rows, columns]
    return {str(cell).strip() for cell in cells} - {"", "nan", "None", "0"}


def _constant(values: np.ndarray) -> np.ndarray:
    low, high = np.where(np.isnan(values), np.inf, values), np.where(np.isnan(values), -np.inf, values)
    return np.asarray(low.min(axis=0, initial=np.inf) >= high.max(axis=0, initial=-np.inf))


def _telling(values: np.ndarray, y: np.ndarray) -> np.ndarray:
    ends = []
    for label in np.unique(y):
        of_class = values[y == label]
        ends.append(np.where((of_class == of_class[:1]).all(axis=0), of_class[0], np.nan))
    return np.asarray((np.diff(np.sort(np.stack(ends), axis=0), axis=0) > 0).all(axis=0))
