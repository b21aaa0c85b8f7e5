"""One message to a site's station, read: what is asked, and of what; and what of an error may leave the site."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from clients.policy import Policy
from fedsmall.data.raw_site import RawSite
from fedsmall.errors import DataError, PlanError, PolicyError
from fedsmall.files import DiskFullError
from fedsmall.plan import Plan
from fedsmall.wire import LEAVES, NAMES, PLAN, Arrays

TOLD = (PlanError, DataError, PolicyError)  # errors whose words were written to leave the site


class SiteRequest(NamedTuple):
    """One message, read: the plan, the policy of this moment, the site's samples, and the message itself."""

    plan: Plan
    policy: Policy
    raw: RawSite
    config: Mapping[str, Any]
    arrays: Arrays


def plan_of(config: Mapping[str, Any]) -> Plan:
    """The plan that a message brings. Raises PlanError where it brings none that this version knows."""
    try:
        return Plan.model_validate_json(str(config[PLAN]))
    except (KeyError, ValidationError):
        raise PlanError("the order holds no plan that this version of fedsmall knows") from None


def named(order: SiteRequest) -> dict[str, Any]:
    """The words of a message, with the names of the arrays that it brings, for a NumPyClient.

    What is trained at a real site leaves it, whatever an order says: noise is left out where it does not.
    """
    return {**order.config, NAMES: list(order.arrays), LEAVES: True}


def reason_of(error: Exception) -> str:
    """What leaves the site of an error: words that were written to, and nothing of the system's but a full disk."""
    if isinstance(error, DataError):
        return error.words  # a file's name may be a patient's
    if isinstance(error, TOLD):
        return str(error)
    return "its disk is full" if isinstance(error, DiskFullError) else "its log cannot be written"
