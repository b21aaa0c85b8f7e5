"""``fedsmall columns``, and scenarios over split columns as ``fedsmall.scenarios`` has them (the entry point)."""

from pathlib import Path
from typing import Annotated

import typer
from sklearn.datasets import load_breast_cancer
from typer import Argument, Option

from fedsmall.errors import PlanError
from fedsmall.extensions.columns import server
from fedsmall.extensions.columns.page import print_done, site_part, write_page
from fedsmall.extensions.columns.plan import COLUMN_SHEET, ColumnSheet
from fedsmall.extensions.columns.server import check_site, conduct, outcome_lines, prepare, write_run
from fedsmall.extensions.columns.simulation import METHODS, execute, world_of, write_parts
from fedsmall.extensions.columns.simulation import load_columns as load
from fedsmall.extensions.columns.simulation import predict as predict_rows
from fedsmall.randomness import rng_for
from fedsmall.sim.cli.deploy import follow
from fedsmall.sim.cli.options import OUT, SET, check_unwritten, command_group, say, terminal
from fedsmall.sim.consortium import runs
from fedsmall.sim.consortium import server as consortium_server
from fedsmall.sim.runs.files import as_csv, check_free, csv_text, free_folder, write, write_json
from fedsmall.sim.runs.scenario import as_toml

app = command_group(
    f"Boosted trees over columns that several parties hold of the same patients. Methods: {', '.join(METHODS)}."
)
console = terminal()

__all__ = ["app", "check_site", "conduct", "load", "outcome_lines", "prepare", "run", "site_part", "write_run"]
LEAVES = (
    "of split columns: blinded identifiers; gradients or sums under encryption; who goes left at a split that was "
    "chosen; at the end how many splits are of our columns and, with the labels, what the forest is worth"
)
Sheet = ColumnSheet

SAMPLE = Path(__file__).with_name("templates") / "two_houses.toml"
TAKEN = 0.9  # the share of all patients whom each of the sample's two parties knows


@app.command()
def run(
    scenario: Annotated[Path, Argument(help="a .toml file whose task has columns")],
    out: Annotated[Path | None, OUT] = None,
    setting: Annotated[list[str] | None, SET] = None,
) -> None:
    """Match patients, grow every forest of a scenario, and write a folder with report.html; all in this process.

    Parties know of each other what messages hold. Each keeps a file of its own in the run's folder.
    """
    asked = load(scenario, setting or [])
    folder = out or free_folder(asked.name)
    check_free(folder)
    world = world_of(asked)
    done = execute(world, lambda run: console.print(f"{run.plan.label}, seed {run.plan.seed}: {run.seconds:.1f} s"))
    write(folder / "scenario.toml", as_toml(asked))
    write_json(folder / "summary.json", {"common": world.common, "rows": [run.row() for run in done]})
    for finished in done:
        write_parts(finished, folder)
    print_done(console, world, done)
    console.print(f"\nReport: {write_page(world, done, folder)}", markup=False)


@app.command()
def sample(folder: Annotated[Path, Argument(help="where two tables and a scenario are written")] = Path()) -> None:
    """Write something to try: breast cancer as a hospital and a laboratory would hold it, and a scenario over both."""
    for path in write_sample(folder):
        console.print(str(path), markup=False)


def write_sample(folder: Path) -> list[Path]:
    """Write hospital.csv, laboratory.csv and two_houses.toml into ``folder``; PlanError where one of them is there."""
    data = load_breast_cancer()
    label = [str(data.target_names[number]) for number in data.target]
    tables = {"hospital.csv": slice(0, 10), "laboratory.csv": slice(10, 30)}
    paths = [folder / name for name in (*tables, SAMPLE.name)]
    if taken := [path.name for path in paths if path.exists()]:
        raise PlanError(f"{taken[0]} is there already; it is not written over")
    for path, (name, columns) in zip(paths, tables.items(), strict=False):
        known = rng_for(0, "sample of columns", name).permutation(len(label))[: round(TAKEN * len(label))]
        last = ["diagnosis"] if name == "hospital.csv" else []
        head = ["patient", *map(str, data.feature_names[columns]), *last]
        rows = [[f"p{row:04d}", *data.data[row, columns].tolist(), *([label[row]] if last else [])] for row in known]
        write(path, as_csv([head, *rows]).encode())
    write(paths[-1], SAMPLE.read_bytes())
    return paths


@app.command()
def predict(
    folder: Annotated[Path, Argument(help="the folder of a run")],
    tables: Annotated[
        list[str] | None, Argument(help="PARTY=FILE, for each party; none for a run over real sites")
    ] = None,
    method: Annotated[str | None, Option(help="by its label; the first with messages if not given")] = None,
    seed: Annotated[int | None, Option(help="the first seed if not given")] = None,
    out: Annotated[Path | None, Option(help="a CSV to write; shown if not given")] = None,
    name: Annotated[str | None, Option(help="over real sites: a name for this")] = None,
) -> None:
    """What a forest says of new patients, whose columns lie with the same parties; identifiers are matched.

    Of a run over real sites, in the consortium's folder, the sites are asked: about the patients in the table that each
    names in its policy (predict_from). What the forest says lies with the party that has the labels.
    """
    if (folder / COLUMN_SHEET).exists():
        if tables or out or method or seed is not None:
            raise PlanError("tables of a run over real sites lie there, and so do predictions; give the folder alone")
        home = folder.resolve()
        consortium_server.check_up(home.parents[1])
        run = server.prepare_prediction(home, name).name
        runs.launch(home.parents[1], run, say)
        return follow(home.parents[1], run, detach=False)
    check_unwritten(out)
    if not (folder / "scenario.toml").exists():
        raise PlanError(f"{folder} is no folder of a run over split columns")
    scenario = load(folder / "scenario.toml")
    label = method or next((plan.label for plan in scenario.plans() if METHODS[plan.name].apart), "")
    if odd := [table for table in tables or () if "=" not in table]:
        raise PlanError(f"a table is given as PARTY=FILE; got {odd[0]!r}")
    files = {party: Path(file) for party, _, file in (table.partition("=") for table in tables or ())}
    rows = predict_rows(folder, scenario, label, scenario.seeds[0] if seed is None else seed, files)
    text = csv_text(list(rows[0]), rows)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write(out, text.encode())
        console.print(f"{len(rows)} patients: {out}", markup=False)
