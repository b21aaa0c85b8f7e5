"""Models judged over a grid on samples that they never saw: every site judges them, and tells sums.

With routes these are all that a site trains on, else what it keeps back for ``stop``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall.errors import ReplyError
from fedsmall.evaluation.site_sums import expected_at_unseen
from fedsmall.federation import Task
from fedsmall.plan import Plan
from fedsmall.stopping import looks, loss_of, shapes_told
from fedsmall.strategies.checks import checked_sums
from fedsmall.strategies.records import array_records, to_record
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.run_loop import Evaluation, Evaluator
from fedsmall.travel.journey import folds_of
from fedsmall.travel.moments import Moment
from fedsmall.wire import CONFIG, EXAMPLES, MEMBERS, MODEL, OUT_OF_FOLD, PLAN, ROUND, VALIDATE, Arrays

Told = dict[str, Arrays]  # what each site told of models that never saw its samples, by name in order
Validate = Callable[[Moment], Told]


def validated(evaluator: Evaluator, validate: Validate, plan: Plan, task: Task) -> Evaluator:
    """An evaluator that adds what sites tell of models on samples that these never saw, where the plan asks for it.

    With routes that is, after averages, what to expect at an unseen hospital; with ``stop`` the loss by which the run
    ends. ``validate`` gives what every site tells at a moment, {site: sums}.
    """
    rounds = looks(plan)

    def judge(moment: Moment) -> Evaluation | None:
        evaluation, t = evaluator(moment), moment.contact.t
        decides = t in rounds
        if not decides and not moment.of_routes():
            return evaluation
        told = validate(moment)
        if not told:
            return evaluation
        routed = plan.method.validation is not None
        found = expected_at_unseen(told, task, plan.method.by_samples) if routed else {}
        stop = loss_of(told) if decides else {}
        return replace(evaluation or Evaluation(t, None, {}), validation=found, stop=stop)

    return judge


def unseen_at(moment: Moment, plan: Plan, sites: Sequence[str]) -> dict[str, Arrays]:
    """Which model each of the ``sites`` is to judge on what it keeps back; none where there is none.

    That is the common one; where all train alone, the site's own.
    """
    if not plan.kept_back:
        return {}
    if moment.common is not None:
        return dict.fromkeys(sites, moment.common)
    if plan.method.family == "federated":
        return {}
    models = moment.models()
    return {site: {name: a[row] for name, a in models.items()} for row, site in enumerate(moment.sites)}


@dataclass
class AskSites:
    """Asks the sites over a grid. Who is silent, or tells what cannot be, is left out."""

    roster: Roster
    grid: Grid
    plan: Plan
    task: Task
    timeout_s: float = 600.0

    def __call__(self, moment: Moment) -> Told:
        """What every site tells of the model that it is to judge, or of all routes' where it has samples of all."""
        t, nodes, kind = moment.contact.t, self.roster.nodes, f"{MessageType.EVALUATE}.{VALIDATE}"
        contents = self.contents(moment)
        orders = [Message(content, nodes[site], kind) for site, content in contents.items()]
        replies = list(self.grid.send_and_receive(orders, timeout=self.timeout_s)) if orders else []
        site_of = {order.metadata.message_id: site for order, site in zip(orders, contents, strict=True)}
        told: Told = {}
        for reply in replies:
            site = site_of.get(reply.metadata.reply_to_message_id)
            if site is None or reply.has_error() or OUT_OF_FOLD not in reply.content:
                continue  # silent, or has too few samples to tell of
            try:
                told[site] = self._checked(reply, self.roster.answers[site].get(EXAMPLES, 0))
            except ReplyError as error:
                self.roster.note(t, site, "set aside", f"its sums: {error}")
        return dict(sorted(told.items()))

    def contents(self, moment: Moment) -> dict[str, RecordDict]:
        """What each site is sent; sites that are sent the same thing share it."""
        words: dict[str, Any] = {PLAN: self.plan.model_dump_json(exclude_defaults=True), ROUND: moment.contact.t}
        of_routes, sites = moment.of_routes(), self.roster.sites
        if of_routes and self.plan.method.by_samples:
            counts = [len(next(iter(members.values()))) for members in of_routes]
            everyone = {name: np.concatenate([members[name] for members in of_routes]) for name in of_routes[0]}
            config = ConfigRecord({**words, MEMBERS: counts})
            return dict.fromkeys(sites, RecordDict({MODEL: to_record(everyone), CONFIG: config}))
        folds = self._folds() if of_routes else {}
        models = {site: of_routes[folds[site]] for site in sites} if of_routes else unseen_at(moment, self.plan, sites)
        distinct = {id(model): model for model in models.values()}
        contents = {
            key: RecordDict({MODEL: to_record(model), CONFIG: ConfigRecord(words)}) for key, model in distinct.items()
        }
        return {site: contents[id(model)] for site, model in models.items()}

    def _folds(self) -> dict[str, int]:
        """The fold of each site."""
        folds = folds_of(self.plan, [self.roster.samples[site] for site in self.roster.sites])
        return {} if folds is None else dict(zip(self.roster.sites, folds.tolist(), strict=True))

    def _checked(self, reply: Message, samples: Any) -> Arrays:
        """The sums of a reply. Raises ReplyError where they are not sums over one set of samples."""
        sums = checked_sums(array_records(reply.content)[OUT_OF_FOLD], shapes_told(self.plan, self.task))
        if sums["count"] > samples:
            raise ReplyError("it tells of more samples than the site said at the roll call")
        return sums
