"""Routes as cross-validation over a grid: every site judges the models that never saw it, and tells sums."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall.errors import ReplyError
from fedsmall.evaluation.out_of_fold import shapes_of
from fedsmall.evaluation.unseen import expected
from fedsmall.federation import Task
from fedsmall.plan import Plan
from fedsmall.travellers import Moment
from fedsmall.wire import CONFIG, EXAMPLES, MEMBERS, MODEL, OUT_OF_FOLD, PLAN, ROUND, VALIDATE, Arrays
from strategies.checks import checked_sums
from strategies.daisy_chain import DaisyChain
from strategies.records import array_records, to_record
from strategies.server.run_loop import Evaluation, Evaluator

Told = dict[str, Arrays]  # what each site told of models that never saw its samples, by name in order
Validate = Callable[[int, tuple[Arrays, ...]], Told]


def validated(evaluator: Evaluator, validate: Validate, plan: Plan, task: Task) -> Evaluator:
    """An evaluator that adds what to expect at an unseen hospital, or of unseen patients where folds are of samples.

    It does so after averages, where the plan has routes. ``validate`` gives what every site tells of the models of its
    samples' routes, {site: sums}, after round t.
    """

    def judge(moment: Moment) -> Evaluation | None:
        evaluation, of_routes = evaluator(moment), moment.of_routes()
        if not of_routes:
            return evaluation
        found = expected(validate(moment.contact.t, of_routes), task, plan.method.by_samples)
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
        """What every site tells of the models of its route, or of all routes where it has samples of all folds."""
        sites, nodes = self.strategy.sites, self.strategy.roster.nodes
        contents, kind = self._contents(t, of_routes), f"{MessageType.EVALUATE}.{VALIDATE}"
        orders = [Message(contents[site], nodes[site], kind) for site in sites]
        replies = list(self.grid.send_and_receive(orders, timeout=self.timeout_s))
        site_of = {order.metadata.message_id: site for order, site in zip(orders, sites, strict=True)}
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

    def _contents(self, t: int, of_routes: tuple[Arrays, ...]) -> dict[str, RecordDict]:
        """What each site is sent; sites that are sent the same thing share it."""
        words: dict[str, Any] = {PLAN: self.plan.model_dump_json(exclude_defaults=True), ROUND: t}
        if self.plan.method.by_samples:
            counts = [len(next(iter(members.values()))) for members in of_routes]
            everyone = {name: np.concatenate([members[name] for members in of_routes]) for name in of_routes[0]}
            config = ConfigRecord({**words, MEMBERS: counts})
            return dict.fromkeys(self.strategy.sites, RecordDict({MODEL: to_record(everyone), CONFIG: config}))
        contents = [RecordDict({MODEL: to_record(each), CONFIG: ConfigRecord(words)}) for each in of_routes]
        return {site: contents[fold] for site, fold in self.strategy.folds.of.items()}

    def _checked(self, reply: Message, samples: Any) -> Arrays:
        """The sums of a reply. Raises ReplyError where they are not sums over one set of samples."""
        sums = checked_sums(array_records(reply.content)[OUT_OF_FOLD], shapes_of(self.task))
        if sums["count"] > samples:
            raise ReplyError("it tells of more samples than the site said at the roll call")
        return sums
