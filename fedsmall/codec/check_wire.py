"""Which plans may have their models travel in which form."""

from fedsmall.codec.forms import share_of
from fedsmall.errors import PlanError
from fedsmall.plan import Plan


def in_codes(plan: Plan) -> bool:
    """Whether what travels in this run is not in full."""
    return plan.method.wire != "full" and plan.method.family == "federated"


def top_share(plan: Plan) -> float | None:
    """The share of its numbers that leave with a model, where the largest changes alone do; None elsewhere."""
    return share_of(plan.method.wire) if in_codes(plan) else None


def check_wire(plan: Plan) -> None:
    """Raise PlanError, in one line that says what to do, where the plan's travellers cannot go in its form."""
    method = plan.method
    if method.wire == "full":
        return
    said = f'wire = "{method.wire}"'
    if method.family != "federated":
        raise PlanError(f"{said} says how models travel, and those of {method.label!r} do not. Leave wire out.")
    if method.boosting is not None:
        raise PlanError(f"{said} rounds weights, and splits of boosted trees are exact. Leave wire out.")
    if method.topology is not None or method.region_count > 1:
        raise PlanError(f"{said} is for a federation with one server. Leave topology, regions or wire out.")
    if method.privacy is not None and method.privacy.secure:
        raise PlanError(
            f"{said} saves nothing in a secure sum, which takes 64 bits of every number whatever it was rounded to. "
            "Leave wire or secure out."
        )
    if top_share(plan) is not None:
        _check_top(plan, said)


def _check_top(plan: Plan, said: str) -> None:
    """Raise PlanError where models cannot go as their largest changes."""
    method = plan.method
    if method.privacy is not None and method.privacy.hidden:
        raise PlanError(
            f"{said} has the server build the models that it hands on, and sealed ones it cannot open. "
            'Leave sealed out, or take wire = "int8".'
        )
    if method.grouped:
        raise PlanError(
            f"{said} builds on the one common model that sites hold, and groups have several. "
            'Leave groups out, or take wire = "int8".'
        )
    if plan.initial_models == "independent":
        raise PlanError(
            f"{said} builds on the common model with which all sites start, and here each starts with its own. "
            'Take initial_models = "common", or wire = "int8".'
        )
    if method.aggregator != "mean":
        raise PlanError(
            f"{said} has every site leave out most numbers, and a {method.aggregator} of such models would take the "
            'old ones for what most sites say. Take aggregator = "mean", or wire = "int8".'
        )
