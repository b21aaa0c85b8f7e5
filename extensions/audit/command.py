"""``fedsmall audit``: what each party of a federation can learn of a patient."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from fedsmall.entry_points import look_in
from fedsmall.sim.cli.options import DATA_ROOT, OUT, SET, terminal

console = terminal()


def audit(
    scenario: Annotated[Path, Argument(help="a .toml file, a name from `fedsmall list scenarios`, or a run's folder")],
    runs: Annotated[int, Option(min=8, help="federations that are trained and attacked, for each method")] = 128,
    method: Annotated[list[str] | None, Option(help="attack this method only, by its label; may be repeated")] = None,
    colluders: Annotated[int, Option(min=2, help="how many hospitals put together what they receive")] = 3,
    out: Annotated[Path | None, OUT] = None,
    setting: Annotated[list[str] | None, SET] = None,
    data_root: Annotated[Path | None, DATA_ROOT] = None,
) -> None:
    """Attack every method of a scenario as each party sees it: membership, reading, and a lower bound on epsilon.

    A toss puts each candidate in a federation's data; the first seed counts. A run's audit is a section of its report.
    """
    from fedsmall.sim.runs.scenario import find, load

    run = scenario if (scenario / "run.json").is_file() else None
    path = run / "scenario.toml" if run else find(scenario)
    asked = load(path, setting or [])
    look_in(Path.cwd(), path.resolve().parent)

    from fedsmall.extensions.audit.attack import audit_scenario, plans_of
    from fedsmall.extensions.audit.findings import print_audit, save, write_page
    from fedsmall.sim.report.html import write_report
    from fedsmall.sim.runs.files import check_free, free_folder
    from fedsmall.sim.runs.folder import read_all
    from fedsmall.sim.runs.progress import watcher

    folder = out or (run / "audit" if run else free_folder(f"audit-{asked.name}"))
    check_free(folder)
    plans = plans_of(asked, method)
    done = audit_scenario(asked, plans, runs, colluders, data_root, watcher(console, plans, f"audit of {asked.name}"))
    save(done, asked, folder)
    print_audit(console, done)
    page = write_page(done, folder)
    if run and not out:
        runs_there = read_all(run)
        page = write_report(run, runs_there, runs_there[0].scenario.name)
    console.print(f"\nReport: {page}")
