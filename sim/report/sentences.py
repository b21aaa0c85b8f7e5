"""What a table shows, in two plain sentences: computed from its numbers, and no more than they can carry."""

from collections.abc import Sequence

from fedsmall.plan import Method
from fedsmall.statistics import Comparison, Interval
from sim.report.tables import Table, by_label, difference, sites_values, table, values_of
from sim.runs.folder import PlanRun, Run

NAMES = {
    "auc": "ROC-AUC",
    "macro_f1": "macro F1",
    "balanced_accuracy": "balanced accuracy",
    "mae": "mean absolute error",
}


def sentences(run: Run) -> list[str]:
    """Two sentences on a run: federation against every site alone, and travelling models against averaging."""
    shown = table(run)
    groups = by_label(run.done)
    if not groups:
        return ["No method was run to its end, so there is nothing to compare.", ""]
    return [_federation(shown, groups, run), _travelling(shown, groups)]


def value(shown: Table, number: float) -> str:
    """A number of a table, as a reader wants it: 94.6% or 0.0213."""
    return f"{100 * number:.1f}%" if shown.percent else f"{number:.4g}"


def named(metric: str) -> str:
    """A metric's name in running text."""
    return NAMES.get(metric, metric.replace("_", " "))


def with_interval(shown: Table, mean: Interval) -> str:
    """A mean and its 95% interval; without one where a single run shows no spread."""
    if mean.n == 1:
        return value(shown, mean.mean)
    return f"{value(shown, mean.mean)} ({_bare(shown, mean.low)} to {_bare(shown, mean.high)})"


def by(shown: Table, lead: Comparison) -> str:
    """A difference in points, with its 95% interval where there is one."""
    gap = lead.difference
    points = " points" if shown.percent else ""
    if gap.n == 1:
        return f"{_signed(shown, gap.mean)}{points}; one seed cannot tell this from chance"
    if gap.mean == gap.width == 0:
        return f"the same number with all {gap.n} seeds"
    return f"{_signed(shown, gap.mean)}{points}, 95% interval {_signed(shown, gap.low)} to {_signed(shown, gap.high)}"


def short(shown: Table, lead: Comparison) -> str:
    """A difference in a table's cell: +1.4 (+0.6 to +2.2)."""
    gap = lead.difference
    if gap.n > 1 and gap.mean == gap.width == 0:
        return "equal"
    ends = f" ({_signed(shown, gap.low)} to {_signed(shown, gap.high)})" if gap.n > 1 else ""
    return _signed(shown, gap.mean) + ends


def _federation(shown: Table, groups: dict[str, list[PlanRun]], run: Run) -> str:
    """The first sentence: what federation is worth."""
    metric = named(shown.metric)
    reference = next((row for row in shown.rows if row.label == shown.reference), None)
    alone = next((row for row in shown.rows if row.method.family == "standalone"), None)
    central = next((row for row in shown.rows if row.method.family == "central"), None)
    ours = shown.main(reference) if reference else None
    if reference is None or ours is None:
        sign = -1 if shown.lower_is_better else 1
        best = max(shown.rows, key=lambda row: sign * row.sites.mean if row.sites else float("-inf"))
        return f"The sites' own models of {best.label} reach {metric} {with_interval(shown, best.sites)} on average."  # type: ignore[arg-type]
    ends = (
        f"; training on all data pooled gives {value(shown, central.common.mean)}" if central and central.common else ""
    )
    if alone is None or alone.sites is None:
        reach = "reaches" if shown.whose == "common" else "reach"
        return f"The {shown.models} of {reference.label} {reach} {metric} {with_interval(shown, ours)}{ends}."
    gap = difference(
        values_of(shown.whose, groups[reference.label], shown.metric),
        sites_values(groups[alone.label], shown.metric),
    )
    gain = f" ({by(shown, gap)})" if gap else ""
    return (
        f"A site alone reaches {metric} {value(shown, alone.sites.mean)} on average, the {shown.models} of "
        f"{reference.label} {value(shown, ours.mean)}{gain}{ends}."
    )


def _travelling(shown: Table, groups: dict[str, list[PlanRun]]) -> str:
    """The second sentence: the reference method against averaging of the same period, and with the same traffic."""
    reference = next((row for row in shown.rows if row.label == shown.reference), None)
    others = [row for row in shown.rows if row.lead is not None and row.method.family == "federated"]
    if reference is None or not others:
        return "There is no second federated method in this run, so no method is compared with another."
    roles = [_role(reference.method, reference.contacts, row.method, row.contacts) for row in others]
    clauses = []
    for role, row in zip(roles, others, strict=True):
        if role and row.lead:
            who = role if roles.count(role) == 1 else row.label  # two in one role, as with other recipes, go by name
            clauses.append(f"{_verb(shown, row.lead)} {who} ({by(shown, row.lead)})")
    if not clauses:
        clauses = [f"{_verb(shown, row.lead)} {row.label} ({by(shown, row.lead)})" for row in others[:2] if row.lead]
    return f"{reference.label} {_joined(clauses)}."


def _role(method: Method, contacts: float, other: Method, other_contacts: float) -> str:
    """What plain averaging is to the method: of the same period, of the same traffic, or nothing of interest."""
    if other.name != "FedAvg":
        return ""
    if method.permute_every and other.aggregate_every == method.aggregate_every:
        return f"FedAvg with the same time between averages (b = {other.aggregate_every})"
    if other_contacts == contacts:
        return f"FedAvg with the same traffic (b = {other.aggregate_every})"
    return ""


def _verb(shown: Table, lead: Comparison) -> str:
    if lead.difference.n == 1:
        return "stands beside"
    if lead.difference.mean == lead.difference.width == 0:
        return "does as well as"
    if not lead.decided:
        return "is not shown to differ from"
    better = (lead.difference.mean > 0) != shown.lower_is_better
    return "is better than" if better else "is worse than"


def _joined(clauses: Sequence[str]) -> str:
    return clauses[0] if len(clauses) == 1 else ", ".join(clauses[:-1]) + ", and it " + clauses[-1]


def _bare(shown: Table, number: float) -> str:
    return f"{100 * number:.1f}" if shown.percent else f"{number:.4g}"


def _signed(shown: Table, number: float) -> str:
    return f"{100 * number:+.1f}" if shown.percent else f"{number:+.4g}"
