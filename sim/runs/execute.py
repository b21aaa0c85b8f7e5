"""Runs a scenario: builds the data, runs its plans, and writes down what comes of each.

Plans do not depend on each other, and small models gain nothing from threads: one process for each core, with one
plan at a time and one thread, uses the whole machine. Results do not depend on it: every draw has its own stream.
"""

import gc
import logging
import math
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from fedsmall.data.federation import Federation
from fedsmall.entry_points import load_extension
from fedsmall.evaluation.baselines import pooled_logistic, trivial
from fedsmall.evaluation.metrics import default_metric, known_metric
from fedsmall.files import FULL, one_line
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.planning.validation import check_run
from fedsmall.sim.engines.evaluation import importance_of
from fedsmall.sim.engines.out_of_fold import with_unseen
from fedsmall.sim.engines.run import DEFAULT_ENGINE, RunRecord, check_engine, run_plan
from fedsmall.sim.runs.files import check_free
from fedsmall.sim.runs.folder import Failed, PlanRun, Run, cores, reopen, start
from fedsmall.sim.runs.progress import Watcher, called
from fedsmall.sim.runs.scenario import Scenario
from fedsmall.strategies.server.run_loop import Evaluation
from fedsmall.training.device import SHARED_BY, check_device, keep_freed_memory, process_context, threads_of_kernel

LOG = logging.getLogger("fedsmall")
LOG.addHandler(logging.NullHandler())  # a program says where its log goes; without, nothing is printed
Build = Callable[[Plan], Federation]
Ended = tuple[RunRecord, dict[str, Any]]  # what a plan came to, and its trivial predictor
Made = TypeVar("Made")

LONGEST = 300  # characters of a reason
NO_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc")
KILLED = "its process was killed from outside, most likely because memory ran out"
DIVERGED = "it diverged: the loss of its models is not finite at the end; try a smaller learning rate"
NOISY = ", or less noise: a larger exposure, fewer communication rounds or a smaller model"
POLL_S = 0.2
ENOUGH = 8  # fewer plans are done before other processes have begun


class Federations:
    """The federation of each plan; the last one is kept, for plans that differ only in their method share it."""

    def __init__(self, build: Build) -> None:
        self._build, self._key = build, ""
        self._last: Federation | None = None

    def of(self, plan: Plan) -> Federation:
        """The plan's federation, built where it is not the last one."""
        if self._last is None or plan.data_key != self._key:
            self._last, self._key = self._build(plan), plan.data_key
        return self._last


