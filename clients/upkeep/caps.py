"""How much a site takes: orders a minute, and the size of one. More is refused before anything is done with it."""

import time
from collections import deque
from collections.abc import Callable

import numpy as np

from clients.policy import Policy
from fedsmall.data.raw_site import RawSite
from fedsmall.errors import PolicyError
from fedsmall.wire import Arrays

MINUTE_S = 60.0
MIB = 2**20


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


def least_of_a_class(raw: RawSite) -> int | None:
    """How many samples of its rarest class a site trains on, of those it has; None where there are no classes."""
    if raw.task.kind != "classes" or not len(raw.train):
        return None
    _, counts = np.unique(raw.train.y, return_counts=True)
    return int(counts.min())
