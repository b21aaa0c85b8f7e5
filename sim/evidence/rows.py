"""From runs to rows: each method's mean and interval, its paired difference from the baseline, and the verdicts."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.statistics import (
    Interval,
    holm,
    interval,
    paired,
    seeds_for_width,
    verdict,
    verdict_on_difference,
)
from fedsmall.plan import Method
from fedsmall.privacy.site_level import epsilon
from fedsmall.tasks import build_federation
from fedsmall.training.cohort import Cohort
from fedsmall.wire import Traveller
from sim.evidence.items import Item, published
from sim.report.style import Style, in_order, looks
from sim.report.tables import trivials_of
from sim.runs.files import read_json, write_json
from sim.runs.folder import PlanRun, Run

MARGIN = 0.02  # two points: what is called agreement with a published accuracy


@dataclass
class EvidenceRow:
    """One method in one variant. ``against`` and ``p_value`` are its difference from the baseline, None for itself.

    ``values`` are the runs' own, in the order of ``seeds`` ("seed" or "seed.fold"). ``of`` says whose metric it is: the
    "common" model's, or the mean over the "sites" where no model is common. ``trivial`` is a prediction that looks at
    no sample: it is measured like a method, and not tested.
    """

    variant: str
    label: str
    of: str
    seeds: list[str]
    values: list[float]
    mean: Interval
    against: Interval | None = None
    p_value: float | None = None
    published: float | None = None
    spread: float | None = None
    source: str = ""
    verdict: str = ""
    why: str = ""
    claimed: float | None = None
    claim: str = ""
    seeds_needed: int | None = None
    bytes_sent: int = 0
    seconds: float = 0.0
    epsilon: float | None = None
    trivial: bool = False


@dataclass
class ItemResult:
    """An item, reproduced: its rows, the curves behind its figure, and what it ran on. JSON in docs/evidence."""

    item: str
    profile: str
    command: str
    methods: list[dict[str, Any]] = field(default_factory=list)
    rows: list[EvidenceRow] = field(default_factory=list)
    curves: dict[str, dict[str, list[list[float]]]] = field(default_factory=dict)
    hospitals: dict[str, dict[str, dict[str, list[float]]]] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    not_run: str = ""

    def looks(self) -> dict[str, Style]:
        """The look of each method of the item, by label."""
        return looks([Method(**method) for method in self.methods])

    @property
    def of_methods(self) -> list[EvidenceRow]:
        """The rows of methods, without the trivial predictor's."""
        return [row for row in self.rows if not row.trivial]

    def save(self, folder: Path) -> None:
        """Write the result into ``folder`` as ITEM.json."""
        write_json(folder / f"{self.item}.json", asdict(self))


def load(path: Path) -> ItemResult:
    """The result in a file that :meth:`ItemResult.save` wrote; what older ones hold beside it is left aside."""
    table = read_json(path)
    known = {field.name for field in fields(EvidenceRow)}
    rows = [{name: value for name, value in row.items() if name in known} for row in table["rows"]]
    ends = [{"mean": _interval(row["mean"]), "against": _interval(row["against"])} for row in rows]
    return ItemResult(**{**table, "rows": [EvidenceRow(**row | end) for row, end in zip(rows, ends, strict=True)]})


def rows_of(item: Item, runs: dict[str, Run]) -> list[EvidenceRow]:
    """The rows of all variants; p-values are corrected for their number over the whole item (Holm)."""
    rows = [row for variant, run in runs.items() for row in _of_variant(item, variant, run)]
    tested = [row for row in rows if row.p_value is not None]
    for row, corrected in zip(tested, holm([row.p_value or 0.0 for row in tested]), strict=True):
        row.p_value = float(corrected)
    return rows


