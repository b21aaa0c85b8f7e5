"""Several servers: sites dealt to regions, each of which averages its own models; now and then all of them together.

Within a region models travel and are averaged as the method says. A hop into another region goes from server to server,
as does an average over the regions, made by one above them; these bytes are counted apart. Source: client, edge and
cloud of Liu et al. 2020, "Client-edge-cloud hierarchical federated learning"; there no model travels between edges.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.features import check_features
from fedsmall.plan import Method, Plan
from fedsmall.randomness import rng_for
from fedsmall.travel.schedule import Action, Contact

DECIDE_NOTHING = {"name", "evaluate_every", "metric", "threshold"}  # keys of a plan that move no model


def regions_of(plan: Plan, sites: int) -> np.ndarray:
    """The region of every site, (sites,): as the plan names them, in the order of names.

    Else they are dealt once, by a named stream, so that regions differ by one site at most.
    """
    regions = plan.method.regions
    if regions is None or regions.sites is None:
        return _dealt(plan.travel_seed, sites, plan.method.region_count)
    number = {site: k for k, name in enumerate(sorted(regions.sites)) for site in regions.sites[name]}
    return np.array([number[site] for site in regions.names])


@lru_cache(maxsize=16)
def _dealt(seed: int, sites: int, regions: int) -> np.ndarray:
    dealt = np.empty(sites, dtype=np.int64)
    dealt[rng_for(seed, "regions").permutation(sites)] = np.arange(sites) % regions
    dealt.flags.writeable = False
    return dealt


def passage(plan: Plan, sites: int, t: int) -> np.ndarray:
    """To which site the model at each site goes after round ``t``, (sites,).

    Every model is drawn to cross over or not. Those that do change places with each other, wherever they are (maybe
    within a region), and the others within their region.
    """
    assert plan.method.regions is not None
    rng, regions = rng_for(plan.travel_seed, "permute", t), regions_of(plan, sites)
    crossing = rng.random(sites) < plan.method.regions.across
    company = np.where(crossing, plan.method.region_count, regions)
    to = np.empty(sites, dtype=np.int64)
    for together in range(plan.method.region_count + 1):
        places = np.flatnonzero(company == together)
        to[places] = rng.permutation(places)
    return to


def crossings(plan: Plan, sites: int, last: np.ndarray, at: np.ndarray) -> int:
    """How many models that were at the sites ``last`` are at sites of another region now."""
    if last is at:
        return 0
    regions = regions_of(plan, sites)
    return int((regions[last] != regions[at]).sum())


def meet(plan: Plan, contact: Contact) -> bool:
    """Whether the regions' common models are averaged at a contact."""
    assert plan.method.regions is not None
    every = plan.method.regions.average_every
    due = every is None or contact.t % every == 0 or contact.t == plan.rounds
    return contact.action is Action.AGGREGATE and due


def route_within(plan: Plan, sites: Sequence[str], t: int) -> dict[str, str]:
    """Where the models at one region's ``sites`` go after round ``t``: as :func:`passage` over all that are named.

    Where no model crosses (``across`` 0) a region's server can draw this alone.
    """
    assert plan.method.regions is not None
    names = plan.method.regions.names
    to = passage(plan, len(names), t)
    return {site: names[to[names.index(site)]] for site in sites}


def plan_above(plan: Plan) -> Plan:
    """What is run above regions that each have a server: the weighted mean of their global models.

    Without a gate, as in a simulation (``Commons.unite``); noise was charged below.
    """
    assert plan.method.regions is not None
    every = plan.method.regions.average_every or plan.method.aggregate_every
    mean = Method(name="FedAvg", label=plan.method.label, aggregate_every=every, weighted=True, gate=False)
    return plan.model_copy(update={"method": mean, "initial_models": "common", "evaluate_every": None})


def differences(plan: Plan, other: Plan) -> list[str]:
    """What decides numbers and is not the same in two plans, a line each: "recipe.lr is 0.1 and 0.05"."""
    first, second = (
        _flat(json.loads(plan_of_two.model_dump_json(exclude=DECIDE_NOTHING))) for plan_of_two in (plan, other)
    )
    keys = [key for key in sorted(first | second) if first.get(key) != second.get(key) and key != "method.label"]
    return [f"{key} is {first.get(key, 'not there')} and {second.get(key, 'not there')}" for key in keys]


def _flat(table: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        deeper = isinstance(value, dict) and bool(value)
        flat |= _flat(value, f"{before}{key}.") if deeper else {f"{before}{key}": value}
    return flat


def check_regions(plan: Plan, sites: int) -> None:
    """Raise PlanError where so many sites make no such regions, or these are averaged when nothing is within any."""
    regions, within = plan.method.regions, plan.method.aggregate_every
    if regions is None or regions.number == 1:
        return
    if regions.number > sites:
        raise PlanError(f"{regions.number} regions need a site each, and there are {sites}. Give {sites} at most.")
    if regions.sites and len(regions.names) != sites:
        raise PlanError(f"regions names {len(regions.names)} sites, and there are {sites}. Name each of them.")
    if regions.average_every is None:
        return
    if plan.method.random_schedule:
        raise PlanError(
            "With random_schedule nobody knows the rounds of an average: leave average_every of regions out."
        )
    if within is None or regions.average_every % within:
        raise PlanError(
            f"Regions are averaged every {regions.average_every} rounds, after an average within each, and that is "
            f"every {within or 'last'} rounds. Give a multiple of it."
        )


def check_region_names(plan: Plan, names: Sequence[str]) -> None:
    """Raise PlanError where the plan's regions name other sites than there are."""
    regions = plan.method.regions
    if regions is None or regions.sites is None or regions.names == tuple(sorted(names)):
        return
    unknown, left = sorted(set(regions.names) - set(names)), sorted(set(names) - set(regions.names))
    what = f"there is no site {unknown[0]!r}" if unknown else f"site {left[0]!r} is in no region"
    raise PlanError(f"regions names the sites of every region, and {what}. There are: {', '.join(sorted(names))}.")


def check_apart(plan: Plan, region: str = "") -> None:
    """Raise PlanError where a plan's regions cannot be federations of their own, or have none of this name."""
    regions, label = plan.method.regions, plan.method.label
    if regions is None or regions.sites is None or regions.number == 1:
        raise PlanError(
            f"{label!r} does not say which hospitals are in which of several regions. Write regions = "
            '{sites = {north = ["bonn", "essen"], south = ["ulm"]}, across = 0}.'
        )
    if region and region not in regions.sites:
        raise PlanError(f"The scenario has no region {region!r}; it has {', '.join(sorted(regions.sites))}.")
    if regions.across:
        raise PlanError(
            "Over real sites no model crosses from region to region, for their servers have no line to each other. "
            "Write across = 0 into regions."
        )
    if plan.method.random_schedule:
        raise PlanError("Over real sites regions meet in rounds that all know: leave random_schedule out.")
    check_features(plan)
    check_regions(plan, len(regions.names))
