"""``fedsmall list``: the methods, tasks and scenarios that come along."""

import tomllib
from importlib import import_module

import typer
from rich.table import Table

from fedsmall.sim.report.terminal import terminal

app = typer.Typer(no_args_is_help=True, add_completion=False, help="The methods, tasks and scenarios that come along.")
console = terminal()


@app.command()
def methods() -> None:
    """Every method by name, with its source; any part of it can be set anew in a scenario."""
    from fedsmall.entry_points import SCENARIOS, extensions, load_extension
    from fedsmall.methods import METHODS

    table = Table("method", "what it does", "source", box=None, header_style="dim", pad_edge=False)
    for name, row in METHODS.items():
        table.add_row(f"[bold]{name}[/bold]", row.summary, f"[dim]{row.source}[/dim]")
    console.print(table)
    for kind in extensions(SCENARIOS):
        extension = load_extension(SCENARIOS, kind)
        console.print(f"\n{extension.HEADING}: {', '.join(extension.METHODS)}", markup=False)


@app.command()
def tasks() -> None:
    """The data sets by name, and the forms in which your own data are named."""
    from fedsmall.tasks import TASKS

    table = Table("task", "what it is", box=None, header_style="dim", pad_edge=False)
    for name, place in TASKS.items():
        table.add_row(f"[bold]{name}[/bold]", _first_line(place))
    console.print(table)
    console.print('\nYour own: task = {csv = "file or folder", label = "column"}, {npz = ...}, or {images = "folder"};')
    console.print("docs/data.md shows each.", markup=False)


@app.command()
def scenarios() -> None:
    """The scenarios by name: `fedsmall run NAME` runs one."""
    from fedsmall.sim.runs.scenario import scenarios as shipped

    table = Table("scenario", "what it is", box=None, header_style="dim", pad_edge=False)
    for name, path in shipped().items():
        with path.open("rb") as file:
            table.add_row(f"[bold]{name}[/bold]", str(tomllib.load(file).get("about", "")))
    console.print(table)


def _first_line(place: str) -> str:
    """The first line of the documentation of "module:function"."""
    module, _, name = place.partition(":")
    return str(getattr(import_module(module), name).__doc__).partition("\n")[0]
