"""Evaluation: which model each site is to evaluate, and on what (:class:`Question`), and the evaluation of the answers.

Who answers :class:`Judging` is an argument: sites over a grid, all in a secure sum, or a simulation's samples.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, NamedTuple, final

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall import wire
from fedsmall.data.federation import Task
from fedsmall.errors import ReplyError
from fedsmall.evaluation.site_sums import expected_at_unseen, held_out_shapes, sums_to_json
from fedsmall.evaluation.stopping import TELLING, looks, loss_of, reported_shapes
from fedsmall.plan import Plan
from fedsmall.sealing import tallies
from fedsmall.strategies.checks import check_metrics, checked_sums
from fedsmall.strategies.records import array_records, to_record
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.sealed_models import DecryptorError, SealedModels, Tally
from fedsmall.strategies.server.run_loop import Evaluation, Evaluator
from fedsmall.travel.journey import RoundResult, folds_of
from fedsmall.wire import CHARGED, CONFIG, EXAMPLES, METRICS, MODEL, Arrays, split_vector

TIMEOUT_S = 600.0


class Question(NamedTuple):
    """Models to be evaluated after round ``t``, by site, on what each has held out.

    ``unseen``: on samples that the models never saw, with routes the training samples, else those kept back for
    ``stop``. Where folds are of samples, the members of all routes come as one model, ``counts`` of each. ``memory`` is
    that of sites with layers of their own, in a simulation.
    """

    t: int
    models: Mapping[str, Arrays]
    unseen: bool = False
    counts: tuple[int, ...] = ()
    memory: Arrays = {}  # noqa: RUF012 (never changed)


@dataclass(frozen=True)
class Answer:
    """A site's ``metrics`` over so many held-out ``samples``, and ``sums`` (:mod:`fedsmall.evaluation.site_sums`).

    ``charged`` is the run's charge to the site's privacy budget, ``sites`` how many answer together.
    """

    samples: float = 0
    metrics: dict[str, float] = field(default_factory=dict)
    sums: Arrays = field(default_factory=dict)
    charged: dict[str, Any] = field(default_factory=dict)
    sites: int = 0

    def beside(self) -> dict[str, Any]:
        """What an evaluation keeps beside the metrics."""
        sums = {"sums": sums_to_json(self.sums)} if self.sums else {}
        known = {TELLING: self.sites, "charged": self.charged, "samples": self.samples}
        return {name: value for name, value in known.items() if value} | sums


Answers = dict[str, Answer]  # by site in order; who is silent or has no samples is left out
Judge = Callable[[Question], Answers]


@final
@dataclass
class Judging:
    """The evaluator of a run whose models a ``judge`` evaluates, or ``on_test`` on a shared test set.

    ``sites`` gives each site's number of training samples by name.
    """

    plan: Plan
    task: Task | None
    judge: Judge
    sites: Callable[[], Mapping[str, int]]
    on_test: Evaluator | None = None

    def __call__(self, result: RoundResult) -> Evaluation | None:
        """The evaluation after a result, by unseen samples too; None where nobody answers."""
        t, held_out = result.comm_round.t, self._own if self.plan.has_own_models else self._common
        evaluation = (self.on_test or held_out)(result)
        decides = t in self._looks
        if not decides and not result.of_routes():
            return evaluation
        question = self._never_seen(result)
        sums = {site: answer.sums for site, answer in self.judge(question).items()} if question.models else {}
        if not sums:
            return evaluation
        assert self.task is not None
        method = self.plan.method
        unseen = expected_at_unseen(sums, self.task, method.by_samples) if method.routes else {}
        stop = loss_of(sums) if decides else {}
        return replace(evaluation or Evaluation(t, None, {}), validation=unseen, stop=stop)

    @cached_property
    def _looks(self) -> frozenset[int]:
        return looks(self.plan)

    def _common(self, result: RoundResult) -> Evaluation | None:
        """The global model on each site's held-out samples; metrics weighed by their number."""
        if result.global_model is None:
            return None
        t = result.comm_round.t
        answers = self.judge(Question(t, dict.fromkeys(self.sites(), result.global_model)))
        told = {site: beside for site, answer in sorted(answers.items()) if (beside := answer.beside())}
        judged = {site: answer for site, answer in answers.items() if answer.samples}
        if tallies.TOGETHER in judged:
            return Evaluation(t, judged[tallies.TOGETHER].metrics, {}, told=told)
        if not judged:
            return Evaluation(t, None, {}, told=told) if told else None
        weights = np.array([float(answer.samples) for answer in judged.values()])
        metrics = [answer.metrics for answer in judged.values()]
        names = list(metrics[0])
        global_model = {
            name: float(np.average([of.get(name, np.nan) for of in metrics], weights=weights)) for name in names
        }
        held_out = {site: {n: a.metrics[n] for n in names if n in a.metrics} for site, a in judged.items()}
        return Evaluation(t, global_model, {}, {"held_out": held_out}, told=told)

    def _own(self, result: RoundResult) -> Evaluation | None:
        """Each site's shared layers completed with its own; "held_out" has the global ones, completed alike."""
        t, memory = result.comm_round.t, result.memory
        metrics = self._metrics(Question(t, _rows(result), memory=memory))
        if not metrics:
            return None
        global_model = dict.fromkeys(metrics, result.global_model) if result.global_model is not None else {}
        held_out = self._metrics(Question(t, global_model, memory=memory)) if global_model else {}
        return Evaluation(t, None, spread_over_sites(metrics), {"held_out": held_out} if held_out else {})

    def _metrics(self, question: Question) -> dict[str, dict[str, float]]:
        return {site: answer.metrics for site, answer in self.judge(question).items() if answer.samples}

    def _never_seen(self, result: RoundResult) -> Question:
        """The model that each site evaluates on unseen samples: by routes, the global one, or its own."""
        sites, of_routes, counts = self.sites(), result.of_routes(), tuple[int, ...]()
        models: Mapping[str, Arrays] = {}
        if of_routes and self.plan.method.by_samples:
            counts = tuple(len(next(iter(members.values()))) for members in of_routes)
            everyone = {name: np.concatenate([members[name] for members in of_routes]) for name in of_routes[0]}
            models = dict.fromkeys(sites, everyone)
        elif of_routes:
            folds = folds_of(self.plan, list(sites.values()))
            assert folds is not None
            models = {site: of_routes[fold] for site, fold in zip(sites, folds.tolist(), strict=True)}
        elif self.plan.kept_back and result.global_model is not None:
            models = dict.fromkeys(sites, result.global_model)
        elif self.plan.kept_back and not self.plan.method.is_federated:
            models = _rows(result)
        return Question(result.comm_round.t, models, True, counts)


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
        for site, metrics in tally.said.items():
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


def spread_over_sites(by_site: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Mean and standard deviation over sites of each metric that all have, and the single values."""
    metrics_of = list(by_site.values())
    known = [name for name in metrics_of[0] if all(name in metrics for metrics in metrics_of)]
    return {"names": list(by_site)} | spread({name: [metrics[name] for metrics in metrics_of] for name in known})


def spread(values: Mapping[str, Sequence[float] | np.ndarray]) -> dict[str, Any]:
    """Mean and standard deviation of every metric over sites, and the single values; NaN where one site has none."""
    summary: dict[str, Any] = {}
    for name, over_sites in values.items():
        summary[f"{name}_mean"] = float(np.mean(over_sites))
        summary[f"{name}_sd"] = float(np.std(over_sites, ddof=1)) if len(over_sites) > 1 else 0.0
    return summary | {"per_site": {name: np.asarray(over_sites).tolist() for name, over_sites in values.items()}}


def _rows(result: RoundResult) -> dict[str, Arrays]:
    models = result.models()
    return {site: {name: array[row] for name, array in models.items()} for row, site in enumerate(result.sites)}
