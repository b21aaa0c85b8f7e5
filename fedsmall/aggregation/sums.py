"""Exact sums of models in 64-bit fixed point: what sites add up where nobody may see more than the sum.

A site's summand is one vector of whole numbers, modulo 2**64: the rounded 2**32-fold of every float. Such sums do not
depend on the order of the sites, and masks cancel exactly. The mean is right to 2**-33, with the same bits from the
models or from their sum alone (:class:`fedsmall.aggregation.combiners.Summed`).

The vector holds the arrays of the model in the order of their names, then SCAFFOLD's control deltas. Each site's
samples and steps are told beside it. Integer buffers are averaged and rounded.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from fedsmall.aggregation.server_optimizers import normalisers, parameters_of
from fedsmall.errors import PlanError, ReplyError
from fedsmall.features import check_features
from fedsmall.parts import NO_PRIVACY
from fedsmall.plan import Plan
from fedsmall.wire import Arrays, split_vector

SCALE = 2.0**32  # of one in fixed point
RANGE = 2**63 - 1  # the largest sum
LEAST = 3  # sites in a sum: of two, each could take itself away and would have the other
MOST = 256  # sites for which a number must leave room, where nobody says how many there are


class Mean(NamedTuple):
    """What a sum comes to: a model in float64, its integers as they are; and the mean of what the rule sent."""

    model: Arrays
    rule: Arrays


def length(plan: Plan, global_model: Mapping[str, np.ndarray]) -> int:
    """How many numbers a summand of the plan has, where ``global_model`` is the last global model."""
    return sum(global_model[name].size for name in (*sorted(global_model), *_controlled(plan, global_model)))


def summand(
    plan: Plan,
    model: Mapping[str, np.ndarray],
    global_model: Mapping[str, np.ndarray],
    rule: Mapping[str, np.ndarray],
    examples: float,
    steps: float,
    among: int | None = None,
) -> np.ndarray:
    """What one site adds to the sum: (:func:`length`,) uint64.

    ``rule`` is what the local rule sends with the model; ``examples`` and ``steps`` are the site's. A plain mean takes
    the model, a weighted one so many times it, FedNova that much of it over its normaliser a_i. ``among`` is the number
    of sites of the federation, for whose sum a number must leave room.

    ReplyError where arrays do not fit ``global_model``, or a number is not finite or too large (256 sites: 8 million).
    """
    times = int(examples) if plan.method.weighted else 1
    parameters, pieces = set(parameters_of(global_model)), []
    for name in sorted(global_model):
        array = _expected(model, name, global_model[name])
        if plan.method.server == "fednova" and name in parameters:
            share = times / float(_normalisers(plan, np.array([steps]))[0])
            pieces.append(_fixed(name, array.astype(np.float64) * share, 1, among))
        else:
            pieces.append(_fixed(name, array, times, among))
    for name in _controlled(plan, global_model):
        pieces.append(_fixed(name, _expected(rule, f"control/{name}", global_model[name]), 1, among))
    return np.concatenate(pieces).view(np.uint64)


def mean_of(
    plan: Plan, global_model: Arrays, total: np.ndarray, sites: int, weights: np.ndarray | None, steps: np.ndarray
) -> Mean:
    """What the sum of so many ``sites``' summands comes to.

    ``weights`` (sites,) are their samples where the mean is weighted, ``steps`` (sites,) their local steps. FedNova's
    model is already the next global one, x + sum(c_i (y_i - x)). Raises ReplyError for another vector, or no samples.
    """
    _check_total(plan, global_model, total)
    counts = np.ones(sites) if weights is None else weights
    if not counts.sum() > 0:
        raise ReplyError("The sites of a weighted sum have no sample between them; leave weighted out.")
    pieces = _pieces(plan, global_model, total.view(np.int64).astype(np.float64))
    model = {name: _mean(array, pieces[name], counts.sum()) for name, array in global_model.items()}
    if plan.method.server == "fednova":
        model |= _normalised(
            plan, global_model, {name: pieces[name] / SCALE for name in parameters_of(global_model)}, counts, steps
        )
    rule = {f"control/{name}": pieces[f"control/{name}"] / SCALE / sites for name in _controlled(plan, global_model)}
    return Mean(model, rule)


def whole_sum(plan: Plan, global_model: Arrays, total: np.ndarray, name: str) -> np.ndarray:
    """The exact sum of an array of whole numbers, of which ``total`` (:func:`length`,) has the sum of all summands.

    Raises ReplyError where ``total`` is no vector of this plan's.
    """
    _check_total(plan, global_model, total)
    return _pieces(plan, global_model, total.view(np.int64))[name]


def _check_total(plan: Plan, global_model: Arrays, total: np.ndarray) -> None:
    expected = length(plan, global_model)
    if total.dtype != np.uint64 or total.shape != (expected,):
        raise ReplyError(
            f"A sum of this plan's models has {expected} numbers of type uint64; came {total.dtype} {total.shape}."
        )


def _normalised(plan: Plan, global_model: Arrays, sums: Arrays, counts: np.ndarray, steps: np.ndarray) -> Arrays:
    """FedNova's next parameters from ``sums`` of n_i y_i / a_i: tau_eff / n of their way from the global ones."""
    amounts = _normalisers(plan, steps)
    effective = counts @ amounts / counts.sum() ** 2
    wide = {name: global_model[name].astype(np.float64) for name in sums}
    return {name: x + effective * (sums[name] - (counts / amounts).sum() * x) for name, x in wide.items()}


