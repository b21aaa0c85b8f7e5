"""``fedsmall columns``: boosted trees over columns that several parties hold of the same patients."""

from pathlib import Path
from typing import Annotated

import typer

from fedsmall.sim.cli.options import OUT, SET
from fedsmall.sim.report.terminal import terminal

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Boosted trees over columns that several parties hold of the same patients.",
)
console = terminal()


@app.command()
def run(
    scenario: Annotated[Path, typer.Argument(help="a .toml file whose task has columns", show_default=False)],
    out: Annotated[Path | None, OUT] = None,
    setting: Annotated[list[str] | None, SET] = None,
) -> None:
    """Match patients, grow every forest of a scenario, and write a folder with report.html; all in this process.

    Parties know of each other what messages hold. Each keeps a file of its own in the run's folder.
    """
    from fedsmall.sim.columns.execute import execute, world_of
    from fedsmall.sim.columns.page import print_done, write_page
    from fedsmall.sim.columns.saved import keep
    from fedsmall.sim.columns.scenario import as_toml, load_columns
    from fedsmall.sim.runs.files import check_free, free_folder, write, write_json

    asked = load_columns(scenario, setting or [])
    folder = out or free_folder(asked.name)
    check_free(folder)
    world = world_of(asked)
    done = execute(world, lambda one: console.print(f"{one.plan.label}, seed {one.plan.seed}: {one.seconds:.1f} s"))
    write(folder / "scenario.toml", as_toml(asked))
    write_json(folder / "summary.json", {"common": world.common, "rows": [one.row() for one in done]})
    for one in done:
        keep(world, one, folder)
    print_done(console, world, done)
    console.print(f"\nReport: {write_page(world, done, folder)}", markup=False)


@app.command()
def sample(
    folder: Annotated[Path, typer.Argument(help="where two tables and a scenario are written")] = Path(),
) -> None:
    """Write something to try: breast cancer as a hospital and a laboratory would hold it, and a scenario over both."""
    from fedsmall.sim.columns.sample import write_sample

    for path in write_sample(folder):
        console.print(str(path), markup=False)


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(help="the folder of a run", show_default=False)],
    tables: Annotated[
        list[str] | None,
        typer.Argument(help="PARTY=FILE, for each party; none for a run over real sites", show_default=False),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="by its label; the first with messages if not given", show_default=False)
    ] = None,
    seed: Annotated[int | None, typer.Option(help="the first seed if not given", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="a CSV to write; shown if not given", show_default=False)] = None,
    name: Annotated[str | None, typer.Option(help="over real sites: a name for this", show_default=False)] = None,
) -> None:
    """What a forest says of new patients, whose columns lie with the same parties; identifiers are matched.

    Of a run over real sites, in the consortium's folder, the sites are asked: about the patients in the table that each
    names in its policy (predict_from). What the forest says lies with the party that has the labels.
    """
    from fedsmall.errors import PlanError
    from fedsmall.sim.columns.saved import predict as predicted
    from fedsmall.sim.columns.scenario import METHODS, load_columns
    from fedsmall.sim.runs.files import csv_text, write
    from fedsmall.vertical.plan import COLUMN_SHEET

    if (folder / COLUMN_SHEET).exists():
        if tables or out or method or seed is not None:
            raise PlanError("tables of a run over real sites lie there, and so do predictions; give the folder alone")
        return _ask_sites(folder.resolve(), name)
    if out is not None and out.exists():
        raise PlanError(f"{out} is there already; it is not written over")
    if not (folder / "scenario.toml").exists():
        raise PlanError(f"{folder} is no folder of a run over split columns")
    scenario = load_columns(folder / "scenario.toml")
    plans = [one for one in scenario.plans() if METHODS[one.name].apart]
    label = method or next((one.label for one in plans), "")
    if odd := [one for one in tables or () if "=" not in one]:
        raise PlanError(f"a table is given as PARTY=FILE; got {odd[0]!r}")
    given = {party: Path(file) for party, _, file in (one.partition("=") for one in tables or ())}
    found = predicted(folder, scenario, label, scenario.seeds[0] if seed is None else seed, given)
    text = csv_text(list(found[0]), found)
    if out is None:
        typer.echo(text, nl=False)
    else:
        write(out, text.encode())
        console.print(f"{len(found)} patients: {out}", markup=False)


def _ask_sites(home: Path, name: str | None) -> None:
    """Have the sites of a finished run ask its forest about their new patients."""
    from fedsmall.sim.cli.deploy import follow
    from fedsmall.sim.cli.terminal import say
    from fedsmall.sim.columns.real import prepare_prediction
    from fedsmall.sim.consortium import runs, server

    folder = home.parents[1]
    server.check_up(folder)
    made = prepare_prediction(home, name)
    follow(folder, made.name, runs.launch(folder, made.name, say), detach=False)
