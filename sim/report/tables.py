"""What a run shows, in numbers: for every method mean and interval, and paired differences between methods."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedsmall.data.raw_site import HELD_OUT
from fedsmall.errors import PlanError
from fedsmall.evaluation.baselines import POOLED
from fedsmall.evaluation.metrics import LOWER_IS_BETTER, OTHER_NAMES
from fedsmall.evaluation.sampling import constant_beside, jackknife, patients_behind, worth_without
from fedsmall.evaluation.statistics import Comparison, Interval, Scale, Shared, by_patients, interval, paired
from fedsmall.methods import nearest
from fedsmall.plan import Method
from fedsmall.sim.report.style import in_order
from fedsmall.sim.runs.folder import PlanRun, Run, prediction_key, reference_of

NO_TRAFFIC = {"contacts": 0, "bytes_sent": 0, "stopped": False}
PRIMARY = ("accuracy", "mae", "mse", "loss")  # of runs that do not say what they are judged by
Keys = list[tuple[int, int]]  # seeds and folds
Values = Mapping[tuple[int, int], float]  # by seed and fold
AREAS = ("auc", "average_precision", "r2", "c_index", "ibs", "kappa")  # shown as 0.831


@dataclass(frozen=True)
class TableRow:
    """A method in a table, or the trivial predictor or the regression on pooled rows, whose ``method`` is None.

    ``common`` and ``sites`` are over its runs, ``spread`` is the mean spread over sites. ``lead`` is the table's
    reference minus this method, run by run, :attr:`Table.whose` models both; None where one has none. ``ahead`` is this
    method minus the trivial predictor. ``comm_rounds`` and ``bytes_sent`` are of one run.
    """

    label: str
    method: Method | None
    runs: int
    common: Interval | None
    sites: Interval | None
    spread: float | None
    lead: Comparison | None
    ahead: Comparison | None
    comm_rounds: float
    bytes_sent: float

    @property
    def family(self) -> str:
        """The method's family, or "trivial"."""
        return self.method.family if self.method else "trivial"


@dataclass(frozen=True)
class Table:
    """All methods and the trivial predictor by one ``metric``; models compared are the "common" or the "sites'"."""

    metric: str
    where: str | None
    reference: str | None
    rows: tuple[TableRow, ...]
    whose: str = "common"

    def main(self, row: TableRow) -> Interval | None:
        """The numbers of a row by which it is compared with others."""
        main = row.common if self.whose == "common" else row.sites
        return main or (row.common if row.method is None else None)

    @property
    def alone(self) -> Interval | None:
        """What models trained at a single site come to on average, where a method trains such."""
        return next((row.sites for row in self.rows if row.family == "standalone"), None)

    @property
    def central(self) -> dict[str, Interval]:
        """What models of all samples pooled come to, by their rows' labels."""
        pooled = {row.label: row.common for row in self.rows if row.family == "central" or row.label == POOLED}
        return {label: mean for label, mean in pooled.items() if mean}

    @property
    def models(self) -> str:
        """What is compared, in words."""
        return "global model" if self.whose == "common" else "local models"

    @property
    def of_methods(self) -> list[TableRow]:
        """The rows of methods."""
        return [row for row in self.rows if row.method]

    @property
    def trivial(self) -> TableRow | None:
        """The row of the trivial predictor; None where the run does not hold it."""
        return next((row for row in self.rows if row.method is None), None)

    @property
    def pooled(self) -> TableRow | None:
        """The row of a regression on pooled rows; it is compared with nothing. None where the run does not hold it."""
        return next((row for row in self.rows if row.label == POOLED), None)

    @property
    def comparisons(self) -> int:
        """How many rows are held against the reference."""
        return len(self.rows) - 1 - (self.pooled is not None)

    @property
    def lower_is_better(self) -> bool:
        """Whether a small value is a good one."""
        return self.metric in LOWER_IS_BETTER

    @property
    def percent(self) -> bool:
        """Whether values are shares, shown in per cent."""
        return is_percent(self.metric)

    def beats_trivial(self, row: TableRow) -> bool:
        """Whether a method is shown to be better than the trivial predictor, as one of the table's methods."""
        ahead = row.ahead
        return ahead is not None and ahead.decides(self.comparisons) and self.is_better(ahead)

    def is_better(self, lead: Comparison) -> bool:
        """Whether a difference is to the good."""
        return (lead.difference.mean > 0) != self.lower_is_better


