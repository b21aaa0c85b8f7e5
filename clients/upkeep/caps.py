"""How much a site takes: orders a minute, the size of one, and how long it works on it.

Orders too many or too large are refused before anything is done with them; work that takes too long is cut.
"""

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import numpy as np

from fedsmall.clients.policy import Policy
from fedsmall.data.raw_site import RawSite
from fedsmall.errors import PolicyError
from fedsmall.wire import Arrays

MINUTE_S = 60.0
MIB = 2**20
LOOK_S = 0.5  # how often it is asked whether work on an order may go on


class CutError(BaseException):
    """Work on an order was cut for this ``reason``; nothing that catches errors of the work itself catches this."""

    def __init__(self, reason: PolicyError) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Pace:
    """When the last orders came; a refused one counts too, so that asking more often does not help."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._came: deque[float] = deque()

    def check(self, policy: Policy, arrays: Arrays) -> None:
        """Count one order. Raises PolicyError where it is one too many in a minute, or too large."""
        now, most = self._clock(), policy.most_orders_per_minute
        self._came.append(now)
        while self._came[0] <= now - MINUTE_S:
            self._came.popleft()
        if most is not None and len(self._came) > most:
            raise PolicyError(f"more than {most} orders came in a minute, which the policy here allows")
        size = sum(array.nbytes for array in arrays.values())
        if policy.most_order_mib is not None and size > policy.most_order_mib * MIB:
            raise PolicyError(
                f"the order holds {size / MIB:.1f} MiB of arrays; the policy here takes {policy.most_order_mib:g}"
            )


def check_time(policy: Policy, seconds: float) -> None:
    """Raise PolicyError where work on one order has taken longer than the policy allows."""
    if seconds > MINUTE_S * policy.most_order_minutes:
        raise PolicyError(
            f"the order takes longer than the {policy.most_order_minutes:g} minutes that the policy here allows "
            "(most_order_minutes); what was done for it is dropped"
        )


@contextmanager
def cut_short(may_go_on: Callable[[], None]) -> Iterator[None]:
    """Ask again and again, while work goes on, whether it may; where that raises PolicyError, end it by a CutError.

    Wherever the work is: between two steps of Python, so a single operation on arrays is waited for. It is as if the
    program had been killed there, and whoever goes on is to go by what is on the disk. A program does so in its main
    thread, as a station answers; in others nothing is cut.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def look(_number: int, _frame: FrameType | None) -> None:
        try:
            may_go_on()
        except PolicyError as error:
            raise CutError(error) from None

    began, before = time.monotonic(), signal.signal(signal.SIGALRM, look)
    left, every = signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:  # once more, for it may have rung just now
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # somebody else's alarm goes on
            signal.setitimer(signal.ITIMER_REAL, max(left - (time.monotonic() - began), LOOK_S), every)


def least_of_a_class(raw: RawSite) -> int | None:
    """How many samples of its rarest class a site trains on, of those it has; None where there are no classes."""
    if raw.task.kind != "classes" or not len(raw.train):
        return None
    _, counts = np.unique(raw.train.y, return_counts=True)
    return int(counts.min())
