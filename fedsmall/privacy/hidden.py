"""How many models a secure sum takes, and what sealed letters are for."""

from fedsmall.aggregation.sums import LEAST
from fedsmall.errors import PlanError
from fedsmall.plan import Method, Plan


def check_hidden(plan: Plan, sites: int) -> None:
    """Raise PlanError, in one line that says what to do, where ``sites`` sites cannot keep the plan's models hidden."""
    privacy, method = plan.privacy, plan.method
    if privacy.sealed and not (method.permutes or privacy.secure):
        raise PlanError(
            f"sealed = true hides models that are handed on, and {method.label!r} hands none on: the server would see "
            "each at every average. Take secure = true."
        )
    if privacy.secure:
        _check_sites(method, sites)


def _check_sites(method: Method, sites: int) -> None:
    models, least = method.travelling(sites), method.averaged(sites)
    if least >= LEAST:
        return
    if models < LEAST:
        summed = f"{_counted(models, 'model')} of {_counted(sites, 'site')}"
        advice = "have more sites" if sites < LEAST else f"let {LEAST} models or more travel (fraction, models)"
    else:
        summed = f"groups of {_counted(least, 'model')}"
        advice = f"have {_counted(models // LEAST, 'group')} at most, or more models"
    raise PlanError(
        f"A secure sum takes {LEAST} sites at least, and this plan has {summed}: {advice}, or secure = false."
    )


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" + "s" * (number != 1)