class Judged(NamedTuple):
    """The models of a run, judged by one ``metric`` on its test samples or on a further set ``where``."""

    run: Run
    metric: str
    where: str | None

    def values(self, group: Sequence[PlanRun], whose: str, end: str = "mean") -> dict[tuple[int, int], float]:
        """Values at the end by seed and fold: the "common" models', or the "sites": their mean, or their "sd"."""
        values, name = {}, self.metric if whose == "common" else f"{self.metric}_{end}"
        for plan_run in group:
            row = plan_run.row if self.where is None else plan_run.row["extra"].get(self.where, {})
            value = (row.get(whose) or {}).get(name)
            if value is not None and np.isfinite(value):  # one site's own model may have diverged
                values[plan_run.key] = float(value)
        return values

    def between(self, ours: Sequence[PlanRun], theirs: Sequence[PlanRun], whose: tuple[str, str]) -> Comparison | None:
        """``ours`` minus ``theirs``, of ``whose`` models each, with what their runs share."""
        first, second = ({plan_run.key: plan_run for plan_run in group} for group in (ours, theirs))
        kept = self.where is None and whose == ("common", "common")

        def shared(keys: Keys) -> Shared:
            pairs = [(first[key], second[key]) for key in keys]
            return behind_difference(self.run, pairs, self.metric, scale_of(self.metric), kept)

        return self._difference(self.values(ours, whose[0]), self.values(theirs, whose[1]), shared)

    def ahead(
        self, group: Sequence[PlanRun], trivials: Sequence[PlanRun], whose: str, own: Values
    ) -> Comparison | None:
        """A method's ``own`` values minus the trivial predictor's, over patients too where predictions are kept."""
        least = self.values(trivials, whose) or self.values(trivials, "common")
        kept = self.where is None and whose == "common"

        def shared(keys: Keys) -> Shared:
            members = [plan_run for plan_run in group if plan_run.key in keys]
            return behind_lead(self.run, members, self.metric, scale_of(self.metric), kept)

        found = self._difference(own, least, shared)
        if found is None or not kept or not found.difference.flat or not found.difference.mean:
            return found  # else all seeds agree, as perfect models do
        return by_patients(found, mean_of(self.run, group, own, self.metric, scale_of(self.metric)))

    def _difference(self, a: Values, b: Values, shared: Callable[[Keys], Shared]) -> Comparison | None:
        """``a`` minus ``b`` at seeds and folds that both have, None for none; as a share where both are positive."""
        keys = sorted(set(a) & set(b))
        if not keys:
            return None
        first, second = [a[key] for key in keys], [b[key] for key in keys]
        scales: dict[Scale, Scale] = {"share": "gain", "positive": "change" if min(*first, *second) > 0 else "plain"}
        scale = scales.get(scale_of(self.metric), "plain")
        return paired(first, second, test="t", scale=scale, shared=shared(keys))

    def row(
        self, group: Sequence[PlanRun], trivials: Sequence[PlanRun], reference: Sequence[PlanRun] | None, whose: str
    ) -> TableRow:
        """The row of a method's runs, or of the ``trivials``, beside the ``reference`` method's."""
        common, sites = self.values(group, "common"), self.values(group, "sites")
        spread, scale = list(self.values(group, "sites", "sd").values()), scale_of(self.metric)
        is_trivial = group is trivials
        is_common = whose == "common" or (is_trivial and not sites)
        kept = not is_trivial or self.run.labels_of(group[0]) is not None
        judged = group if self.where is None and kept else ()  # by the run's own test set, predictions beside
        lead = ahead = None
        if reference and reference is not group and not is_trivial:
            lead = self.between(reference, group, (whose, "common" if is_common else "sites"))
        if not is_trivial:
            ahead = self.ahead(group, trivials, whose, common if is_common else sites)
        return TableRow(
            label=group[0].label,
            method=None if is_trivial else group[0].plan.method,
            runs=len(group),
            common=mean_of(self.run, judged, common, self.metric, scale) if common else None,
            sites=mean_of(self.run, judged if common else (), sites, self.metric, scale) if sites else None,
            spread=sum(spread) / len(spread) if spread else None,
            lead=lead,
            ahead=ahead,
            comm_rounds=sum(plan_run.row["contacts"] for plan_run in group) / len(group),
            bytes_sent=sum(plan_run.row["bytes_sent"] for plan_run in group) / len(group),
        )


