"""What a server can only learn from the sites: the task's shapes at the roll call, and what a model is worth there."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsmall import __version__
from fedsmall.errors import PlanError, ReplyError
from fedsmall.federation import Task
from fedsmall.plan import Plan
from fedsmall.travel import CONFIG, EXAMPLES, METRICS, MODEL, PLAN, Arrays
from strategies.checks import check_metrics
from strategies.daisy_chain import DaisyChain
from strategies.records import to_record
from strategies.roster import Roster
from strategies.run_loop import Evaluation


def task_from_roll(roster: Roster, grid: Grid, plan: Plan) -> Task:
    """Call the roll and return the task on which all sites agree.

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
            if answer.get(key) != answers[first].get(key):
                raise PlanError(
                    f"Sites differ in their {key}: {first!r} has {str(answers[first].get(key))[:200]}, "
                    f"{site!r} has {str(answer.get(key))[:200]}. All must run the same."
                )
    if answers[first].get("version") != __version__:
        raise PlanError(f"The sites run fedsmall {answers[first].get('version')}, the server {__version__}.")
    read: dict[str, Any] = json.loads(str(answers[first]["task"]))
    fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in read.items()}
    return Task(**fields)


class SiteEvaluator:
    """Sends the common model to every site, to be judged on what the site has held out; reports means and spreads."""

    def __init__(self, strategy: DaisyChain, grid: Grid, plan: Plan, timeout_s: float = 600.0) -> None:
        self.strategy = strategy
        self.grid = grid
        self.config = ConfigRecord({PLAN: plan.model_dump_json(exclude_defaults=True)})
        self.timeout_s = timeout_s

    def __call__(self, t: int, common: Arrays | None, models: Mapping[str, ArrayRecord]) -> Evaluation | None:
        """The sites' metrics of the common model, weighted by their held-out samples; None where nobody has any."""
        if common is None:
            return None
        content = RecordDict({MODEL: to_record(common), CONFIG: self.config})
        nodes = self.strategy.roster.nodes
        orders = [Message(content, nodes[site], MessageType.EVALUATE) for site in self.strategy.sites]
        replies = list(self.grid.send_and_receive(orders, timeout=self.timeout_s))
        site_of = {o.metadata.message_id: s for o, s in zip(orders, self.strategy.sites, strict=True)}
        told: dict[str, dict[str, Any]] = {}
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
        return _summary(t, dict(sorted(told.items()))) if told else None


def _summary(t: int, told: dict[str, dict[str, Any]]) -> Evaluation:
    weights = np.array([float(metrics[EXAMPLES]) for metrics in told.values()])
    names = [name for name in next(iter(told.values())) if name != EXAMPLES]
    common = {
        name: float(np.average([float(metrics.get(name, np.nan)) for metrics in told.values()], weights=weights))
        for name in names
    }
    held_out = {
        site: {name: float(metrics[name]) for name in names if name in metrics} for site, metrics in told.items()
    }
    return Evaluation(t, common, {}, {"held_out": held_out})
