"""What a server can only learn from the sites: the task's shapes at the roll call, and what a model is worth there."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall import __version__
from fedsmall.data.outcomes import kind_of
from fedsmall.errors import PlanError, ReplyError
from fedsmall.evaluation.site_sums import held_out_shapes, sums_to_json
from fedsmall.federation import Task, task_from
from fedsmall.files import one_line
from fedsmall.models.own_models import has_own_models
from fedsmall.plan import Plan
from fedsmall.strategies.checks import check_metrics, checked_sums
from fedsmall.strategies.records import array_records, to_record
from fedsmall.strategies.roster import Roster
from fedsmall.strategies.server.run_loop import Evaluation, Evaluator
from fedsmall.travel.moments import Moment
from fedsmall.wire import CHARGED, CONFIG, EXAMPLES, HELD_OUT, KEEP, KEPT, METRICS, MODEL, PLAN, ROUND, Arrays

EVALUATE = MessageType.EVALUATE
Answers = dict[str, dict[str, Any]]  # what each site said of a model: metrics, and the number of samples
Ask = Callable[[Moment, Mapping[str, Arrays]], Answers]


def task_from_roll(roster: Roster, grid: Grid, plan: Plan) -> Task:
    """Call the roll and return the task on which all sites agree; the first site's, where sites have their own models.

    Raises PlanError, with both values, where two sites differ in task, model or version, or nobody answers.
    """
    roster.call(grid, {PLAN: plan.model_dump_json(exclude_defaults=True)})
    answers = {site: roster.answers[site] for site in roster.sites}
    for node, reason in sorted(roster.refused.items()):
        raise PlanError(f"Node {node} cannot take part: {one_line(reason, 300)}")
    if not answers:
        raise PlanError("No site is connected. Start the sites first; `status` shows who is there.")
    for site, answer in answers.items():
        if "error" in answer:
            raise PlanError(f"Site {site!r} cannot take part: {answer['error']}")
    first = next(iter(answers))
    for key in ("task", "signature", "version"):
        _check_alike(key, {site: _to_agree(key, answer, plan) for site, answer in answers.items()})
    if answers[first].get("version") != __version__:
        raise PlanError(f"The sites run fedsmall {answers[first].get('version')}, the server {__version__}.")
    return task_from(json.loads(str(answers[first]["task"])))


def _to_agree(key: str, answer: Mapping[str, Any], plan: Plan) -> str:
    """What a site said, without what may differ: sites with models of their own may want longer or shorter targets."""
    if key != "task" or not has_own_models(plan):
        return str(answer.get(key))
    task = json.loads(str(answer[key]))
    return json.dumps({**task, "classes": None} if kind_of(str(task.get("loss"))) == "numbers" else task)


def _check_alike(key: str, said: Mapping[str, str]) -> None:
    """Raise PlanError where a site says other than most, with both values; of tasks, with what differs in them."""
    usual = Counter(said.values()).most_common(1)[0][0]
    most = next(site for site, value in said.items() if value == usual)
    for site, value in said.items():
        if value != usual:
            of_most, own = _apart(usual, value) if key == "task" else (usual, value)
            raise PlanError(
                f"Sites differ in their {key}: {most!r} has {of_most[:200]}, {site!r} has {own[:200]}. "
                "All must run the same."
            )


def _apart(one: str, other: str) -> list[str]:
    """What differs in two tasks, the names of features first; of lists what the other lacks, or all for their order."""
    tasks = [json.loads(one), json.loads(other)]
    fields = [name for name in tasks[0] if tasks[0][name] != tasks[1].get(name)]
    told: list[dict[str, Any]] = [{}, {}]
    for name in sorted(fields, key=lambda name: name != "feature_names"):
        values = [task.get(name) for task in tasks]
        if all(isinstance(value, list) for value in values):
            lacking = [[each for each in a if each not in b] for a, b in (values, values[::-1])]
            values = lacking if any(lacking) else values
        told[0][name], told[1][name] = values
    return [json.dumps(each, ensure_ascii=False) for each in told]


def evaluator_for(roster: Roster, grid: Grid, plan: Plan, task: Task | None = None) -> Evaluator:
    """Who judges models over real sites: the sites do, each a common model or its own.

    Sums that they tell at the end are read where their ``task`` is known.
    """
    judges = Judges(roster, grid, plan, task)
    return OwnModelsEvaluator(judges) if has_own_models(plan) else SiteEvaluator(judges)


class SiteEvaluator:
    """Sends the common model to every site, to be judged on what the site has held out; reports means and spreads."""

    def __init__(self, judges: "Judges") -> None:
        self._ask = judges

    def __call__(self, moment: Moment) -> Evaluation | None:
        """The sites' metrics of the common model, weighted by their held-out samples; None where nobody has any."""
        if moment.common is None:
            return None
        answers = self._ask(moment, dict.fromkeys(self._ask.roster.sites, moment.common))
        if not answers:
            return Evaluation(moment.contact.t, None, {}, told=self._ask.told) if self._ask.told else None
        return _summary(moment.contact.t, answers, self._ask.told)


