"""``fedsmall reproduce``: the papers' tables and figures, the designed study, and the page that gathers them."""

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedsmall.sim.cli.options import DATA_ROOT, DEVICE, ENGINE

console = Console(highlight=False, soft_wrap=True)


def reproduce(
    item: Annotated[
        str, typer.Argument(help="a table or figure by name; all, list, study, reading or page", show_default=False)
    ] = "list",
    profile: Annotated[str, typer.Option(help="quick: minutes on two cores; paper: as printed")] = "quick",
    engine: Annotated[str | None, ENGINE] = None,
    device: Annotated[str | None, DEVICE] = None,
    data_root: Annotated[Path | None, DATA_ROOT] = None,
    docs: Annotated[
        Path | None, typer.Option(help="the folder of the page; docs/ here if not given", show_default=False)
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="study only: stop after this time and go on at the next call")
    ] = None,
) -> None:
    """Run the papers' tables and figures: measured beside published, with intervals, tests and a verdict for each.

    Writes docs/evidence.md, its figures and the numbers behind them. `study` runs the designed study of when letting
    models travel pays; `reading` counts the patients whose records could be read, with and without blur, for
    docs/reading.md; `page` writes the page anew from the results that are there.
    """
    from fedsmall.research.evidence.items import DOCS
    from fedsmall.research.evidence.run import rewrite

    docs = docs or DOCS
    if item == "list":
        _list(data_root)
        return
    if item == "reading":
        _reading(docs, data_root)
        return
    if item == "study":
        if device:
            raise typer.BadParameter("the study's models are small and train on the CPU; leave --device out")
        _study(docs, minutes)
    elif item != "page":
        _items(item, profile, docs, engine=engine, device=device, data_root=data_root)
    console.print(f"\nPage: {rewrite(docs)}")


def _items(name: str, profile: str, docs: Path, **how: Any) -> None:
    from fedsmall.research.evidence.items import chosen
    from fedsmall.research.evidence.page import summary
    from fedsmall.research.evidence.run import reproduce as run_item

    wanted, started = chosen(name), time.perf_counter()
    for item in wanted:
        item.scenarios(profile)  # a wrong profile or scenario stops everything before the first run
    for item in wanted:
        result = run_item(item, profile, docs=docs, console=console, processes=None, **how)
        console.print(summary(item, result), markup=False)
    console.print(f"{len(wanted)} items in {time.perf_counter() - started:.0f} s")


def _reading(docs: Path, data_root: Path | None) -> None:
    from fedsmall.research.evidence.reading import keep, measure

    rows = measure(lambda line: console.print(line, markup=False), data_root)
    keep(rows, docs)
    console.print(f"\nTable: {docs / 'reading.md'}, numbers: {docs / 'evidence' / 'reading.json'}")


def _study(docs: Path, minutes: float | None) -> None:
    from fedsmall.research.evidence.study import Cell, CellOutcome, study

    def report(cell: Cell, outcome: CellOutcome, kept: int, count: int) -> None:
        factors = f"{cell.model}, {cell.optimizer}, {cell.sites} x {cell.samples}, {cell.classes} classes a site"
        console.print(f"{kept}/{count} {factors}: {100 * outcome.same_mean:+.1f} points, {outcome.seconds:.0f} s")

    kept = study(docs / "evidence" / "study.csv", minutes=minutes, on_cell=report, processes=os.cpu_count() or 1)
    console.print(f"{kept} cells")


def _list(data_root: Path | None) -> None:
    from fedsmall.research.evidence.items import items

    for name, item in items().items():
        console.print(f"[bold]{name}[/bold]  {item.title}")
        for called, profile in (("runs here", "quick"), ("as printed", "paper")):
            missing = item.missing(data_root, profile)
            smaller = profile == "quick" and not item.here and item.scenarios("quick") != item.scenarios("paper")
            notes = (", made smaller" if smaller else "") + (f" ({missing}: not found)" if missing else "")
            console.print(f"  [dim]{called:10}[/dim]  {item.file(profile)}{notes}")
    console.print("[bold]study[/bold]  When does letting models travel pay?")
