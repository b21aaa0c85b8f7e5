"""The folder that a run over split columns at real sites leaves: what a simulation's has, and who learnt what of whom.

No party's part of the forest is here: each lies with its site.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedsmall.audit_log import AuditLog
from fedsmall.sim.columns.learnt import Facts, Learnt, learnt, learnt_predicting
from fedsmall.sim.columns.page import HEADS, TEMPLATES
from fedsmall.sim.columns.scenario import METHODS, SAVES_TIME, Columns, Task, as_toml
from fedsmall.sim.consortium.records.run_log import run_log
from fedsmall.sim.report.css import style_sheet
from fedsmall.sim.report.sentences import amount
from fedsmall.sim.runs.files import write, write_json
from fedsmall.vertical.plan import COLUMN_SHEET, ColumnPlan, ColumnSheet

Told = Mapping[str, Any]


def write_run(folder: Path, told: Told) -> None:
    """Write scenario, summary and page of a run into ``folder``, which holds its sheet and log; ``told`` came of it."""
    sheet = ColumnSheet.model_validate_json((folder / COLUMN_SHEET).read_text())
    scenario = scenario_of(sheet)
    plan = scenario.plans()[0]
    row = {"method": plan.label, "name": plan.name, "seed": plan.seed, **told["worth"], "seconds": told["seconds"]}
    row |= {key: told[key] for key in ("messages", "bytes", "splits")}
    write(folder / "scenario.toml", as_toml(scenario))
    write_json(folder / "summary.json", {"common": told["common"], "rows": [row]})
    log = run_log(AuditLog(folder / "log.jsonl").entries())
    words = {"sheet": sheet, "method": plan.label, "told": told, "log": log, "learnt": learnt_of(told)}
    words |= {"css": style_sheet(), "heads": HEADS, "amount": amount, "settings": as_toml(scenario).decode()}
    write(folder / "report.html", TEMPLATES.get_template("real.html").render(**words).encode())


def learnt_of(told: Told) -> list[Learnt]:
    """What each party learnt, and who carried messages."""
    plan = ColumnPlan.model_validate(told["columns"])
    facts = Facts(plan.parties, told["common"], told["splits"], plan.settings, sealed=plan.sealed)
    return learnt(facts) if plan.of is None else learnt_predicting(facts)


def scenario_of(sheet: ColumnSheet) -> Columns:
    """The run as a scenario: with the sites' tables beside it, a simulation grows the same forest."""
    plan = sheet.columns
    settings = plan.settings.model_dump(mode="json", exclude_defaults=True)
    name = "SecureBoostPlus" if all(settings.get(key) for key in SAVES_TIME) else "SecureBoost"
    return Columns(
        name=sheet.run,
        about=sheet.about,
        task=Task(columns={one: f"{one}.csv" for one in plan.parties}, **plan.reading.model_dump()),
        seeds=(settings.pop("seed", 0),),
        test=plan.test,
        key_bits=plan.key_bits,
        sealed=plan.sealed,
        boosting={key: value for key, value in settings.items() if key not in METHODS[name].sets},
        method=({"name": name},),
    )
