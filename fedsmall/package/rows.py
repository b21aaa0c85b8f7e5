"""New rows for a model: a table, images or arrays, from a file or from Python, read as those of training were."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fedsmall.data.forms import Columns, Pixels
from fedsmall.data.pictures.files import ENDINGS, is_image
from fedsmall.data.pictures.places import EACH
from fedsmall.data.preparation import Preparation
from fedsmall.data.sources.arrays import as_inputs, is_table, opened_npz
from fedsmall.data.sources.sheets import EXCEL, as_table
from fedsmall.data.sources.table_files import read_table
from fedsmall.errors import DataError
from fedsmall.methods import nearest

if TYPE_CHECKING:
    from pandas import DataFrame

LISTED = 6  # columns in an error message


class Rows(NamedTuple):
    """Rows as they were read: ``x`` (rows, *shape), a name and the notes of each, and the table where there was one."""

    x: np.ndarray
    names: list[str]
    notes: list[list[str]]
    table: "DataFrame | None" = None


def read_rows(preparation: Preparation, source: Any, array: str = "x", sheet: str | None = None) -> Rows:
    """The rows of ``source``: a file or folder, a pandas table, or an array; no label is needed.

    A table's columns are found by name, and others are left alone. ``array`` is the name of the array in an .npz,
    ``sheet`` that of the sheet in an Excel workbook, where several hold something.

    Raises DataError for what the model was not trained on, in the words of training.
    """
    if sheet is not None and not _is_workbook(source):
        raise DataError("--sheet names a sheet of an Excel workbook (.xlsx, .xlsm), and these rows are in none")
    rows = _rows(preparation, source, array, sheet)
    if rows.x.shape[1:] != preparation.shape:
        raise DataError(f"samples have shape {rows.x.shape[1:]}, and the model takes {preparation.shape}")
    return rows._replace(notes=_notes(preparation, rows))


def _is_workbook(source: Any) -> bool:
    return isinstance(source, str | Path) and Path(source).suffix.lower() in EXCEL


def _rows(preparation: Preparation, source: Any, array: str, sheet: str | None = None) -> Rows:
    form = preparation.form
    if isinstance(source, str | Path):
        return _of_path(preparation, Path(source), array, sheet)
    if isinstance(form, Columns):
        return _of_table(form, as_table(source) if is_table(source) else source)
    return _numbered(as_inputs(np.asarray(source)))


def _of_path(preparation: Preparation, path: Path, array: str, sheet: str | None) -> Rows:
    form = preparation.form
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    if path.suffix == ".npz":
        return _rows(preparation, _array(path, array), array)
    if isinstance(form, Pixels):
        return _of_images(form, path)
    if isinstance(form, Columns) and path.is_file():
        return _of_table(form, _table(form, path, sheet))
    raise DataError(f"the model takes {_wanted(preparation)}; {path.name} is none")


def _wanted(preparation: Preparation) -> str:
    form = preparation.form
    if isinstance(form, Columns):
        more = len(form.columns) - LISTED
        return f"a table with the columns {', '.join(form.columns[:LISTED])}" + (
            f" and {more} more" if more > 0 else ""
        )
    if isinstance(form, Pixels) and form.volume:
        return "volumes (NIfTI), in a file or a folder"
    return "images, in a file or a folder" if isinstance(form, Pixels) else f"an .npz with samples {preparation.shape}"


def _table(form: Columns, path: Path, sheet: str | None) -> "DataFrame":
    """The cells of a table; a file without a header, where training's had none, is known by having no name in it."""
    frame = read_table(path, form.separator, form.decimal, sheet=sheet)
    if form.header and not set(form.columns) & set(frame.columns):
        frame = read_table(path, form.separator, form.decimal, names=form.header, sheet=sheet)
    return frame


def _of_table(form: Columns, source: Any) -> Rows:
    import pandas

    if not isinstance(source, pandas.DataFrame):
        source = np.asarray(source)
        if source.ndim != 2 or source.shape[1] != len(form.columns):
            raise DataError(f"an array of shape {source.shape} holds not the {len(form.columns)} columns of the model")
        source = pandas.DataFrame(source, columns=list(form.columns))
    frame = source.reset_index(drop=True)
    if not len(frame):
        raise DataError("the table has no row; there is nothing to predict")
    return _numbered(form.numbers(frame))._replace(table=frame)


def _of_images(form: Pixels, path: Path) -> Rows:
    inside = sorted(each for each in path.rglob("*") if is_image(each)) if path.is_dir() else [path]
    if not inside:
        raise DataError(f"the folder holds no image ({', '.join(ENDINGS)})")
    held = [(each, place, seen) for each in inside for place, seen in enumerate(form.fitting(each))]
    names = [str(each.relative_to(path)) if path.is_dir() else each.name for each, _, _ in held]
    if form.frames == EACH:
        names = [f"{name}:{place}" for name, (_, place, _) in zip(names, held, strict=True)]
    return Rows(form.arrays([(each.name, seen) for each, _, seen in held]), names, [])


def _array(path: Path, name: str) -> np.ndarray:
    with opened_npz(path) as file:
        if name not in file:
            raise DataError(f"the .npz holds no array {name!r}; say which with --array. {nearest(name, list(file))}")
        return np.asarray(file[name])


def _numbered(x: np.ndarray) -> Rows:
    if not len(x):
        raise DataError("there is no row; there is nothing to predict")
    return Rows(x, [str(number + 1) for number in range(len(x))], [])


def _notes(preparation: Preparation, rows: Rows) -> list[list[str]]:
    """What a reader should know of each row: values far from those of training, categories that it did not know."""
    notes: list[list[str]] = [[] for _ in rows.names]
    form = preparation.form
    if rows.x.dtype != np.uint8:
        for row, place in zip(*np.nonzero(preparation.unusual(rows.x).reshape(len(rows.x), -1)), strict=True):
            notes[row].append(f"{_feature(form, place)} is far outside the training data")
    if isinstance(form, Columns) and rows.table is not None:
        for column in form.categories:
            for row in np.flatnonzero(form.is_unlisted(rows.table[column], column)):
                notes[row].append(f"{column} is a category that the model does not know")
    return notes


def _feature(form: Any, place: int) -> str:
    return str(form.feature_names[place]) if isinstance(form, Columns) else f"number {place}"


def summary(notes: Sequence[Sequence[str]]) -> list[str]:
    """How many rows have each note, in a line each."""
    counts: dict[str, int] = {}
    for note in (note for row in notes for note in row):
        counts[note] = counts.get(note, 0) + 1
    return [f"{note} in {count} of {len(notes)} rows" for note, count in counts.items()]
