"""What goes with averages that may be left out."""

from fedsmall.errors import PlanError
from fedsmall.models.own_models import has_own_models
from fedsmall.plan import Plan


def check_dynamic(plan: Plan) -> None:
    """Raise PlanError, in one line that says what to do, where a plan's averages cannot be left out."""
    method = plan.method
    if not method.is_dynamic:
        return
    if method.family != "federated":
        raise PlanError(f"divergence leaves out averages, and {method.label!r} has none. Leave divergence out.")
    if method.permute_every is not None:
        raise PlanError(
            "divergence saves nothing with permute_every: a model that is handed on is sent whether it is averaged or "
            "not. Leave one of them out."
        )
    if method.aggregate_every is None:
        raise PlanError("divergence is looked at every aggregate_every rounds; say how many.")
    for what, there in _refused(plan).items():
        if there:
            raise PlanError(f"divergence compares a site's model with the last that all had, and {what}. Leave it out.")


def _refused(plan: Plan) -> dict[str, bool]:
    """What has no meaning beside models that stay at their sites for longer than until the next average."""
    method, privacy, recipe = plan.method, plan.method.privacy, plan.recipe
    return {
        'initial_models = "independent" gives them none': plan.initial_models == "independent",
        f"aggregator = {method.aggregator!r} is not the mean, by which models balance": method.aggregator != "mean",
        f"server = {method.server!r} moves the common model elsewhere": method.server != "none",
        f"rule = {method.rule!r} holds a model near what it has received": method.rule != "none",
        "fraction and models leave sites out by lot": method.fraction < 1 or method.models is not None,
        "groups and validate make several common models": method.grouped,
        'route = "cyclic" hands models on': method.route != "random",
        "topology and regions have no one server that asks for models": method.topology is not None
        or method.region_count > 1,
        "keep_last keeps what leaves a site, which most models here do not": method.keep_last is not None,
        "snapshots and ema are of common models that every average makes": method.snapshots > 1 or method.ema > 0,
        f"wire = {method.wire!r} rounds every model, sent or not": method.wire != "full",
        "a replica tree is folded for an average": method.tree is not None,
        "boosting adds trees at every average": method.boosting is not None,
        "blur, clip and noise, sealed and secure are for a model that leaves at every contact": privacy is not None
        and (privacy.at_contacts or privacy.hidden),
        "layers of the sites' own never come to the server": has_own_models(plan),
        'optimizer_state = "travel" sends moments along, which take "stay" or "reset" here': recipe.has_state
        and recipe.optimizer_state == "travel",
    }
