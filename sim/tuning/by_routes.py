"""How a search judges methods: by what measure, and without giving a site up, by models on routes."""

from pathlib import Path

import numpy as np
from pydantic import ValidationError

from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import default_metric, known_metric
from fedsmall.federation import Federation
from fedsmall.parts import Validation
from fedsmall.plan import Method, Plan
from fedsmall.sim.runs.scenario import Scenario
from fedsmall.tasks import build_federation
from fedsmall.validation import check_run

FOLDS_OF_SITES, ROUTES = "folds", "routes"
FIRST_SEED = 1000  # of a search, so that it shares none with the runs that are reported
LOOKS = 20  # evaluations of a run that is judged by routes, about


def judged_by(scenario: Scenario, by: str | None = None) -> str:
    """How a search judges methods: by "folds" of sites that are left out, or by "routes".

    Where nobody says, by routes if a method of the scenario is validated so. Raises PlanError for another word.
    """
    if by not in (None, FOLDS_OF_SITES, ROUTES):
        raise PlanError(f"a search judges by folds or by routes, not by {by!r}")
    plans = (scenario.plan(index, scenario.seeds[0]) for index in range(len(scenario.method)))
    return by or (ROUTES if any(plan.method.validation for plan in plans) else FOLDS_OF_SITES)


def measure_of(scenario: Scenario, by: str | None, metric: str | None = None, data_root: Path | None = None) -> str:
    """What a search judges models by: ``metric``, or what the scenario names, or by routes the loss, or the task's own.

    Raises PlanError for a metric that the task does not have.
    """
    named = metric or scenario.metric
    if named is None and judged_by(scenario, by) == ROUTES:
        return "loss"
    federation = build_federation(scenario.plan(0, FIRST_SEED), data_root)
    if named is not None:
        return known_metric(named, federation.task.loss)
    return default_metric([samples.y for samples in federation.train], federation.task)


def unit_of(metric: str, federation: Federation) -> float:
    """How large the error of a model that says nothing is: of numbers about their spread, and one elsewhere."""
    task = federation.task
    if task.kind != "numbers" or metric == "r2":
        return 1.0
    spread = float(np.std(np.concatenate([samples.y.ravel() for samples in federation.train]))) or 1.0
    if metric in ("mae", "rmse"):
        return spread * (task.unit[1] if task.unit else 1.0)
    return spread**2 if task.loss == "mse" else spread


def to_its_end(plan: Plan) -> Plan:
    """The plan without what would end it early: a search sees all rounds, and no site keeps anything back for it."""
    return plan.model_copy(update={"stop": None})


def by_routes(plan: Plan, federation: Federation) -> Plan | None:
    """The plan with its models on routes, judged on the way; None where they cannot travel so.

    There are five routes where nobody says, or as many as there are groups, and no more than models: routes that take
    turns at fewer sites train less in so many rounds than the method does without them.
    """
    method, sites = plan.method, len(federation.names)
    if method.validation is None and method.travelling(sites) < 2:
        return None
    routes = method.groups if isinstance(method.groups, int) and method.groups > 1 else 5
    given = method.validation or Validation(routes=max(2, min(routes, method.travelling(sites))))
    parts = method.model_dump() | {"validation": given}
    try:
        routed = to_its_end(plan).model_copy(update={"method": Method(**parts)})
        check_run(routed, federation)
    except (ValidationError, PlanError):
        return None
    between = method.aggregate_every or plan.rounds
    every = between * max(1, round(plan.rounds / between / LOOKS))
    return routed.model_copy(update={"evaluate_every": every})
