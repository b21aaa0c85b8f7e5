"""Samples that must stay on one side of a split: the rows of one patient, and samples that are equal to the last bit.

Without them a model is judged on what it was trained on, and looks better than it is.
"""

import numpy as np

from fedsmall.data.sources.pool import Part

ROWS_AT_ONCE = 4096
COARSE = 4  # samples for each different one, from which on equal samples are different patients who happen to be alike


def kin_of(part: Part) -> np.ndarray | None:
    """The group of each sample, (samples,) from 0 on: one patient's rows, and equal samples; None where all are alone.

    Groups grow together: two patients who share an equal sample are one group. Where samples are ``coarse``, equal ones
    are no group: a table of three answers has eight different rows at most.
    """
    groups = twins(part.x)
    groups = np.arange(len(groups)) if coarse(groups) else groups
    if part.patients is not None:
        groups = _joined(groups, np.unique(part.patients, return_inverse=True)[1])
    return groups if groups.max(initial=-1) + 1 < len(groups) else None


def twins(x: np.ndarray) -> np.ndarray:
    """The group of each sample of ``x`` (samples, *shape), those that are equal together; groups by first sample."""
    digests = _digests(x)
    order = np.argsort(digests, kind="stable")
    ends = np.flatnonzero(np.diff(digests[order])) + 1
    group = np.arange(len(x))
    for alike in np.split(order, ends) if len(ends) + 1 < len(x) else ():
        first: dict[bytes, int] = {}
        for row in alike if len(alike) > 1 else ():  # equal digests are not yet equal samples
            group[row] = first.setdefault(_bytes(x[row]), row)
    return np.asarray(np.unique(group, return_inverse=True)[1])


def coarse(groups: np.ndarray) -> bool:
    """Whether so few samples are different that equal ones are no copies."""
    return bool((groups.max(initial=-1) + 1) * COARSE < len(groups))


def representatives(groups: np.ndarray) -> np.ndarray:
    """The first sample of every group, in ascending order."""
    return np.sort(np.unique(groups, return_index=True)[1])


def apart(rows: np.ndarray, taken: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Those of ``rows`` that have no kin among the ``taken`` rows."""
    return rows if groups is None else rows[~np.isin(groups[rows], groups[taken])]


def _joined(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The finest groups of which each holds whole groups of both."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    size = int(one.max()) + int(other.max()) + 2
    edges = coo_matrix((np.ones(len(one)), (one, other + one.max() + 1)), shape=(size, size))
    labels = connected_components(edges, directed=False)[1][one]
    return np.asarray(np.unique(labels, return_inverse=True)[1])


def _digests(x: np.ndarray) -> np.ndarray:
    """A number for each sample, (samples,), the same for equal ones."""
    draws = np.random.default_rng(0)
    found = np.zeros(len(x), dtype=np.uint64)
    factors = draws.integers(0, 2**64, -(-x[:1].nbytes // 8), dtype=np.uint64) | np.uint64(1)
    for start in range(0, len(x), ROWS_AT_ONCE):
        words = _words(x[start : start + ROWS_AT_ONCE])  # (rows, words)
        found[start : start + len(words)] = (words * factors).sum(axis=1, dtype=np.uint64)
    return found


def _words(x: np.ndarray) -> np.ndarray:
    raw = np.ascontiguousarray(_plain(x)).reshape(len(x), -1).view(np.uint8)
    short = -raw.shape[1] % 8
    return np.pad(raw, ((0, 0), (0, short))).view(np.uint64) if short else raw.view(np.uint64)


def _bytes(sample: np.ndarray) -> bytes:
    return _plain(sample).tobytes()


def _plain(x: np.ndarray) -> np.ndarray:
    """``x`` with one zero and one NaN, of which floats have several."""
    return np.where(np.isnan(x), np.nan, x + 0.0) if x.dtype.kind == "f" else x
