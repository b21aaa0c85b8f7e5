"""Numbers in fewer bits: every array as codes and a scale of its own, rounded at random, so that the mean is kept.

"int8" is uniform stochastic quantisation (Alistarh et al. 2017, QSGD, section 3, with the largest number of an array in
place of its norm): x / s lies between two whole numbers and becomes one of them, the nearer the likelier, so that the
mean over draws is x. s is the largest |x| over 127. "half" is a float16 of x over the largest |x|, to the nearest.
Buffers (running statistics, counters) and single numbers go as they are: a variance that is rounded to zero would be
divided by.

Departs from QSGD: its codes are of varying length (Elias), ours of 8 bits, so that a message has one length.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsmall.wire import SQUARES, Arrays, is_buffer

SCALES = "~scales"  # in a record, the scales of its arrays in the order of their names; no array of torch is called so
MOST = 127  # the largest code of "int8", either way
DTYPES: dict[str, np.dtype[Any]] = {"half": np.dtype(np.float16), "int8": np.dtype(np.int8)}
Like = Mapping[str, np.ndarray]  # a model, of which only names, shapes and kinds of numbers are read


class CodecError(ValueError):
    """What came holds no model in this encoding."""


def encode(models: Arrays, wire: str, rngs: Sequence[np.random.Generator] = ()) -> Arrays:
    """Models {name: (models, ...)} as they travel: codes under the same names, and scales (models, arrays).

    ``wire`` is "full" (themselves), "half" or "int8", which draws from ``rngs``, one generator a model, a draw a
    number. A model with a number that is not finite gets a scale that is not. Squares (Adam's) go as their roots, lest
    small ones become zero.
    """
    coded = [name for name in sorted(models) if is_coded(name, models[name][0])]
    if not coded or wire == "full":
        return dict(models)
    count = len(models[coded[0]])
    flat = [_roots(name, models[name]).reshape(count, -1).astype(np.float64) for name in coded]
    ends = np.cumsum([part.shape[1] for part in flat])
    draws = np.stack([rng.random(ends[-1]) for rng in rngs]) if wire == "int8" else None  # (models, numbers)
    sent, scales = {name: models[name] for name in models if name not in coded}, []
    for name, part, end in zip(coded, flat, ends, strict=True):
        scale = _scale(part, MOST if wire == "int8" else 1)
        scales.append(scale)
        with np.errstate(invalid="ignore", divide="ignore"):
            within = np.where((scale > 0) & np.isfinite(scale), part / scale.astype(np.float64), 0.0)
        if draws is not None:
            within = np.floor(within + draws[:, end - part.shape[1] : end])
        sent[name] = within.astype(DTYPES[wire]).reshape(models[name].shape)
    sent = {name: sent[name] for name in models}  # in the order in which they came
    return sent | {SCALES: np.concatenate(scales, axis=1)}


def decode(sent: Arrays, wire: str, like: Like, dtype: str) -> Arrays:
    """The models that :func:`encode` has made ``sent`` of, with floats of ``dtype``.

    ``like`` is one model, {name: (...)}; what goes beside models is called ".../name" and is shaped alike. Raises
    CodecError where codes or scales do not fit it.
    """
    coded = [name for name in sorted(sent) if is_coded(name, _of(name, like))]
    if not coded or wire == "full":
        return dict(sent)
    scales = sent.get(SCALES, np.zeros(0))
    if scales.shape != (len(sent[coded[0]]), len(coded)) or scales.dtype != np.float32:
        raise CodecError(f"expected a scale for each of {len(coded)} arrays")
    read = {name: array for name, array in sent.items() if name != SCALES}
    for name, scale in zip(coded, scales.T, strict=True):
        shaped = _of(name, like)
        shape = (len(scale), *(() if shaped is None else shaped.shape))
        numbers = _numbers(name, sent[name], wire, shape).astype(dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            read[name] = _squares(name, numbers * scale[:, None].astype(dtype)).reshape(shape)
    return read


def _of(name: str, like: Like) -> np.ndarray | None:
    """The array of a model that one of this name is shaped like; None for a single number."""
    return like.get(name, like.get(name.rpartition("/")[2]))


def is_coded(name: str, array: np.ndarray | None) -> bool:
    """Whether an array goes in codes, or as differences: floats, no buffers, no numbers by themselves."""
    return array is not None and array.dtype.kind == "f" and array.ndim > 0 and not is_buffer(name)


def _numbers(name: str, codes: np.ndarray, wire: str, shape: tuple[int, ...]) -> np.ndarray:
    """An array's codes, one by one, (models, numbers). CodecError where they are not of a model of this ``shape``."""
    if codes.dtype != DTYPES[wire] or codes.shape != shape:
        raise CodecError(f"array {name[:80]!r}: expected {wire} codes of {shape[1:]}")
    return codes.reshape(shape[0], -1)


def _scale(part: np.ndarray, most: int) -> np.ndarray:
    """The least float32 by which no number of ``part`` (models, numbers) is more than ``most``: (models, 1)."""
    largest = np.abs(part).max(axis=1, keepdims=True, initial=0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = (largest / most).astype(np.float32)
    short = scale.astype(np.float64) * most < largest  # rounded down: the largest number would not fit
    return np.asarray(np.where(short, np.nextafter(scale, np.float32(np.inf)), scale))


def _is_square(name: str) -> bool:
    return SQUARES in name.split("/")


def _roots(name: str, array: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(array, 0)) if _is_square(name) else array


def _squares(name: str, array: np.ndarray) -> np.ndarray:
    return np.square(array) if _is_square(name) else array
