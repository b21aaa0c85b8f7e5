"""A run over split columns on a terminal and as a page: a row for each method, what it took, what each party learns."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader
from rich.console import Console
from rich.table import Table

from fedsmall.evaluation.statistics import interval
from fedsmall.sim.columns.execute import Done, World
from fedsmall.sim.columns.learnt import Facts, Learnt, learnt
from fedsmall.sim.columns.scenario import METHODS
from fedsmall.sim.report.css import style_sheet
from fedsmall.sim.report.sentences import amount
from fedsmall.sim.runs.files import write
from fedsmall.vertical.boosting import with_splits

HEADS = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "log_loss": "log loss",
    "r2": "R\N{SUPERSCRIPT TWO}",
    "mae": "mean error",
}


def by_label(done: Sequence[Done]) -> dict[str, list[Done]]:
    """The runs of each method, in the order of the scenario."""
    found: dict[str, list[Done]] = {}
    for one in done:
        found.setdefault(one.plan.label, []).append(one)
    return found


def heads(done: Sequence[Done]) -> list[str]:
    """The names of the table's columns."""
    told = [name for name in HEADS if any(name in one.metrics for one in done)]
    return ["method", *(HEADS[name] for name in told), "seconds a forest", "messages", "sent"]


def rows(done: Sequence[Done]) -> list[list[str]]:
    """A row for each method: means over seeds, with 95% intervals where there are several."""
    told = [name for name in HEADS if any(name in one.metrics for one in done)]
    found = []
    for label, runs in by_label(done).items():
        worth = [_mean([one.metrics[name] for one in runs if name in one.metrics], name) for name in told]
        seconds = sum(one.seconds for one in runs) / len(runs)
        messages = sum(sum(one.messages.values()) for one in runs) / len(runs)
        sent = sum(sum(one.bytes.values()) for one in runs) / len(runs)
        found.append([label, *worth, f"{seconds:.3g}", f"{messages:.0f}", amount(sent) if sent else "nothing"])
    return found


def _mean(values: Sequence[float], name: str) -> str:
    if not values:
        return "-"
    known = interval(values, scale="share" if name in ("accuracy", "auc") else "plain")
    return f"{known.mean:.3f}" if len(values) == 1 else f"{known.mean:.3f} ({known.low:.3f} to {known.high:.3f})"


def same_trees(done: Sequence[Done]) -> list[str]:
    """Which methods made the very trees of Central, where it was run with the same settings and seed."""
    central = {one.plan.seed: one for one in done if one.plan.name == "Central"}
    found = []
    for label, runs in by_label(done).items():
        pairs = [(one, central.get(one.plan.seed)) for one in runs if METHODS[one.plan.name].apart]
        known = [(one, other) for one, other in pairs if other is not None and _grow_alike(one, other)]
        if known:
            equal = sum(with_splits(a.trees, a.records) == with_splits(b.trees, b.records) for a, b in known)
            found.append(
                f"{label} made the trees of joined columns (Central), every split and every leaf: "
                f"{equal} of {len(known)} seeds."
            )
    return found


def _grow_alike(one: Done, other: Done) -> bool:
    cheaper = {"packing", "subtraction", "sparse"}
    return one.plan.settings.model_dump(exclude=cheaper) == other.plan.settings.model_dump(exclude=cheaper)


def told_by_method(world: World, done: Sequence[Done]) -> dict[str, list[Learnt]]:
    """What each party learns, for the first run of every method in which parties send messages."""
    names = tuple(party.name for party in world.parties)
    return {
        label: learnt(Facts(names, world.common, runs[0].splits, runs[0].plan.settings, runs[0].sums_read))
        for label, runs in by_label(done).items()
        if METHODS[runs[0].plan.name].apart
    }


def print_done(console: Console, world: World, done: Sequence[Done]) -> None:
    """The table, whether trees are those of joined columns, and what each party learns."""
    names = ", ".join(f"{one.name} ({len(one.table.columns)} columns)" for one in world.parties)
    console.print(f"[bold]{world.scenario.name}[/bold]: {world.common} patients are at all parties: {names}")
    grid = Table(header_style="dim", box=None, pad_edge=False)
    for place, head in enumerate(heads(done)):
        grid.add_column(head, justify="right" if place else "left", no_wrap=True)
    for row in rows(done):
        grid.add_row(*row)
    console.print(grid)
    for line in same_trees(done):
        console.print(line, markup=False)
    for label, parties in told_by_method(world, done).items():
        console.print(f"\n[bold]{label}[/bold]: what each party learns")
        for line in lines(parties):
            console.print(f"  {line}", markup=False)


def lines(parties: Sequence[Learnt]) -> list[str]:
    """What each party learns and does not, in two lines each."""
    return [line for one in parties for line in (f"{one.party}: {one.learns}.", f"  not: {one.not_learnt}.")]


def write_page(world: World, done: Sequence[Done], folder: Path) -> Path:
    """Write report.html into the run's folder; returns the file."""
    css = style_sheet()
    told = {"world": world, "done": done, "css": css, "heads": heads(done), "rows": rows(done)}
    told |= {"same": same_trees(done), "learnt": told_by_method(world, done), "work": work_of(done)}
    write(folder / "report.html", TEMPLATES.get_template("columns.html").render(**told).encode())
    return folder / "report.html"


def work_of(done: Sequence[Done]) -> dict[str, dict[str, float]]:
    """Mean seconds of every method by what they were spent on."""
    found = {}
    for label, runs in by_label(done).items():
        kinds = {kind for one in runs for kind in one.work}
        if kinds:
            found[label] = {kind: sum(one.work.get(kind, 0.0) for one in runs) / len(runs) for kind in sorted(kinds)}
    return found


TEMPLATES = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
