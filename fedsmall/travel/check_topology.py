"""What goes with sites that have no server, or several; and who can run such a plan at all.

Without a server nobody sees the models of a contact together, and nobody remembers anything from average to average. Of
regions each has a server that does, for its own models; what holds a model near the one common model has no meaning
there.
"""

from collections.abc import Sequence

from fedsmall.errors import PlanError
from fedsmall.models.own_models import has_own_models
from fedsmall.plan import Method, Plan

APART = "; or start each region by itself, with `fedsmall start --region` and, above them, `--above`"
RULES = ("proximal", "scaffold", "feddyn", "fednova")


def check_served(plan: Plan) -> None:
    """Raise PlanError where a plan has no server, or several: real sites have one."""
    method = plan.method
    said = 'topology = "server"' if method.topology is not None else "regions = 1"
    if method.topology is not None or method.region_count > 1:
        raise PlanError(
            f"{method.label!r} can be simulated; real sites have one server. "
            f"Take {said}{APART if method.topology is None else ''}."
        )


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
    check_topology(plan, len(regions.names))


def check_region_names(plan: Plan, names: Sequence[str]) -> None:
    """Raise PlanError where the plan's regions name other sites than there are."""
    regions = plan.method.regions
    if regions is None or regions.sites is None or regions.names == tuple(sorted(names)):
        return
    unknown, left = sorted(set(regions.names) - set(names)), sorted(set(names) - set(regions.names))
    what = f"there is no site {unknown[0]!r}" if unknown else f"site {left[0]!r} is in no region"
    raise PlanError(f"regions names the sites of every region, and {what}. There are: {', '.join(sorted(names))}.")


def check_topology(plan: Plan, sites: int) -> None:
    """Raise PlanError, in one line that says what to do, where the plan asks for what its topology cannot give."""
    method = plan.method
    if method.topology is None and method.region_count == 1:
        return
    if method.family != "federated":
        raise PlanError(f"topology and regions are for models that travel; this is {method.family}. Leave them out.")
    if method.topology is not None and method.region_count > 1:
        raise PlanError("regions have a server each, and a topology without a server has none; remove one of the two.")
    if method.topology is not None:
        _refuse(_without_server(plan), f'topology = "{method.topology.by}" has no server', 'topology = "server"')
        return
    if method.region_count > sites:
        raise PlanError(f"{method.region_count} regions need a site each, and there are {sites}. Give {sites} at most.")
    if method.regions is not None and method.regions.sites and len(method.regions.names) != sites:
        raise PlanError(f"regions names {len(method.regions.names)} sites, and there are {sites}. Name each of them.")
    _refuse(_in_regions(plan), "regions have a server each", "regions = 1")
    _check_periods(method)


def _refuse(asked: dict[str, bool], why: str, instead: str) -> None:
    for what, there in asked.items():
        if there:
            raise PlanError(f"{why}, and {what}. Leave it out, or take {instead}.")


def _of_groups(plan: Plan) -> dict[str, bool]:
    """What neither has: other sets of models than one for each site, or other ends of a run than its last round."""
    method = plan.method
    return {
        "groups and validate are for models that one server keeps apart": method.grouped,
        "snapshots and ema are of one server's common models": method.snapshots > 1 or method.ema > 0,
        "fraction draws who takes part in a contact": method.fraction < 1,
        "stop is decided by the losses of all sites together": plan.stop is not None,
        "sealed and secure hide models from one server": method.hidden,
        "models of the sites' own are not yet there": has_own_models(plan),
    }


def _without_server(plan: Plan) -> dict[str, bool]:
    method, privacy, tree = plan.method, plan.method.privacy, plan.method.tree
    return {
        f"server = {method.server!r} is a step that a server makes": method.server != "none",
        f"rule = {method.rule!r} needs the one common model": method.rule != "none",
        f"aggregator = {method.aggregator!r} needs all models at one place": method.aggregator != "mean",
        "route says where a server sends models": method.route != "random",
        "keep_last follows a way on which nothing is late": method.keep_last is not None,
        "a replica tree is folded at the site, and its anchor travels": tree is not None
        and (tree.fold_at == "server" or tree.travel == "trees"),
        'blur, clip and noise are for one release a contact (level = "patient" goes)': privacy is not None
        and privacy.at_contacts,
        'optimizer_state = "stay" is for models that do': plan.recipe.has_state
        and plan.recipe.optimizer_state == "stay",
        **_of_groups(plan),
    }


def _in_regions(plan: Plan) -> dict[str, bool]:
    method = plan.method
    rule = next((part for part in (method.rule, method.server) if part in RULES), "none")
    return {
        f"{rule!r} holds a model near the one common model": rule != "none",
        "models says how many travel under one server": method.models is not None,
        'route = "cyclic" goes round all sites': method.route == "cyclic",
        **_of_groups(plan),
    }


def _check_periods(method: Method) -> None:
    """Raise PlanError where regions would be averaged when nothing is within any."""
    assert method.regions is not None
    between, within = method.regions.average_every, method.aggregate_every
    if between is None:
        return
    if method.random_schedule:
        raise PlanError(
            "With random_schedule nobody knows the rounds of an average: leave average_every of regions out."
        )
    if within is None or between % within:
        raise PlanError(
            f"Regions are averaged every {between} rounds, after an average within each, and that is every "
            f"{within or 'last'} rounds. Give a multiple of it."
        )
