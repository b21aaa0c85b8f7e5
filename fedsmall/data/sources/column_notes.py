"""Columns that a model had better not see, or learns nothing from: said in notes, by name and without a value."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from fedsmall.data.cells import DATE
from fedsmall.data.forms import Columns

if TYPE_CHECKING:
    from pandas import DataFrame

IDENTIFIER = re.compile(
    r"(^|[ _-])(id|nr|no|mrn|patient|name|birth|dob|date|zip|postcode|phone)([ _-]|$)", re.IGNORECASE
)
MANY = 20  # values of a category
LISTED = 12
BY_NAME, CONSTANT = "look like identifiers by their names", "hold one value only, and say nothing"


def column_notes(
    frames: Mapping[str, "DataFrame"], parts: Mapping[str, np.ndarray], y: np.ndarray, form: Columns
) -> tuple[str, ...]:
    """Notes on all sites together; ``parts`` are their samples (rows, features), ``y`` (rows,) all classes."""
    x = np.concatenate(list(parts.values()))
    numeric = [column for column in form.columns if column not in form.categories]
    where = {name: place for place, name in enumerate(form.feature_names)}
    values = x[:, [where[column] for column in numeric]]
    found = {
        CONSTANT: _constant(values, numeric),
        "look like identifiers, a number for each row": _counting(values, numeric),
        BY_NAME: [name for name in form.columns if IDENTIFIER.search(name)],
        "have nearly as many values as rows, a feature for each": _many(form, len(x)),
        "look like dates, a feature for each": [name for name in form.categories if _dates(form.categories[name])],
        "say the class by themselves": _telling(values, y, numeric),
    }
    notes = [f"Columns that {what}: {_listed(names)}. Leave them out" for what, names in found.items() if names]
    words = sorted({word for name, frame in frames.items() for word in _missing(frame, parts[name], form)})
    return (*notes, *([f"Taken as missing values: {_listed([repr(word) for word in words])}"] if words else ()))


def _missing(frame: "DataFrame", x: np.ndarray, form: Columns) -> set[str]:
    """The words and codes of a table that became missing values; an empty cell is none."""
    widths = [len(form.categories.get(column, ("itself",))) for column in form.columns]
    gaps = np.isnan(x[:, np.cumsum([0, *widths[:-1]])])
    if not gaps.any():
        return set()
    rows, columns = np.nonzero(gaps)
    cells = frame[list(form.columns)].to_numpy(dtype=object)[rows, columns]
    return {str(cell).strip() for cell in cells} - {"", "nan", "None", "0"}


def _constant(values: np.ndarray, names: list[str]) -> list[str]:
    low, high = np.where(np.isnan(values), np.inf, values), np.where(np.isnan(values), -np.inf, values)
    flat = low.min(axis=0, initial=np.inf) >= high.max(axis=0, initial=-np.inf)
    return [name for name, one in zip(names, flat, strict=True) if one]


def _counting(values: np.ndarray, names: list[str]) -> list[str]:
    """Columns of whole numbers that rise by one, in any order of the rows."""
    if len(values) < MANY:
        return []
    steps = np.diff(np.sort(values, axis=0), axis=0)
    return [name for name, one in zip(names, (steps == 1).mean(axis=0) > 0.9, strict=True) if one]


def _many(form: Columns, rows: int) -> list[str]:
    return [name for name, known in form.categories.items() if len(known) > max(MANY, rows / 2)]


def _dates(known: tuple[str, ...]) -> bool:
    return len(known) > 1 and all(DATE.fullmatch(value) for value in known)


def _telling(values: np.ndarray, y: np.ndarray, names: list[str]) -> list[str]:
    """Columns with one value for each class, and for each another."""
    if len(y) < MANY or len(np.unique(y)) < 2:
        return []
    ends = []
    for label in np.unique(y):
        of_class = values[y == label]
        ends.append(np.where((of_class == of_class[:1]).all(axis=0), of_class[0], np.nan))
    one_each = np.sort(np.stack(ends), axis=0)
    telling = np.asarray((np.diff(one_each, axis=0) > 0).all(axis=0))
    return [name for name, one in zip(names, telling, strict=True) if one]


def _listed(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