class OwnModelsEvaluator:
    """Lets every site judge the shared part of a model, which it completes with its own layers; on every engine.

    There is no model that all sites could judge. An evaluation's ``sites`` are the sites' own models after their last
    training; ``extra["held_out"]`` has for each site the common shared part, completed with the site's own layers.
    ``ask`` gives the answers about each site's model.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def __call__(self, moment: Moment) -> Evaluation | None:
        """What the sites say of their own models; None where nobody has anything held out."""
        models = moment.models()
        rows = [{name: array[row] for name, array in models.items()} for row in range(len(moment.sites))]
        own = self._ask(moment, dict(zip(moment.sites, rows, strict=True)))
        if not own:
            return None
        shared = self._ask(moment, dict.fromkeys(own, moment.common)) if moment.common is not None else {}
        held_out = {site: _metrics(answer) for site, answer in shared.items()}
        return Evaluation(moment.contact.t, None, _spread(own), {"held_out": held_out} if held_out else {})


@dataclass
class Judges:
    """The sites, asked what models are worth on the samples that each has held out."""

    roster: Roster
    grid: Grid
    plan: Plan
    task: Task | None = None
    timeout_s: float = 600.0
    told: dict[str, dict[str, Any]] = field(default_factory=dict)  # beside the metrics, by site, at the last question

    def __call__(self, moment: Moment, models: Mapping[str, Arrays]) -> Answers:
        """The answers about each site's model, by site in order; those who are silent or have no samples are left out.

        They judge after the moment's round: a site with layers of its own takes them as they were then.
        """
        return self._asked(moment.contact.t, models, {})

    def let_keep(self, t: int, model: Arrays) -> None:
        """Tell all sites that this, of round ``t``, is the run's model: a run that ends early has no last round."""
        self._asked(t, dict.fromkeys(self.roster.sites, model), {KEEP: True})

    def _asked(self, t: int, models: Mapping[str, Arrays], more: dict[str, Any]) -> Answers:
        nodes, sites = self.roster.nodes, sorted(models)
        config = ConfigRecord({PLAN: self.plan.model_dump_json(exclude_defaults=True), ROUND: t, **more})
        distinct = {id(model): model for model in models.values()}
        contents = {key: RecordDict({MODEL: to_record(model), CONFIG: config}) for key, model in distinct.items()}
        orders = [Message(contents[id(models[site])], nodes[site], EVALUATE) for site in sites]
        replies = list(self.grid.send_and_receive(orders, timeout=self.timeout_s))
        site_of = {order.metadata.message_id: site for order, site in zip(orders, sites, strict=True)}
        answers: Answers = {}
        self.told = {}
        for reply in replies:
            site = site_of.get(reply.metadata.reply_to_message_id)
            metrics: Any = {} if reply.has_error() else reply.content.get(METRICS, {})
            judged = bool(metrics.get(EXAMPLES))
            if site is None or not (judged or any(map(_is_charge, metrics))):
                continue  # silent, or has held nothing out
            try:
                check_metrics(metrics if judged else {**metrics, EXAMPLES: 1})
                said = {name: value for name, value in metrics.items() if not isinstance(value, list)}
                self.told |= self._beside(site, reply, said)
                answers |= {site: said} if judged else {}
            except ReplyError as error:
                self.roster.note(t, site, "set aside", f"its evaluation: {error}")
        return dict(sorted(answers.items()))

    def _beside(self, site: str, reply: Message, metrics: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """What a site tells beside its metrics, from which it is taken out: what it was charged, and its sums."""
        spent = charges_in(metrics)
        for name in list(filter(_is_charge, metrics)):
            del metrics[name]
        beside: dict[str, Any] = {"charged": spent} if spent else {}
        beside |= {"samples": metrics[EXAMPLES]} if metrics[EXAMPLES] else {}
        if self.task is not None and HELD_OUT in reply.content:
            sums = checked_sums(array_records(reply.content)[HELD_OUT], held_out_shapes(self.task))
            if sums["count"] > metrics[EXAMPLES]:
                raise ReplyError("its sums are of more samples than its metrics")
            beside["sums"] = sums_to_json(sums)
        return {site: beside} if beside else {}


def _summary(t: int, answers: Answers, told: dict[str, dict[str, Any]]) -> Evaluation:
    weights = np.array([float(metrics[EXAMPLES]) for metrics in answers.values()])
    names = [name for name in _metrics(next(iter(answers.values()))) if not name.startswith(KEPT)]
    common = {
        name: float(np.average([float(metrics.get(name, np.nan)) for metrics in answers.values()], weights=weights))
        for name in names
    }
    held_out = {
        site: {name: float(metrics[name]) for name in names if name in metrics} for site, metrics in answers.items()
    }
    return Evaluation(t, common, {}, {"held_out": held_out}, _kept(answers), told=dict(sorted(told.items())))


def charges_in(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Of what a site says, what a run was charged to its privacy budget."""
    return {name.removeprefix(CHARGED): value for name, value in metrics.items() if _is_charge(name)}


def _is_charge(name: str) -> bool:
    return name.startswith(CHARGED)


def _kept(answers: Answers) -> dict[str, Any]:
    """What sites say of their last visitors together, each on its own held-out samples; of those that keep any."""
    told = {
        site: {name.removeprefix(KEPT): value for name, value in answer.items() if name.startswith(KEPT)}
        for site, answer in answers.items()
    }
    told = {site: metrics for site, metrics in told.items() if metrics}
    return _spread(told) | {"held_out": told} if told else {}


def _spread(answers: Answers) -> dict[str, Any]:
    """Mean and standard deviation over the sites of each metric that all of them have, and the single values."""
    each = [_metrics(metrics) for metrics in answers.values()]
    summary: dict[str, Any] = {"names": list(answers), "per_site": {}}
    for name in each[0]:
        values = [metrics[name] for metrics in each if name in metrics]
        if len(values) == len(each):
            summary[f"{name}_mean"] = float(np.mean(values))
            summary[f"{name}_sd"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            summary["per_site"][name] = values
    return summary


def _metrics(answer: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in answer.items() if name != EXAMPLES}
