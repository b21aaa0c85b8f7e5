"""The tables and figures that can be reproduced: what each runs in which profile, and what the papers report for it."""

import csv
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

from fedsmall.errors import PlanError
from fedsmall.methods import explain, nearest
from fedsmall.parts import Frozen
from fedsmall.sim.runs.scenario import SHIPPED, Scenario, assign, build, read

INDEX, PUBLISHED = (Path(__file__).with_name(name) for name in ("papers.toml", "published.csv"))
PAPERS = SHIPPED / "papers"
PROFILES = ("quick", "paper")
DOCS = Path(__file__).parents[2] / "docs"


class Vary(Frozen):
    """A key of the scenario (as ``--set`` names it) and the values that it takes in turn."""

    key: str
    values: tuple[Any, ...]


class Item(Frozen):
    """One table or figure; the fields are explained at the top of research/evidence/papers.toml."""

    name: str
    scenario: str
    here: str = ""
    title: str
    figure: Literal["curves", "bars", "periods", "growing", "hospitals"] = "bars"
    experiment: str = ""
    apart: str = ""
    baseline: str
    metric: str = "accuracy"
    of: Literal["common", "sites"] = "common"
    quick: tuple[str, ...] = ()
    vary: Vary | None = None
    search: tuple[float, ...] = ()
    data: tuple[str, ...] = ()
    data_here: tuple[str, ...] | None = None

    @property
    def kept_search(self) -> Path:
        """Where the search for its methods' rates is kept."""
        return PAPERS / "searches" / f"{self.name}.csv"

    @property
    def figures(self) -> Path:
        """The folder of its figures."""
        return DOCS / "evidence"

    def file(self, profile: str) -> str:
        """The scenario's file in a profile: as printed, or the one that runs here."""
        return self.here if profile == "quick" and self.here else self.scenario

    def needs(self, profile: str) -> tuple[str, ...]:
        """The files or folders of which a profile needs one under the data root."""
        return self.data_here if profile == "quick" and self.data_here is not None else self.data

    def missing(self, data_root: Path | None, profile: str = "quick") -> str:
        """What a profile of this item needs and ``data_root`` does not hold; empty where nothing is missing."""
        needs = self.needs(profile)
        is_there = not needs or (data_root is not None and any((data_root / name).exists() for name in needs))
        return "" if is_there else " or ".join(needs)

    def as_run(self, profile: str) -> "Item":
        """The item as a profile's results are read: what was run as printed departs in nothing."""
        return self if profile == "quick" or not self.here else self.model_copy(update={"apart": ""})

    def scenarios(self, profile: str) -> dict[str, Scenario]:
        """The scenarios by the value that is varied (one entry, "", where none is)."""
        if profile not in PROFILES:
            raise PlanError(f"There is no profile {profile!r}. {nearest(profile, list(PROFILES))}")
        table = read(PAPERS / self.file(profile))
        for setting in self.quick if profile == "quick" else ():
            table = assign(table, setting)
        if self.vary is None:
            return {"": build(table)}
        return {_written(value): build(assign(table, f"{self.vary.key}={value!r}")) for value in self.vary.values}


class Published(NamedTuple):
    """A number that a paper reports: ``spread`` is the standard deviation over its ``runs`` runs, where printed."""

    value: float
    spread: float | None
    runs: int
    source: str


@cache
def items() -> dict[str, Item]:
    """All items by name, in the order of the page."""
    table = tomllib.loads(INDEX.read_text(encoding="utf-8"))
    try:
        return {name: Item(name=name, **fields) for name, fields in table.items()}
    except ValidationError as error:
        raise PlanError(f"papers.toml: {explain(error, Item)}") from None


def chosen(name: str) -> list[Item]:
    """The items that a user asks for: one by name, or "all"."""
    if name == "all":
        return list(items().values())
    if name not in items():
        raise PlanError(
            f"There is no item {name!r}. {nearest(name, [*items(), 'all', 'list', 'study', 'reading', 'page'])}"
        )
    return [items()[name]]


@cache
def published(experiment: str) -> dict[tuple[str, str], Published]:
    """What a paper reports for an experiment, by method label and metric; empty where it reports nothing."""
    rows = [row for row in _published() if row["experiment"] == experiment and not row["hospital"]]
    return {
        (row["label"], row["metric"]): Published(
            float(row["value"]),
            float(row["spread"]) if row["spread"] else None,
            int(row["runs"] or 3),
            row["source"],
        )
        for row in rows
    }


@cache
def published_by_hospital(experiment: str) -> dict[str, dict[str, dict[str, float]]]:
    """What a paper reports for each hospital, by metric, method label and hospital (H1, H2, ...)."""
    table: dict[str, dict[str, dict[str, float]]] = {}
    for row in _published():
        if row["experiment"] == experiment and row["hospital"]:
            table.setdefault(row["metric"], {}).setdefault(row["label"], {})[row["hospital"]] = float(row["value"])
    return table


@cache
def _published() -> list[dict[str, str]]:
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _written(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
