"""A client's site: its name and data, in a simulation's federation or in its own files."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedsmall.data.federation import Federation, Samples, Task, task_at
from fedsmall.errors import DataError
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation

if TYPE_CHECKING:
    from flwr.app import Context


@dataclass(frozen=True)
class SiteData:
    """A site as its own program knows it; ``place`` is its index in the order of the ``sites``' names.

    One that is not ``simulated`` draws noise from its own system. ``kept_back`` is the validation set.
    """

    site: str
    task: Task
    train: Samples
    held_out: Samples | None = None
    simulated: bool = True
    place: int = 0
    sites: int = 1
    kept_back: Samples | None = None


MOST_FEDERATIONS = 2
_federations: dict[str, Federation] = {}  # by data key, the newest last


def give_federation(plan: Plan, federation: Federation) -> None:
    """Let this process's clients use a federation in memory, for plans with its data key."""
    _federations.clear()
    _federations[plan.data_key] = federation


def _federation(plan: Plan) -> Federation:
    if plan.data_key not in _federations:
        while len(_federations) >= MOST_FEDERATIONS:
            del _federations[next(iter(_federations))]
        _federations[plan.data_key] = build_federation(plan)
    return _federations[plan.data_key]


def simulated_site(plan: Plan, context: "Context") -> SiteData:
    """The site of the node's partition number, in the order of names. Raises DataError where there is none."""
    return site_in(_federation(plan), plan, int(context.node_config["partition-id"]))


def site_in(federation: Federation, plan: Plan, index: int) -> SiteData:
    """The site at ``index`` of a simulation's federation, in the order of names."""
    if plan.method.is_central:
        federation = federation.pooled()
    if index >= len(federation.names):
        raise DataError(f"This client is number {index}, and the federation has {len(federation.names)} sites.")
    train, held_out = federation.train[index], federation.held_out[index] if federation.held_out else None
    if held_out is None and plan.has_own_models:
        held_out = federation.test  # nobody else has all of this site's model, so it judges for itself
    names, task = federation.names, task_at(federation.task, train.y)
    kept_back = federation.kept_back[index] if federation.kept_back else None
    return SiteData(names[index], task, train, held_out, place=index, sites=len(names), kept_back=kept_back)
