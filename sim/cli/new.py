"""``fedsmall new``: looks at a table, and writes the first scenario for it, with what was decided and why."""

import json
import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from typer import Argument, Option

from fedsmall.data.table_files import is_missing, plain
from fedsmall.errors import PlanError
from fedsmall.planning.description import rows_of
from fedsmall.planning.look import Look, candidates, classes_of, is_amount, join_rows, look_at, read_tables, spellings
from fedsmall.sim.cli.listing import scenario_schema
from fedsmall.sim.cli.new_images import FEDERATED, holds_images, scenario_of_images, sites_for
from fedsmall.sim.cli.options import check_unwritten, grid, terminal
from fedsmall.sim.runs.scenario import build, to_toml

if TYPE_CHECKING:
    from fedsmall.data.federation import Federation

console = terminal()

SCHEMA = "fedsmall.schema.json"  # by which editors complete and check a scenario's keys
FEW_ROWS = 80  # of a hospital, with which a round has too few steps for a small rate
SHOWN = 20  # rows of the terminal's table
WIDE = 2_000  # columns, from which on looking at them takes seconds
METHODS = """
[[method]]
name = "StandaloneRidge"      # a regression at every hospital alone: what federation has to beat

[[method]]
name = "Ridge"                # all rows pooled, exact by sums, hard to beat; secure sums over three real sites or more
"""
ALONE = """
[[method]]
name = "Standalone"           # every hospital alone: what federation has to beat; a regression would take too long
"""
MOST_COEFFICIENTS = 500  # of a regression that takes seconds
BY_PATIENT = 'regression = {robust = "patients"}    # errors that let rows of a patient be alike\n'


def new(
    table: Annotated[Path, Argument(help="a CSV, Parquet or Excel file, a folder of one for each hospital, or images")],
    label: Annotated[str | None, Option("--label", "--target", help="the column that is to be predicted")] = None,
    time: Annotated[str | None, Option(help="survival: the column of times, with --event")] = None,
    event: Annotated[str | None, Option(help="survival: the column that is 1 where the event happened")] = None,
    positive: Annotated[str | None, Option(help="of two classes the one to be found; else yes, or the rarer")] = None,
    site: Annotated[str | None, Option(help="the column of hospitals, '' for none; looked for if not given")] = None,
    patient: Annotated[str | None, Option(help="the column of patients, '' for none; looked for if not given")] = None,
    sheet: Annotated[str | None, Option(help="of Excel workbooks the sheet, where several hold something")] = None,
    out: Annotated[Path, Option(help="the scenario's file, never written over")] = Path("mine.toml"),
) -> None:
    """Look at a table or images, say what is in them and what looks wrong, and write a scenario that runs on it.

    Where no label is given, a person at a terminal is asked for it; of images folders name the classes.
    """
    check_unwritten(out)
    if not out.parent.is_dir():
        raise PlanError(f"there is no folder {str(out.parent)!r} for {out.name}")
    if not table.exists():
        raise PlanError(f"there is no file or folder {str(table)!r} here")
    if (time is None) != (event is None) or (time is not None and label is not None):
        raise PlanError("survival is --time with --event, and without --label")
    path = os.path.relpath(table.resolve(), out.resolve().parent).replace(os.sep, "/")
    if holds_images(table):
        if given := [name for name in (label, time, site, patient) if name is not None]:
            raise PlanError(f"{given[0]!r} names a column, and {str(table)!r} holds images; folders name their classes")
        return _write(out, *scenario_of_images(table, path, out.stem, positive))
    tables, decimal = read_tables(table, sheet)
    rows = join_rows(tables)
    if rows.shape[1] > WIDE:
        console.print(f"{rows.shape[1]:,} columns are looked at, which takes a while", style="dim")
    predicted = (time, event) if time is not None and event is not None else (label or _ask_label(rows),)
    for name in [*predicted, *(column for column in (site, patient) if column)]:
        if name not in rows:
            of_all = " at every hospital" * (len(tables) > 1)
            raise PlanError(f"there is no column {name!r}{of_all}. Known: {', '.join(rows)}")
    look = look_at(tables, decimal, predicted, site, patient)
    is_empty = np.any([is_missing(rows[column], look.missing) for column in predicted], axis=0)
    outcome, notes, is_rare = _outcome_of(rows, look, predicted, positive)
    outcome |= {key: of for key, of in {"drop_unlabelled": bool(is_empty.any()), "sheet": sheet}.items() if of}
    text = _scenario_of(path, out.stem, look, outcome, notes, int((~is_empty).sum()), is_rare)
    return _write(out, text, [*notes, *_notes_of(look)])


def _write(out: Path, text: str, notes: Sequence[str]) -> None:
    """Write a scenario, once its data are read, after what they hold and the ``notes`` on them."""
    federation = _read(text, out)
    if federation.description:
        print_data(federation.description)
    for note in [*notes, *(note for note in federation.notes if "Taken as missing" not in note)]:
        console.print(f"- {note}", markup=False)
    out.write_text(f"#:schema ./{SCHEMA}\n{text}", encoding="utf-8")
    if not (beside := out.with_name(SCHEMA)).exists():
        beside.write_text(json.dumps(scenario_schema(), indent=1) + "\n", encoding="utf-8")
    console.print(f"\nWritten: {out}, and {SCHEMA} for editors. Read it, then: fedsmall run {out}", markup=False)


