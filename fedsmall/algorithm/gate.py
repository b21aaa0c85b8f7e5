"""The norm check: finite models that are too large to be used are set aside.

A size is a Euclidean norm over the weights of a model; running statistics are checked apart, by the same rules. One
oversized model would decide a mean alone, and a travelling one would spoil every site that it comes to.

The factors are generous, lest an honest site with unusual data be set aside. An update is, if it is both more than 20
times the median of its communication round's and more than 5 times the size of the model that was sent, or of the last
global one. Over the scenarios that come along updates were up to 49 times the median, where most models had converged,
and elsewhere up to 4 times the model; none came nearer than a sixth to both bounds at once.
"""

import math
from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from fedsmall.wire import Arrays, is_buffer, stack_of_one

T = TypeVar("T")

GATE = 20.0  # times the median of a communication round's updates; a plan may say another factor, or none
OF_MODEL = 5.0  # times the size of the model that was sent
GROWTH = 1000.0  # times the last global model: no global model grows so much at once, and no state is kept that has
TINY = 1e-200  # a sum of squares below it has lost some of them
ENOUGH = 3  # models whose median one absurd model does not decide


def halves(named: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
    """The weights of a model or a stack of them, and its running statistics."""
    weights = {name: held for name, held in named.items() if not is_buffer(name)}
    return weights, {name: held for name, held in named.items() if name not in weights}


def sizes(stack: Mapping[str, np.ndarray]) -> np.ndarray:
    """The norm of every model of a stack, (models,), over its floats together; no number is too large for it."""
    models = len(next(iter(stack.values()), ()))
    floats = [a.reshape(models, -1) for a in stack.values() if np.issubdtype(a.dtype, np.floating) and a.size]
    if not floats:
        return np.zeros(models)
    largest = np.max([np.abs(a).max(axis=1) for a in floats], axis=0).astype(np.float64)  # (models,)
    unit = np.where(largest > 0, largest, 1.0)[:, None]
    return np.asarray(largest * np.sqrt(sum(np.square(a / unit).sum(axis=1) for a in floats)))


def size(model: Mapping[str, np.ndarray]) -> float:
    """The norm of one model, as :func:`sizes` gives it, and at once where no square leaves the range of float64."""
    floats = (array for array in model.values() if array.dtype.kind == "f")
    flat = np.concatenate([np.zeros(0), *floats], axis=None)  # which makes all float64
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(np.dot(flat, flat))
    if TINY < squares < np.inf or not flat.size:
        return math.sqrt(squares)
    return float(sizes(stack_of_one(model)).sum())


def too_large(
    replies: Arrays, sent: Arrays, global_model: Arrays, gate: float, *, alone: bool = False
) -> dict[int, str]:
    """Which models of a communication round are set aside, and why: {row: reason}.

    ``replies`` and ``sent`` are {name: (models, ...)}: what came, and what each set out from; ``global_model`` is the
    last global model. With less than three models, or ``alone`` (at a site), only growth by a thousand counts.
    """
    reasons: dict[int, str] = {}
    if alone:
        for k in range(len(next(iter(replies.values()), ()))):
            reply, start = ({name: array[k : k + 1] for name, array in part.items()} for part in (replies, sent))
            fault = too_large(reply, start, global_model, gate)
            reasons |= {k: fault[0]} if fault else {}
        return reasons
    with np.errstate(over="ignore", invalid="ignore"):  # infinitely far is far enough
        for reply, start, last in zip(halves(replies), halves(sent), halves(global_model), strict=True):
            floats = {n: np.subtract(a, start[n], dtype=np.float64) for n, a in reply.items() if a.dtype.kind == "f"}
            updates = sizes(reply | floats)
            scale = np.maximum(sizes(start), size(last)) if start else updates
            for row in np.flatnonzero(updates > _bound(updates, scale, last, gate)):
                reasons.setdefault(int(row), _reason(updates, scale, int(row)))
    return reasons


def are_outsized(models: np.ndarray, beside: np.ndarray, global_model: Mapping[str, np.ndarray]) -> np.ndarray:
    """Which models were already oversized when they were sent, (models,): not the receiver's doing.

    ``models`` are the sizes of the weights, ``beside`` of what travels with them (zero for nothing).
    """
    bound = min(_usual(models), largest(halves(global_model)[0]))
    return np.asarray((models > bound) | (beside > _usual(beside)))


def _usual(sent: np.ndarray) -> float:
    some = sent[sent > 0]
    with np.errstate(over="ignore"):
        return GATE * float(np.median(some)) if len(some) >= ENOUGH else np.inf


def name_culprit(site: str, reason: str, by: str | None) -> tuple[str, str, str]:
    """Who is named for an unusable model, as what, and why: ``site``, or ``by`` which it was sent an oversized one."""
    if by is None:
        return site, "set aside", reason
    return (
        by,
        "replaced",
        f"the model that it trained last came to nothing at {site} ({reason}); the last global model takes its place",
    )


def largest(global_model: Mapping[str, np.ndarray]) -> float:
    """The size limit of the next model: a thousand times this global one's, at least that of unit numbers."""
    return GROWTH * max(size(global_model), _unit(global_model))


def refusal(model: Arrays, global_model: Arrays, gate: float) -> str | None:
    """Why an aggregate may not follow the last global model, or None where it may."""
    new_sizes = [size(half) for half in halves(model)]
    floats = [array for array in model.values() if array.dtype.kind == "f"]
    if not np.isfinite(new_sizes).all() and not all(np.isfinite(array).all() for array in floats):
        return "the aggregate holds a number that is not finite"
    for new, last in zip(new_sizes, halves(global_model), strict=True):
        if gate and new > largest(last):
            return f"the aggregate is {GROWTH:,.0f} times the last global model, or more"
    return None


def _bound(updates: np.ndarray, scale: np.ndarray, global_model: Arrays, gate: float) -> np.ndarray:
    if len(updates) < ENOUGH:
        return np.asarray(GROWTH * np.maximum(scale, _unit(global_model)))
    bound = np.maximum(gate * np.median(updates), OF_MODEL * scale)
    return np.asarray(np.where(bound > 0, bound, np.inf))  # all are at zero, and most have stayed there


def _reason(updates: np.ndarray, scale: np.ndarray, row: int) -> str:
    usual = float(np.median(updates))
    if len(updates) < ENOUGH or not usual:
        return f"its update is {_times(updates[row], scale[row])} the size of the model that it was sent"
    return f"its update is {_times(updates[row], usual)} the median of this communication round's"


def _times(size: float, other: float) -> str:
    factor = size / other if other else np.inf
    return f"{factor:,.0f} times" if factor < 1e6 else "more than a million times"


def _unit(model: Mapping[str, np.ndarray]) -> float:
    return float(np.sqrt(sum(a.size for a in model.values() if np.issubdtype(a.dtype, np.floating))))
