"""What goes on above regions: a mean of their common models, of which each region is handed the last one too."""

from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall.errors import ReplyError
from fedsmall.plan import Plan
from fedsmall.strategies.records import to_record
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.run_loop import Evaluation
from fedsmall.travel.moments import Moment
from fedsmall.wire import CONFIG, MODEL, PLAN, ROUND

TIMEOUT_S = 600.0


@dataclass(frozen=True)
class HandDown:
    """Brings every region the run's last united model, which no order to train brings any more.

    It stands where an evaluator does, and judges nothing: every region's own run has its sites judge that model.
    """

    roster: Roster
    grid: Grid
    plan: Plan

    def __call__(self, moment: Moment) -> Evaluation | None:
        """Raise ReplyError unless every region has taken it; the run, resumed, hands it out again."""
        t, nodes = moment.contact.t, self.roster.nodes
        assert moment.common is not None
        words = ConfigRecord({PLAN: self.plan.model_dump_json(exclude_defaults=True), ROUND: t})
        content = RecordDict({MODEL: to_record(moment.common), CONFIG: words})
        orders = {region: Message(content, nodes[region], MessageType.EVALUATE) for region in sorted(nodes)}
        replies = self.grid.send_and_receive(list(orders.values()), timeout=TIMEOUT_S)
        took = {reply.metadata.reply_to_message_id for reply in replies if not reply.has_error()}
        if left := [region for region, order in orders.items() if order.metadata.message_id not in took]:
            raise ReplyError(
                f"{', '.join(left)} did not take the united model of round {t}; `fedsmall resume` hands it out again"
            )
        return None