def curves_of(item: Item, run: Run) -> dict[str, dict[str, list[list[float]]]]:
    """For each method and for "sites" and "common": rounds, mean, low and high end of the metric over seeds.

    The mean over the sites' own models and the common model are two things, and never share a curve. A point is there
    where every seed's evaluation has the metric.
    """
    curves: dict[str, dict[str, list[list[float]]]] = {}
    for label, done in _by_label(run).items():
        whose = {"common": item.metric, "sites": f"{item.metric}_mean"}
        for owner, name in whose.items():
            points = []
            for evaluations in zip(*(one.evaluations for one in done), strict=False):
                values = [evaluation[owner][name] for evaluation in evaluations if name in (evaluation[owner] or {})]
                if len(values) == len(evaluations):
                    mean = interval(values)
                    points.append([float(evaluations[0]["t"]), mean.mean, mean.low, mean.high])
            if points:
                curves.setdefault(label, {})[owner] = [list(column) for column in zip(*points, strict=True)]
    return curves


def hospitals_of(run: Run, data_root: Path | None = None) -> dict[str, dict[str, dict[str, list[float]]]]:
    """For each method and site: every metric of the common model on the site's own held-out samples, by seed.

    Where the evaluations do not hold them (central training), the model that was kept is judged anew.
    """
    table: dict[str, dict[str, dict[str, list[float]]]] = {}
    trivials = {one.row["label"]: trivials_of(run.done) for one in trivials_of(run.done)}
    for label, done in (trivials | _by_label(run)).items():
        for one in done:
            held_out = (one.row if label in trivials else one.evaluations[-1])["extra"].get("held_out")
            held_out = held_out or _judged_at_home(run, one, data_root)
            for site, metrics in held_out.items():
                for name, value in metrics.items():
                    table.setdefault(label, {}).setdefault(site, {}).setdefault(name, []).append(value)
    return table


def own_models_of(run: Run) -> dict[str, dict[str, dict[str, list[float]]]]:
    """For each method and hospital, H1, H2, ...: every metric of its own model on the common test set, by seed."""
    table: dict[str, dict[str, dict[str, list[float]]]] = {}
    for label, done in _by_label(run).items():
        for name, values in ((name, value) for one in done for name, value in _per_site(one).items()):
            for place, value in enumerate(values, start=1):
                table.setdefault(label, {}).setdefault(f"H{place}", {}).setdefault(name, []).append(value)
    return table


def _per_site(one: PlanRun) -> dict[str, list[float]]:
    found: dict[str, list[float]] = one.evaluations[-1]["sites"].get("per_site", {})
    return found


def _judged_at_home(run: Run, one: PlanRun, data_root: Path | None) -> dict[str, dict[str, float]]:
    model = run.model_of(one)
    if model is None:
        return {}
    federation = build_federation(one.plan, data_root)
    cohort = Cohort(one.plan, federation.task, federation.names, federation.train)
    stack = cohort.stack([Traveller(model)])
    return {
        name: evaluate(cohort.predict(stack, held_out.x)[0], held_out.y, federation.task)
        for name, held_out in zip(federation.names, federation.held_out, strict=True)
        if held_out is not None and len(held_out)
    }


def _of_variant(item: Item, variant: str, run: Run) -> list[EvidenceRow]:
    rows = [_row(item, variant, label, done) for label, done in _by_label(run).items()]
    base = next((row for row in rows if row.label == item.baseline), None)
    if base is not None:
        compared = [(row, paired(row.values, base.values)) for row in rows if row is not base and _alike(row, base)]
        for row, comparison in compared:
            row.against, row.p_value = comparison.difference, comparison.p_value
            _judge_claim(item, row, base, comparison.decides(len(compared)))
    return trivial_rows(item, variant, run.done, base) + rows


