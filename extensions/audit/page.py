"""An audit on a terminal and as a page: a table for each method, and the sentences."""

from pathlib import Path

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from fedsmall.extensions.audit.record import Audit, Finding, read
from fedsmall.extensions.audit.sentences import LABELS, interval, percent, sentences
from fedsmall.sim.report.css import style_sheet
from fedsmall.sim.runs.files import write
from fedsmall.sim.runs.folder import Run

HEADS = ("who sees what", "AUC", "found at 1%", "found at .1%", "epsilon at least", "records read")


def row(finding: Finding) -> tuple[str, ...]:
    """A finding as the cells of :data:`HEADS`."""
    read = "-" if finding.read is None else f"{finding.read} of {finding.readable}"
    shares = (percent(each.value) for each in finding.found)
    return LABELS[finding.view], interval(finding.auc), *shares, f"{finding.bound:.2f}", read


def facts(audit: Audit) -> str:
    """What was attacked, in one line."""
    about = audit.about
    return (
        f"{about['runs']} federations of {about['sites']} sites; {about['candidates']} candidates, each in the data "
        f"with probability 1/2; {about['mean']:.1f} samples a site on average ({about['expected']:.1f} in the scenario)"
    )


def print_audit(console: Console, audit: Audit) -> None:
    """A table for each method with its sentences, and what was left out."""
    console.print(f"[bold]{audit.name}[/bold]: {facts(audit)}")
    for method in audit.methods:
        found = audit.of(method)
        table = Table(
            title=method, title_justify="left", title_style="bold", header_style="dim", box=None, pad_edge=False
        )
        for place, head in enumerate(HEADS):
            table.add_column(head, justify="right" if place else "left", no_wrap=place > 0)
        for finding in found:
            table.add_row(*row(finding))
        console.print()
        console.print(table)
        for line in sentences(found, audit.about["colluders"]):
            console.print(line, markup=False)
    for method, why in audit.left_out.items():
        console.print(f"\nNot attacked: {method}: {why}", markup=False)


def write_page(audit: Audit, folder: Path) -> Path:
    """Write the audit's page into ``folder``; returns the file."""
    path = folder / "audit.html"
    write(path, page(audit).encode())
    return path


def part(run: Run, name: str) -> Markup:
    """What the audit in a run's folder has found, as a part of the run's page."""
    assert run.folder is not None
    return Markup(TEMPLATES.get_template("section.html").render(audit=read(run.folder / "audit")))


def page(audit: Audit) -> str:
    """The whole page."""
    return TEMPLATES.get_template("audit.html").render(audit=audit, css=style_sheet())


TEMPLATES = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
TEMPLATES.globals |= {"facts": facts, "row": row, "sentences": sentences, "heads": HEADS}
