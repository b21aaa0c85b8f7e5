"""Global models that a server crafts so that the next update holds its patients one by one, and how it reads them.

The attacker is a server that sends a site, or all sites alike, a global model of its own making; it sees one update or,
with secure sums, the sum of several, and knows nothing of any patient. The model is a chain of linear layers and ReLUs.

Sources: Fowl et al. 2022, "Robbing the fed"; Boenisch et al. 2023, "When the curious abandon honesty". That thresholds
stop near the middle, so that many patients move every unit and a site that divides finds nobody, is ours.
"""

from collections.abc import Sequence

import numpy as np

from fedsmall.wire import Arrays

SMALL = 1e-3  # of the crafted weights, so that an update has many digits beside them
LOWEST, HIGHEST = -3.5, 0.35  # thresholds, in deviations of a standardised feature
LEAST = 1e-4  # of a ladder's largest change of a bias: below it nobody stands between two rungs


def with_ladders(model: Arrays, directions: int, rng: np.random.Generator) -> Arrays:
    """A model of the shapes of ``model``, whose first units are ladders of thresholds in random ``directions``.

    Patients who move one rung and not the next one are those between two thresholds: mostly one.
    """
    first = _linear(model)[0]
    units, features = _flat(model[f"{first}.weight"]).shape
    rungs = units // directions
    ways = rng.standard_normal((directions, features))
    ways /= np.linalg.norm(ways, axis=1, keepdims=True)
    weights, thresholds = np.zeros((units, features)), np.zeros(units)
    weights[: rungs * directions] = np.repeat(ways, rungs, axis=0)
    thresholds[: rungs * directions] = np.tile(np.linspace(LOWEST, HIGHEST, rungs), directions)
    return _with_one_way_out(model, SMALL * weights, -SMALL * thresholds)


def read_ladders(start: Arrays, sent: Arrays, directions: int) -> np.ndarray:
    """The records that stand between two rungs, (found, features): right where one patient alone does.

    ``sent`` may be an average of many sites' models. What is not between its two thresholds is not of one patient.
    """
    first = _linear(start)[0]
    weights, bias = _flat(start[f"{first}.weight"]).astype(np.float64), start[f"{first}.bias"].astype(np.float64)
    rungs = len(bias) // directions
    changes = [_flat(sent[f"{first}.weight"]) - weights, (sent[f"{first}.bias"] - bias)[:, None]]
    moved = np.concatenate(changes, axis=1)[: rungs * directions].reshape(directions, rungs, -1)
    between = moved[:, :-1] - moved[:, 1:]
    slopes = between[..., -1:]
    is_moved = np.abs(slopes) > LEAST * np.abs(moved[..., -1:]).max()
    records = np.divide(between[..., :-1], slopes, out=np.zeros_like(between[..., :-1]), where=is_moved)
    ways = weights[: rungs * directions].reshape(directions, rungs, -1)[:, :1] / SMALL
    heights = -bias[: rungs * directions].reshape(directions, rungs) / SMALL
    along = (records * ways).sum(axis=-1)
    is_between = (along > heights[:, :-1] - SMALL) & (along < heights[:, 1:] + SMALL)
    return np.asarray(records[is_between & is_moved[..., 0]])


def with_equal_units(model: Arrays) -> Arrays:
    """A model of the shapes of ``model``, all of whose first units see every patient alike."""
    units, features = _flat(model[f"{_linear(model)[0]}.weight"]).shape
    return _with_one_way_out(model, np.zeros((units, features)), np.full(units, SMALL))


def read_equal_units(start: Arrays, sent: Arrays) -> np.ndarray:
    """The record (features,) that moved all units alike: noise on each averages out over them."""
    first = _linear(start)[0]
    moved, bias = (
        _flat(sent[f"{first}.weight"] - start[f"{first}.weight"]),
        sent[f"{first}.bias"] - start[f"{first}.bias"],
    )
    return np.asarray(moved.mean(axis=0, dtype=np.float64) / bias.mean(dtype=np.float64))


def distances_to_records(found: np.ndarray, records: np.ndarray) -> np.ndarray:
    """How far ``records`` (patients, ...) are from the nearest ``found``, as a share of its norm, (patients,)."""
    flat = records.reshape(len(records), -1).astype(np.float64)
    if not len(found):
        return np.full(len(flat), np.inf)
    nearest = [np.linalg.norm(found - record, axis=1).min() for record in flat]
    return np.asarray(nearest / np.maximum(np.linalg.norm(flat, axis=1), 1e-12))


def _with_one_way_out(model: Arrays, weights: np.ndarray, bias: np.ndarray) -> Arrays:
    """The first layer as given; behind it one unit a layer that always lives, so that its units move alike."""
    first, *rest = _linear(model)
    shape = model[f"{first}.weight"].shape
    crafted = {name: np.zeros_like(array) for name, array in model.items()}
    crafted[f"{first}.weight"], crafted[f"{first}.bias"] = weights.reshape(shape), bias
    for before, layer in zip((first, *rest), rest, strict=False):
        live = crafted[f"{layer}.weight"]
        if before == first:
            live[0] = 1 / (SMALL * len(bias))
        else:
            live[0, 0] = 1
        if layer == rest[-1]:
            live[1:] = -live[0]
    return {name: array.astype(model[name].dtype) for name, array in crafted.items()}


def _linear(model: Arrays) -> Sequence[str]:
    return [name.removesuffix(".weight") for name in model if name.endswith(".weight")]


def _flat(weights: np.ndarray) -> np.ndarray:
    return weights.reshape(len(weights), -1)
