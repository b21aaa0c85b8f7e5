"""What a split is worth, by exact sums; the same few lines for joined columns and for sums that came encrypted."""

from typing import NamedTuple

import numpy as np

from fedsmall.vertical.fixed_point import broken
from fedsmall.vertical.settings import Boosting, Goss


class Sums(NamedTuple):
    """Sums of g and of h in whole numbers, each (..., outputs)."""

    g: np.ndarray
    h: np.ndarray


def score(sums: Sums, l2: float) -> np.ndarray:
    """The sum over outputs of G**2 / (H + l2), (...,): SecureBoost, equation 3, but for the half."""
    g, h = broken(sums.g), broken(sums.h)
    total = np.zeros(g.shape[:-1])
    for k in range(g.shape[-1]):  # in this order, however many splits are asked about at once
        total = total + g[..., k] ** 2 / (h[..., k] + l2)
    return total


def gains(left: Sums, whole: Sums, l2: float) -> np.ndarray:
    """What each split gains: ``left`` are (splits, outputs), ``whole`` the node's own (outputs,)."""
    right = Sums(whole.g - left.g, whole.h - left.h)
    gained: np.ndarray = 0.5 * (score(left, l2) + score(right, l2) - score(whole, l2))
    return gained


def best(left: Sums, whole: Sums, settings: Boosting) -> tuple[float, int] | None:
    """The largest gain and its place, the first of equal ones; None where none is above ``least_gain``."""
    if not len(left.g):
        return None
    found = gains(left, whole, settings.l2)
    place = int(np.argmax(found))
    return (float(found[place]), place) if found[place] > settings.least_gain else None


def weights(sums: Sums, settings: Boosting) -> tuple[float, ...]:
    """What a leaf adds to each output: -G / (H + l2) times the learning rate (SecureBoost, equation 5)."""
    return tuple((-settings.learning_rate * broken(sums.g) / (broken(sums.h) + settings.l2)).tolist())


def candidates(counts: np.ndarray, least: int) -> np.ndarray:
    """The bins of one column after which a node can be split, by the rows in each bin (bins,).

    Only bins that hold a row: a cut in an empty stretch would say the same of these rows as the one below it.
    """
    below = np.cumsum(counts)
    return np.flatnonzero((counts > 0) & (below >= least) & (below[-1] - below >= least))


def drawn(g: np.ndarray, goss: Goss | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The rows that a tree is grown on, in ascending order, and what each one's gradients are multiplied by.

    ``g`` has shape (rows, outputs); rows are ranked by the sum of their sizes over outputs.
    """
    rows = len(g)
    if goss is None:
        return np.arange(rows), np.ones(rows)
    ranked = np.argsort(-np.abs(g).sum(axis=1), kind="stable")
    top = max(1, round(goss.top * rows))
    other = rng.choice(ranked[top:], max(1, round(goss.other * rows)), replace=False)
    factors = np.zeros(rows)
    factors[ranked[:top]], factors[other] = 1.0, (rows - top) / len(other)
    chosen = np.flatnonzero(factors)
    return chosen, factors[chosen]