@dataclass(frozen=True)
class Job:
    """What the plans of a run have in common; picklable where ``build`` is."""

    build: Build
    engine: str
    options: dict[str, Any]
    first: Plan
    own_models: bool

    def run(
        self, plan: Plan, federation_of: Build, moved: Callable[[int], None], stop: Callable[[], bool]
    ) -> Ended | Failed:
        """One plan's record and its trivial predictor's row, or that it diverged; ``moved`` gets the rounds done."""
        federation = federation_of(plan)
        # on a method's first plan patients are counted that could be read, which costs some time
        exposed = (plan.seed, plan.fold) == (self.first.seed, self.first.fold)
        keywords: dict[str, Any] = {"options": self.options, "exposed": exposed, "own_models": self.own_models}
        keywords |= {"progress": lambda t, _: moved(t), "stop": stop}
        record = run_plan(plan, federation, self.engine, **keywords)
        if record.evaluations and has_diverged(record.evaluations[-1]):
            return Failed(DIVERGED + NOISY if plan.privacy.at_comm_rounds else DIVERGED)
        record = with_unseen(record, federation)
        if exposed:
            importance = importance_of(record.plan, record.model, record.preparation, federation)
            record = replace(record, importance=importance)
        constant = trivial(federation, plan.has_own_models)
        if plan.method == self.first.method:  # of one method: it is the same beside all
            constant["pooled"] = pooled_logistic(federation, plan.has_own_models)
        return record, constant


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
    begun: Run | None = None,
) -> Run:
    """Run all plans of ``scenario``; the run is in ``folder``, where one is given, while it goes on.

    Interrupted once (Ctrl-C), the plan that is running ends after its next communication round and the rest is not run.
    A plan that fails is a row with its reason (:attr:`Run.failed`), and the others run. ``data`` builds a plan's
    federation; without it, its task does. ``options`` are the engine's; the device is by default the scenario's.
    ``processes`` share the plans; None is as many as pay. With more than one, a program's own lines must stand behind
    ``if __name__ == "__main__":``, for the processes import it anew. Of a run ``begun`` in ``folder`` the rest is run.

    Raises PlanError or DataError before anything trains or is written.
    """
    engine = engine or scenario.engine or DEFAULT_ENGINE
    options = {"device": scenario.device} | (options or {})
    check_engine(engine, options)
    check_device(options["device"], scenario.dtype)
    keep_freed_memory()
    if folder is not None and begun is None:
        check_free(folder)
    track = load_extension("fedsmall.watchers", scenario.track)(folder) if scenario.track else None
    watcher = watcher or Watcher()
    plans = scenario.plans()
    build = data or partial(build_federation, data_root=data_root)
    federations = Federations(build)
    first = federations.of(plans[0])
    scenario = judged_by(scenario, first).model_copy(update={"device": options["device"]})  # for who repeats or resumes
    plans = scenario.plans() if begun is None else begun.plans
    for plan in plans[: len(scenario.method)]:
        check_run(plan, federations.of(plan))  # a method may have a stop of its own, and so other rows
    processes = processes or processes_for(plans, engine, options["device"])
    job = Job(build, engine, options, plans[0], scenario.keep == "sites")
    LOG.info("%s: %d plans on %s", scenario.name, len(plans), engine)
    with interruptible() as interrupted, watcher:
        run = start(folder, scenario, first, engine) if begun is None else reopen(begun, first)
        left = {index: plan for index, plan in enumerate(plans) if plan in run.not_run}
        if processes > 1 and left:
            records = run_side_by_side(left, job, processes, watcher.moved, interrupted)
        else:
            records = _run_one_by_one(left, job, federations.of, watcher.moved, interrupted)
        try:
            for index, ended in records:
                _take_in(run, index, ended, track)
                watcher.end(plans[index])
            run.about |= {"ended": datetime.now(UTC).isoformat(timespec="seconds"), "interrupted": interrupted()}
        finally:
            run.save()
    for note in run.about["notes"]:
        LOG.info("note: %s", note)
    return run


def _take_in(run: Run, index: int, ended: Ended | Failed, track: Callable[[Run, PlanRun], None] | None) -> None:
    """Write down what the plan at ``index`` came to, and tell the log and the run's tracker."""
    name = called(run.plans[index])
    if isinstance(ended, Failed):
        run.fail(index, ended)
        LOG.warning("%s failed: %s", name, ended.reason)
        return
    added = run.add(index, *ended)
    LOG.info("%s done: %s", name, added.row["common"])
    if track is not None:
        track(run, added)


def judged_by(scenario: Scenario, federation: Federation) -> Scenario:
    """The scenario with the metric by which its methods are judged, where it leaves that open."""
    if scenario.metric is not None:
        name = known_metric(scenario.metric, federation.task.loss)
    else:
        name = default_metric([samples.y for samples in federation.train], federation.task)
    return scenario.model_copy(update={"metric": name})


def _run_one_by_one(
    plans: Mapping[int, Plan],
    job: Job,
    federation_of: Build,
    moved: Callable[[int], None],
    interrupted: Callable[[], bool],
) -> Iterator[tuple[int, Ended | Failed]]:
    moved(before := 0)
    for index, plan in plans.items():
        if interrupted():
            return
        yield index, attempt(partial(job.run, plan, federation_of, partial(_add, moved, before), interrupted))
        before += plan.rounds


def _add(moved: Callable[[int], None], before: int, rounds: int) -> None:
    moved(before + rounds)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Within it the main thread's first Ctrl-C is only remembered (the value given tells); a second interrupts."""
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


