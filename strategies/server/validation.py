"""Routes as cross-validation over a grid: every site judges the models that never saw it, and tells sums."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall.errors import ReplyError
from fedsmall.evaluation.out_of_fold import shapes_of
from fedsmall.evaluation.unseen import expected
from fedsmall.federation import Task
from fedsmall.plan import Plan
from fedsmall.travellers import Moment
from fedsmall.wire import CONFIG, EXAMPLES, MODEL, OUT_OF_FOLD, PLAN, ROUND, VALIDATE, Arrays
from strategies.checks import checked_sums
from strategies.daisy_chain import DaisyChain
from strategies.records import array_records, to_record
from strategies.server.run_loop import Evaluation, Evaluator

Told = dict[str, Arrays]  # what each site told of the models of its route, by name in order
Validate = Callable[[int, tuple[Arrays, ...]], Told]


def validated(evaluator: Evaluator, validate: Validate, task: Task) -> Evaluator:
    """An evaluator that adds what to expect at an unseen hospital, after averages, where the plan has routes.

    ``validate`` gives what every site tells of the models of its route, {site: sums}, after round t.
    """

    def judge(moment: Moment) -> Evaluation | None:
        evaluation, of_routes = evaluator(moment), moment.of_routes()
        if not of_routes:
            return evaluation
        found = expected(validate(moment.contact.t, of_routes), task)
        return replace(evaluation or Evaluation(moment.contact.t, None, {}), validation=found) if found else evaluation

    return judge


@dataclass
class AskSites:
    """Asks the sites over a grid. Who is silent, or tells what cannot be, is left out."""

    strategy: DaisyChain
    grid: Grid
    plan: Plan
    task: Task
    timeout_s: float = 600.0

    def __call__(self, t: int, of_routes: tuple[Arrays, ...]) -> Told:
        """What every site tells of the models of its route, which never trained there."""
        config = ConfigRecord({PLAN: self.plan.model_dump_json(exclude_defaults=True), ROUND: t})
        contents = [RecordDict({MODEL: to_record(members), CONFIG: config}) for members in of_routes]
        nodes, folds = self.strategy.roster.nodes, self.strategy.folds
        kind = f"{MessageType.EVALUATE}.{VALIDATE}"
        orders = [Message(contents[folds.of[site]], nodes[site], kind) for site in folds.sites]
        replies = list(self.grid.send_and_receive(orders, timeout=self.timeout_s))
        site_of = {order.metadata.message_id: site for order, site in zip(orders, folds.sites, strict=True)}
        told: Told = {}
        for reply in replies:
            site = site_of.get(reply.metadata.reply_to_message_id)
            if site is None or reply.has_error() or OUT_OF_FOLD not in reply.content:
                continue  # silent, or has too few samples to tell of
            try:
                told[site] = self._checked(reply, self.strategy.roster.answers[site].get(EXAMPLES, 0))
            except ReplyError as error:
                self.strategy.note(t, site, "set aside", f"its sums: {error}")
        return dict(sorted(told.items()))

    def _checked(self, reply: Message, samples: Any) -> Arrays:
        """The sums of a reply. Raises ReplyError where they are not sums over one set of samples."""
        sums = checked_sums(array_records(reply.content)[OUT_OF_FOLD], shapes_of(self.task))
        if sums["count"] > samples:
            raise ReplyError("it tells of more samples than the site said at the roll call")
        return sums
