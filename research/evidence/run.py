"""Runs the papers' tables and figures, and writes docs/evidence."""

import time
from copy import deepcopy
from pathlib import Path

from rich.console import Console

from fedsmall.errors import PlanError
from fedsmall.research.evidence.figures import draw
from fedsmall.research.evidence.items import DOCS, Item, items, published_by_hospital
from fedsmall.research.evidence.judge import judge_rows
from fedsmall.research.evidence.page import page, tables_of
from fedsmall.research.evidence.result import ItemResult, load
from fedsmall.research.evidence.rows import curves_of, hospitals_of, own_models_of, rows_of
from fedsmall.research.evidence.study_page import section
from fedsmall.research.evidence.tables import fill
from fedsmall.sim.runs.execute import execute
from fedsmall.sim.runs.files import free_folder, write
from fedsmall.sim.runs.folder import Run
from fedsmall.sim.runs.progress import watcher
from fedsmall.sim.runs.scenario import Scenario
from fedsmall.sim.tuning.search import choose, with_rates
from fedsmall.sim.tuning.search import load as load_search


def reproduce(
    item: Item,
    profile: str = "quick",
    *,
    engine: str | None = None,
    device: str | None = None,
    data_root: Path | None = None,
    out: Path | None = None,
    docs: Path = DOCS,
    console: Console | None = None,
    processes: int | None = 1,
) -> ItemResult:
    """Run one item and write its JSON file and figure into ``docs``/evidence.

    The runs are kept under ``out`` (runs/ITEM...). An item whose data are missing is recorded as not run. ``processes``
    as for :func:`fedsmall.sim.runs.execute.execute`.
    """
    missing = item.missing(data_root, profile)
    if missing:
        why = f"{missing} is not under the data root"
        result = ItemResult(item.name, profile, _command(item, profile), not_run=why)
        if not (docs / "evidence" / f"{item.name}.json").is_file():  # what was measured elsewhere is not thrown away
            result.save(docs / "evidence")
        return result
    started = time.perf_counter()
    rates: dict[str, float] = {}
    kept = out or free_folder(f"reproduce-{item.name}")
    runs: dict[str, Run] = {}
    for variant, scenario in item.scenarios(profile).items():
        scenario, rates = tuned(item, variant, scenario)
        progress = watcher(console, scenario.plans(), f"{item.name} {variant}".strip()) if console else None
        runs[variant] = execute(
            scenario,
            kept / (variant or "run"),
            engine=engine,
            data_root=data_root,
            options={"device": device} if device else None,
            watcher=progress,
            processes=processes,
        )
        if runs[variant].about.get("interrupted"):
            raise KeyboardInterrupt  # what was run stays in its folder; the page keeps what it held
        if failed := runs[variant].failed:  # evidence rests on all that was asked for, or on nothing
            raise PlanError(
                f"{item.name}: {failed[0]['label']}, seed {failed[0]['seed']} failed: {failed[0]['reason']}"
            )
    return conclude(item, profile, runs, rates, time.perf_counter() - started, data_root, docs)


def tuned(item: Item, variant: str, scenario: Scenario) -> tuple[Scenario, dict[str, float]]:
    """The scenario with the rates of the item's recorded search, and those rates."""
    tries = load_search(item.kept_search).get(variant) if item.kept_search.is_file() else None
    if not tries:
        return scenario, {}
    rates = {label: choice.lr for label, choice in choose(tries).items()}
    return with_rates(scenario, rates), rates


def conclude(
    item: Item,
    profile: str,
    runs: dict[str, Run],
    rates: dict[str, float],
    seconds: float,
    data_root: Path | None = None,
    docs: Path = DOCS,
) -> ItemResult:
    """The item's result from finished runs (by the value that is varied), written into ``docs``/evidence."""
    item = item.as_run(profile)
    result = ItemResult(item.name, profile, _command(item, profile), rows=rows_of(item, runs))
    _describe(result, item, runs, rates, seconds)
    if item.figure == "hospitals":
        result.hospitals = hospitals_of(next(iter(runs.values())), data_root)
    elif published_by_hospital(item.experiment):
        result.hospitals = own_models_of(next(iter(runs.values())))
    result.save(docs / "evidence")
    draw(item, result, docs / "evidence")
    return result


def rewrite(docs: Path = DOCS) -> Path:
    """Make docs/evidence.md and the tables in other pages anew from docs/evidence; return the page's path.

    Verdicts follow today's rules, in the JSON files too.
    """
    folder = docs / "evidence"
    results = {item.name: _judged_anew(item, folder) for item in items().values() if _file(item, folder).is_file()}
    fill(docs, tables_of(list(items().values()), results).get)
    path = docs / "evidence.md"
    write(path, page(list(items().values()), results, section(folder)).encode())
    return path


def _file(item: Item, folder: Path) -> Path:
    return folder / f"{item.name}.json"


def _judged_anew(item: Item, folder: Path) -> ItemResult:
    result = load(_file(item, folder))
    before = deepcopy(result.rows)
    if judge_rows(item.as_run(result.profile), result.rows) != before:
        result.save(folder)
    return result


def _command(item: Item, profile: str) -> str:
    return f"fedsmall reproduce {item.name} --profile {profile}"


def _describe(result: ItemResult, item: Item, runs: dict[str, Run], rates: dict[str, float], seconds: float) -> None:
    first = next(iter(runs.values()))
    if not result.rows:
        raise PlanError(f"{item.name}: no run was finished, so there is nothing to report")
    scenario: Scenario = first.scenario
    methods = {plan.method.label: plan.method for plan in first.plans}  # each once, whatever the seeds and folds
    result.methods = [method.model_dump(mode="json") for method in methods.values()]
    result.curves = curves_of(item, first)
    kept = ("engine", "path", "device", "cores", "machine", "sites", "samples_per_site", "test_samples", "versions")
    result.about = {name: first.about[name] for name in kept if name in first.about} | {
        "about": scenario.about,
        "rounds": scenario.rounds,
        "seeds": len(scenario.seeds),
        "seconds": round(seconds, 1),
        "lr": rates,
    }
