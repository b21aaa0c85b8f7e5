"""Boosting from histograms that others have summed: what a site counts, and what a server makes of the sums.

xgboost's ``hist`` (Chen & Guestrin 2016, equations 6 and 7, depth by depth) in our own code, for it has no public call
for trees from sums. Gradients are whole numbers, so sums are the same bits in any order. In the first round sites count
values in a fine grid, from which all have the same bins; then every round is a level.
"""

from typing import NamedTuple

import numpy as np
import torch
from scipy.special import expit, softmax

from fedsmall.data.federation import Task
from fedsmall.extensions.boosting.forest import EDGES, SUMS, boosting_of, learning_rate, margins, places, tree_rounds
from fedsmall.parts import Boosting
from fedsmall.plan import Plan
from fedsmall.wire import Arrays

ONE = 2.0**30  # of gradients in whole numbers
REACH = 4.0  # the grid goes so many standard deviations either way, in the units that sites agree on
LEAST_GAIN = 1e-6  # as xgboost has it


class BoostingStep(NamedTuple):
    """The boosting round and the level of its trees that a round of the run is for."""

    boost: int
    level: int


def step_at(plan: Plan, t: int) -> BoostingStep | None:
    """What round ``t`` is for; None for the one in which bins are agreed, and after the last tree."""
    boost, level = divmod(t - 2, boosting_of(plan).depth)
    return BoostingStep(boost, level) if t > 1 and boost < tree_rounds(plan) else None


def count(
    plan: Plan, task: Task, model: Arrays, x: np.ndarray, y: np.ndarray, weight: np.ndarray, t: int
) -> np.ndarray:
    """What a site adds in round ``t``, int64 of the histograms' shape; ``weight`` (samples,) is each sample's."""
    step, shape = step_at(plan, t), model[SUMS].shape
    if step is not None:
        return _count_level(step, boosting_of(plan).depth, task, model, x, y, weight)
    sums = np.zeros(shape, np.int64)
    if t == 1:
        features, cells = shape[2], int(np.prod(shape)) // shape[0] // shape[2]
        cell = np.searchsorted(grid(cells), x.astype(np.float32), side="right")  # (samples, features)
        counts = np.stack([np.bincount(cell[:, k], minlength=cells) for k in range(features)])
        sums[0] = counts.reshape(features, shape[1], shape[3], 2).swapaxes(0, 1)
    return sums


def grid(cells: int) -> np.ndarray:
    """The ends of the cells of the fine grid, (cells - 1,), in float32."""
    return np.linspace(-REACH, REACH, cells - 1, dtype=np.float32)


