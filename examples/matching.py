"""An aggregator of one's own: hidden units of MLPs are matched before models are averaged, for two nets may have learnt
the same in another order.

Source: weight matching of Ainsworth, Hayase & Srinivasa 2023 (Git Re-Basin), algorithm 1, and 3 for more than two
models. Kamp et al. 2023 name matched averages (Wang et al. 2020, FedMA) as aggregators that FedDC goes with.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from scipy.optimize import linear_sum_assignment

from fedsmall.aggregation.combiners import Aggregate, Combiner
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.wire import Arrays

SWEEPS = 20  # at most, over the layers of a model and over the models; matching settles in a few

Layer = tuple[str, str]  # the names of its weight and bias


class MatchedMean(Combiner):
    """The mean of models whose hidden units have been put into one order; of models that are no MLPs the plain mean."""

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The matched mean of the stack."""
        return Aggregate().combine(global_model, replace(updates, stack=matched(updates.stack)), t)


def layers_of(stack: Arrays) -> list[Layer]:
    """The linear layers of an MLP, in their order, by the names of their arrays; empty where it is none.

    An MLP is weights (models, out, in), each of which takes what the one before it gives, and their biases.
    """
    names = list(stack)
    pairs = list(zip(names[::2], names[1::2], strict=False))
    rows = [stack[name].shape[1:] for name in names[::2]]
    fits = len(names) == 2 * len(pairs) and all(len(shape) == 2 for shape in rows)
    fits = fits and all(stack[bias].shape[1:] == (shape[0],) for (_, bias), shape in zip(pairs, rows, strict=True))
    chained = fits and all(after[1] == before[0] for before, after in pairwise(rows))
    return pairs if chained else []


def matched(stack: Arrays) -> Arrays:
    """The same models {name: (models, ...)}, hidden units in such orders that models are as alike as can be found.

    Every model says what it said before. The first keeps its order at the start, then each in turn is matched to the
    mean of all others until nothing moves. What is no MLP comes back as it is.
    """
    layers = layers_of(stack)
    made = {name: np.array(rows) for name, rows in stack.items()}
    models = len(next(iter(stack.values())))
    if len(layers) < 2 or models < 2:
        return made
    for k in range(1, models):
        _match(made, layers, k, {name: rows[:k].mean(axis=0, dtype=np.float64) for name, rows in made.items()})
    for _ in range(SWEEPS):
        moved = [_match(made, layers, k, _others(made, k)) for k in range(models)]
        if not any(moved):
            break
    return made


def _others(stack: Arrays, k: int) -> Arrays:
    return {name: np.delete(rows, k, axis=0).mean(axis=0, dtype=np.float64) for name, rows in stack.items()}


def _match(stack: Arrays, layers: list[Layer], k: int, like: Arrays) -> bool:
    """Put the hidden units of model ``k`` into the order in which it is most ``like`` another; whether any moved."""
    any_moved = False
    for _ in range(SWEEPS):
        moved = False
        for (weight, bias), (after, _) in pairwise(layers):
            alike = like[weight] @ stack[weight][k].T + np.outer(like[bias], stack[bias][k])
            alike += like[after].T @ stack[after][k]
            order = linear_sum_assignment(alike, maximize=True)[1]
            now = np.arange(len(order))
            if alike[now, order].sum() <= alike[now, now].sum() + 1e-9 * np.abs(alike).sum():
                continue
            stack[weight][k], stack[bias][k] = stack[weight][k][order], stack[bias][k][order]
            stack[after][k] = stack[after][k][:, order]
            moved = any_moved = True
        if not moved:
            break
    return any_moved
