"""``fedsmall run``, ``demo``, ``compare``, ``report`` and ``retrain``."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer import Argument, Option

from fedsmall.entry_points import SCENARIOS, kind_of_scenario, load_extension, look_in
from fedsmall.errors import PlanError
from fedsmall.sim.cli.options import ADDRESS, DATA_ROOT, DEVICE, ENGINE, OUT, PROCESSES, SET, complete_folder, terminal
from fedsmall.sim.cli.output import give
from fedsmall.sim.report.html import write_dpia, write_report
from fedsmall.sim.report.terminal import print_run
from fedsmall.sim.runs import scenario as scenario_files
from fedsmall.sim.runs.files import check_free, free_folder
from fedsmall.sim.runs.folder import REAL_SITES, Run, read, read_all
from fedsmall.sim.runs.hospitals import growth_of, save_growth
from fedsmall.sim.runs.merge import merge
from fedsmall.sim.runs.progress import watcher
from fedsmall.sim.runs.scenario import Scenario, find, load
from fedsmall.wire import Arrays

console = terminal()


def run(
    scenario: Annotated[Path, Argument(help="a .toml file, or a name from `fedsmall list scenarios`")],
    engine: Annotated[str | None, ENGINE] = None,
    device: Annotated[str | None, DEVICE] = None,
    out: Annotated[Path | None, OUT] = None,
    setting: Annotated[list[str] | None, SET] = None,
    data_root: Annotated[Path | None, DATA_ROOT] = None,
    processes: Annotated[int | None, PROCESSES] = None,
    address: Annotated[str | None, ADDRESS] = None,
    hospitals: Annotated[bool, Option(help="also with 1, 2, 5, 10, ... of the hospitals: does joining pay")] = False,
) -> None:
    """Run a scenario: every method with every seed. Prints the table and writes a folder with report.html.

    Of a scenario without methods it does what `fedsmall choose` does. Ctrl-C ends the run after the next communication
    round; what was run until then is kept. A plan that fails is a line with its reason, others run; the exit code is 1.
    """
    scenario = find(scenario)
    if kind := kind_of_scenario(scenario_files.read(scenario)):
        options = {"engine": engine, "device": device, "processes": processes}
        if given := [name for name, value in options.items() if value is not None]:
            raise PlanError(f"--{given[0]} is of models that travel; a scenario with {kind} has no such choice")
        return load_extension(SCENARIOS, kind).run(scenario, out, setting)  # type: ignore[no-any-return]
    if not scenario_files.read(scenario).get("method") and not any((engine, device, out, processes, address)):
        from fedsmall.sim.cli.tune import choose

        return choose(scenario, setting=setting, data_root=data_root)
    asked = load(scenario, setting or [])
    look_in(Path.cwd(), scenario.resolve().parent)

    from fedsmall.sim.runs.execute import execute

    folder = out or free_folder(asked.name)
    settings = {name: value for name, value in (("device", device), ("address", address)) if value}
    where: dict[str, Any] = {"engine": engine, "data_root": data_root, "processes": processes}
    done = execute(asked, folder, watcher=watcher(console, asked.plans(), asked.name), options=settings, **where)
    if hospitals:
        save_growth(growth_of(asked, data_root=data_root), folder)
    _show(done)
    _say_report(write_report(folder, [done], asked.name))
    _exit_by([done])


def _show(run: Run) -> None:
    print_run(console, run)
    rows = [plan_run.row for plan_run in run.done]
    give(runs=[{"name": run.scenario.name, "plans": rows, "failed": run.failed, "notes": run.about["notes"]}])


def _say_report(path: Path) -> None:
    console.print(f"\nReport: {path}")
    give(report=str(path))


def resume_simulation(folder: Path) -> None:
    """Go on with a simulation that ended early: run the plans that are not done, to the same bits as in one go."""
    from fedsmall.sim.runs.execute import execute

    begun = read(folder)
    if begun.real:
        raise PlanError(f"{folder} is of a run over real sites, which is resumed by its name")
    look_in(Path.cwd(), folder)
    asked = begun.scenario
    shown = watcher(console, begun.not_run, asked.name)
    done = execute(asked, folder, engine=begun.about["engine"], watcher=shown, processes=None, begun=begun)
    _show(done)
    _say_report(write_report(folder, [done], asked.name))
    _exit_by([done])


def report(
    folder: Annotated[Path, Argument(help="the folder of a run")],
    dpia: Annotated[bool, Option("--dpia", help="write the annex to a data protection impact assessment, too")] = False,
) -> None:
    """Regenerate the report of a run, from its folder alone, and print its table."""
    runs = read_all(complete_folder(folder))
    for run in runs:
        _show(run)
    title = folder.resolve().name if len(runs) > 1 else runs[0].scenario.name
    _say_report(write_report(folder, runs, title))
    if dpia:
        console.print(f"Annex: {write_dpia(folder, runs, title)}")


def compare(
    folders: Annotated[list[Path], Argument(help="folders of runs")], out: Annotated[Path | None, OUT] = None
) -> None:
    """Put finished runs side by side: one table for each data set, methods paired seed by seed.

    With --out a report is written there too.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise PlanError("a run is named twice, and its seeds would count twice")
    runs = [run for folder in folders for run in read_all(complete_folder(folder))]
    merged = merge(runs)
    for merged_run in merged:
        _show(merged_run)
    if out is not None:
        _say_report(write_report(out, merged, "Runs compared", f"{len(runs)} runs, side by side."))


