"""The data of the plans of a run, built once for all plans that share them."""

from collections.abc import Callable

from fedsmall.federation import Federation
from fedsmall.plan import Plan

Build = Callable[[Plan], Federation]


class Federations:
    """The federation of each plan; the last one is kept, for plans that differ only in their method share it."""

    def __init__(self, build: Build) -> None:
        self._build = build
        self._key = ""
        self._last: Federation | None = None

    def of(self, plan: Plan) -> Federation:
        """The plan's federation, built where it is not the last one."""
        if self._last is None or plan.data_key != self._key:
            self._last, self._key = self._build(plan), plan.data_key
        return self._last
