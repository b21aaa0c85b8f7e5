"""A scenario over split columns at real sites: its parties are sites of a consortium, and its tables lie there."""

import itertools
import secrets
from pathlib import Path
from typing import Any

from fedsmall.audit_log import AuditLog
from fedsmall.errors import PlanError
from fedsmall.files import write
from fedsmall.sim.columns.finished import learnt_of
from fedsmall.sim.columns.page import lines
from fedsmall.sim.columns.scenario import METHODS, Columns
from fedsmall.sim.consortium import members, runs
from fedsmall.vertical.plan import COLUMN_SHEET, ColumnPlan, ColumnSheet, ForestOf


def prepare_columns(folder: Path, run: str, scenario: Columns, **patience: Any) -> Path:
    """Make the folder of a new run with its sheet; returns it.

    Raises PlanError for a scenario of several methods or seeds, for one that sends no messages, for a party that is no
    admitted site or lacks the identity that ``sealed`` asks for, and where there is a run of that name.
    """
    plans = scenario.plans()
    if len(plans) != 1 or not METHODS[plans[0].name].apart:
        raise PlanError(
            "A run over split columns at real sites takes one seed and one method, SecureBoost or SecureBoostPlus."
        )
    task = scenario.task
    runs.admitted_sites(folder, list(task.columns))
    home = folder / "runs" / run
    if home.exists():
        raise PlanError(f"There is a run {run!r} already. Choose --name.")
    roll = _roll(folder, scenario)
    columns = ColumnPlan(
        parties=tuple(task.columns),
        reading=task.reading,
        settings=plans[0].settings,
        test=scenario.test,
        key_bits=scenario.key_bits,
        sealed=bool(roll),
    )
    shared: dict[str, Any] = {"run": run, "id": secrets.token_hex(8), "about": scenario.about, **patience}
    sites = tuple(sorted(task.columns))
    sheet = ColumnSheet(columns=columns, sites=sites, quorum=len(sites), roll=roll, **shared)
    return _written(home, sheet, plans[0].label)


def prepare_prediction(home: Path, name: str | None = None, **patience: Any) -> Path:
    """Make the folder of a run that asks the forest of a finished run in ``home`` about new patients; returns it.

    Raises PlanError where that run is not finished or was itself no learning, and where there is one of that ``name``.
    """
    sheet = ColumnSheet.model_validate_json((home / COLUMN_SHEET).read_text())
    if not (home / "outcome.json").exists() or sheet.columns.of is not None:
        raise PlanError(f"{home.name!r} has grown no forest, or is not finished; `fedsmall status` shows how it goes")
    folder = home.parents[1]
    runs.admitted_sites(folder, list(sheet.sites))
    free = (f"{sheet.run}-predictions-{k}" for k in itertools.count(1))
    run = name or next(one for one in free if not (home.parent / one).exists())
    if (home.parent / run).exists():
        raise PlanError(f"There is a run {run!r} already. Choose --name.")
    columns = sheet.columns.model_copy(update={"of": ForestOf(run=sheet.run, id=sheet.id)})
    changes = {"run": run, "id": secrets.token_hex(8), "columns": columns, **patience}
    return _written(home.parent / run, ColumnSheet(**{**vars(sheet), **changes}), f"the forest of {sheet.run}")


def _written(home: Path, sheet: ColumnSheet, what: str) -> Path:
    home.mkdir(parents=True, mode=0o700)
    write(home / COLUMN_SHEET, sheet.model_dump_json(exclude_defaults=True, indent=1).encode(), flush=True)
    AuditLog(home / "log.jsonl", run=sheet.run, id=sheet.id).write("prepared", sites=list(sheet.sites), method=what)
    return home


def _roll(folder: Path, scenario: Columns) -> dict[str, str]:
    """The identities of the consortium's sites where parties write letters to each other; else none."""
    roll = members.roll_of(members.load(folder))
    if scenario.sealed is False:
        return {}
    missing = sorted(set(scenario.task.columns) - set(roll))
    if missing and scenario.sealed:
        raise PlanError(
            f"{', '.join(missing)} has sent no identity for sealed letters: `fedsmall site keygen` there, then "
            "`fedsmall consortium add-site NAME --key site.key.pub`; or run without sealed."
        )
    return {} if missing else roll


def told_lines(outcome: dict[str, Any]) -> list[str]:
    """What came of a finished run, in lines for the coordinator."""
    plan = ColumnPlan.model_validate(outcome["columns"])
    sent = f"{sum(outcome['messages'].values())} messages, {sum(outcome['bytes'].values())} bytes"
    worth = ", ".join(f"{name} {value:.3f}" for name, value in outcome["worth"].items() if name != "held_out")
    splits = ", ".join(f"{site} {count}" for site, count in outcome["splits"].items())
    came = f"the forest on those held out: {worth or 'not told'}"
    if plan.of is not None:
        came = f"{plan.active} has what the forest of {plan.of.run} says of them (fedsmall site predictions RUN there)"
    return [
        f"{outcome['common']} patients are at all sites; {came}",
        f"splits by site: {splits}; {sent}, {outcome['seconds']:.0f} s",
        *lines(learnt_of(outcome)),
    ]
