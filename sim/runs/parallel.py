"""Plans on several cores: one process for each core, one plan at a time in each, one thread in each.

Plans of a scenario do not depend on each other, and small models gain nothing from threads, so this is the whole speed
of a machine. Results do not depend on it: every draw has its own stream.
"""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from fedsmall.evaluation.trivial import trivial
from fedsmall.models.own_models import has_own_models
from fedsmall.plan import Plan
from fedsmall.sim.runs.cores import cores
from fedsmall.sim.runs.failures import DIVERGED, KILLED, Failed, attempted, has_diverged
from fedsmall.sim.runs.federations import Build, Federations

if TYPE_CHECKING:
    from fedsmall.sim.engines.record import RunRecord


Ended = tuple["RunRecord", dict[str, Any]]  # what a plan came to, and its trivial predictor
Work = Callable[[int, Plan], Ended | Failed | None]

POLL_S = 0.2
SHARED_BY = 4  # processes on one GPU: each takes half a GiB of it before its first model
ENOUGH = 8  # fewer plans are done before a second process has imported what it needs


def processes_for(plans: Sequence[Plan], engine: str, device: str = "cpu") -> int:
    """How many processes serve a run: one for each core, but one for a short run, and where Ray has its own.

    Where they may all train on one GPU, no more than can share it.
    """
    if engine == "ray" or len(plans) < ENOUGH:
        return 1
    return cores() if device == "cpu" else min(cores(), SHARED_BY)


def is_first(plan: Plan, first: Plan) -> bool:
    """Whether a plan is its method's first: on it patients are counted that could be read, which costs some time."""
    return (plan.seed, plan.fold) == (first.seed, first.fold)


def run_side_by_side(
    plans: Sequence[Plan],
    build: Build,
    engine: str,
    options: dict[str, Any] | None,
    processes: int,
    moved: Callable[[int], None],
    interrupted: Callable[[], bool],
    own_models: bool = False,
) -> Iterator[tuple[int, Ended | Failed]]:
    """The place of each plan and what came of it, as they are done.

    Plans that are not begun are left out once interrupted. ``moved`` is told how many rounds all plans have done so
    far. ``build`` must be picklable. Where a process is killed from outside, as when memory runs out, the plans that
    were not done are tried again one after the other, each in a process of its own: so the one that cannot be run is
    found, and the others are run.
    """
    left, done = dict(enumerate(plans)), 0
    work = partial(_work, engine=engine, options=options, first=plans[0], own_models=own_models)
    try:
        for index, ended in _shared(left, processes, build, work, moved, interrupted):
            done += left.pop(index).rounds
            yield index, ended
    except BrokenProcessPool:
        for index, plan in list(left.items()):
            yield from _alone(index, plan, build, work, partial(_add, moved, done), interrupted)
            done += plan.rounds


def _alone(
    index: int, plan: Plan, build: Build, work: Work, moved: Callable[[int], None], interrupted: Callable[[], bool]
) -> Iterator[tuple[int, Ended | Failed]]:
    if interrupted():
        return
    try:
        yield from _shared({index: plan}, 1, build, work, moved, interrupted)
    except BrokenProcessPool:
        yield index, Failed(KILLED)


def _add(moved: Callable[[int], None], before: int, rounds: int) -> None:
    moved(before + rounds)


def _shared(
    plans: Mapping[int, Plan],
    processes: int,
    build: Build,
    work: Work,
    moved: Callable[[int], None],
    interrupted: Callable[[], bool],
) -> Iterator[tuple[int, Ended | Failed]]:
    """The plans over so many processes; BrokenProcessPool where one of them dies."""
    context = multiprocessing.get_context("spawn")
    rounds = context.Array("l", max(plans) + 1, lock=False)
    stop = context.Event()
    pool = ProcessPoolExecutor(processes, context, _prepare, (build, rounds, stop))
    try:
        with _deaf_to_ctrl_c():
            waiting = {pool.submit(work, index, plan): index for index, plan in plans.items()}
        while waiting:
            ended, _ = wait(waiting, POLL_S, FIRST_COMPLETED)
            moved(sum(rounds))
            if interrupted():
                stop.set()
                for future in waiting:
                    future.cancel()
            for future in ended:
                index, came = waiting.pop(future), None if future.cancelled() else future.result()
                if came is not None:
                    yield index, came
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """Processes begun within it ignore Ctrl-C, which reaches the whole group: the first process tells the others."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where signals cannot be set, nobody presses Ctrl-C either
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Worker:
    """What a process remembers from plan to plan: how to build data, where to count rounds, whether to stop."""

    build: Build
    rounds: Any
    stop: Any


def _prepare(build: Build, rounds: Any, stop: Any) -> None:
    import torch

    torch.set_num_threads(1)
    _Worker.build, _Worker.rounds, _Worker.stop = Federations(build).of, rounds, stop


def _work(
    index: int, plan: Plan, *, engine: str, options: dict[str, Any] | None, first: Plan, own_models: bool
) -> Ended | Failed | None:
    def progress(t: int, _: int) -> None:
        _Worker.rounds[index] = t

    if _Worker.stop.is_set():
        return None
    told = {
        "progress": progress,
        "stop": _Worker.stop.is_set,
        "exposed": is_first(plan, first),
        "own_models": own_models,
    }
    return attempted(partial(run_one, plan, _Worker.build, engine, options, told))


def run_one(
    plan: Plan, build: Build, engine: str, options: dict[str, Any] | None, told: dict[str, Any]
) -> Ended | Failed:
    """One plan on its federation: its record, and its trivial predictor's row; or that it diverged."""
    from fedsmall.sim.engines.run import run_plan

    federation = build(plan)
    record = run_plan(plan, federation, engine, options=options, **told)
    if record.evaluations and has_diverged(record.evaluations[-1]):
        return Failed(DIVERGED)
    return record, trivial(federation, has_own_models(plan))