def table(run: Run, metric: str | None = None, where: str | None = None) -> Table:
    """The table of a run, by its first metric where none is asked for; PlanError for an unknown one."""
    groups, known = by_label(run.done), metrics_of(run.done)
    if metric is not None and where is None and known and metric not in known:
        raise PlanError(f"this run was not judged by {metric!r}. {nearest(metric, known)}")
    judged = Judged(run, metric or primary(run), where)
    asked = run.scenario.reference
    reference = asked if asked in groups else reference_of([group[0].plan.method for group in groups.values()])
    whose = "common" if any(judged.values(group, "common") for group in groups.values()) else "sites"
    trivials = trivials_of(run.done)
    rows = [judged.row(group, trivials, groups.get(reference or ""), whose) for group in groups.values()]
    if any(judged.values(trivials, name) for name in ("common", "sites")):
        least = judged.row(trivials, trivials, None, whose)
        rows.insert(0, replace(least, lead=next((row.ahead for row in rows if row.label == reference), None)))
        if any(judged.values(regressions := trivials_of(run.done, "pooled"), "common").values()):
            rows.insert(1, judged.row(regressions, regressions, None, whose))
    return Table(judged.metric, where, reference, tuple(rows), whose)


def is_percent(metric: str) -> bool:
    """Whether the values of a metric are shares, shown in per cent."""
    return metric not in (*LOWER_IS_BETTER, *AREAS)


def scale_of(metric: str) -> Scale:
    """What the values of a metric cannot leave."""
    if metric in LOWER_IS_BETTER:  # of more than two classes a Brier score may be above one
        return "positive"
    others: dict[str, Scale] = {"r2": "plain", "kappa": "gain"}
    return others.get(metric, "share")


def trivials_of(done: Sequence[PlanRun], which: str = "trivial") -> list[PlanRun]:
    """The trivial predictor, or the "pooled" regression, of each seed and fold as if it were a method's run."""
    by_seed = {run.key: replace(run, row=run.row[which] | NO_TRAFFIC) for run in done if run.row.get(which)}
    return [plan_run.labelled(plan_run.row["label"]) for plan_run in by_seed.values()]


def by_label(done: Sequence[PlanRun]) -> dict[str, list[PlanRun]]:
    """The whole runs of each method, methods in the order of all tables and figures; a run cut short counts nowhere."""
    groups: dict[str, list[PlanRun]] = {}
    for plan_run in done:
        if not plan_run.row["stopped"] and plan_run.evaluations:
            groups.setdefault(plan_run.label, []).append(plan_run)
    methods = in_order([group[0].plan.method for group in groups.values()])
    return {method.label: groups[method.label] for method in methods}


def metrics_of(done: Sequence[PlanRun]) -> list[str]:
    """The metrics that the runs were judged by."""
    names: dict[str, None] = {}
    for plan_run in done:
        names |= dict.fromkeys(plan_run.row["common"] or {})
        names |= dict.fromkeys(name.removesuffix("_mean") for name in plan_run.row["sites"] if name.endswith("_mean"))
    return list(names)


def primary(run: Run) -> str:
    """The metric of tables and figures: that of the scenario, or accuracy where it names none."""
    known, asked = metrics_of(run.done), run.scenario.metric
    if asked is not None and (OTHER_NAMES.get(asked, asked) in known or not known):
        return OTHER_NAMES.get(asked, asked)
    return next((name for name in PRIMARY if name in known), known[0] if known else PRIMARY[0])


# What the patients by whom methods are judged leave open: seeds that share them are not so many strangers


def has_one_test_set(run: Run) -> bool:
    """Whether all seeds are judged by the same patients, as far as their outcomes tell; unknown ones are redrawn."""
    labels = [run.labels_of(plan_run) for plan_run in run.done if plan_run.label == run.done[0].label]
    first = labels[0] if len(labels) > 1 else None
    return first is not None and all(each is not None and np.array_equal(each, first) for each in labels)