def gradients(task: Task, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivatives of the loss by the margins, each (samples, margins), as xgboost has them."""
    if task.kind == "numbers":
        return margin - y.reshape(-1, 1), np.ones_like(margin)
    if margin.shape[1] == 1:
        p = expit(margin)
        return p - y.reshape(-1, 1), p * (1 - p)
    p = softmax(margin, axis=1)
    return p - np.eye(margin.shape[1])[y], 2 * p * (1 - p)


def _count_level(
    step: BoostingStep, depth: int, task: Task, model: Arrays, x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    count, nodes, features, bins, _ = model[SUMS].shape
    samples, done = torch.from_numpy(np.ascontiguousarray(x)), step.boost * count
    feature, cut, leaves = (torch.from_numpy(np.array(model[name])) for name in ("feature", "cut", "weight"))
    before = margins((feature[:done], cut[:done], leaves[:done]), samples, count, depth)
    g, h = gradients(task, before.numpy().astype(np.float64), y)
    whole = np.rint(np.stack([g, h], axis=2) * weight[:, None, None] * ONE).astype(np.int64)  # (samples, margins, 2)
    trees = slice(done, done + count)
    at = places(feature[trees], cut[trees], samples, depth).numpy() - (2**step.level - 1)  # in the level
    edges, values = model[EDGES].astype(np.float32), x.astype(np.float32)
    bin_of = np.stack([np.searchsorted(edges[k], values[:, k], side="right") for k in range(features)], axis=1)
    sums = np.zeros((count, nodes, features, bins, 2), np.int64)
    for k in range(count):
        reached = at[:, k] >= 0  # others are in a leaf above
        np.add.at(sums[k], (at[reached, k, None], np.arange(features), bin_of[reached]), whole[reached, k, None])
    return sums


def grow(plan: Plan, common: Arrays, sums: np.ndarray, t: int) -> Arrays:
    """The common forest after round ``t``, in which sites have counted ``sums`` together."""
    made = {name: np.array(array) for name, array in common.items()}
    made[SUMS][...] = 0
    step = step_at(plan, t)
    if step is None:
        if t == 1:
            made[EDGES][...] = agreed_edges(sums)
        return made
    count = len(sums)
    for k in range(count):
        for node in range(2**step.level):
            _split(plan, made, step.boost * count + k, 2**step.level - 1 + node, sums[k, node])
    return made


def agreed_edges(counts: np.ndarray) -> np.ndarray:
    """The edges of bins of equal shares, (features, bins - 1), between filled cells of the fine grid's counts."""
    _, _, features, bins, _ = counts.shape
    by_cell = counts[0].swapaxes(0, 1).reshape(features, -1)
    ends = grid(by_cell.shape[1])
    return np.stack([_edges(row, ends, bins) for row in by_cell])


def _edges(counts: np.ndarray, ends: np.ndarray, bins: int) -> np.ndarray:
    filled = np.flatnonzero(counts)
    last = np.arange(len(filled) - 1)
    if len(filled) > bins:
        below = np.cumsum(counts[filled])
        last = np.unique(np.searchsorted(below, below[-1] * np.arange(1, bins) / bins))
        last = last[last < len(filled) - 1]
    edges = ends[(filled[last] + filled[last + 1] - 1) // 2] if len(last) else ends[-1:]
    return np.concatenate([edges, np.repeat(edges[-1:], bins - 1 - len(edges))])  # an edge twice is an empty bin


def _split(plan: Plan, made: Arrays, tree: int, node: int, sums: np.ndarray) -> None:
    """Split one node where that gains enough, by its histogram (features, bins, 2); where nobody is, nothing gains."""
    settings, rate = boosting_of(plan), learning_rate(plan)
    whole = sums[0].sum(axis=0) / ONE
    if node == 0:
        made["weight"][tree, 0] = leaf(whole, settings, rate)
    left = sums.cumsum(axis=1)[:, :-1] / ONE  # (features, bins - 1, 2)
    right = whole - left
    gain = score(left, settings) + score(right, settings) - score(whole, settings)
    able = (left[..., 1] >= settings.least_weight) & (right[..., 1] >= settings.least_weight)
    able &= (left[..., 1] > 0) & (right[..., 1] > 0)
    gain = np.where(able, gain, -np.inf)
    best = int(np.argmax(gain))
    if gain.flat[best] <= max(LEAST_GAIN, settings.least_gain):
        return
    feature, after = np.unravel_index(best, gain.shape)
    made["feature"][tree, node], made["cut"][tree, node] = feature, made[EDGES][feature, after]
    made["weight"][tree, node] = 0
    for child, half in ((2 * node + 1, left), (2 * node + 2, right)):
        made["weight"][tree, child] = leaf(half[feature, after], settings, rate)


def score(sums: np.ndarray, settings: Boosting) -> np.ndarray:
    """G**2 / (H + l2) of sums (..., 2)."""
    return np.asarray(sums[..., 0] ** 2 / (sums[..., 1] + settings.l2))


def leaf(sums: np.ndarray, settings: Boosting, rate: float) -> float:
    """What a leaf adds: -G / (H + l2) times the learning rate."""
    return float(-rate * sums[0] / (sums[1] + settings.l2))