def processes_for(plans: Sequence[Plan], engine: str, device: str = "cpu") -> int:
    """How many processes serve a run: a core a thread, on a GPU as many as share it; one if short or by Ray."""
    if engine == "ray" or len(plans) < ENOUGH:
        return 1
    threads = threads_of_kernel(device)
    if device == "cpu" or threads:
        return max(1, cores() // max(1, threads))
    return min(cores(), SHARED_BY)


def run_side_by_side(
    plans: Mapping[int, Plan], job: Job, processes: int, moved: Callable[[int], None], interrupted: Callable[[], bool]
) -> Iterator[tuple[int, Ended | Failed]]:
    """The index of each plan and its result, as they are done; ``moved`` gets the rounds that all plans have done.

    Once interrupted, no further plan begins. Where a process is killed, as when memory runs out, the unfinished plans
    are tried again one after the other, each in a process of its own: so the one that cannot be run is found.
    """
    left, done = dict(plans), 0
    try:
        for index, ended in _run_shared(left, processes, job, moved, interrupted):
            done += left.pop(index).rounds
            yield index, ended
    except BrokenProcessPool:
        for index, plan in left.items():
            if interrupted():
                return
            try:
                yield from _run_shared({index: plan}, 1, job, partial(_add, moved, done), interrupted)
            except BrokenProcessPool:
                yield index, Failed(KILLED)
            done += plan.rounds


def _run_shared(
    plans: Mapping[int, Plan], processes: int, job: Job, moved: Callable[[int], None], interrupted: Callable[[], bool]
) -> Iterator[tuple[int, Ended | Failed]]:
    """The plans over so many processes; BrokenProcessPool where one of them dies."""
    context = process_context(job.options["device"], [__name__, "sklearn.datasets", "sklearn.linear_model"])
    rounds = context.Array("l", max(plans) + 1, lock=False)
    stop = context.Event()
    pool = ProcessPoolExecutor(processes, context, _prepare, (job, rounds, stop))
    try:
        with _deaf_to_ctrl_c():
            waiting = {pool.submit(_work, index, plan): index for index, plan in plans.items()}
        while waiting:
            ended, _ = wait(waiting, POLL_S, FIRST_COMPLETED)
            moved(sum(rounds))
            if interrupted():
                stop.set()
                for future in waiting:
                    future.cancel()
            for future in ended:
                index, result = waiting.pop(future), None if future.cancelled() else future.result()
                if result is not None:
                    yield index, result
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes begun within it ignore Ctrl-C, which reaches the whole group: the first process tells the others."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where signals cannot be set, nobody presses Ctrl-C either
        return
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        yield
        signal.signal(signal.SIGINT, before)
        return
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # they inherit it; here it comes when they are up
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


class _Worker:
    """What a process remembers from plan to plan: the job, its data, where to count rounds, whether to stop."""

    job: Job
    federation_of: Build
    rounds: Any
    stop: Any


def _prepare(job: Job, rounds: Any, stop: Any) -> None:
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # what came with the fork is no garbage
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _Worker.job, _Worker.federation_of, _Worker.rounds, _Worker.stop = job, Federations(job.build).of, rounds, stop


def _end_with_parent() -> None:
    """End this process when the one that began it does: of a run that is killed none stays behind, waiting for work."""
    if (parent := parent_process()) is not None:
        parent.join()
        os._exit(1)


def _work(index: int, plan: Plan) -> Ended | Failed | None:
    stop, moved = _Worker.stop.is_set, partial(_Worker.rounds.__setitem__, index)
    return None if stop() else attempt(partial(_Worker.job.run, plan, _Worker.federation_of, moved, stop))


def has_diverged(last: Evaluation) -> bool:
    """Whether the models of a run's end have a loss that is no finite number."""
    worth, name = (last.common, "loss") if last.common is not None else (last.sites, "loss_mean")
    return bool(worth) and not math.isfinite(worth.get(name, 0.0 if last.common is None else math.nan))


def attempt(work: Callable[[], Made]) -> Made | Failed:
    """The result of ``work``, or why it failed; Ctrl-C and a full disk, which would stop all plans, are raised."""
    try:
        return work()
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise
        return Failed(reason_of(error), "".join(traceback.format_exception(error)))


def reason_of(error: Exception) -> str:
    """One line for a user: our own words as they are, another's with the kind of error and the place in their code."""
    text = one_line(error, LONGEST)
    if isinstance(error, MemoryError) or any(words in text.lower() for words in NO_MEMORY):
        return "out of memory" + (f": {text}" if text else "")
    module = type(error).__module__.partition(".")[0]
    last = traceback.extract_tb(error.__traceback__)[-1:]
    if module == "fedsmall" or not last:
        return text
    place = f"{last[0].filename.rpartition('/')[2]}, line {last[0].lineno}"
    return f"{type(error).__name__}: {text} ({place})" if text else f"{type(error).__name__} ({place})"
