"""Runs a scenario: builds the data, runs plan after plan, and writes down what comes of each."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from fedsmall.entry_points import load_extension
from fedsmall.evaluation.metrics import default_metric, known_metric
from fedsmall.federation import Federation
from fedsmall.plan import Plan
from fedsmall.sim.engines.run import DEFAULT_ENGINE, check_engine
from fedsmall.sim.runs.failures import Failed, attempted
from fedsmall.sim.runs.federations import Build, Federations
from fedsmall.sim.runs.files import check_free
from fedsmall.sim.runs.folder import Run, start
from fedsmall.sim.runs.parallel import Ended, is_first, processes_for, run_one, run_side_by_side
from fedsmall.sim.runs.progress import Silent, Watcher
from fedsmall.sim.runs.scenario import Scenario
from fedsmall.tasks import build_federation
from fedsmall.training.device import check_device
from fedsmall.validation import check_run


def execute(
    scenario: Scenario,
    folder: Path | None = None,
    *,
    engine: str | None = None,
    data_root: Path | None = None,
    watcher: Watcher | None = None,
    data: Build | None = None,
    options: dict[str, Any] | None = None,
    processes: int | None = 1,
) -> Run:
    """Run all plans of ``scenario``; the run is in ``folder``, where one is given, after each of them.

    Interrupted once (Ctrl-C), the plan that is running ends after its next contact and the rest is not run; the run
    says so. A plan that fails is a row with its reason (:attr:`Run.failed`), and the others run. ``data`` builds a
    plan's federation; without it, its task does. ``options`` are the engine's; the device is the scenario's where they
    name none.
    ``processes`` share the plans; None is as many as pay. With more than one, a program's own lines must stand behind
    ``if __name__ == "__main__":``, for the processes import it anew.

    Raises PlanError or DataError before anything trains or is written.
    """
    engine = engine or scenario.engine or DEFAULT_ENGINE
    options = {"device": scenario.device} | (options or {})
    check_engine(engine, options)
    check_device(options["device"], scenario.dtype)
    if folder is not None:
        check_free(folder)
    track = load_extension("fedsmall.watchers", scenario.track)(folder) if scenario.track else None
    watcher = watcher or Silent()
    plans = scenario.plans()
    build = data or partial(build_federation, data_root=data_root)
    federations = Federations(build)
    first = federations.of(plans[0])
    scenario = judged_by(scenario, first)
    plans = scenario.plans()
    for plan in plans[: len(scenario.method)]:
        check_run(plan, first)
    processes = processes or processes_for(plans, engine, options["device"])
    own = scenario.keep == "sites"
    with interruptible() as interrupted, watcher:
        run = start(folder, scenario, first, engine)
        if processes > 1:
            records = run_side_by_side(plans, build, engine, options, processes, watcher.moved, interrupted, own)
        else:
            records = _one_by_one(plans, federations, engine, options, watcher, interrupted, own)
        for index, ended in records:
            if isinstance(ended, Failed):
                run.fail(index, ended)
            else:
                added = run.add(index, *ended)
                if track is not None:
                    track(run, added)
            watcher.end(plans[index])
    run.about |= {"ended": datetime.now(UTC).isoformat(timespec="seconds"), "interrupted": interrupted()}
    run.save()
    return run


def judged_by(scenario: Scenario, federation: Federation) -> Scenario:
    """The scenario with the metric by which its methods are judged, where it leaves that open."""
    if scenario.metric is not None:
        name = known_metric(scenario.metric, federation.task.loss)
    else:
        name = default_metric([samples.y for samples in federation.train], federation.task)
    return scenario.model_copy(update={"metric": name})


def _one_by_one(
    plans: Sequence[Plan],
    federations: Federations,
    engine: str,
    options: dict[str, Any],
    watcher: Watcher,
    interrupted: Callable[[], bool],
    own_models: bool,
) -> Iterator[tuple[int, Ended | Failed]]:
    before = 0
    for index, plan in enumerate(plans):
        if interrupted():
            return

        def progress(t: int, _: int, before: int = before) -> None:
            watcher.moved(before + t)

        told = {"progress": progress, "stop": interrupted, "exposed": is_first(plan, plans[0])}
        told |= {"own_models": own_models}
        yield index, attempted(partial(run_one, plan, federations.of, engine, options, told))
        before += plan.rounds


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within it the first Ctrl-C is only remembered (the value given tells), and the second one interrupts as usual.

    Outside the main thread, where signals cannot be caught, it tells that nothing was interrupted.
    """
    pressed = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        before = signal.signal(signal.SIGINT, remember)
    except ValueError:
        yield lambda: False
        return
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)
