"""What a table shows, in two plain sentences: computed from its numbers, and no more than they can carry."""

from collections.abc import Sequence

import numpy as np

from fedsmall.evaluation.metrics import by_digits
from fedsmall.evaluation.statistics import ENOUGH, Comparison, Interval
from fedsmall.sim.report.tables import AREAS, Judged, Table, TableRow, by_label, is_percent, table
from fedsmall.sim.runs.folder import PlanRun, Run

NAMES = {
    "auc": "ROC-AUC",
    "macro_f1": "macro F1",
    "balanced_accuracy": "balanced accuracy",
    "mae": "mean absolute error",
    "rmse": "root mean squared error",
    "r2": "R2",
    "label_accuracy": "accuracy over labels",
    "kappa": "quadratic weighted kappa",
    "c_index": "concordance index",
    "ibs": "integrated Brier score",
    "brier": "Brier score",
    "average_precision": "average precision",
}
SAME_TRAFFIC = 0.05  # bytes may differ by this share where traffic is called the same
UNITS = ("B", "kB", "MB", "GB", "TB")


def list_words(words: Sequence[str], last: str = " and ") -> str:
    """Words or clauses as a list: a, b and c."""
    return last.join([*filter(None, [", ".join(words[:-1])]), words[-1]])


def verb_for(words: Sequence[str]) -> str:
    """Is, of one, or are, of several."""
    return "is" if len(words) == 1 else "are"


def plural(count: int, word: str) -> str:
    """A count with its word: 1 site, 2 sites."""
    return f"{count} {word}{'s' * (count != 1)}"


def amount(size: float) -> str:
    """A number of bytes as a reader wants it: 1.2 MB."""
    step = 0
    while size >= 1000 and step < len(UNITS) - 1:
        size, step = size / 1000, step + 1
    return f"{size:.3g} {UNITS[step]}"


def sentences(run: Run) -> list[str]:
    """Two sentences on a run: federation against every site alone, and travelling models against averaging."""
    shown = table(run)
    groups = by_label(run.done)
    if not groups:
        return ["No method was run to its end, so there is nothing to compare.", ""]
    return [
        _headline(shown, run) + _federation(shown, groups, run) + _trivial(shown) + _pooled(shown),
        _travelling(shown),
    ]


def brief(run: Run) -> list[str]:
    """Three short sentences: a single site against the federation, the same patients pooled, and other federations."""
    shown = table(run)
    rows = {row.label: row for row in shown.rows}
    main = shown.main(rows[shown.reference]) if shown.reference in rows else None
    if main is None:
        return sentences(run)
    name, worth = metric_name(shown.metric), f"Federated model ({shown.reference}): "
    if shown.alone:
        worth = f"Models trained at a single site: {name} {value(shown, shown.alone.mean)} on average. {worth}"
    worth += f"{'' if shown.alone else f'{name} '}{with_interval(shown, main)}."
    pooled = [f"{name} {value(shown, mean.mean)}" for name, mean in shown.central.items()]
    return [worth, *([f"On the same patients pooled: {'; '.join(pooled)}."] if pooled else []), _travelling(shown)]


def value(shown: Table, number: float) -> str:
    """A number of a table, as a reader wants it: 94.6% or 0.0213."""
    return metric_value(shown.metric, number)


def metric_value(metric: str, number: float) -> str:
    """A number of a metric, as a reader wants it: 94.6% or 0.0213."""
    return _digits(metric, number) + "%" * is_percent(metric)


def _digits(metric: str, number: float, sign: str = "") -> str:
    if is_percent(metric):
        return f"{100 * number:{sign}.1f}"
    return f"{number:{sign}.3f}" if metric in AREAS else by_digits(number, sign=sign)


def metric_name(metric: str) -> str:
    """A metric's name in running text."""
    return NAMES.get(metric, metric.replace("_", " "))


def with_interval(shown: Table, mean: Interval) -> str:
    """A mean and its 95% interval; without one where a single run, or equal ones, show no spread."""
    if np.isnan(mean.width) or mean.flat:
        return value(shown, mean.mean)
    return f"{value(shown, mean.mean)} ({_digits(shown.metric, mean.low)} to {_digits(shown.metric, mean.high)})"


