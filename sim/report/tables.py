"""What a run shows, in numbers: for every method mean and interval, and paired differences between methods.

The common model and the sites' own models have a column each.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import LOWER_IS_BETTER, OTHER_NAMES
from fedsmall.evaluation.statistics import Comparison, Interval, Scale, Shared, interval, paired
from fedsmall.methods import nearest
from fedsmall.plan import Method
from fedsmall.sim.report.patients import Values, behind_difference, behind_lead, mean_of, p_over_constant
from fedsmall.sim.report.style import in_order
from fedsmall.sim.runs.folder import PlanRun, Run, reference_of

NO_TRAFFIC = {"contacts": 0, "bytes_sent": 0, "stopped": False}
PRIMARY = ("accuracy", "mae", "mse", "loss")  # of runs that do not say what they are judged by
AREAS = ("auc", "average_precision", "r2", "c_index", "ibs", "kappa")  # shown as 0.831


@dataclass(frozen=True)
class TableRow:
    """A method in a table, or the trivial predictor, whose ``method`` is None.

    ``common`` and ``sites`` are over its runs, ``spread`` is the mean spread over sites. ``lead`` is the table's
    reference minus this method, run by run, :attr:`Table.whose` models both; None where one has none. ``ahead`` is this
    method minus the trivial predictor; seeds and test samples must both bear it out. ``contacts`` and ``bytes_sent``
    are of one run.
    """

    label: str
    method: Method | None
    runs: int
    common: Interval | None
    sites: Interval | None
    spread: float | None
    lead: Comparison | None
    ahead: Comparison | None
    contacts: float
    bytes_sent: float

    @property
    def family(self) -> str:
        """The method's family, or "trivial"."""
        return self.method.family if self.method else "trivial"


@dataclass(frozen=True)
class Table:
    """The trivial predictor and all methods by one ``metric``, on the test samples or on a further set ``where``.

    ``whose`` models are compared: the "common" ones, or the "sites'" where no method has a common one.
    """

    metric: str
    where: str | None
    reference: str | None
    rows: tuple[TableRow, ...]
    whose: str = "common"

    def main(self, row: TableRow) -> Interval | None:
        """The numbers of a row by which it is compared with others."""
        own = row.common if self.whose == "common" else row.sites
        return own or (row.common if row.method is None else None)

    @property
    def models(self) -> str:
        """What is compared, in words."""
        return "common model" if self.whose == "common" else "sites' own models"

    @property
    def of_methods(self) -> list[TableRow]:
        """The rows of methods."""
        return [row for row in self.rows if row.method]

    @property
    def trivial(self) -> TableRow | None:
        """The row of the trivial predictor; None where the run does not hold it."""
        return next((row for row in self.rows if row.method is None), None)

    @property
    def comparisons(self) -> int:
        """How many rows are held against the reference."""
        return len(self.rows) - 1

    @property
    def lower_is_better(self) -> bool:
        """Whether a small value is a good one."""
        return self.metric in LOWER_IS_BETTER

    @property
    def percent(self) -> bool:
        """Whether values are shares, shown in per cent."""
        return not self.lower_is_better and self.metric not in AREAS

    def beats_trivial(self, row: TableRow) -> bool:
        """Whether a method is shown to be better than the trivial predictor, as one of the table's methods."""
        ahead = row.ahead
        return ahead is not None and ahead.decides(self.comparisons) and self.is_better(ahead)

    def is_better(self, lead: Comparison) -> bool:
        """Whether a difference is to the good."""
        return (lead.difference.mean > 0) != self.lower_is_better