def _ask_label(rows: Any) -> str:
    """The label as a person at the terminal says; PlanError with the candidates where there is none."""
    likely = candidates(rows) or list(rows)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise PlanError(f"say what is to be predicted: --label COLUMN. It may be {', '.join(likely[:SHOWN])}")

    console.print(f"Columns that may be what is to be predicted: {', '.join(likely[:SHOWN])}", markup=False)
    return str(typer.prompt("What is to be predicted", default=likely[0]))


def _outcome_of(
    rows: Any, look: Look, predicted: Sequence[str], positive: str | None
) -> tuple[dict[str, Any], list[str], bool]:
    """The task's keys of what is predicted, sentences on it, and whether one of two classes is rare."""
    column, cells = predicted[0], rows[predicted[0]]
    if len(predicted) == 2:
        return {"time": column, "event": predicted[1]}, [f"{column} is a time until {predicted[1]}"], False
    if is_amount(cells, look.missing):
        return {"target": column}, [f"{column} is a number, and predicted as one"], False
    words = map(plain, cells[~is_missing(cells, look.missing)])
    classes, notes, is_rare = classes_of(f"column {column!r}", words, positive)
    return {"label": column, "classes": classes}, notes, is_rare


def _scenario_of(
    path: str, name: str, look: Look, outcome: Mapping[str, Any], notes: Sequence[str], rows: int, is_rare: bool
) -> str:
    task = {"csv": path, **outcome}
    optional: dict[str, Any] = {"categorical": look.categories(), "drop": [*look.drop], "missing": [*look.missing]}
    optional |= {"decimal": None if look.decimal == "." else look.decimal, "patient": look.patient}
    task |= {key: value for key, value in optional.items() if value}
    lines = ["# Written by `fedsmall new`", *(f"# {line}" for line in notes)]
    lines += [*(f"# left out: {column} ({why})" for column, why in look.drop.items()), f"name = {to_toml(name)}", ""]
    hospitals = len(look.frames) if len(look.frames) > 1 else sites_for(rows)
    if look.site_column:
        lines.append(f"partition = {{natural = {to_toml(look.site_column)}}}    # the hospitals of that column")
    elif len(look.frames) > 1:
        lines.append('partition = {natural = "file"}    # a hospital for each file')
    else:
        lines.append(f"sites = {hospitals}    # one table, split over as many pretended hospitals; no row is left out")
    lines += ['model = "linear"              # or "mlp", with stop = {patience = 5, hold_out = 0.2} under its methods']
    lines += ["rounds = 100                  # the rate falls to nothing by then, so a linear model is at its end"]
    lines += ["seeds = [0, 1, 2, 3, 4]       # at least five, or there is no verdict"]
    lines += ["evaluate_every = 20", *['metric = "auc"'] * (len(outcome.get("classes", ())) == 2)]
    lines += ['threshold = "youden"          # with a rare class a half would call all patients alike'] * is_rare
    lines += ["", "[task]", *(f"{key} = {to_toml(value)}" for key, value in task.items())]
    rate = 0.02 if "target" in outcome else 0.3 if "time" in outcome or rows < FEW_ROWS * hospitals else 0.1
    decay = min(max(2 / rows, 0.002), 0.02) if "time" not in outcome else 0.002  # it bends rates of events, too
    lines += ["", "[recipe]", 'optimizer = "sgd"', f"lr = {rate}", 'lr_schedule = "cosine"']
    lines += [f"weight_decay = {decay:.1g}", "batch = 32", "even_batches = true           # for policies' least_batch"]
    lines += ["local_epochs = 1              # a round: every hospital goes over its rows once"]
    features, classes = sum(map(len, look.categories().values())) + len(look.numeric), len(outcome.get("classes", ()))
    is_long = features * (classes if classes > 2 else 1) > MOST_COEFFICIENTS
    baselines = ALONE if is_long else METHODS + BY_PATIENT * bool(look.patient)
    return "\n".join(lines) + "\n" + baselines + FEDERATED.replace("{}", "")


def _read(text: str, out: Path) -> "Federation":
    """The federation of a scenario's data; DataError or PlanError where the task's own reader refuses them."""
    from fedsmall.planning.tasks import build_federation

    table = tomllib.loads(text)
    for source in {"csv", "images", "test"} & table["task"].keys():
        table["task"][source] = str((out.parent / table["task"][source]).resolve())
    return build_federation(build(table).plans()[0])


def _notes_of(look: Look) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for column, why in look.drop.items():
        reasons.setdefault(why, []).append(column)
    notes = [f"left out ({why}): {', '.join(columns)}" for why, columns in reasons.items()]
    notes += [f"categories: {', '.join(look.categorical)}"] if look.categorical else []
    notes += spellings(look)
    notes += [f"stand for no value: {', '.join(look.missing)}"] if look.missing else []
    both = "stand for no value in one column and for one in another, so are read as values"
    notes += [f"{both}: {', '.join(look.kept)}"] if look.kept else []
    notes += [f"{look.patient} names patients, some with several rows, which stay together"] if look.patient else []
    return notes + ([f"{look.site_column} names the hospital"] if look.site_column else [])


def print_data(description: Mapping[str, Any]) -> None:
    """A table: for each hospital its rows and outcomes, and for each column mean (SD) and how much is missing."""
    heads, rows = rows_of(description)
    console.print(grid(heads, rows[:SHOWN]))
    more = max(len(rows) - SHOWN, 0) + description["more"]
    console.print(f"numbers are mean (SD){f'; {more} rows more are in the report' if more else ''}", style="dim")
