"""What was measured of an item: its rows, curves and hospitals, as JSON in docs/evidence."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from fedsmall.evaluation.statistics import Interval
from fedsmall.plan import Method
from fedsmall.sim.report.style import Style, looks
from fedsmall.sim.runs.files import read_json, write_json


@dataclass
class EvidenceRow:
    """One method in one variant. ``against`` and ``p_value`` are its difference from the baseline, None for itself.

    ``values`` are the runs', in the order of ``seeds`` ("seed" or "seed.fold"). ``of`` is "common", or "sites" for the
    mean over sites where no model is common. A ``trivial`` row is a prediction without looking at samples; it is not
    tested.
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
    """An item's rows, the curves of its figure, and what it ran on."""

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
    """The result in a file that :meth:`ItemResult.save` wrote; unknown keys of older ones are dropped."""
    table = read_json(path)
    known = {field.name for field in fields(EvidenceRow)}
    rows = [{name: value for name, value in row.items() if name in known} for row in table["rows"]]
    ends = [{"mean": _interval(row["mean"]), "against": _interval(row["against"])} for row in rows]
    return ItemResult(**{**table, "rows": [EvidenceRow(**row | end) for row, end in zip(rows, ends, strict=True)]})


def _interval(table: dict[str, Any] | None) -> Interval | None:
    return None if table is None else Interval(**table)
