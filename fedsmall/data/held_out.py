"""Which samples are held out: so many, or a share of every class, kin on one side."""

from collections import Counter

import numpy as np

from fedsmall.data.folds import classes_of
from fedsmall.data.kin import representatives


def hold_out(
    y: np.ndarray, test: int | float, rng: np.random.Generator, kin: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Indices to train on and indices held out, ascending: ``test`` samples, or that share of every class.

    A share is of every class to the nearest whole sample, and never a class's only one; a number is shared among the
    classes by their sizes. Targets that are no classes count as one class. The samples of a group of ``kin``
    (:func:`fedsmall.data.kin.kin_of`) stay together: then there are as many of each class as whole groups make.
    """
    classes = classes_of(y)
    labels, sizes = np.unique(classes, return_counts=True)
    counts = [int(test * size + 0.5) for size in sizes] if isinstance(test, float) else _by_largest_rest(test, sizes)
    orders = [rng.permutation(np.flatnonzero(classes == label)) for label in labels]
    chosen = [order[:count] for order, count in zip(orders, counts, strict=True)]
    if kin is not None:
        others = [order[count:] for order, count in zip(orders, counts, strict=True)]
        wanted = Counter(dict(zip(labels.tolist(), counts, strict=True)))
        chosen = [_whole_groups(np.concatenate([*chosen, *others]), classes, wanted, kin)]
    out = np.sort(np.concatenate([np.arange(0), *chosen]))
    return np.setdiff1d(np.arange(len(y)), out), out


def _whole_groups(order: np.ndarray, classes: np.ndarray, wanted: Counter[int], kin: np.ndarray) -> np.ndarray:
    """Whole groups in the ``order`` of their first samples, each taken that brings the classes nearer to ``wanted``.

    One sample stands for its group, so that who has many is held out as often as who has one.
    """
    first = np.zeros(len(classes), dtype=bool)
    first[representatives(kin)] = True
    members = np.split(np.argsort(kin, kind="stable"), np.cumsum(np.bincount(kin))[:-1])
    left, taken = Counter(wanted), [np.arange(0)]
    for row in order[first[order]].tolist():
        group = Counter(classes[members[kin[row]]].tolist())
        if sum(abs(left[label] - count) - abs(left[label]) for label, count in group.items()) < 0:
            left.subtract(group)
            taken.append(members[kin[row]])
    return np.concatenate(taken)


def _by_largest_rest(count: int, sizes: np.ndarray) -> list[int]:
    """``count`` in whole parts as the ``sizes`` are to each other (Hamilton)."""
    exact = count * sizes / sizes.sum()
    parts = np.floor(exact).astype(int)
    parts[np.argsort(parts - exact, kind="stable")[: count - parts.sum()]] += 1
    return [int(part) for part in parts]
