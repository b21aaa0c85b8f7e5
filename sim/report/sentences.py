"""What a table shows, in two plain sentences: computed from its numbers, and no more than they can carry."""

from collections.abc import Sequence

from fedsmall.evaluation.intervals import Interval
from fedsmall.evaluation.statistics import ENOUGH, Comparison
from sim.report.tables import Table, TableRow, by_label, difference, sites_values, table, values_of
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
    return [_federation(shown, groups) + _trivial(shown), _travelling(shown)]


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
    """A difference in points, with the 95% interval where there is one, corrected for the rows of the table."""
    gap = lead.difference
    mean = _signed(shown, gap.mean) + (" points" if shown.percent else "")
    if gap.n == 1:
        return f"{mean}; one seed cannot tell this from chance"
    if _equal(gap):
        return f"the same number with all {gap.n} seeds"
    if gap.flat:
        return f"{mean} with each of {gap.n} seeds, so there is no interval and no verdict"
    wide = gap.corrected(shown.comparisons)
    among = f" for {shown.comparisons} comparisons" if shown.comparisons > 1 else ""
    few = f"; {gap.n} seeds are too few for a verdict" if gap.n < ENOUGH else ""
    return f"{mean}, 95% interval{among} {_signed(shown, wide.low)} to {_signed(shown, wide.high)}{few}"


def short(shown: Table, lead: Comparison) -> str:
    """A difference in a table's cell: +1.4 (+0.6 to +2.2)."""
    gap = lead.difference
    if _equal(gap):
        return "equal"
    ends = f" ({_signed(shown, gap.low)} to {_signed(shown, gap.high)})" if gap.n > 1 else ""
    return _signed(shown, gap.mean) + ends


def _federation(shown: Table, groups: dict[str, list[PlanRun]]) -> str:
    """The first sentence: what federation is worth."""
    metric = named(shown.metric)
    reference = _reference(shown)
    alone = next((row for row in shown.rows if row.family == "standalone"), None)
    central = next((row for row in shown.rows if row.family == "central"), None)
    ours = shown.main(reference) if reference else None
    if reference is None or ours is None:
        sign = -1 if shown.lower_is_better else 1
        best = max(shown.of_methods, key=lambda row: sign * row.sites.mean if row.sites else float("-inf"))
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


def _trivial(shown: Table) -> str:
    """What a prediction gives that looks at no sample, and whether the reference method beats it."""
    least, reference = shown.trivial, _reference(shown)
    mean = shown.main(least) if least else None
    if least is None or mean is None:
        return ""
    gives = f" Predicting {least.label} gives {value(shown, mean.mean)}"
    if reference is None or least.lead is None:
        return f"{gives}."
    return f"{gives}; {reference.label} {_verb(shown, least.lead)} that ({by(shown, least.lead)})."


def _travelling(shown: Table) -> str:
    """The second sentence: the reference method against averaging of the same period, and with the same traffic."""
    reference = _reference(shown)
    leads = [(row, row.lead) for row in shown.rows if row.lead is not None and row.family == "federated"]
    if reference is None or not leads:
        return "There is no second federated method in this run, so no method is compared with another."
    roles = [_role(reference, row) for row, _ in leads]
    named_rows = [  # two in one role, as with other recipes, go by name
        (role if roles.count(role) == 1 else row.label, lead)
        for role, (row, lead) in zip(roles, leads, strict=True)
        if role
    ]
    clauses = [
        f"{_verb(shown, lead, _learnt(shown))} {name} ({by(shown, lead)})"
        for name, lead in named_rows or [(row.label, lead) for row, lead in leads[:2]]
    ]
    return f"{reference.label} {_joined(clauses)}."


def _reference(shown: Table) -> TableRow | None:
    return next((row for row in shown.rows if row.label == shown.reference), None)


def _role(reference: TableRow, other: TableRow) -> str:
    """What plain averaging is to the method: of the same period, of the same traffic, or nothing of interest."""
    ours, theirs = reference.method, other.method
    if ours is None or theirs is None or theirs.name != "FedAvg":
        return ""
    if ours.permute_every and theirs.aggregate_every == ours.aggregate_every:
        return f"FedAvg with the same time between averages (b = {theirs.aggregate_every})"
    if other.contacts == reference.contacts:
        return f"FedAvg with the same traffic (b = {theirs.aggregate_every})"
    return ""


def _learnt(shown: Table) -> bool:
    """Whether the reference method is shown to beat the trivial predictor, or the run does not hold it."""
    lead = shown.trivial.lead if shown.trivial else None
    return lead is None or (lead.decides(shown.comparisons) and _is_better(shown, lead))


def _equal(gap: Interval) -> bool:
    return gap.flat and abs(gap.mean) < 1e-12


def _is_better(shown: Table, lead: Comparison) -> bool:
    return (lead.difference.mean > 0) != shown.lower_is_better


def _verb(shown: Table, lead: Comparison, learnt: bool = True) -> str:
    if lead.difference.n == 1:
        return "stands beside"
    if _equal(lead.difference):
        return "does as well as"
    if not lead.decides(shown.comparisons):
        return "is not shown to differ from"
    if not _is_better(shown, lead):
        return "is worse than"
    return "is better than" if learnt else "is not shown to beat a constant, but is ahead of"


def _joined(clauses: Sequence[str]) -> str:
    return clauses[0] if len(clauses) == 1 else ", ".join(clauses[:-1]) + ", and it " + clauses[-1]


def _bare(shown: Table, number: float) -> str:
    return f"{100 * number:.1f}" if shown.percent else f"{number:.4g}"


def _signed(shown: Table, number: float) -> str:
    return f"{100 * number:+.1f}" if shown.percent else f"{number:+.4g}"