def _mean(like: np.ndarray, piece: np.ndarray, weight: float) -> np.ndarray:
    if like.dtype.kind == "f":
        return np.asarray(piece / SCALE / weight)
    return np.rint(piece / weight).astype(like.dtype)


def _fixed(name: str, array: np.ndarray, times: int, among: int | None) -> np.ndarray:
    """``times`` the array in fixed point, integers as they are: (numbers,) int64."""
    with np.errstate(over="ignore", invalid="ignore"):
        wide = np.asarray(array, dtype=np.float64).ravel()
        whole = np.rint(wide * SCALE) if array.dtype.kind == "f" else wide
    room = np.nextafter(float(RANGE // max(among or MOST, LEAST) // max(times, 1)), 0.0)
    if not (np.abs(whole) <= room).all():
        unit = SCALE if array.dtype.kind == "f" else 1.0
        raise ReplyError(
            f"A number of {name!r} is not finite, or above {room / unit:,.0f}, the most that a secure sum holds here; "
            "scale the features, take a smaller lr, or leave weighted or secure out."
        )
    return whole.astype(np.int64) * times


def _pieces(plan: Plan, global_model: Arrays, total: np.ndarray) -> Arrays:
    named = [(name, global_model[name]) for name in sorted(global_model)]
    named += [(f"control/{name}", global_model[name]) for name in _controlled(plan, global_model)]
    return split_vector(total, {name: array.shape for name, array in named})


def _controlled(plan: Plan, global_model: Mapping[str, np.ndarray]) -> list[str]:
    return sorted(parameters_of(global_model)) if plan.method.server == "scaffold" else []


def _expected(arrays: Mapping[str, np.ndarray], name: str, like: np.ndarray) -> np.ndarray:
    shape = np.shape(arrays[name]) if name in arrays else "nothing"
    if shape != like.shape:
        raise ReplyError(f"A secure sum expects {name!r} of shape {like.shape}; came {shape}.")
    return np.asarray(arrays[name])


def _normalisers(plan: Plan, steps: np.ndarray) -> np.ndarray:
    return normalisers(steps, plan.method.server_options.get("momentum", plan.recipe.momentum))


def check_hidden(plan: Plan, sites: int) -> None:
    """Raise PlanError, in one line, where so many sites cannot keep the models of a plan that hides them hidden."""
    privacy, method = plan.privacy, plan.method
    if privacy.sealed and not (method.permutes or privacy.secure):
        raise PlanError(
            f"sealed = true hides models that are handed over, and {method.label!r} hands over none: the server would "
            "see each at every average. Take secure = true."
        )
    models, least = method.travelling(sites), method.averaged(sites)
    if not privacy.secure or least >= LEAST:
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


def hidden_where_open(plan: Plan, sites: int) -> Plan:
    """The plan of real sites: where its scenario leaves it open, hand-overs are sealed, sums over patients secure."""
    if plan.method.sends_sums and plan.method.is_federated and not plan.method.permutes:
        return plan if plan.method.privacy is not None else _hiding(plan, sites, "secure")
    return plan if "sealed" in plan.privacy.model_fields_set else with_sealed_handovers(plan, sites)


def with_sealed_handovers(plan: Plan, sites: int) -> Plan:
    """The plan with its hand-overs sealed, where it has such, says something of privacy, and they can be."""
    hands_on = plan.privacy is not NO_PRIVACY and plan.method.permutes and plan.method.region_count == 1
    return _hiding(plan, sites, "sealed") if hands_on else plan


def _hiding(plan: Plan, sites: int, what: str) -> Plan:
    hidden = plan.method.model_copy(update={"privacy": plan.privacy.model_copy(update={what: True})})
    changed = plan.model_copy(update={"method": hidden})
    try:
        check_features(changed)
        check_hidden(changed, sites)
    except PlanError:
        return plan
    return changed
