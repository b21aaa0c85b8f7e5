"""Reading: whose complete record stands in one update, for whoever knows the model that it set out from.

In a layer that sees the record itself, the gradient of a unit's weights is the sum over patients of (slope * record),
and that of its bias the sum of the slopes. Where one patient alone moved a unit, as many do in small batches, change of
weights / change of bias is that patient's record, to rounding, whatever the learning rate and the number of steps.

It reaches layers whose units each see a whole record (dense layers behind the input, convolutions as large as the
image). A smaller convolution shows patches, mixed over all positions, and never a record; attacks that invert by
optimisation may find more. So a count here is a lower bound, and :func:`layers_read` says where there is nothing to
count.

Source: Phong et al. 2018, "Privacy-preserving deep learning via additively homomorphic encryption", section 3.
"""

from collections.abc import Sequence

import numpy as np

from fedsmall.wire import Arrays, first_of, stack_of_one

WITHIN = 0.01  # of the record's own norm: all its numbers together


def layers_read(model: Arrays, features: int) -> list[str]:
    """The names of the layers whose units each see a whole record of so many numbers; empty: nothing to read there."""
    weights = (name.removesuffix(".weight") for name in model if name.endswith(".weight"))
    return [layer for layer in weights if model[f"{layer}.weight"][0].size == features]


def records_read(
    start: Arrays, sent: Arrays, patients: np.ndarray, within: float = WITHIN, sizes: np.ndarray | None = None
) -> np.ndarray:
    """Which patients can be read from one update, (patients,) of bool.

    ``start`` is the model that the site set out from and ``sent`` the one that left it, by the names of ``state_dict``;
    ``patients`` are the records that it trained on, as the model sees them, (patients, ...). A record counts as read
    where all its numbers together are ``within`` this share of its norm, or of ``sizes``, (patients,).
    """
    records = np.asarray(patients)[None]
    read = read_from_stack(
        stack_of_one(start), stack_of_one(sent), records, within, None if sizes is None else sizes[None]
    )
    return np.asarray(read[0])


def distances_to_others(patients: np.ndarray) -> np.ndarray:
    """How far each record is from the mean of the site's others, (patients,); a lone one from zero.

    A size for records whose features are not at mean 0, such as images: the mean is near everybody there.
    """
    records = np.asarray(patients, dtype=np.float64).reshape(len(patients), -1)
    others = len(records) - 1
    if others < 1:
        return np.asarray(np.linalg.norm(records, axis=1))
    return np.asarray(np.linalg.norm(records - records.mean(axis=0), axis=1) * (len(records) / others))


def read_from_stack(
    start: Arrays, sent: Arrays, patients: np.ndarray, within: float = WITHIN, sizes: np.ndarray | None = None
) -> np.ndarray:
    """:func:`records_read` for many updates at once: {name: (models, ...)}, patients (models, most, ...).

    Missing patients are NaN (:func:`pad_records`), never read. The result and ``sizes`` have shape (models, most).
    """
    read: np.ndarray = distances(start, sent, patients, sizes) <= within
    return read


def distances(start: Arrays, sent: Arrays, patients: np.ndarray, sizes: np.ndarray | None = None) -> np.ndarray:
    """How near the nearest candidate is to every record, as a share of its norm, or of ``sizes``: (models, most).

    Infinite where there is no candidate, or no patient.
    """
    records = patients.reshape(*patients.shape[:2], -1)  # (models, most, features)
    squares = _squares(records)
    nearest = np.full(squares.shape, np.inf)
    for layer in layers_read(first_of(sent), records.shape[-1]):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            moved, scale = _moved(start, sent, layer)
            nearest = np.fmin(nearest, _nearest(moved, scale, records, squares))
    lengths = squares if sizes is None else np.square(sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.sqrt(np.maximum(nearest, 0) / lengths)
    shares = np.where(nearest <= 0, 0.0, shares)  # a record of nothing but zeros, too
    return np.asarray(np.where(np.isnan(shares), np.inf, shares))


def pad_records(sites: Sequence[np.ndarray]) -> np.ndarray:
    """The records of several sites as one array, (sites, most, features), NaN where a site has fewer."""
    rows = [np.asarray(records).reshape(len(records), -1) for records in sites]
    out = np.full((len(rows), max(map(len, rows)), rows[0].shape[1]), np.nan)
    for place, records in zip(out, rows, strict=True):
        place[: len(records)] = records
    return out


def _moved(start: Arrays, sent: Arrays, layer: str) -> tuple[np.ndarray, np.ndarray | None]:
    """What a layer's weights moved by, (models, units, features), and its biases, (models, units) or None."""
    weight, bias = f"{layer}.weight", f"{layer}.bias"
    change = sent[weight] - start[weight]  # exact but for its own last digit: the two are close
    flat = change.reshape(*change.shape[:2], -1)
    return flat, sent[bias] - start[bias] if bias in sent else None


def _nearest(moved: np.ndarray, scale: np.ndarray | None, records: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """The squared distance of every record to the nearest candidate, (models, most); never from a unit that is still.

    A candidate is a unit's change of weights over that of its bias; without biases, times the factor that fits best,
    which one known feature gives.
    """
    products = moved @ np.swapaxes(records, 1, 2).astype(moved.dtype, copy=False)  # (models, units, most)
    lengths = _squares(moved)[..., None]  # (models, units, 1)
    if scale is None:
        distances = np.where(products == 0, np.inf, squares[:, None] - np.square(products) / lengths)
    else:
        by = scale[..., None]
        distances = lengths / by**2 - 2 * products / by + squares[:, None]
    return np.asarray(np.fmin.reduce(distances, axis=1, initial=np.inf))  # what is not a number is nowhere near


def _squares(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("...f,...f->...", vectors, vectors))
