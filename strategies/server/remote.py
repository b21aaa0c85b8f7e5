"""What a server can only learn from the sites: the task's shapes at the roll call, and what a model is worth there."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall import __version__
from fedsmall.errors import PlanError, ReplyError
from fedsmall.federation import Task
from fedsmall.models.own_models import has_own_models
from fedsmall.plan import Plan
from fedsmall.wire import CONFIG, EXAMPLES, METRICS, MODEL, PLAN, ROUND, Arrays
from strategies.checks import check_metrics
from strategies.daisy_chain import DaisyChain
from strategies.records import to_record
from strategies.roster import Roster
from strategies.server.run_loop import Evaluation, Evaluator

EVALUATE = MessageType.EVALUATE
Told = dict[str, dict[str, Any]]  # what each site said of a model: metrics, and the number of samples


def task_from_roll(roster: Roster, grid: Grid, plan: Plan) -> Task:
    """Call the roll and return the task on which all sites agree; the first site's, where sites have their own models.

    Raises PlanError, with both values, where two sites differ in task, model or version, or nobody answers.
    """
    roster.call(grid, {PLAN: plan.model_dump_json(exclude_defaults=True)})
    answers = {site: roster.answers[site] for site in roster.sites}
    if not answers:
        raise PlanError("No site is connected. Start the sites first; `status` shows who is there.")
    for site, answer in answers.items():
        if "error" in answer:
            raise PlanError(f"Site {site!r} cannot take part: {answer['error']}")
    first = next(iter(answers))
    for key in ("task", "signature", "version"):
        for site, answer in answers.items():
            if _to_agree(key, answer, plan) != _to_agree(key, answers[first], plan):
                raise PlanError(
                    f"Sites differ in their {key}: {first!r} has {str(answers[first].get(key))[:200]}, "
                    f"{site!r} has {str(answer.get(key))[:200]}. All must run the same."
                )
    if answers[first].get("version") != __version__:
        raise PlanError(f"The sites run fedsmall {answers[first].get('version')}, the server {__version__}.")
    read: dict[str, Any] = json.loads(str(answers[first]["task"]))
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in read.items()}
    return Task(**fields)


def _to_agree(key: str, answer: Mapping[str, Any], plan: Plan) -> Any:
    """What a site said, without what may differ: sites with models of their own may want longer or shorter targets."""
    if key != "task" or not has_own_models(plan):
        return answer.get(key)
    task = json.loads(str(answer[key]))
    return {**task, "classes": None} if task.get("loss") == "l1" else task


def evaluator_for(strategy: DaisyChain, grid: Grid, plan: Plan) -> Evaluator:
    """Who judges models over real sites: the sites do, each a common model or its own."""
    return (OwnModelsEvaluator if has_own_models(plan) else SiteEvaluator)(strategy, grid, plan)


class SiteEvaluator:
    """Sends the common model to every site, to be judged on what the site has held out; reports means and spreads."""

    def __init__(self, strategy: DaisyChain, grid: Grid, plan: Plan, timeout_s: float = 600.0) -> None:
        self._ask = _Judges(strategy, grid, plan, timeout_s)

    def __call__(self, t: int, common: Arrays | None, models: Mapping[str, ArrayRecord]) -> Evaluation | None:
        """The sites' metrics of the common model, weighted by their held-out samples; None where nobody has any."""
        if common is None:
            return None
        told = self._ask(t, dict.fromkeys(self._ask.strategy.sites, to_record(common)))
        return _summary(t, told) if told else None


class OwnModelsEvaluator:
    """Sends every site the shared part of a model, which it completes with its own layers and judges; on every engine.

    There is no model that all sites could judge. An evaluation's ``sites`` are the sites' own models after their last
    training; ``extra["held_out"]`` has for each site the common shared part, completed with the site's own layers.
    """

    def __init__(self, strategy: DaisyChain, grid: Grid, plan: Plan, timeout_s: float = 600.0) -> None:
        self._ask = _Judges(strategy, grid, plan, timeout_s)

    def __call__(self, t: int, common: Arrays | None, models: Mapping[str, ArrayRecord]) -> Evaluation | None:
        """What the sites say of their own models after round ``t``; None where nobody has anything held out."""
        own = self._ask(t, models)
        if not own:
            return None
        shared = self._ask(t, dict.fromkeys(own, to_record(common))) if common is not None else {}
        held_out = {site: _metrics(told) for site, told in shared.items()}
        return Evaluation(t, None, _spread(own), {"held_out": held_out} if held_out else {})


@dataclass
class _Judges:
    """The sites, asked what models are worth on the samples that each has held out."""

    strategy: DaisyChain
    grid: Grid
    plan: Plan
    timeout_s: float

    def __call__(self, t: int, models: Mapping[str, ArrayRecord]) -> Told:
        """The answers about each site's model, by site in order; those who are silent or have no samples are left out.

        ``t`` is the round after which they judge: a site with layers of its own takes them as they were then.
        """
        plan = self.plan.model_dump_json(exclude_defaults=True)
        nodes, sites = self.strategy.roster.nodes, sorted(models)
        orders = [
            Message(
                RecordDict({MODEL: models[site], CONFIG: ConfigRecord({PLAN: plan, ROUND: t})}), nodes[site], EVALUATE
            )
            for site in sites
        ]
        replies = list(self.grid.send_and_receive(orders, timeout=self.timeout_s))
        site_of = {order.metadata.message_id: site for order, site in zip(orders, sites, strict=True)}
        told: Told = {}
        for reply in replies:
            site = site_of.get(reply.metadata.reply_to_message_id)
            metrics: Any = {} if reply.has_error() else reply.content.get(METRICS, {})
            if site is None or not metrics.get(EXAMPLES):
                continue  # silent, or has held nothing out
            try:
                check_metrics(metrics)
                told[site] = {name: value for name, value in metrics.items() if not isinstance(value, list)}
            except ReplyError as error:
                self.strategy.note(t, site, "set aside", f"its evaluation: {error}")
        return dict(sorted(told.items()))


def _summary(t: int, told: Told) -> Evaluation:
    weights = np.array([float(metrics[EXAMPLES]) for metrics in told.values()])
    names = list(_metrics(next(iter(told.values()))))
    common = {
        name: float(np.average([float(metrics.get(name, np.nan)) for metrics in told.values()], weights=weights))
        for name in names
    }
    held_out = {
        site: {name: float(metrics[name]) for name in names if name in metrics} for site, metrics in told.items()
    }
    return Evaluation(t, common, {}, {"held_out": held_out})


def _spread(told: Told) -> dict[str, Any]:
    """Mean and standard deviation over the sites of each metric that all of them have, and the single values."""
    each = [_metrics(metrics) for metrics in told.values()]
    summary: dict[str, Any] = {"names": list(told), "per_site": {}}
    for name in each[0]:
        values = [metrics[name] for metrics in each if name in metrics]
        if len(values) == len(each):
            summary[f"{name}_mean"] = float(np.mean(values))
            summary[f"{name}_sd"] = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            summary["per_site"][name] = values
    return summary


def _metrics(told: Mapping[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in told.items() if name != EXAMPLES}
