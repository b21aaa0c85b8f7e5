"""Who answers what is asked of models: the sites over a grid, each for itself or all in a secure sum."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, final

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall import wire
from fedsmall.data.federation import Task
from fedsmall.errors import ReplyError
from fedsmall.evaluation.site_sums import held_out_shapes
from fedsmall.evaluation.stopping import TELLING, reported_shapes
from fedsmall.plan import Plan
from fedsmall.sealing import tallies
from fedsmall.strategies.checks import check_metrics, checked_sums
from fedsmall.strategies.records import array_records, to_record
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.sealed_models import DecryptorError, SealedModels, Tally
from fedsmall.strategies.server.judging import Answer, Answers, Judging, Question
from fedsmall.strategies.server.run_loop import Evaluator
from fedsmall.wire import CHARGED, CONFIG, EXAMPLES, METRICS, MODEL, Arrays, split_vector

TIMEOUT_S = 600.0


def evaluator_for(
    roster: Roster, grid: Grid, plan: Plan, task: Task | None = None, sealed: SealedModels | None = None
) -> Evaluator:
    """The evaluator over real sites, each for itself or in a secure sum; sums need the ``task`` to be read."""
    judges = SiteJudges(roster, grid, plan, task)
    hidden = HiddenJudges(sealed, judges) if sealed is not None and sealed.secure else None
    return Judging(plan, task, hidden or judges, roster.counts)


@final
@dataclass
class SiteJudges:
    """The sites, asked over a grid; silent ones and impossible answers are left out."""

    roster: Roster
    grid: Grid
    plan: Plan
    task: Task | None = None

    def let_keep(self, t: int, model: Arrays) -> None:
        """Tell all sites that this, of round ``t``, is the run's model: a run that ends early has no last round."""
        self(Question(t, dict.fromkeys(self.roster.sites, model)), **{wire.KEEP: True})

    def contents(self, question: Question, **more: Any) -> dict[str, RecordDict]:
        """What each site is sent; equal models are shared."""
        words = {wire.PLAN: self.plan.model_dump_json(exclude_defaults=True), wire.ROUND: question.t, **more}
        config = ConfigRecord(words | ({wire.MEMBERS: list(question.counts)} if question.counts else {}))
        distinct = {id(model): model for model in question.models.values()}
        sent = {key: RecordDict({MODEL: to_record(model), CONFIG: config}) for key, model in distinct.items()}
        return {site: sent[id(question.models[site])] for site in sorted(question.models)}

    def __call__(self, question: Question, **more: Any) -> Answers:
        """The sites' answers; ``more`` words go with the question."""
        contents = self.contents(question, **more)
        nodes, read = self.roster.nodes, self._never_seen if question.unseen else self._held_out
        orders = {site: Message(content, nodes[site], kind_of(question)) for site, content in contents.items()}
        replies = self.grid.send_and_receive(list(orders.values()), timeout=TIMEOUT_S) if orders else []
        by_id = {reply.metadata.reply_to_message_id: reply for reply in replies if not reply.has_error()}
        answers: Answers = {}
        for site, order in sorted(orders.items()):
            if (reply := by_id.get(order.metadata.message_id)) is None:
                continue
            try:
                answer = read(site, reply.content)
            except ReplyError as error:
                what = "sums" if question.unseen else "evaluation"
                self.roster.note(question.t, site, "set aside", f"its {what}: {error}")
                continue
            if answer is not None:
                answers[site] = answer
        return answers

    def _held_out(self, site: str, content: RecordDict) -> Answer | None:
        metrics: Any = content.get(METRICS, {})
        samples = metrics.get(EXAMPLES) or 0
        if not samples and not charges_in(metrics):
            return None  # it has held nothing out
        check_metrics(metrics if samples else {**metrics, EXAMPLES: 1})
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, list)}
        values = {n: float(v) for n, v in numbers.items() if n != EXAMPLES and not n.startswith(CHARGED)}
        sums: Arrays = {}
        if self.task is not None and wire.HELD_OUT in content:
            sums = checked_sums(array_records(content)[wire.HELD_OUT], held_out_shapes(self.task))
            if sums["count"] > samples:
                raise ReplyError("its sums are of more samples than its metrics")
        return Answer(samples, values if samples else {}, sums, charges_in(numbers))

    def _never_seen(self, site: str, content: RecordDict) -> Answer | None:
        if wire.OUT_OF_FOLD not in content:
            return None  # it has too few samples to tell of
        assert self.task is not None
        sums = checked_sums(array_records(content)[wire.OUT_OF_FOLD], reported_shapes(self.plan, self.task))
        if sums["count"] > self.roster.answers[site].get(EXAMPLES, 0):
            raise ReplyError("it tells of more samples than the site said at the handshake")
        return Answer(sums=sums)


@final
@dataclass
class HiddenJudges:
    """All sites in one secure sum, under the name ``TOGETHER``; single sites tell only their charges."""

    sealed: SealedModels
    sites: SiteJudges

    def __call__(self, question: Question) -> Answers:
        """The one answer, where enough sites send."""
        t, task, unseen = question.t, self.sites.task, question.unseen
        assert task is not None
        words, contents = self.sealed.words(t), {}
        for site, content in self.sites.contents(question).items():
            config = ConfigRecord({**content.config_records[CONFIG], **words})
            contents[site] = RecordDict({**content, CONFIG: config})
        of = tallies.UNSEEN if unseen else tallies.JUDGED
        try:
            tally = self.sealed.open_sum(t, of, kind_of(question), contents)
        except DecryptorError as error:
            self.sealed.note(t, "all sites", "not told", f"what sites tell ({of}) stays closed: {error}")
            return {}
        answers = {} if unseen else self._charged(tally, t)
        shapes = tallies.unseen_shapes(self.sealed.plan, task) if unseen else tallies.judged_shapes(task)
        if sum(map(prod, shapes.values())) != len(tally.values):
            if not unseen:
                self.sealed.note(t, "all sites", "not told", "what sites tell of the model is not of its task")
            return answers
        sums = split_vector(tally.values, shapes)
        if unseen:
            return {tallies.TOGETHER: Answer(sums=sums)} if sums["count"] >= 1 else {}
        metrics, held_out = tallies.metrics_of_tally(task, sums)
        if metrics:
            samples, telling = (round(float(sums[name])) for name in ("samples", TELLING))
            answers[tallies.TOGETHER] = Answer(samples, metrics, held_out, sites=telling)
        return answers

    def _charged(self, tally: Tally, t: int) -> Answers:
        answers: Answers = {}
        for site, metrics in tally.reported.items():
            charged = charges_in(metrics)
            try:
                check_metrics({**charged, EXAMPLES: 1})
            except ReplyError as error:
                self.sealed.note(t, site, "set aside", f"what it was charged: {error}")
                continue
            answers |= {site: Answer(charged=charged)} if charged else {}
        return answers


def kind_of(question: Question) -> str:
    """The message type of a question."""
    return f"{MessageType.EVALUATE}.{wire.VALIDATE}" if question.unseen else MessageType.EVALUATE


def charges_in(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """A run's charges to a site's privacy budget, in its metrics."""
    return {name.removeprefix(CHARGED): value for name, value in metrics.items() if name.startswith(CHARGED)}
