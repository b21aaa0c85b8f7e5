"""The record of one plan's run, and how it is made of what an engine leaves."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import torch

from fedsmall import __version__
from fedsmall.data.preparation import Preparation
from fedsmall.federation import Federation, Task
from fedsmall.models.own_models import has_own_models
from fedsmall.models.registry import completed
from fedsmall.package.record import TrainedOn, counted
from fedsmall.plan import Plan
from fedsmall.sim.engines.evaluation import LastRound, said_of
from fedsmall.strategies.server.run_loop import Evaluation, Outcome
from fedsmall.training.device import describe_device
from fedsmall.wire import Arrays


class Distilled(NamedTuple):
    """One model made of several, what it is worth on the common test set, and what its way cost."""

    model: Arrays
    metrics: dict[str, float]
    rounds: int
    bytes_sent: int


@dataclass
class RunRecord:
    """One plan, executed once: what came of it, and with what it can be repeated.

    ``seconds`` is the wall time of the rounds, without building data or starting an engine; ``model`` is the common
    model at the end, or None; ``stopped`` says that the run was cut short; ``device`` is where its models trained;
    ``read`` is who could be read by whom, where that was counted; ``distilled`` is the one model that sites made of
    several; ``bytes_between`` are those that servers of regions sent each other. ``chosen`` is the round whose model it
    is, where the plan's ``stop`` keeps the best and not the last.
    ``averaged`` are how many models each average took that may be left out, and whether these were all, ``sent_by`` the
    bytes that had been sent by then.
    ``predictions`` are what that model says of the test samples (:func:`fedsmall.sim.engines.evaluation.said_of`),
    empty where there is none or it was cut short, and ``thresholds`` those that it has by the training samples. ``own``
    are the models that sites trained last, where they were asked for, and Central's; ``kept`` are then the last
    visitors of each site, {name: (members, ...)}, where sites keep any. ``task``, ``preparation`` and ``trained_on``
    are what packages of these models need to know of the data.
    """

    plan: Plan
    engine: str
    evaluations: list[Evaluation]
    contacts: int
    rounds: int
    bytes_sent: int
    seconds: float
    client_updates: int
    model: Arrays | None
    events: list[dict[str, Any]] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    stopped: bool = False
    path: str = ""
    device: str = ""
    privacy: dict[str, float] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=dict)
    predictions: Arrays = field(default_factory=dict)
    own: dict[str, Arrays] = field(default_factory=dict)
    kept: dict[str, Arrays] = field(default_factory=dict)
    task: Task | None = None
    preparation: Preparation | None = None
    trained_on: dict[str, TrainedOn] = field(default_factory=dict)
    distilled: Distilled | None = None
    chosen: int = 0
    bytes_between: int = 0
    thresholds: dict[str, float] = field(default_factory=dict)
    averaged: list[tuple[int, bool]] = field(default_factory=list)
    sent_by: list[int] = field(default_factory=list)


def record_of(plan: Plan, engine: str, outcome: Outcome, path: str, device: torch.device) -> RunRecord:
    """The record of what came of a run on ``engine``, by which gradient ``path`` and on which ``device``."""
    return RunRecord(
        plan=plan,
        engine=engine,
        evaluations=outcome.evaluations,
        contacts=outcome.contacts,
        rounds=outcome.rounds,
        bytes_sent=outcome.bytes_sent,
        seconds=outcome.seconds,
        client_updates=outcome.client_updates,
        model=outcome.model,
        events=outcome.events,
        versions=versions(),
        stopped=outcome.stopped,
        path=path,
        device=describe_device(device),
        privacy=outcome.privacy,
        chosen=outcome.chosen,
        bytes_between=outcome.bytes_between,
        averaged=outcome.averaged,
        sent_by=outcome.sent_by,
    )


def with_end(record: RunRecord, last: LastRound, read: dict[str, Any], federation: Federation) -> RunRecord:
    """The record with what was seen in the ``last`` round, and who could be ``read`` by whom."""
    t = record.chosen or record.rounds
    outputs, thresholds = last.outputs.get(t), last.thresholds.get(t, {})
    predictions = said_of(outputs, federation) if outputs is not None and len(outputs) else {}
    end: dict[str, Any] = {"predictions": predictions, "task": federation.task}
    own = last.own.get(t, {})
    end["own"] = {site: whole_model(record.plan, federation.task, model) for site, model in own.items()}
    if record.model is not None:
        end["model"] = whole_model(record.plan, federation.task, record.model)
    end |= {"preparation": federation.preparation, "thresholds": thresholds}
    return replace(record, read=read, trained_on=counted(federation), **end)


def whole_model(plan: Plan, task: Task, trained: Arrays) -> Arrays:
    """A model with its frozen layers, which do not travel."""
    if has_own_models(plan):
        return trained
    return completed(plan, task, trained)


def versions() -> dict[str, str]:
    """The versions that a run's numbers may depend on."""
    cuda = {"cuda": torch.version.cuda} if torch.version.cuda else {}
    return {"fedsmall": __version__, "python": platform.python_version(), **_installed(), **cuda}


@cache  # a package's whole description is read for it, and the plans of a run are many
def _installed() -> Mapping[str, str]:
    return {name: version(name) for name in ("flwr", "ray", "torch", "numpy", "scipy", "scikit-learn")}
