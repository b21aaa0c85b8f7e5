"""Runs on a terminal: the same table as in the report, and the same sentences."""

from textwrap import fill

from rich.console import Console
from rich.table import Table as Grid

from fedsmall.sim.report import at_home, facts
from fedsmall.sim.report.model import nobody_positive
from fedsmall.sim.report.real_sites import real_sentences
from fedsmall.sim.report.sections import Cells
from fedsmall.sim.report.sentences import amount, metric_name, sentences, short, with_interval
from fedsmall.sim.report.tables import Table, by_label, table
from fedsmall.sim.runs.folder import Run

NARROWEST = 14  # of a column
NARROW = 100  # columns of a terminal below which an interval stands under its number
SAID = (  # behind a table, in this order
    *(
        sentences,
        nobody_positive,
        facts.stop_sentences,
        facts.dynamic_sentences,
        facts.ensemble_sentences,
        facts.reader_sentences,
    ),
    *(facts.unseen_sentences, real_sentences, facts.promises, facts.uncovered),
)


def print_run(console: Console, run: Run) -> None:
    """The table of a run, two sentences on it, and what was not run."""
    if by_label(run.done):
        name, about = run.scenario.name, run.scenario.about
        console.print(grid(table(run), f"{name}: {about}" if about else name, console.width))
        for sentence in (sentence for say in SAID for sentence in say(run)):
            console.print(sentence, markup=False)
    for section in at_home.sections(run, [run.reference or ""]):
        assert section.table is not None
        title = f"{section.title}: loss at each hospital, lower is better"
        console.print(plain_grid(section.table, title, console.width))
        for text in section.sentences:
            console.print(text, markup=False)
    for line in (*note_lines(run), *failures(run)):
        console.print(line, markup=False)
    if run.not_run:
        whole = len(run.plans) - len(run.not_run) - len(run.failed)
        console.print(f"[bold]This run is partial[/bold]: {whole} of {len(run.plans)} plans were run to their end.")


def note_lines(run: Run) -> list[str]:
    """What a reader of the results should know about the data."""
    return [f"Note: {note}" for note in run.about.get("notes", ())]


def failures(run: Run) -> list[str]:
    """A line for each reason for which plans failed, with the methods and seeds."""
    by_reason: dict[tuple[str, str], list[int]] = {}
    for failure in run.failed:
        by_reason.setdefault((failure["label"], failure["reason"]), []).append(failure["seed"])
    return [
        f"{label} failed (seed{'s' * (len(seeds) > 1)} {', '.join(map(str, dict.fromkeys(seeds)))}): {reason}"
        for (label, reason), seeds in by_reason.items()
    ]


def plain_grid(cells: Cells, title: str, width: int) -> Grid:
    """The cells of a page as a table for a terminal of that width, their ``reference`` in bold."""
    is_narrow, words = width < NARROW, cells.words or (0, 1)
    made = Grid(title=title, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False)
    made.collapse_padding = is_narrow
    for place, head in enumerate(cells.heads):
        in_two = is_narrow and place not in words
        name = fill(str(head), NARROWEST) if in_two else str(head)
        made.add_column(name, justify="left" if place in words else "right", no_wrap=in_two, overflow="fold")
    for place, row in enumerate(cells.rows):
        texts = [str(cell) for cell in row]
        if is_narrow:  # an interval goes below its number
            texts = [s if k in words else s.replace(" (", "\n").removesuffix(")") for k, s in enumerate(texts)]
        made.add_row(*texts, style="bold" if place == cells.reference else "")
    return made


def grid(shown: Table, title: str, width: int) -> Grid:
    """A table for a terminal of that width."""
    heads = ("global model", "local models") if shown.whose == "common" else ("local models",)
    lead = [f"{shown.reference} minus this"] if shown.reference else []
    rows = [
        [
            row.label,
            *(with_interval(shown, mean) if mean else "-" for mean in (row.common, row.sites)[-len(heads) :]),
            *(short(shown, row.lead) if row.lead else "" for _ in lead),
            f"{row.comm_rounds:g}",
            amount(row.bytes_sent) if row.bytes_sent else "nothing",
        ]
        for row in shown.rows
    ]
    names = ["method", f"{heads[0]}, {metric_name(shown.metric)}", *heads[1:], *lead, "communication\nrounds", "sent"]
    labels = [row.label for row in shown.rows]
    reference = labels.index(shown.reference) if shown.reference in labels else None
    return plain_grid(Cells(names, rows, words=(0,), reference=reference), title, width)