NAMES = ("demo_breast_cancer", "demo_digits")
TITLE = "What federation is worth, and what daisy-chaining adds"
ABOUT = (
    "Seven methods on two bundled data sets: real patients at 40 hospitals, where the question is a federation "
    "against every hospital alone, and digits at 50 sites that know two classes each, where models must travel. "
    "FedAvg with b = 1 sends as many messages as FedDC, and is always among the comparators."
)
SLOW_SEEDS = (0,)  # without the batched engine one seed is what 90 seconds allow


def demo(
    engine: Annotated[str | None, ENGINE] = None,
    out: Annotated[Path | None, OUT] = None,
    processes: Annotated[int | None, PROCESSES] = None,
) -> None:
    """Compare seven methods on two data sets that come along: no questions, no download, about a minute.

    Prints a table for each with 95% intervals over seeds and two plain sentences, and writes report.html.
    """
    from fedsmall.sim.engines.run import DEFAULT_ENGINE
    from fedsmall.sim.runs.execute import execute

    started = time.monotonic()
    engine = engine or DEFAULT_ENGINE
    folder = out or free_folder("demo")
    check_free(folder)
    asked = [load(scenario_files.scenarios()[name]) for name in NAMES]
    if engine != "cohort":
        console.print(f"The engine {engine} trains site after site: one seed instead of {len(asked[0].seeds)}.")
        asked = [Scenario(**{**scenario.model_dump(), "seeds": SLOW_SEEDS, "evaluate_every": 50}) for scenario in asked]
    done = []
    for scenario in asked:
        watching, place = watcher(console, scenario.plans(), scenario.name), folder / scenario.name.replace(" ", "_")
        done.append(execute(scenario, place, engine=engine, watcher=watching, processes=processes))
        _show(done[-1])
        console.print()
        if done[-1].not_run:
            break
    path = write_report(folder, done, TITLE, ABOUT)
    console.print(f"{time.monotonic() - started:.0f} seconds. The report, to open in a browser: {path}")
    _exit_by(done)


def _exit_by(done: Sequence[Run]) -> None:
    if any(run.not_run for run in done):
        raise typer.Exit(130)
    if any(run.failed for run in done):
        raise typer.Exit(1)


REMAINS = (
    "Whoever has both models has their difference, which is of the patients of {names} alone: publish the new one "
    "only. What remains, and with whom: the old model with all who have it and in {folder}; what the site sent, with "
    "the server and, in a chain, with the next sites; logs and journals. This command deletes nothing."
)


def retrain(
    folder: Annotated[Path, Argument(help="the folder of a run")],
    without: Annotated[list[str], Option(help="the site that leaves; may be given several times")],
    out: Annotated[Path | None, OUT] = None,
    data_root: Annotated[Path | None, DATA_ROOT] = None,
    processes: Annotated[int | None, PROCESSES] = None,
) -> None:
    """Train a run again without a site, with the same seeds: the exact model of a federation it was never in.

    Features are scaled anew without its patients, and none of them is tested on. Says how far the models have moved,
    what publishing both would tell, and what remains. Rows of a site go by leaving them out of its file.
    """
    from fedsmall.sim.runs.execute import execute

    before = read(complete_folder(folder))
    names = (*before.scenario.without, *without)
    if before.about.get("engine") == REAL_SITES:
        raise PlanError(
            f"the sites of this run are real: fedsmall start {folder}/scenario.toml --name NEW --set "
            f"'without={json.dumps(names)}' trains with the others, from the same seeds"
        )
    name = f"{before.scenario.name} without {names[-1]}"
    scenario = before.scenario.model_copy(update={"without": names, "name": name})
    place, watching = out or free_folder(scenario.name), watcher(console, scenario.plans(), scenario.name)
    after = execute(scenario, place, data_root=data_root, processes=processes, watcher=watching)
    _show(after)
    for label, share in moved_shares(before, after):
        console.print(f"{label}: the model has moved by {share:.1%} of its size.")
    console.print(REMAINS.format(names=" and ".join(without), folder=folder))
    _say_report(write_report(place, [after], scenario.name))


def moved_shares(before: Run, after: Run) -> Iterator[tuple[str, float]]:
    """For each plan of both runs that has a model: its label and seed, and |new - old| / |old| over the weights."""
    of_old = {plan_run.index: plan_run for plan_run in before.done}
    for new in after.done:
        if (old := of_old.get(new.index)) is None:
            continue
        a, b = ([stored.weights for stored in run.packages_of(of)] for run, of in ((before, old), (after, new)))
        if a and b and (share := _distance(a[0], b[0])) is not None:
            yield f"{old.label}, seed {old.plan.seed}", share


def _distance(old: Arrays, new: Arrays) -> float | None:
    if any(name not in new or new[name].shape != array.shape for name, array in old.items()):
        return None
    floats = [name for name, array in old.items() if array.dtype.kind == "f"]
    off = sum(float(np.square(new[name].astype(float) - old[name]).sum()) for name in floats)
    size = sum(float(np.square(old[name].astype(float)).sum()) for name in floats)
    return (off / size) ** 0.5 if size else None