def mean_of(run: Run, group: Sequence[PlanRun], values: Values, metric: str, scale: Scale) -> Interval:
    """The mean of ``values`` over runs with its interval, by the test patients and by seeds.

    The patients are those of one test set, even where each run draws its own, and their part is that of the ``group``'s
    global models: no predictions of local ones are kept. By seeds alone where none are.
    """
    mean, members = list(values.values()), [plan_run for plan_run in group if plan_run.key in values]
    labels = [known for plan_run in members if (known := run.labels_of(plan_run)) is not None]
    if not labels or len(labels) < len(members):
        return interval(mean, scale=scale, shared=Shared(patients=run.about.get("test_samples") if group else None))
    patients = patients_behind(metric, run.predictions_of(members[0]))
    without = [_without(run, plan_run, metric, scale) for plan_run in members]  # of unequal test sets unequally many
    if has_one_test_set(run):
        without = [np.mean(without, axis=0)]
    errors, freedom = zip(*map(jackknife, without), strict=True)
    error = float(np.sqrt(np.mean(np.square(errors)))) * (float(np.mean(mean)) if scale == "positive" else 1.0)
    shared = Shared(0.0, error, min(freedom), patients) if np.isfinite(error) else Shared(patients=patients)
    return interval(mean, scale=scale, shared=shared)


def behind_difference(
    run: Run, pairs: Sequence[tuple[PlanRun, PlanRun]], metric: str, scale: Scale, kept: bool = True
) -> Shared:
    """What the differences between two methods share, for each seed the two runs of ``pairs``.

    The error by patients, by leaving out groups: of one test set in all runs at once. Where each seed draws its own,
    that of one of them counts by the share of patients that two have in common. Where predictions were not ``kept``,
    the error by one test set is unknown, and runs on several are corrected by that share alone.
    """
    if not kept or any(run.labels_of(plan_run) is None for pair in pairs for plan_run in pair):
        return _of_unkept(run, pairs[0][0])
    gaps = [_without(run, a, metric, scale) - _without(run, b, metric, scale) for a, b in pairs]
    return _of_gaps(run, gaps, _overlap(run, pairs[0][0]), pairs[0][0])


def behind_lead(run: Run, group: Sequence[PlanRun], metric: str, scale: Scale, kept: bool = True) -> Shared:
    """What differences from the trivial predictor share, as :func:`behind_difference`; it leaves out groups, too.

    An average precision is by chance above the constant's in the same patients, so that of one test set counts whole.
    """
    if not kept or any(run.labels_of(plan_run) is None for plan_run in group):
        return _of_unkept(run, group[0])
    pairs = [[_without(run, plan_run, metric, scale, constant) for constant in (False, True)] for plan_run in group]
    gaps = [model - least for model, least in pairs]
    return _of_gaps(run, gaps, 1.0 if metric == "average_precision" else _overlap(run, group[0]), group[0])


def _of_unkept(run: Run, plan_run: PlanRun) -> Shared:
    return Shared(error=np.inf) if has_one_test_set(run) else Shared(overlap=_overlap(run, plan_run))


def _of_gaps(run: Run, gaps: Sequence[np.ndarray], overlap: float, plan_run: PlanRun) -> Shared:
    """What differences share by how they change without groups of patients, (groups,) for each run."""
    if has_one_test_set(run):
        return Shared(0.0, *jackknife(np.mean(gaps, axis=0)))
    errors, freedom = zip(*map(jackknife, gaps), strict=True)
    error = float(np.sqrt(overlap * np.mean(np.square(errors))))
    return Shared(0.0, error, freedom[0]) if np.isfinite(error) else _of_unkept(run, plan_run)


def _overlap(run: Run, plan_run: PlanRun) -> float:
    """The share of its patients that a test set drawn by lot has in common with another of the same plan."""
    asked = plan_run.plan.test
    if plan_run.plan.folds:
        return 1 / plan_run.plan.folds
    if not isinstance(asked, int):
        return asked if isinstance(asked, float) else HELD_OUT
    sites, (least, _) = run.about.get("sites", 1), run.about.get("samples_per_site", (0, 0))
    return float(min(0.9, asked / (asked + max(1, sites * least))))


def _without(run: Run, plan_run: PlanRun, metric: str, scale: Scale, constant: bool = False) -> np.ndarray:
    """The metric without each group of patients, (groups,), as a logarithm where it is positive; cached in the run."""
    kept = prediction_key(plan_run)
    key: tuple[object, ...] = (kept, constant)
    if constant and f"{kept}/survival" not in run.predictions:  # it is that of the test set, whatever the method
        key = (plan_run.plan.seed, plan_run.plan.fold, run.predictions[f"{kept}/labels"].tobytes())
    known = run.without.setdefault(key, {})
    if metric not in known:
        predictions, loss = run.predictions_of(plan_run), (run.about.get("task") or {}).get("loss", "mse")
        judged = constant_beside(predictions, loss) if constant else predictions
        known |= worth_without([metric, *(plan_run.row["common"] or ())], judged, loss)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(known[metric])) if scale == "positive" else known[metric]
