"""A search that gives no site up: methods are judged by models on routes, each on the sites that it never saw."""

from pydantic import ValidationError

from fedsmall.errors import PlanError
from fedsmall.federation import Federation
from fedsmall.parts import Validation
from fedsmall.plan import Method, Plan
from fedsmall.validation import check_run
from sim.runs.scenario import Scenario

FOLDS_OF_SITES, ROUTES = "folds", "routes"
LOOKS = 20  # evaluations of a run that is judged by routes, about


def judged_by(scenario: Scenario, by: str | None = None) -> str:
    """How a search judges methods: by "folds" of sites that are left out, or by "routes".

    Where nobody says, by routes if a method of the scenario is validated so. Raises PlanError for another word.
    """
    if by not in (None, FOLDS_OF_SITES, ROUTES):
        raise PlanError(f"a search judges by folds or by routes, not by {by!r}")
    plans = (scenario.plan(index, scenario.seeds[0]) for index in range(len(scenario.method)))
    return by or (ROUTES if any(plan.method.validation for plan in plans) else FOLDS_OF_SITES)


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