def by(shown: Table, lead: Comparison) -> str:
    """A difference in points, with the 95% interval where there is one, corrected for the rows of the table."""
    gap = lead.difference
    mean = _signed(shown, gap, gap.mean) + (" points" if shown.percent else "")
    if gap.n == 1:
        return f"{mean}; one run only, no inference possible"
    if lead.is_of_one_test_set:
        return f"{mean}; {gap.n} seeds on one test set, whose predictions are not kept, cannot tell this from chance"
    if _equal(gap):
        return f"identical in all {gap.n} runs"
    if gap.flat:
        return f"{mean} with each of {gap.n} seeds, so there is no interval and no verdict"
    wide = gap.corrected(shown.comparisons)
    among = f" for {shown.comparisons} comparisons" if shown.comparisons > 1 else ""
    few = f"; {gap.n} seeds are too few for a verdict" if gap.n < ENOUGH else ""
    return f"{mean}, 95% interval{among} {_signed(shown, gap, wide.low)} to {_signed(shown, gap, wide.high)}{few}"


def short(shown: Table, lead: Comparison) -> str:
    """A difference in a table's cell: +1.4 (+0.6 to +2.2)."""
    gap = lead.difference
    if _equal(gap):
        return "equal"
    if gap.flat:
        return f"{_signed(shown, gap, gap.mean)} (each of {gap.n})"
    known = gap.n > 1 and not np.isnan(gap.width)
    ends = f" ({_signed(shown, gap, gap.low)} to {_signed(shown, gap, gap.high)})" if known else ""
    return _signed(shown, gap, gap.mean) + ends


def p_of(shown: Table, lead: Comparison) -> str:
    """The p by which words go, corrected for the rows of the table; empty where seeds are too few for a verdict."""
    return f"{lead.corrected_p(shown.comparisons):.2g}" if lead.can_decide else ""


def _headline(shown: Table, run: Run) -> str:
    """Whether anything was learnt that a prediction which looks at no sample does not know."""
    least, aheads = shown.trivial, {row.label: row.ahead for row in shown.of_methods if row.ahead}
    mean = shown.main(least) if least else None
    if least is None or mean is None or not aheads:
        return ""
    worth = f"{metric_name(shown.metric)} {value(shown, mean.mean)}"
    constant = f"{_constant(least, run)}, which gives {worth}"
    seeds = max(ahead.difference.n for ahead in aheads.values())
    if seeds < ENOUGH:
        few = "1 seed is" if seeds == 1 else f"{seeds} seeds are"
        return f"{few} too few to say whether any method is better than {constant}; {ENOUGH} are the least. "
    good = [row.label for row in shown.of_methods if shown.beats_trivial(row)]
    bad = [label for label, a in aheads.items() if a.decides(shown.comparisons) and not shown.is_better(a)]
    worse = f"{list_words(bad)} {verb_for(bad)} worse than {constant}. " if bad else ""
    if not good:
        return f"No method here is shown to be better than {constant}. {worse}"
    if shown.reference in aheads and shown.reference not in good:
        others = f"{list_words(good)} {verb_for(good)}"
        return f"{shown.reference} is not shown to be better than {constant}; {others}. {worse}"
    return worse


def _constant(least: TableRow, run: Run) -> str:
    """The trivial predictor, with the class that it names where that is known and always one."""
    classes = {plan_run.row.get("trivial", {}).get("class") for plan_run in run.done}
    names = run.about.get("task", {}).get("class_names") or ()
    only = classes.pop() if len(classes) == 1 else None
    return f"predicting {least.label}" + (f" ({names[only]})" if only is not None and only < len(names) else "")


def _without_global_model(shown: Table) -> str:
    metric, sign = metric_name(shown.metric), -1 if shown.lower_is_better else 1
    of_sites = {row.label: row.sites for row in shown.of_methods if row.sites}
    pooled = {row.label: row.common for row in shown.of_methods if row.common}
    if not (means := of_sites or pooled):
        return "No model could be judged."
    best = max(means, key=lambda label: sign * means[label].mean)
    reach = f"{metric} {with_interval(shown, means[best])}"
    return f"The local models of {best} reach {reach} on average." if of_sites else f"{best} reaches {reach}."


