"""A run of several regions: a region's line to the server above, and the last model handed down there.

A region waits as long as the others take, and says in the run's folder for whom.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall.errors import PlanError, ReplyError
from fedsmall.plan import Plan
from fedsmall.strategies.records import to_record
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.run_loop import Evaluation
from fedsmall.travel.handover import Handed, Handover, put, read
from fedsmall.travel.journey import RoundResult
from fedsmall.wire import CONFIG, MODEL, PLAN, ROUND, Arrays

POLL_S = 0.05
LOOK_S = 5.0  # between two looks whether the run was stopped
OTHERS = "the other regions"


@dataclass(frozen=True)
class Line:
    """The files of a region's run; ``look`` raises where it was stopped, ``tell`` is given {who: why} of a wait."""

    handover: Handover
    look: Callable[[], object] = lambda: None
    tell: Callable[[dict[str, str]], None] = lambda _: None

    def meet(self, words: Mapping[str, Any], sums: Arrays) -> Handed:
        """Hand up the region's sums; returns what all regions agreed on."""
        put(self.handover.met, dict(words), sums)
        return self._wait(lambda: read(self.handover.agreed), "they have not met yet")

    def united(self, t: int, model: Arrays, weight: float) -> Arrays:
        """Hand up the region's global model after round ``t``; returns the united one, perhaps made before a restart.

        Raises PlanError where the other regions have gone on without this one.
        """
        down = self.handover.down(t)
        if not down.exists():
            put(self.handover.up(t), {"t": t, "weight": weight}, model)

        def come() -> Handed | None:
            handed = read(down)
            if handed is None and (last := self.handover.last_down()) > t:
                raise PlanError(
                    f"the other regions have gone on to round {last} without this one, which is at round {t}. Take the "
                    "run above back, with `fedsmall resume RUN --from ROUND` there, or start a new run"
                )
            return handed

        return self._wait(come, f"their models of round {t} are not there yet").arrays

    def _wait(self, ready: Callable[[], Handed | None], why: str) -> Handed:
        if (come := ready()) is None:
            self.tell({OTHERS: why})
        looked = time.monotonic()
        while come is None:
            if time.monotonic() - looked > LOOK_S:
                self.look()
                looked = time.monotonic()
            time.sleep(POLL_S)
            come = ready()
        self.tell({})
        return come


TIMEOUT_S = 600.0


@dataclass(frozen=True)
class HandDown:
    """An evaluator that evaluates nothing: it sends every region the last united model, as no order follows."""

    roster: Roster
    grid: Grid
    plan: Plan

    def __call__(self, result: RoundResult) -> Evaluation | None:
        """Send the model. Raises ReplyError unless every region has taken it; the resumed run sends it again."""
        t, nodes = result.comm_round.t, self.roster.nodes
        assert result.global_model is not None
        words = ConfigRecord({PLAN: self.plan.model_dump_json(exclude_defaults=True), ROUND: t})
        content = RecordDict({MODEL: to_record(result.global_model), CONFIG: words})
        orders = {region: Message(content, nodes[region], MessageType.EVALUATE) for region in sorted(nodes)}
        replies = self.grid.send_and_receive(list(orders.values()), timeout=TIMEOUT_S)
        took = {reply.metadata.reply_to_message_id for reply in replies if not reply.has_error()}
        if left := [region for region, order in orders.items() if order.metadata.message_id not in took]:
            raise ReplyError(
                f"{', '.join(left)} did not take the united model of round {t}; `fedsmall resume` hands it out again"
            )
        return None
