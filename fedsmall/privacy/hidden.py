"""What goes with models that are kept from the server: sealed on their way, or averaged in secure sums.

Whoever seals a model must know, before the server says so, who opens it: who is where follows from the plan and the
sites' names, or the plan is refused. Of a secure sum the server sees the sum alone, so nothing goes with it that needs
single models, or that would leave a site beside it.
"""

from fedsmall.aggregation.sums import LEAST
from fedsmall.errors import PlanError
from fedsmall.models.own_models import has_own_models
from fedsmall.plan import Method, Plan


def check_hidden(plan: Plan, sites: int) -> None:
    """Raise PlanError, in one line that says what to do, where ``sites`` sites cannot keep the plan's models hidden."""
    privacy, method = plan.method.privacy, plan.method
    if privacy is None or not method.hidden:
        return
    if has_own_models(plan):
        raise PlanError(
            "Models of the sites' own are judged one by one, which the server passes on: sealed and secure do not go "
            "with them."
        )
    if privacy.sealed:
        _check_sealed(method, privacy.secure)
    if privacy.secure:
        _check_parts(plan)
        _check_sites(method, sites)


def _check_sealed(method: Method, secure: bool) -> None:
    why = "sealed = true takes a way that every site knows from the plan and the sites' names"
    if method.validation is not None and not method.by_samples:
        raise PlanError(
            f"{why}, and folds of sites are dealt by their samples. Leave validate or sealed out; with fewer sites "
            "than routes both go together."
        )
    if not (method.permutes or secure):
        raise PlanError(
            f"sealed = true hides models that are handed on, and {method.label!r} hands none on: the server would see "
            "each at every average. Take secure = true."
        )


def _check_parts(plan: Plan) -> None:
    """Raise PlanError where a part of the method needs single models, or lets some of them leave beside the sum."""
    method, only = plan.method, "secure = true lets the server see the sum of models alone"
    if method.validation is not None:
        raise PlanError(
            f"{only}, and what to expect at an unseen hospital (validate) is how single hospitals differ. Leave "
            "validate or secure out."
        )
    if method.aggregator != "mean":
        raise PlanError(
            f'{only}; {method.aggregator!r} needs single models. Take aggregator = "mean", or secure = false: then '
            "the server sees each site's model at every average (sealed hops stay sealed)."
        )
    if method.tree is not None and method.tree.fold_at == "server":
        raise PlanError(f'{only}, and fold_at = "server" folds single trees there. Use fold_at = "site".')
    if method.tree is not None and method.tree.travel == "trees":
        raise PlanError(f'{only}, and travel = "trees" takes every replica along beside it. Use travel = "anchors".')
    sealed = plan.method.privacy is not None and plan.method.privacy.sealed
    if plan.recipe.has_state and plan.recipe.optimizer_state == "travel" and not sealed:
        raise PlanError(
            f'{only}, and moments that travel go beside it. Add sealed = true, or optimizer_state = "reset".'
        )
    if method.server == "feddyn" and method.weighted:
        raise PlanError(f"{only}; a weighted FedDyn would take two, weighted and not. Leave weighted out.")


def _check_sites(method: Method, sites: int) -> None:
    models, least = method.travelling(sites), method.averaged(sites)
    if least >= LEAST:
        return
    if models < LEAST:
        said = f"{_counted(models, 'model')} of {_counted(sites, 'site')}"
        advice = "have more sites" if sites < LEAST else f"let {LEAST} models or more travel (fraction, models)"
    else:
        said = f"groups of {_counted(least, 'model')}"
        advice = f"have {_counted(models // LEAST, 'group')} at most, or more models"
    raise PlanError(
        f"A secure sum takes {LEAST} sites at least, and this plan has {said}: {advice}, or secure = false."
    )


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" + "s" * (number != 1)
