"""The record of one plan's run, and how it is made of what an engine leaves."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from typing import Any, NamedTuple

import torch

from fedsmall import __version__
from fedsmall.data.federation import Federation, Task
from fedsmall.data.preparation import Preparation
from fedsmall.models.registry import completed
from fedsmall.package.record import TrainedOn, count_samples
from fedsmall.plan import Plan
from fedsmall.sim.engines.evaluation import LastRound, predictions_of
from fedsmall.strategies.server.run_loop import Outcome
from fedsmall.training.device import describe_device
from fedsmall.training.kernel import describe_kernel
from fedsmall.wire import Arrays


class Distilled(NamedTuple):
    """One model made of several, what it is worth on the common test set, and what its way cost."""

    model: Arrays
    metrics: dict[str, float]
    rounds: int
    bytes_sent: int


@dataclass(kw_only=True)
class RunRecord(Outcome):
    """The outcome of one plan on an engine, and with what it can be repeated.

    ``read`` is who could read whose data; ``distilled`` the one model that sites made of several. ``predictions`` are
    the model's on the test samples (:func:`fedsmall.sim.engines.evaluation.predictions_of`), empty where there is none;
    ``thresholds`` its own by the training samples. ``own`` are the models that sites trained last, where asked for, and
    Central's; ``kept`` each site's last visitors, {name: (members, ...)}; ``at_home`` losses at each site
    (:mod:`fedsmall.sim.engines.at_home`).
    """

    plan: Plan
    engine: str
    versions: dict[str, str] = field(default_factory=dict)
    path: str = ""
    device: str = ""
    read: dict[str, Any] = field(default_factory=dict)
    predictions: Arrays = field(default_factory=dict)
    own: dict[str, Arrays] = field(default_factory=dict)
    kept: dict[str, Arrays] = field(default_factory=dict)
    task: Task | None = None
    preparation: Preparation | None = None
    trained_on: dict[str, TrainedOn] = field(default_factory=dict)
    distilled: Distilled | None = None
    thresholds: dict[str, float] = field(default_factory=dict)
    at_home: dict[str, dict[str, float]] = field(default_factory=dict)


def record_of(plan: Plan, engine: str, outcome: Outcome, path: str, device: torch.device) -> RunRecord:
    """The record of what came of a run on ``engine``, by which gradient ``path`` and on which ``device``."""
    where = describe_device(device)
    return RunRecord(plan=plan, engine=engine, versions=versions(), path=path, device=where, **vars(outcome))


def with_end(record: RunRecord, last: LastRound, read: dict[str, Any], federation: Federation) -> RunRecord:
    """The record with what was seen in the ``last`` round, and who could be ``read`` by whom."""
    t, plan, task = record.chosen or record.rounds, record.plan, federation.task
    outputs = last.outputs.get(t)
    return replace(
        record,
        model=None if record.model is None else whole_model(plan, task, record.model),
        read=read,
        predictions=predictions_of(outputs, federation) if outputs is not None and len(outputs) else {},
        own={site: whole_model(plan, task, model) for site, model in last.own.get(t, {}).items()},
        task=task,
        preparation=federation.preparation,
        trained_on=count_samples(federation),
        thresholds=last.thresholds.get(t, {}),
        at_home=last.at_home.get(t, {}),
    )


def whole_model(plan: Plan, task: Task, trained: Arrays) -> Arrays:
    """A model with its frozen layers, which do not travel."""
    return trained if plan.has_own_models else completed(plan, task, trained)


def versions() -> dict[str, str]:
    """The versions that a run's numbers may depend on."""
    built = {"cuda": torch.version.cuda, "kernel": describe_kernel()}
    known = {name: version for name, version in built.items() if version}
    return {"fedsmall": __version__, "python": platform.python_version(), **_installed(), **known}


@cache  # a package's whole description is read for it, and the plans of a run are many
def _installed() -> Mapping[str, str]:
    return {name: version(name) for name in ("flwr", "ray", "torch", "numpy", "scipy", "scikit-learn")}
