"""Top-k with error feedback: only the largest changes of a model go, the rest waits for later.

A site adds its residual to a model that it has trained, sends the numbers that have moved most, and keeps the rest as
the next residual, so that nothing learnt is lost. The server does the same with a global model: its residual is how its
own differs from the one that sites have.

Source: Stich, Cordonnier & Jaggi 2018, "Sparsified SGD with memory", Algorithm 1, and Aji & Heafield 2017; both ways as
in Tang et al. 2019 (DoubleSqueeze). The k are of all arrays together (one threshold), not of each layer.
"""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np

from fedsmall.codec.differences import coded_names, flat, unflat
from fedsmall.wire import Arrays, first_of, stack_of_one


def cut(models: Arrays, received: Arrays, left: Arrays, share: float) -> tuple[Arrays, Arrays]:
    """What leaves of trained ``models`` {name: (models, ...)}, and their next residual, of same shapes.

    ``received`` are the models as they came, ``left`` the last residual (may be empty). Those numbers that then differ
    most from ``received`` leave, a ``share`` of all, rounded up; of equal ones the first. All others leave as they
    came. A model with a number that is not finite leaves whole, and its ``left`` stays.
    """
    model = first_of(models)
    if not (names := coded_names(model)):
        return models, {}
    rows = partial(flat, names=names, models=(len(models[names[0]]),))
    trained, start = rows(models), rows(received)  # (models, numbers)
    before = rows(left) if left else np.zeros_like(trained)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = trained + before
        moved = wanted - start
    sound = np.isfinite(moved).all(axis=1, keepdims=True)
    chosen = np.stack([largest(np.abs(row), share) for row in np.where(sound, moved, 0)])
    sent = np.where(sound, np.where(chosen, wanted, start), trained)
    after = np.where(sound, np.where(chosen, 0, moved), before)
    return models | unflat(sent, model, names), unflat(after, model, names)


def cut_one(model: Arrays, received: Arrays, left: Arrays, share: float) -> tuple[Arrays, Arrays]:
    """:func:`cut` for one model, without the leading axis."""
    sent, after = cut(stack_of_one(model), stack_of_one(received), stack_of_one(left), share)
    return first_of(sent), first_of(after)


def largest(sizes: np.ndarray, share: float) -> np.ndarray:
    """Which of the ``sizes`` (numbers,) are a ``share`` of them, rounded up, and the largest; of equals the first.

    Equal are those that agree in half of their digits: two outputs of a softmax move by the same, and the last digit,
    which engines may have otherwise, must not choose.
    """
    digits, powers = np.frexp(sizes)
    sizes = np.ldexp(np.round(digits * 2.0 ** (np.finfo(sizes.dtype).nmant // 2)), powers)
    count = min(len(sizes), math.ceil(share * len(sizes) - 1e-9))  # 7% of 100 are 7, whatever is rounded
    if not count:
        return np.zeros(len(sizes), dtype=bool)
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    chosen: np.ndarray = sizes > least
    chosen[np.flatnonzero(sizes == least)[: count - int(chosen.sum())]] = True
    return chosen


def add_residual(models: Arrays, common: Mapping[str, np.ndarray], sent: Mapping[str, np.ndarray]) -> Arrays:
    """Models {name: (models, ...)} trained from the one that sites were ``sent``, as if from the ``common`` one.

    So an average adds what sites have learnt to all that the server knows, told or not.
    """
    moved = {name: models[name] + (common[name] - sent[name]) for name in coded_names(common)}
    return models | moved
