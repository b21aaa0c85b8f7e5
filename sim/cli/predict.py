"""``fedsmall predict`` and ``fedsmall export``: what saved models say of new rows, and a model as one file."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from fedsmall.entry_points import look_in
from fedsmall.package.record import CENTRAL, GLOBAL
from fedsmall.package.store import is_package, read
from fedsmall.sim.cli.options import check_unwritten, complete_folder, say
from fedsmall.sim.runs.files import csv_text, write
from fedsmall.sim.runs.folder import choose_packages
from fedsmall.sim.runs.folder import read as read_run

MODEL = Argument(help="the folder of a run, or a package: a folder or .zip")
METHOD = Option(help="of a run: the method, by its label; its main one if not given")
SITE = Option(help="of a run: this site's own model instead of the global one")


def predict(
    model: Annotated[Path, MODEL],
    new: Annotated[Path, Argument(help="a table, a folder of images, or an .npz")],
    out: Annotated[Path | None, Option(help="a CSV to write; shown if not given. Never written over")] = None,
    method: Annotated[str | None, METHOD] = None,
    seed: Annotated[int | None, Option(help="of a run: one seed; all if not given")] = None,
    site: Annotated[str | None, SITE] = None,
    prevalence: Annotated[
        float | None, Option(help="how often the positive class is at this new hospital, 0 to 1")
    ] = None,
    column: Annotated[str | None, Option("--id", help="a column of the table that names its rows")] = None,
    array: Annotated[str, Option(help="the array of an .npz")] = "x",
    sheet: Annotated[str | None, Option(help="the sheet of an Excel workbook, where several hold something")] = None,
    decimal: Annotated[str | None, Option(help='the decimal sign of these rows, as "," is')] = None,
    unknown: Annotated[
        Literal["missing", "refuse"] | None, Option(help="what a category is that the model does not know")
    ] = None,
) -> None:
    """Probabilities and a class, or the number, for every row: columns are found by name, and no label is needed.

    A row that cannot be read is refused by itself, with the reason in its notes. Several seeds answer with their mean.
    """
    check_unwritten(out)
    look_in(Path.cwd())
    from fedsmall.package.predictor import predictor_of, read_frame, summary, with_prevalence

    stored = packages(model, method, seed, site)
    if prevalence is not None:
        stored = [with_prevalence(of_seed, prevalence) for of_seed in stored]
    stored, faults, source = _by_rows(stored, new, sheet, decimal, unknown)
    answers = predictor_of(stored).answers(source, array, sheet if source is new else None)
    columns, rows = _table(stored, answers, column)
    if any(faults):
        names = [str(place + 1) for place in range(len(faults))]
        names = names if column is None else _column_values(read_frame(_form(stored), new, sheet), column)
        answered = iter(rows)
        rows = [
            {columns[0]: name, "notes": f"refused: {why}"} if why else next(answered) | {columns[0]: name}
            for name, why in zip(names, faults, strict=True)
        ]
    _write(out, columns, rows)
    for line in (_who(stored), *summary([*answers.rows.notes, *([f"refused: {why}"] for why in faults if why)])):
        typer.echo(f"fedsmall: {line}", err=True)
    if out is not None:
        say(f"{len(rows)} rows: {out}")


def export(
    model: Annotated[Path, MODEL],
    form: Annotated[str | None, Option("--format", help="onnx, torchscript or zip; else as the file ends")] = None,
    out: Annotated[Path | None, Option(help="the file; named after the model if not given. Never written over")] = None,
    method: Annotated[str | None, METHOD] = None,
    seed: Annotated[int | None, Option(help="of a run: the seed")] = None,
    site: Annotated[str | None, SITE] = None,
) -> None:
    """Write one model as ONNX or TorchScript, its scaling inside, or as a package in one .zip.

    The file is run and held against the package before it is kept.
    """
    look_in(Path.cwd())
    from fedsmall.package import export as exporting

    stored = packages(model, method, seed, site)
    if len(stored) > 1:
        seeds = ", ".join(dict.fromkeys(str(model_of_seed.package.seed) for model_of_seed in stored))
        several = f"a file holds one model, and this run has several of {stored[0].package.label}"
        raise ValueError(f"{several}: --seed takes one of {seeds}; of folds give a folder in {model / 'packages'}")
    form = form or exporting.form_of(out)
    ending = exporting.ENDINGS.get(form, "")
    path = out or Path(model.resolve().name.removesuffix(".zip") + ending)
    check_unwritten(path)
    exporting.export(stored[0], path, form)
    say(f"{path}: {stored[0].package.name}, {stored[0].package.label}, seed {stored[0].package.seed}")
    form_of = stored[0].package.preparation.form
    if form != "zip" and form_of.kind == "table":
        say(f"its rows are {len(form_of.feature_names)} numbers, in this order: {json.dumps(form_of.feature_names)}")


def packages(model: Path, method: str | None, seed: int | None, site: str | None) -> list[Any]:
    """The package at ``model``, or those of a run that are meant."""
    if is_package(model):
        if method or site or seed is not None:
            raise ValueError("a package is one model; --method, --seed and --site choose among those of a run")
        return [read(model)]
    return choose_packages(read_run(complete_folder(model)), method, seed, site)


def _form(stored: list[Any]) -> Any:
    return stored[0].package.preparation.form


def _by_rows(
    stored: list[Any], new: Path, sheet: str | None, decimal: str | None, unknown: str | None
) -> tuple[list[Any], list[str], Any]:
    """The packages as these rows are to be read, why each row of a table is refused, and the others."""
    from fedsmall.errors import DataError
    from fedsmall.package.predictor import read_frame

    is_table = _form(stored).kind == "table" and new.is_file() and new.suffix != ".npz"
    changes: dict[str, Any] = {} if decimal is None else {"decimal": decimal, "separator": None}
    changes |= {} if unknown is None else {"unlisted": "refuse" if unknown == "refuse" else "none"}
    if changes and not is_table:
        raise DataError("--decimal and --unknown are of rows of a table, and these are none")
    if not is_table:
        return stored, [], new
    read_as = []
    for package, weights in stored:
        ready = package.preparation
        ready = ready.model_copy(update={"form": ready.form.model_copy(update=changes)})
        read_as.append(type(stored[0])(package.model_copy(update={"preparation": ready}), weights))
    form = _form(read_as)
    frame = read_frame(form, new, sheet)
    for column in form.categories if unknown == "missing" else ():
        if column in frame:
            frame[column] = frame[column].mask(form.is_unlisted(frame[column], column), "")
    faults = form.faults(frame)
    if len(frame) and all(faults):
        hint = "" if decimal else '. If the decimal sign is a comma, say --decimal ","'
        raise DataError(f"every row is refused; the first: {faults[0]}{hint}", file=new.name)
    return read_as, faults, frame[[not why for why in faults]] if len(frame) else new


def _who(stored: list[Any]) -> str:
    package = stored[0].package
    seeds = ", ".join(dict.fromkeys(str(model.package.seed) for model in stored))
    whose = "" if package.whose in (GLOBAL, CENTRAL) else f", the model of {package.whose}"
    rule = f"; {package.positive} above {package.threshold:g}" if package.positive else ""
    several = f" seeds {seeds}, their mean" if len(stored) > 1 else f" seed {seeds}"
    return f"{package.name}, {package.label}{whose},{several}{rule}. No medical device"


def _table(stored: list[Any], answers: Any, column: str | None) -> tuple[list[str], list[dict[str, Any]]]:
    package, rows = stored[0].package, answers.rows
    first = column or ("image" if package.preparation.form.kind == "images" and rows.names[0] != "1" else "row")
    names = rows.names if column is None else _column_values(rows.table, column)
    if package.kind == "times":
        import numpy as np

        from fedsmall.evaluation.survival import mean_time

        # the mean time without the event up to the last cut, and the survival probability at each
        means = mean_time(answers.together, np.asarray(package.cuts))
        firsts = [{f"mean_{package.target}": repr(float(mean))} for mean in means]
        predictions = [first | cells for first, cells in zip(firsts, _cells(package, answers.together), strict=True)]
    elif package.kind != "classes":
        predictions = _cells(package, answers.together.reshape(len(names), -1))
    else:
        classes = [{"class": package.class_names[place]} for place in answers.named]
        predictions = [named | cells for named, cells in zip(classes, _cells(package, answers.together), strict=True)]
    more: list[dict[str, Any]] = [{"notes": "; ".join(notes)} for notes in rows.notes]
    if len(answers.each) > 1:
        more = [{"spread": repr(float(far))} | note for far, note in zip(answers.spread, more, strict=True)]
    cells = zip(names, predictions, more, strict=True)
    table = [{first: name} | prediction | other for name, prediction, other in cells]
    return list(table[0]), table


def _cells(package: Any, rows: Any) -> list[dict[str, str]]:
    return [{name: repr(float(v)) for name, v in zip(package.columns, row, strict=True)} for row in rows]


def _column_values(table: Any, column: str) -> list[str]:
    from fedsmall.data.preparation import need
    from fedsmall.errors import DataError

    if table is None:
        raise DataError("--id is for tables: these rows have no columns")
    need(table, [column], "--id")
    return [str(name) for name in table[column]]


def _write(out: Path | None, columns: list[str], rows: list[dict[str, Any]]) -> None:
    text = csv_text(columns, rows)
    if out is None:
        sys.stdout.write(text)
    else:
        write(out, text.encode())