def table(run: Run, metric: str | None = None, where: str | None = None) -> Table:
    """The table of a run; the metric is the task's first one where none is asked for."""
    groups = by_label(run.done)
    metric = _known(run, metric) if metric is not None and where is None else metric or primary(run)
    asked = run.scenario.reference
    reference = asked if asked in groups else reference_of([group[0].plan.method for group in groups.values()])
    whose = "common" if any(common_values(group, metric, where) for group in groups.values()) else "sites"
    trivials = trivials_of(run.done)
    held_against = (run, groups.get(reference or ""), trivials, metric, where, whose)
    rows = [_row(label, group[0].plan.method, group, *held_against) for label, group in groups.items()]
    if any(_values(trivials, *name, where) for name in (("common", metric), ("sites", f"{metric}_mean"))):
        least = _row(trivials[0].row["label"], None, trivials, *held_against)
        ahead = next((row.ahead for row in rows if row.label == reference), None)
        rows.insert(0, replace(least, lead=ahead or least.lead))
    return Table(metric, where, reference, tuple(rows), whose)


def _known(run: Run, metric: str) -> str:
    """The metric, checked; PlanError names the nearest to an unknown one."""
    known = metrics_of(run.done)
    if known and metric not in known:
        raise PlanError(f"this run was not judged by {metric!r}. {nearest(metric, known)}")
    return metric


def scale_of(metric: str) -> Scale:
    """What the values of a metric cannot leave."""
    if metric in LOWER_IS_BETTER:  # of more than two classes a Brier score may be above one
        return "positive"
    others: dict[str, Scale] = {"r2": "plain", "kappa": "gain"}
    return others.get(metric, "share")


def trivials_of(done: Sequence[PlanRun]) -> list[PlanRun]:
    """The trivial predictor of each seed and fold as if it were a method's run; none in folders that hold none."""
    by_seed = {(one.plan.seed, one.plan.fold): one for one in done if one.row.get("trivial")}
    return [replace(one, row=one.row["trivial"] | NO_TRAFFIC) for one in by_seed.values()]


def by_label(done: Sequence[PlanRun]) -> dict[str, list[PlanRun]]:
    """The whole runs of each method, methods in the order of all tables and figures; a run cut short counts nowhere."""
    groups: dict[str, list[PlanRun]] = {}
    for one in done:
        if not one.row["stopped"] and one.evaluations:
            groups.setdefault(one.label, []).append(one)
    methods = in_order([group[0].plan.method for group in groups.values()])
    return {method.label: groups[method.label] for method in methods}


def metrics_of(done: Sequence[PlanRun]) -> list[str]:
    """The metrics that the runs were judged by."""
    names: dict[str, None] = {}
    for one in done:
        names |= dict.fromkeys(one.row["common"] or {})
        names |= dict.fromkeys(name.removesuffix("_mean") for name in one.row["sites"] if name.endswith("_mean"))
    return list(names)


def primary(run: Run) -> str:
    """The metric of tables and figures: that of the scenario, or accuracy where it names none."""
    known, asked = metrics_of(run.done), run.scenario.metric
    if asked is not None and (OTHER_NAMES.get(asked, asked) in known or not known):
        return OTHER_NAMES.get(asked, asked)
    return next((name for name in PRIMARY if name in known), known[0] if known else PRIMARY[0])


def common_values(group: Sequence[PlanRun], metric: str, where: str | None = None) -> dict[tuple[int, int], float]:
    """The common model's value at the end of each run, by seed and fold."""
    return _values(group, "common", metric, where)


def sites_values(group: Sequence[PlanRun], metric: str, where: str | None = None) -> dict[tuple[int, int], float]:
    """The mean of the sites' own models at the end of each run, by seed and fold."""
    return _values(group, "sites", f"{metric}_mean", where)


def values_of(
    whose: str, group: Sequence[PlanRun], metric: str, where: str | None = None
) -> dict[tuple[int, int], float]:
    """The values by which methods are compared, of the "common" models or of the "sites"."""
    return (common_values if whose == "common" else sites_values)(group, metric, where)


