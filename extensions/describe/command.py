"""``fedsmall describe``: who the patients are, over all sites, before any model; in this process or at real sites."""

import json
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import matplotlib as mpl
import numpy as np
from flwr.app import ConfigRecord, MessageType, RecordDict
from markupsafe import Markup
from matplotlib.figure import Figure
from typer import Argument, Option

from fedsmall.data.preparation import Preparation, Scaling
from fedsmall.data.raw_site import agreed
from fedsmall.errors import PlanError
from fedsmall.exact import exact_sum
from fedsmall.extensions.describe import tables
from fedsmall.extensions.describe.site import DESCRIBE, LABEL
from fedsmall.extensions.describe.tables import Row, Sums
from fedsmall.files import write
from fedsmall.plan import Plan
from fedsmall.planning.run_sheet import RunSheet
from fedsmall.planning.tasks import raw_sites
from fedsmall.sim.cli.deploy import follow
from fedsmall.sim.cli.options import DATA_ROOT, SET, grid, say, terminal
from fedsmall.sim.cli.output import give
from fedsmall.sim.consortium import runs
from fedsmall.sim.consortium.server import check_up
from fedsmall.sim.report.figures import INK, STYLE
from fedsmall.sim.report.sections import Cells, Drawing, Section, show
from fedsmall.sim.report.style import style_sheet
from fedsmall.sim.runs.files import as_csv, check_free
from fedsmall.sim.runs.scenario import OF_METHODS, Scenario, build, find
from fedsmall.sim.runs.scenario import load as load_scenario
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.sealed_models import DecryptorError
from fedsmall.strategies.server.grid import RetryingGrid
from fedsmall.strategies.server.handshake import SCALING_FILE, meet, reported_at_handshake
from fedsmall.wire import CONFIG, split_vector

Sheet = RunSheet
LEAVES = "of each column, by class: counts, sums, sums of squares, counts in cells; nothing of few patients"
CAPTION = (
    "Mean ± standard deviation; median [quartiles], from groups of patients; of columns of 0 and 1 how many are 1. "
    "Nothing is said of fewer patients than a hospital's floor: a share is of the hospitals that may tell it, and "
    "where few values are missing more count as missing.{}"
)
SECURE = " Sums over all sites, of which nobody has seen those of one."
console = terminal()


def describe(
    scenario: Annotated[Path, Argument(help="a scenario's file or name; its methods, if it has any, do not matter")],
    consortium: Annotated[Path | None, Option(help="the consortium's folder: its real sites are asked")] = None,
    name: Annotated[str, Option(help="over real sites: the run's name")] = "description",
    setting: Annotated[list[str] | None, SET] = None,
    data_root: Annotated[Path | None, DATA_ROOT] = None,
    out: Annotated[Path | None, Option(help="a folder for table.csv and report.html; none if not given")] = None,
) -> None:
    """A first table of all patients, by class and by site: means, spreads, quartiles, missing values, survival.

    No model is trained. Real sites are asked with --consortium, in a secure sum: each of three or more has an identity.
    """
    asked = load(find(scenario), setting or [])
    if consortium is not None:
        if out is not None:
            raise PlanError("--out is for a table made here: what real sites tell is written into the run's own folder")
        check_up(consortium)
        prepare(consortium, name, asked)
        runs.launch(consortium, name, say)
        return follow(consortium, name, detach=False)
    if out is not None:
        check_free(out)
    described = describe_federation(asked.plans()[0], data_root)
    heads, *rows = described.table()
    console.print(grid(heads, rows))
    console.print(CAPTION.format(""), style="dim", markup=False)
    give(table=[dict(zip(heads, row, strict=False)) for row in rows])
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_page(out, described, asked.name)
        console.print(f"Report: {out / 'report.html'}", markup=False)


def load(path: Path, settings: list[str]) -> Scenario:
    """A scenario whose only method says what is asked; how another would be trained and judged is left out."""
    asked = {"name": "Ridge", "label": LABEL, "privacy": {"secure": True}}
    given = load_scenario(path, settings, [asked]).model_dump(exclude_defaults=True, exclude={"recipe", *OF_METHODS})
    return build({**given, "method": [asked]})


class Description(NamedTuple):
    """``sums`` over all sites and, in a simulation, ``by_site``; ``ends`` (columns, CELLS + 1) are those of cells."""

    names: tuple[str, ...]
    groups: tuple[str, ...]
    ends: np.ndarray
    sums: Sums
    by_site: Mapping[str, Sums]

    def table(self, site: str = "") -> list[Row]:
        """Heads, then rows, of all sites or of one."""
        return tables.table_of(self.names, self.groups, self.by_site[site] if site else self.sums, self.ends)


def describe_federation(plan: Plan, data_root: Path | None = None) -> Description:
    """The description of a plan's federation, in this process."""
    raw = raw_sites(plan, data_root)
    ends, floors = tables.grid(raw[0].preparation.with_scaling(agreed(raw))), {site.name: site.floor for site in raw}
    sites = {site.name: tables.patients_of(site, site.floor) for site in raw}
    by_site = {name: tables.count(patients, ends, floors[name]) for name, patients in sites.items()}
    sums = {of: exact_sum([counted[of] for counted in by_site.values()]) for of in by_site[raw[0].name]}
    return Description(sites[raw[0].name].names, sites[raw[0].name].groups, ends, sums, by_site)


