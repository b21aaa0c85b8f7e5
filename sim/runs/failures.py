"""Plans that fail: each is a row with its reason, and all others run."""

import math
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from fedsmall.files import FULL, one_line
from fedsmall.plan import Plan

if TYPE_CHECKING:
    from fedsmall.strategies.server.run_loop import Evaluation

Made = TypeVar("Made")
LONGEST = 300  # characters of a reason
NO_MEMORY = ("out of memory", "can't allocate memory", "bad_alloc")
KILLED = "its process was killed from outside, most likely because memory ran out"


DIVERGED = "it diverged: the loss of its models is not finite at the end; try a smaller learning rate"


class Failed(NamedTuple):
    """Why a plan was not run to its end, in one line, and the traceback behind it."""

    reason: str
    trace: str = ""

    def row(self, index: int, plan: Plan) -> dict[str, Any]:
        """What run.json says of it."""
        which = {"index": index, "label": plan.method.label, "seed": plan.seed, "fold": plan.fold}
        return which | {"reason": self.reason, "traceback": self.trace}


def has_diverged(last: "Evaluation") -> bool:
    """Whether the models of a run's end have a loss that is no finite number."""
    worth, name = (last.common, "loss") if last.common is not None else (last.sites, "loss_mean")
    return bool(worth) and not math.isfinite(worth.get(name, 0.0 if last.common is None else math.nan))


def attempted(work: Callable[[], Made]) -> "Made | Failed":
    """What ``work`` makes, or why it made nothing.

    A disk without room is nothing that another plan would survive, and is raised as it is; so is Ctrl-C.
    """
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
