"""What an audit found: its record (``audit.json`` and the scenario), in sentences, on a terminal, and as a page."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from fedsmall.errors import PlanError
from fedsmall.extensions.audit.by_likelihood import Explained
from fedsmall.extensions.audit.membership import Estimate
from fedsmall.sim.report.style import style_sheet
from fedsmall.sim.runs.files import read_json, write, write_json
from fedsmall.sim.runs.folder import Run
from fedsmall.sim.runs.scenario import Scenario, as_toml

NAME = "audit.json"


@dataclass(frozen=True)
class Finding:
    """What one party can tell under one method.

    ``bound`` is the median over federations of the one-run lower bound on epsilon, ``highest`` the largest. ``read``
    records of ``readable`` could be read whole; None where there is nothing to read.
    """

    method: str
    view: str
    auc: Estimate
    found: tuple[Estimate, ...]
    bound: float
    highest: float
    read: int | None
    readable: int | None


@dataclass(frozen=True)
class Audit:
    """What an audit found; ``about`` has sizes, runs and seed, ``left_out`` why methods were not attacked.

    ``explained`` is what one likelihood over all updates read under a method, or why it was not tried.
    """

    name: str
    about: dict[str, Any]
    findings: list[Finding]
    left_out: dict[str, str]
    explained: dict[str, Explained | str] = field(default_factory=dict)

    @property
    def methods(self) -> list[str]:
        """The labels of the methods that were attacked, in their order."""
        return list(dict.fromkeys(finding.method for finding in self.findings))

    def of(self, method: str) -> list[Finding]:
        """What was found under one method. PlanError where it was not attacked."""
        findings = [finding for finding in self.findings if finding.method == method]
        if not findings:
            raise PlanError(f"the audit did not attack {method!r}; it did: {', '.join(self.methods) or 'none'}")
        return findings


def save(audit: Audit, scenario: Scenario, folder: Path) -> None:
    """Write an audit into its folder, with what repeats it."""
    write(folder / "scenario.toml", as_toml(scenario))
    write_json(folder / NAME, asdict(audit))


def read(folder: Path) -> Audit:
    """An audit from its folder. PlanError where there is none."""
    if not (folder / NAME).is_file():
        raise PlanError(f"{folder} holds no audit; `fedsmall audit SCENARIO` makes one")
    return TypeAdapter(Audit).validate_python(read_json(folder / NAME))


WHO = {
    "released": "Whoever has the released model",
    "own": "Whoever is given the model of a site that trained alone",
    "commons": "Whoever keeps every global model (any hospital; a server that sees sums only)",
    "raw": "Whoever gets hold of one model that a hospital sent on, and nothing else,",
    "neighbour": "A hospital that writes down what it is sent",
    "colluders": "{colluders} hospitals that put together what they are sent",
    "update": "Whoever sees one update of a hospital and knows the model that it set out from",
    "sealed": "A server that sees single models at averages only (sealed handovers)",
    "server": "The server, which sees every model,",
}
LABELS = {
    "released": "released model",
    "own": "a site's own model, released",
    "commons": "all global models (any site; server under secure sums)",
    "raw": "one model from the site, start unknown",
    "neighbour": "another hospital, all it receives",
    "colluders": "hospitals that collude, all they receive",
    "update": "one update, start known",
    "sealed": "server under sealed handovers",
    "server": "server, everything",
}
WHOSE = {"neighbour": "another's patients", "colluders": "the others' patients"}


def sentences(findings: Sequence[Finding], colluders: int = 3) -> list[str]:
    """What the party of each finding can tell of a patient, in one plain sentence."""
    return [_sentence(finding, colluders) for finding in findings]


def _sentence(finding: Finding, colluders: int) -> str:
    who, several = WHO[finding.view].format(colluders=colluders), finding.view == "colluders"
    share, whose = percent(finding.found[0].value), WHOSE.get(finding.view, "the patients")
    claim, but = f"can tell for {share} of {whose}, at 1% false alarms, that they were in the data", "and"
    if finding.auc.low <= 0.5:
        be, but = ("were" if several else "was"), "but" if finding.read else "and"
        claim = f"{be} not seen to tell better than by chance who was in the data"
    read = ""
    if finding.read is not None and finding.readable:
        what = f"{percent(finding.read / finding.readable)} of the complete records" if finding.read else "no record"
        read = f", {but} {'read' if several else 'reads'} {what}"
    return f"{who} {claim} (AUC {interval(finding.auc)}){read}."


def percent(share: float) -> str:
    """A share as 8.6%."""
    return f"{100 * share:.1f}%"


def interval(estimate: Estimate) -> str:
    """A number between 0 and 1 with its interval: .681 (.669 to .695)."""
    value, low, high = (f"{number:.3f}".removeprefix("0") for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} ({low} to {high})"


HEADS = ("who sees what", "AUC", "found at 1%", "found at .1%", "epsilon at least", "records read")


def row(finding: Finding) -> tuple[str, ...]:
    """A finding as the cells of :data:`HEADS`."""
    read = "-" if finding.read is None else f"{finding.read} of {finding.readable}"
    shares = (percent(share.value) for share in finding.found)
    return LABELS[finding.view], interval(finding.auc), *shares, f"{finding.bound:.2f}", read


def facts(audit: Audit) -> str:
    """What was attacked, in one line."""
    about = audit.about
    return (
        f"{about['runs']} federations of {about['sites']} sites; {about['candidates']} candidates, each in the data "
        f"with probability 1/2; {about['mean']:.1f} samples a site on average ({about['expected']:.1f} in the scenario)"
    )


def explanation(audit: Audit, method: str) -> str:
    """What one likelihood over all updates read under a method, in one sentence; "" where nothing is known of it."""
    found = audit.explained.get(method, "")
    if isinstance(found, str):
        return found and f"One likelihood over all updates was not tried: {found}."
    return (
        f"By one likelihood over all updates the server reads {found.close} of {found.patients} patients within a "
        f"fifth (median error {found.error:.2g} of a record) and names {found.named}; it leaves "
        f"{found.misfit / max(found.at_truth, 1e-30):.3g} times as much unexplained as the true records do: the nearer "
        "to 1, the less a better attack could add."
    )


def print_audit(console: Console, audit: Audit) -> None:
    """A table for each method with its sentences, and what was left out."""
    console.print(f"[bold]{audit.name}[/bold]: {facts(audit)}")
    look: dict[str, Any] = {"title_justify": "left", "title_style": "bold", "header_style": "dim", "box": None}
    for method in audit.methods:
        findings = audit.of(method)
        table = Table(title=method, pad_edge=False, **look)
        for place, head in enumerate(HEADS):
            table.add_column(head, justify="right" if place else "left", no_wrap=place > 0)
        for finding in findings:
            table.add_row(*row(finding))
        console.print()
        console.print(table)
        for line in [*sentences(findings, audit.about["colluders"]), explanation(audit, method)]:
            console.print(line, markup=False)
    for method, why in audit.left_out.items():
        console.print(f"\nNot attacked: {method}: {why}", markup=False)


def write_page(audit: Audit, folder: Path) -> Path:
    """Write the audit's page into ``folder``; returns the file."""
    write(folder / "audit.html", page(audit).encode())
    return folder / "audit.html"


def page(audit: Audit) -> str:
    """The whole page."""
    return TEMPLATES.get_template("audit.html").render(audit=audit, css=style_sheet())


def part(run: Run, name: str) -> Markup:
    """What the audit in a run's folder has found, as a part of the run's page."""
    assert run.folder is not None
    return Markup(TEMPLATES.get_template("section.html").render(audit=read(run.folder / "audit")))


TEMPLATES = Environment(loader=PackageLoader(__package__), autoescape=True, trim_blocks=True, lstrip_blocks=True)
TEMPLATES.globals |= {"facts": facts, "row": row, "sentences": sentences, "explanation": explanation, "heads": HEADS}