def trivial_rows(
    item: Item, variant: str, done: Sequence[PlanRun], base: EvidenceRow | None = None
) -> list[EvidenceRow]:
    """The row of the trivial predictor, where the runs hold it."""
    trivials = trivials_of(done)
    if not trivials:
        return []
    finals = [_metric(item, one.row) for one in trivials]
    values, seeds = [value for value, _ in finals], [_seed(one) for one in trivials]
    row = EvidenceRow(variant, trivials[0].row["label"], finals[0][1], seeds, values, interval(values), trivial=True)
    if base is not None and _alike(row, base):
        row.against = paired(row.values, base.values).difference
    return [row]


def _alike(row: EvidenceRow, base: EvidenceRow) -> bool:
    """Whether two rows are of the same seeds, so that they can be paired."""
    return row.seeds == base.seeds


def _seed(one: PlanRun) -> str:
    return f"{one.plan.seed}.{one.plan.fold}" if one.plan.folds else str(one.plan.seed)


def _row(item: Item, variant: str, label: str, done: Sequence[PlanRun]) -> EvidenceRow:
    finals = [_metric(item, one.evaluations[-1]) for one in done]
    values = [value for value, _ in finals]
    seeds = [_seed(one) for one in done]
    row = EvidenceRow(variant, label, finals[0][1], seeds, values, interval(values))
    row.bytes_sent = int(np.mean([one.row["bytes_sent"] for one in done]))
    row.seconds = float(np.mean([one.row["seconds"] for one in done]))
    row.epsilon = _epsilon(done[0])
    paper = published(item.experiment).get((label, item.metric)) if item.experiment and not variant else None
    if paper is not None:
        row.published, row.spread, row.source = paper.value, paper.spread, paper.source
        judged = verdict(row.mean, paper.value, paper.spread, MARGIN, paper.runs)
        row.verdict, row.why = ("not comparable", item.apart) if item.apart else (judged.word, judged.why)
    return row


def _epsilon(one: PlanRun) -> float | None:
    """What the run has spent against the server, who knows which sites took part; None without privacy.

    Of a patient's epsilon, that of the site where it is largest.
    """
    privacy = one.plan.method.privacy
    if privacy is None or not privacy.counted:
        return None
    if privacy.level == "patient":
        return float(one.row["privacy"]["epsilon"])
    return epsilon(privacy.noise, privacy.delta, one.row["contacts"])


def _judge_claim(item: Item, row: EvidenceRow, base: EvidenceRow, decided: bool) -> None:
    """The published difference of two methods, where both are published, beside the measured one.

    ``decided`` says whether the measured one, corrected for the rows of the table, leaves out zero.
    """
    if row.published is None or base.published is None or row.against is None:
        return
    row.claimed = row.published - base.published
    if item.apart:  # on other data only the sign of a difference can be asked for
        same = np.sign(row.against.mean) == np.sign(row.claimed)
        row.claim = ("same sign" if same else "opposite sign") if decided else "undecided"
        return
    row.claim = verdict_on_difference(row.against, row.claimed).word
    spread = float(np.std(np.subtract(row.values, base.values), ddof=1)) if len(row.values) > 1 else 0.0
    if row.claim == "undecided" and spread and row.claimed:
        row.seeds_needed = seeds_for_width(spread, abs(row.claimed))


def _by_label(run: Run) -> dict[str, list[PlanRun]]:
    """The finished runs by method, in the order of all tables and figures."""
    order = in_order([one.plan.method for one in run.done])
    groups: dict[str, list[PlanRun]] = {method.label: [] for method in order}
    for one in run.done:
        if not one.row["stopped"]:
            groups[one.label].append(one)
    return {label: done for label, done in groups.items() if done}


def _metric(item: Item, evaluation: dict[str, Any]) -> tuple[float, str]:
    """The metric of the common model, or its mean over the sites where that is asked for or none is common."""
    sites = evaluation["sites"].get(f"{item.metric}_mean")
    if evaluation["common"] is None or (item.of == "sites" and sites is not None):
        return float(sites), "sites"
    return float(evaluation["common"][item.metric]), "common"


def _interval(table: dict[str, Any] | None) -> Interval | None:
    return None if table is None else Interval(**table)
