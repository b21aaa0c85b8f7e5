"""Models of a plan whose sites have models of their own that share some layers.

The plan's ``model`` is "shared_part"; ``model_options`` has ``sites``, each site's model in the order of their names (a
name, or a table as ``{name = "mlp", hidden = [64, 16]}``), and ``shared``, the layers in common.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedsmall.errors import PlanError
from fedsmall.parts import SHARED_PART
from fedsmall.plan import Plan

EXAMPLE = 'model_options = { sites = ["g1", "g2"], shared = ["conv1"] }'


class Kind(NamedTuple):
    """The model of a site: its name among the models, and its options."""

    model: str
    options: dict[str, Any]


def kind_of(entry: Any) -> Kind:
    """The model that an entry of ``model_options.sites`` stands for; PlanError where it stands for none."""
    if isinstance(entry, str):
        return Kind(entry, {})
    if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
        return Kind(entry["name"], {name: value for name, value in entry.items() if name != "name"})
    raise PlanError(f"a site's model is a name, or a table with a name and options; got {entry!r}")


def kinds_of(plan: Plan) -> list[Kind]:
    """The sites' models, in the order of their names; PlanError where the plan does not list them."""
    return [kind_of(entry) for entry in _read_list(plan, "sites")]


def shared_layers(plan: Plan) -> list[str]:
    """The names of the layers that all sites have in common; PlanError where the plan does not list them."""
    return [str(layer) for layer in _read_list(plan, "shared")]


def is_shared(name: str, shared: Sequence[str]) -> bool:
    """Whether a named array belongs to a shared layer ("conv1" has "conv1.weight", not "conv10.weight")."""
    return any(name == layer or name.startswith(f"{layer}.") for layer in shared)


def plan_of_kind(plan: Plan, kind: Kind) -> Plan:
    """The plan of a site that has a model of this kind and shares nothing: what its own training core follows."""
    return plan.model_copy(update={"model": kind.model, "model_options": kind.options})


def with_own_model(plan: Plan, place: int, sites: int) -> Plan:
    """The plan as the site at ``place`` of ``sites`` alone follows it: the only model listed is its own."""
    if not plan.has_own_models:
        return plan
    check_own_models(plan, sites)
    entry = _read_list(plan, "sites")[place]
    return plan.model_copy(update={"model_options": {**plan.model_options, "sites": [entry]}})


def check_own_models(plan: Plan, sites: int) -> None:
    """Raise PlanError where ``sites`` sites cannot have the models that the plan lists."""
    if not plan.has_own_models:
        return
    kinds = kinds_of(plan)
    if len(kinds) != sites:
        raise PlanError(f"model_options.sites names {len(kinds)} models for {sites} sites; name one for each.")
    shared_layers(plan)


def _read_list(plan: Plan, option: str) -> list[Any]:
    listed = plan.model_options.get(option)
    if not isinstance(listed, list | tuple) or not listed:
        raise PlanError(f"{SHARED_PART!r} needs a list {option!r} in model_options, as in {EXAMPLE}; got {listed!r}")
    return list(listed)
