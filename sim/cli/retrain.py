"""``fedsmall retrain``: the model as it would be, had a hospital never taken part."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from typer import Argument, Option

from fedsmall.errors import PlanError
from fedsmall.sim.cli.options import DATA_ROOT, OUT, PROCESSES, complete_folder, terminal
from fedsmall.sim.report.terminal import print_run
from fedsmall.sim.runs.folder import REAL_SITES, Run, read
from fedsmall.wire import Arrays

console = terminal()
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
    from fedsmall.sim.report.html import write_report
    from fedsmall.sim.runs.execute import execute
    from fedsmall.sim.runs.files import free_folder
    from fedsmall.sim.runs.progress import watcher

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
    print_run(console, after)
    for label, share in moved(before, after):
        console.print(f"{label}: the model has moved by {share:.1%} of its size.")
    console.print(REMAINS.format(names=" and ".join(without), folder=folder))
    console.print(f"\nReport: {write_report(place, [after], scenario.name)}")


def moved(before: Run, after: Run) -> Iterator[tuple[str, float]]:
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