def _federation(shown: Table, groups: dict[str, list[PlanRun]], run: Run) -> str:
    metric, reference = metric_name(shown.metric), _reference(shown)
    alone = next((row for row in shown.rows if row.family == "standalone"), None)
    central = next((row for row in shown.rows if row.family == "central"), None)
    ours = shown.main(reference) if reference else None
    if reference is None or ours is None:
        return _without_global_model(shown)
    ends = ""
    if central and central.common:
        number = run.about.get("training_samples")  # runs of earlier releases do not hold it
        samples = f"the same {number:,} samples" if number else "the same samples"
        ends = f"; training on {samples} pooled gives {value(shown, central.common.mean)}"
    if alone is None or alone.sites is None:
        reach = "reaches" if shown.whose == "common" else "reach"
        return f"The {shown.models} of {reference.label} {reach} {metric} {with_interval(shown, ours)}{ends}."
    judged = Judged(run, shown.metric, None)
    gap = judged.between(groups[reference.label], groups[alone.label], (shown.whose, "sites"))
    gain = f" ({by(shown, gap)})" if gap else ""
    return (
        f"Models trained at a single site reach {metric} {value(shown, alone.sites.mean)} on average, the "
        f"{shown.models} of {reference.label} {value(shown, ours.mean)}{gain}{ends}."
    )


def _trivial(shown: Table) -> str:
    least, reference = shown.trivial, _reference(shown)
    mean = shown.main(least) if least else None
    if least is None or mean is None:
        return ""
    gives = f" Predicting {least.label} gives {value(shown, mean.mean)}"
    if reference is None or least.lead is None:
        return f"{gives}."
    return f"{gives}; {reference.label} {_verb(shown, least.lead)} that ({by(shown, least.lead)})."


def _pooled(shown: Table) -> str:
    regression, sign = shown.pooled, -1 if shown.lower_is_better else 1
    networks = [row.common for row in shown.of_methods if row.common and row.method and row.method.trains_networks]
    if regression is None or regression.common is None or not networks:
        return ""
    if any(sign * mean.mean >= sign * regression.common.mean for mean in networks):
        return ""
    return (
        " All models of this run that were trained by gradients lie, by their means, below logistic regression on the "
        f"pooled patients ({metric_name(shown.metric)} {value(shown, regression.common.mean)}): see fedsmall choose."
    )


def _travelling(shown: Table) -> str:
    """The second sentence: the reference method against averaging of the same period, and with the same traffic."""
    reference = _reference(shown)
    leads = [(row, row.lead) for row in shown.rows if row.lead is not None and row.family == "federated"]
    if reference is None or not leads:
        return "There is no second federated method in this run, so no method is compared with another."
    roles = [_role(reference, row) for row, _ in leads]
    named = [  # two in one role, as with other recipes, go by name
        (role if roles.count(role) == 1 else row.label, lead)
        for role, (row, lead) in zip(roles, leads, strict=True)
        if role
    ]
    least = shown.trivial.lead if shown.trivial else None  # without it nothing is known against the reference
    has_learnt = least is None or (least.decides(shown.comparisons) and shown.is_better(least))
    named = named or [(row.label, lead) for row, lead in leads[:2]]
    clauses = [f"{_verb(shown, lead, has_learnt)} {name} ({by(shown, lead)})" for name, lead in named]
    return f"{reference.label} {list_words(clauses, ', and it ')}."


def _reference(shown: Table) -> TableRow | None:
    return next((row for row in shown.rows if row.label == shown.reference), None)


def _role(reference: TableRow, other: TableRow) -> str:
    """What plain averaging shares with the method: the period, the traffic, or neither ("")."""
    reference_method, other_method = reference.method, other.method
    if reference_method is None or other_method is None or other_method.name != "FedAvg":
        return ""
    if reference_method.permute_every and other_method.aggregate_every == reference_method.aggregate_every:
        return f"FedAvg with the same time between averages (b = {other_method.aggregate_every})"
    if abs(other.bytes_sent - reference.bytes_sent) <= SAME_TRAFFIC * reference.bytes_sent:
        return f"FedAvg with the same traffic (b = {other_method.aggregate_every})"
    return ""


def _equal(gap: Interval) -> bool:
    return gap.flat and abs(gap.mean) < 1e-12


def _verb(shown: Table, lead: Comparison, learnt: bool = True) -> str:
    if lead.difference.n == 1:
        return "ran once beside"
    if _equal(lead.difference):
        return "equals"
    if not lead.decides(shown.comparisons):
        return "cannot be told apart from"
    if not shown.is_better(lead):
        return "is worse than"
    return "is better than" if learnt else "is not shown to beat a constant, but is ahead of"


def _signed(shown: Table, gap: Interval, number: float) -> str:
    """A difference with its sign; of positive measures by what share one is larger, or how many times from twice on."""
    if gap.scale == "change":
        return f"{100 * number:+.1f}%" if number < 1 else f"x {1 + number:.3g}" if number < 999 else "x 1,000 or more"
    return _digits(shown.metric, number, "+")