def prepare(folder: Path, run: str, scenario: Scenario, **patience: Any) -> Path:
    """Make the folder of a new run. PlanError for one of that name, fewer than three sites, or one without identity."""
    plan = scenario.plans()[0]
    home = runs.prepare(folder, run, plan, runs.site_names(folder, [], plan), **patience)
    return (home / "sheet.json").rename(home / f"{DESCRIBE}.json").parent


def conduct(sheet: RunSheet, folder: Path, grid: RetryingGrid) -> tuple[dict[str, Any], dict[str, int]]:
    """Meet the sites, and ask for the sum of what they count; what ``outcome.json`` is to hold, and the log's end."""
    roster = Roster()
    sheet, task, sealed = meet(roster, sheet, grid, folder)
    rows, kept = reported_at_handshake(roster.answers)["rows"], folder / SCALING_FILE
    if rows is None or sealed is None:
        raise PlanError("The sites do not all read their rows alike; name columns and categories in the task.")
    scaling = Scaling(**{k: np.array(v) for k, v in json.loads(kept.read_text()).items()}) if kept.exists() else None
    prepared = Preparation.model_validate(rows).with_scaling(scaling)
    contents = {site: RecordDict({CONFIG: ConfigRecord(dict(sealed.words(0)))}) for site in sheet.sites}
    try:
        tally = sealed.open_sum(0, DESCRIBE, f"{MessageType.QUERY}.{DESCRIBE}", contents)
    except DecryptorError as error:
        reasons = "; ".join(f"{event['site']}: {event['reason']}" for event in roster.events)
        raise PlanError(f"{error}. {reasons[:1000]}") from None
    names, groups = tables.names_of(task, prepared), tables.groups_of(task, prepared)
    of = tables.shapes(len(names), len(groups), task.kind == "times")
    if len(tally.values) != sum(int(np.prod(shape)) for shape in of.values()):
        raise PlanError("What the sites tell is of other columns or classes than those that they named.")
    sums = {name: values.tolist() for name, values in split_vector(tally.values, of).items()}
    table = {"names": names, "groups": groups, "ends": tables.grid(prepared).tolist(), "sums": sums}
    return {**table, "sites": list(tally.sites), "events": roster.events}, {"sites": len(tally.sites)}


def description_of(outcome: Mapping[str, Any]) -> Description:
    """The description that an ``outcome.json`` holds."""
    sums = {name: np.array(values) for name, values in outcome["sums"].items()}
    return Description(tuple(outcome["names"]), tuple(outcome["groups"]), np.array(outcome["ends"]), sums, {})


def write_run(folder: Path, outcome: Mapping[str, Any]) -> None:
    """Write table.csv and report.html of a run over real sites."""
    write_page(folder, description_of(outcome), folder.name)


def outcome_lines(home: Path, outcome: Mapping[str, Any]) -> list[str]:
    """The table of a finished run, in lines for the coordinator."""
    rows = description_of(outcome).table()
    wide = [max(map(len, cells)) for cells in zip_longest(*rows, fillvalue="")]
    lines = ("  ".join(map(str.ljust, row, wide)).rstrip() for row in rows)
    return [f"{len(outcome['sites'])} sites have told", *lines, CAPTION.format(SECURE)]


def site_part(folder: Path, site: str) -> None:
    """Nothing on a hospital's own page beside its log."""


def write_page(folder: Path, described: Description, title: str) -> None:
    """Write table.csv and report.html."""
    made = {site: described.table(site) for site in ("", *described.by_site)}
    lines = [("site", *made[""][0]), *((site or "all", *row) for site, (_, *rows) in made.items() for row in rows)]
    write(folder / "table.csv", as_csv(lines).encode())
    caption = CAPTION.format("" if described.by_site else SECURE)
    sections = [
        Section(site or "All sites", table=Cells(of[0], of[1:], "" if site else caption, is_open=not site))
        for site, of in made.items()
    ]
    sections[0] = sections[0]._replace(figures=_figures(described))
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{0}</title><style>{1}</style></head>'
    page = Markup(head + "<body><main><h1>{0}</h1>{2}</main></body></html>")
    write(folder / "report.html", str(page.format(title, style_sheet(), show(sections, DESCRIBE))).encode())


def _figures(described: Description) -> list[Drawing]:
    time, _, survival, low, high = curve = tables.shown_curve(described.sums, described.ends)
    if not curve.size:
        return []
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.2, 3.2), layout="constrained")
        axes = figure.subplots()
        axes.step(time, survival, where="post", color=INK)
        axes.fill_between(time, low, high, step="post", color=INK, alpha=0.15, lw=0)
        axes.set(xlabel=described.names[-2], ylabel="without the event", ylim=(0, 1.02))
    title, data = f"Kaplan-Meier curve by {described.names[-2]}", as_csv([tables.OF_CURVE, *curve.T.tolist()])
    return [Drawing(figure, title, f"{title}, with 95% intervals.", data, "survival.csv")]
