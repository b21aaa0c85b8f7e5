"""What an audit found, in one plain sentence for each party; for reports, and for the card of a model."""

from collections.abc import Sequence

from fedsmall.extensions.audit.membership import Estimate
from fedsmall.extensions.audit.record import Finding

WHO = {
    "released": "Whoever has the released model",
    "own": "Whoever is given the model of a site that trained alone",
    "commons": "Whoever keeps every common model (any hospital; a server that sees sums only)",
    "raw": "Whoever gets hold of one model that a hospital sent on, and nothing else,",
    "neighbour": "A hospital that writes down what it is sent",
    "colluders": "{colluders} hospitals that put together what they are sent",
    "update": "Whoever sees one update of a hospital and knows the model that it set out from",
    "sealed": "A server that sees single models at averages only (sealed hops)",
    "server": "The server, which sees every model,",
}
LABELS = {
    "released": "released model",
    "own": "a site's own model, released",
    "commons": "all common models (any site; server under secure sums)",
    "raw": "one model from the site, start unknown",
    "neighbour": "another hospital, all it receives",
    "colluders": "hospitals that collude, all they receive",
    "update": "one update, start known",
    "sealed": "server under sealed hops",
    "server": "server, everything",
}
WHOSE = {"neighbour": "another's patients", "colluders": "the others' patients"}


def sentences(findings: Sequence[Finding], colluders: int = 3) -> list[str]:
    """A sentence for each finding, in their order."""
    return [sentence(finding, colluders) for finding in findings]


def sentence(finding: Finding, colluders: int = 3) -> str:
    """What the party of a finding can tell of a patient."""
    who = WHO[finding.view].format(colluders=colluders)
    whose = WHOSE.get(finding.view, "the patients")
    chance = finding.auc.low <= 0.5
    share = percent(finding.found[0].value)
    told = f"can tell for {share} of {whose}, at 1% false alarms, that they were in the data"
    if chance:
        told = "was not seen to tell better than by chance who was in the data"
    if chance and finding.view == "colluders":
        told = told.replace("was", "were", 1)
    return f"{who} {told} (AUC {interval(finding.auc)}){_read(finding, chance)}."


def _read(finding: Finding, chance: bool) -> str:
    if finding.read is None or not finding.readable:
        return ""
    verb = "read" if finding.view == "colluders" else "reads"
    what = f"{percent(finding.read / finding.readable)} of the complete records" if finding.read else "no record"
    return f", {'but' if chance and finding.read else 'and'} {verb} {what}"


def percent(share: float) -> str:
    """A share as 8.6%."""
    return f"{100 * share:.1f}%"


def interval(estimate: Estimate) -> str:
    """A number between 0 and 1 with its interval: .681 (.669 to .695)."""
    return f"{bare(estimate.value)} ({bare(estimate.low)} to {bare(estimate.high)})"


def bare(value: float) -> str:
    """A number between 0 and 1 with three digits and no zero before the point."""
    return f"{value:.3f}".removeprefix("0")
