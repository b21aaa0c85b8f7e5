"""Reading a whole batch from one update, exactly: where units outnumber its patients, few of whom move each of them.

The change of a first layer's weights and biases is slopes @ records, of a rank no larger than the batch. A ReLU makes
slopes sparse: directions in which many units did not move are single patients' (SPEAR, Dimitrov et al. 2024). The
server need craft nothing. Noise makes the rank full, and then there is nothing to find. Where one hidden layer ends in
two classes, all slopes behind a unit are alike, and mixtures of patients are as sparse as single ones: few are read.
"""

import numpy as np

from fedsmall.wire import Arrays

RANK, ZERO = 1e-5, 1e-4  # below these shares of the largest, a singular value and a slope are rounding's
MOST = 9  # patients of a batch from which on the draws below seldom find anybody
PARTS = ("weight", "bias")
TRIES, ROUNDS = 4096, 4  # draws of units that are off for one patient: each with a chance of about 2**(1 - batch)


def read_low_rank(start: Arrays, sent: Arrays, layer: str, rng: np.random.Generator) -> np.ndarray:
    """The records that a dense first ``layer`` was trained on, (found, features); none where its change has full rank.

    Of one step, or of several on the same few patients.
    """
    if not sent.keys() >= {f"{layer}.{n}" for n in PARTS}:
        return np.empty((0, sent[f"{layer}.weight"].shape[1]))
    moved = np.column_stack([np.subtract(sent[f"{layer}.{n}"], start[f"{layer}.{n}"], dtype=float) for n in PARTS])
    if not np.isfinite(moved).all():
        return np.empty((0, moved.shape[1] - 1))
    left, sizes, right = np.linalg.svd(moved, full_matrices=False)
    rank = int((sizes > RANK * sizes[0]).sum()) if sizes[0] else 0
    if not 0 < rank < min(MOST, *moved.shape):
        return np.empty((0, moved.shape[1] - 1))
    left, right = left[:, :rank] / np.linalg.norm(left[:, :rank], axis=1).max(), sizes[:rank, None] * right[:rank]
    found = _sparse_directions(left, rng)
    records = np.linalg.lstsq(found, right, rcond=None)[0] if len(found) == rank else np.empty((0, moved.shape[1]))
    return np.asarray(records[:, :-1] / records[:, -1:])


def _sparse_directions(left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Columns, (rank, rank), along which most rows of ``left`` (units, rank) are zero; fewer where none are found."""
    left = left[np.linalg.norm(left, axis=1) > ZERO]  # units that nobody moved say nothing
    units, rank = left.shape
    chosen = np.empty((rank, 0))
    for _ in range(ROUNDS):
        rows = rng.random((TRIES, units)).argpartition(rank - 1, axis=1)[:, : rank - 1]
        directions = np.linalg.svd(left[rows])[2][:, -1] if rank > 1 else np.ones((1, 1))
        zeros = (np.abs(left @ directions.T) < ZERO).sum(axis=0)
        for direction in directions[np.argsort(-zeros)][: (zeros > rank).sum()]:
            apart = direction - chosen @ np.linalg.lstsq(chosen, direction, rcond=None)[0]
            if np.linalg.norm(apart) > 0.01:
                chosen = np.column_stack([chosen, direction])
            if chosen.shape[1] == rank:
                return chosen
    return chosen