def difference(
    a: Values, b: Values, metric: str, shared: Callable[[list[tuple[int, int]]], Shared]
) -> Comparison | None:
    """``a`` minus ``b`` over the seeds (and folds) that both have; ``shared`` tells what their runs share.

    Of a positive metric it is by what share ``a`` is larger. None where they have no seed in common.
    """
    keys = sorted(set(a) & set(b))
    if not keys:
        return None
    first, second = [a[key] for key in keys], [b[key] for key in keys]
    scales: dict[Scale, Scale] = {"share": "gain", "positive": "change" if min(*first, *second) > 0 else "plain"}
    return paired(first, second, test="t", scale=scales.get(scale_of(metric), "plain"), shared=shared(keys))


def between(
    run: Run, ours: Sequence[PlanRun], theirs: Sequence[PlanRun], metric: str, where: str | None, whose: tuple[str, str]
) -> Comparison | None:
    """``ours`` minus ``theirs``, of ``whose`` models each, with what their runs share."""
    places = [{(one.plan.seed, one.plan.fold): one for one in group} for group in (ours, theirs)]
    kept = where is None and whose == ("common", "common")

    def shared(keys: list[tuple[int, int]]) -> Shared:
        pairs = [(places[0][key], places[1][key]) for key in keys]
        return behind_difference(run, pairs, metric, scale_of(metric), kept)

    a, b = values_of(whose[0], ours, metric, where), values_of(whose[1], theirs, metric, where)
    return difference(a, b, metric, shared)


def _ahead(
    run: Run,
    group: Sequence[PlanRun],
    own: Values,
    trivials: Sequence[PlanRun],
    metric: str,
    where: str | None,
    whose: str,
) -> Comparison | None:
    """A method minus the trivial predictor, by the test samples too where its predictions are kept."""
    least = values_of(whose, trivials, metric, where) or common_values(trivials, metric, where)
    kept = where is None and whose == "common"

    def shared(keys: list[tuple[int, int]]) -> Shared:
        mine = [one for one in group if (one.plan.seed, one.plan.fold) in keys]
        return behind_lead(run, mine, metric, scale_of(metric), kept)

    ahead = difference(own, least, metric, shared)
    asked = p_over_constant(run, group, own, least, metric) if kept else None
    return ahead and replace(ahead, of_samples=asked)


def _row(
    label: str,
    method: Method | None,
    group: Sequence[PlanRun],
    run: Run,
    reference: Sequence[PlanRun] | None,
    trivials: Sequence[PlanRun],
    metric: str,
    where: str | None,
    whose: str,
) -> TableRow:
    common, sites = common_values(group, metric, where), sites_values(group, metric, where)
    spread = list(_values(group, "sites", f"{metric}_sd", where).values())
    own = common if whose == "common" or (method is None and not sites) else sites
    judged = group if method is not None and where is None else ()  # by the run's own test set, predictions beside
    lead = None
    if reference and reference is not group and method is not None:
        lead = between(run, reference, group, metric, where, (whose, "common" if own is common else "sites"))
    return TableRow(
        label=label,
        method=method,
        runs=len(group),
        common=mean_of(run, judged, common, metric, scale_of(metric)) if common else None,
        sites=interval(list(sites.values()), scale=scale_of(metric)) if sites else None,
        spread=sum(spread) / len(spread) if spread else None,
        lead=lead,
        ahead=_ahead(run, group, own, trivials, metric, where, whose) if method is not None else None,
        contacts=sum(one.row["contacts"] for one in group) / len(group),
        bytes_sent=sum(one.row["bytes_sent"] for one in group) / len(group),
    )


def _values(group: Sequence[PlanRun], whose: str, name: str, where: str | None) -> dict[tuple[int, int], float]:
    values = {}
    for one in group:
        row = one.row if where is None else one.row["extra"].get(where, {})
        value = (row.get(whose) or {}).get(name)
        if value is not None and np.isfinite(value):  # one site's own model may have diverged
            values[one.plan.seed, one.plan.fold] = float(value)
    return values
