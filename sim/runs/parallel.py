"""Plans on several cores: one process for each core, one plan at a time in each, one thread in each.

Plans of a scenario do not depend on each other, and small models gain nothing from threads, so this is the whole speed
of a machine. Results do not depend on it: every draw has its own stream.
"""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedsmall.evaluation.trivial import trivial
from fedsmall.models.own_models import has_own_models
from fedsmall.plan import Plan
from sim.runs.cores import cores
from sim.runs.federations import Build, Federations

if TYPE_CHECKING:
    from sim.engines.run import RunRecord

    Ended = tuple[RunRecord, dict[str, Any]]

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
) -> Iterator[tuple[int, "RunRecord", dict[str, Any]]]:
    """The place of each plan, its record, and its trivial predictor, as they are done.

    Plans that are not begun are left out once interrupted. ``moved`` is told how many rounds all plans have done so
    far. ``build`` must be picklable.
    """
    context = multiprocessing.get_context("spawn")
    rounds = context.Array("l", len(plans), lock=False)
    stop = context.Event()
    pool = ProcessPoolExecutor(processes, context, _prepare, (build, rounds, stop))
    try:
        with _deaf_to_ctrl_c():
            waiting = {
                pool.submit(_work, index, plan, engine, options, is_first(plan, plans[0]), own_models): index
                for index, plan in enumerate(plans)
            }
        while waiting:
            ended, _ = wait(waiting, POLL_S, FIRST_COMPLETED)
            moved(sum(rounds))
            if interrupted():
                stop.set()
                for future in waiting:
                    future.cancel()
            for future in ended:
                yield from _record(waiting.pop(future), future)
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


def _record(index: int, future: "Future[Ended | None]") -> Iterator[tuple[int, "RunRecord", dict[str, Any]]]:
    ended = None if future.cancelled() else future.result()
    if ended is not None:
        yield index, *ended


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
    index: int, plan: Plan, engine: str, options: dict[str, Any] | None, exposed: bool, own_models: bool
) -> "Ended | None":
    from sim.engines.run import run_plan

    def progress(t: int, _: int) -> None:
        _Worker.rounds[index] = t

    if _Worker.stop.is_set():
        return None
    federation = _Worker.build(plan)
    told = {"progress": progress, "stop": _Worker.stop.is_set, "exposed": exposed, "own_models": own_models}
    record = run_plan(plan, federation, engine, options=options, **told)
    return record, trivial(federation, has_own_models(plan))
