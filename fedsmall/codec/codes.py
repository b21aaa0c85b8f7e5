"""Models in fewer bytes: numbers in fewer bits, and models as their differences from another that the reader has.

Every array goes as codes and a scale of its own, rounded at random, so that the mean is kept. "int8" is uniform
stochastic quantisation (Alistarh et al. 2017, QSGD, section 3, with the largest number of an array in place of its
norm): x / s lies between two whole numbers and becomes one of them, the nearer the likelier. s is the largest |x| over
127. "half" is a float16 of x over the largest |x|, to the nearest. Buffers (running statistics, counters) and single
numbers go as they are. Departs from QSGD: its codes are of varying length (Elias), ours of 8 bits, so that a message
has one length.

A difference loses nothing: where few numbers differ, the record has their values, and their places in one of two forms,
whichever is smaller: a byte for the numbers skipped before each (a gap of 255 or more takes several), or a bit for
every number. Where that saves nothing, the model goes whole. Departs from Stich et al. 2018 and Lin et al. 2018, who
send what is to be added: new values give the very bits that the sender has.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsmall.wire import SQUARES, Arrays, is_buffer, split_vector

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
    roots = [np.sqrt(np.maximum(models[name], 0)) if _is_square(name) else models[name] for name in coded]
    rows = [array.reshape(count, -1).astype(np.float64) for array in roots]
    ends = np.cumsum([part.shape[1] for part in rows])
    draws = np.stack([rng.random(ends[-1]) for rng in rngs]) if wire == "int8" else None  # (models, numbers)
    sent, scales = {name: models[name] for name in models if name not in coded}, []
    for name, part, end in zip(coded, rows, ends, strict=True):
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
        if sent[name].dtype != DTYPES[wire] or sent[name].shape != shape:
            raise CodecError(f"array {name[:80]!r}: expected {wire} codes of {shape[1:]}")
        numbers = sent[name].reshape(len(scale), -1).astype(dtype)
        with np.errstate(invalid="ignore", over="ignore"):
            scaled = numbers * scale[:, None].astype(dtype)
            read[name] = (np.square(scaled) if _is_square(name) else scaled).reshape(shape)
    return read


def _of(name: str, like: Like) -> np.ndarray | None:
    return like.get(name, like.get(name.rpartition("/")[2]))


def is_coded(name: str, array: np.ndarray | None) -> bool:
    """Whether an array goes in codes, or as differences: floats, no buffers, no numbers by themselves."""
    return array is not None and array.dtype.kind == "f" and array.ndim > 0 and not is_buffer(name)


def _scale(part: np.ndarray, most: int) -> np.ndarray:
    """The least float32 by which no number of ``part`` (models, numbers) is more than ``most``: (models, 1)."""
    largest = np.abs(part).max(axis=1, keepdims=True, initial=0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        scale = (largest / most).astype(np.float32)
    short = scale.astype(np.float64) * most < largest  # rounded down: the largest number would not fit
    return np.asarray(np.where(short, np.nextafter(scale, np.float32(np.inf)), scale))


def _is_square(name: str) -> bool:
    return SQUARES in name.split("/")


VALUES, GAPS, BITS = "~values", "~gaps", "~bits"  # names in a record; no array of torch is called so
Model = Mapping[str, np.ndarray]


def difference(model: Model, reference: Model | None) -> Arrays:
    """``model`` as it goes to who has ``reference``, a model of the same names and shapes; in full to who has none."""
    names = coded_names(model)
    if reference is None or not names:
        return dict(model)
    new, old = flat(model, names), flat(reference, names)
    changed = np.flatnonzero(_bits(new) != _bits(old))
    gaps, size = _gaps(changed), (len(new) + 7) // 8
    places = {GAPS: gaps} if len(gaps) <= size else {BITS: np.packbits(np.isin(np.arange(len(new)), changed))}
    sent = {VALUES: new[changed], **places}
    if sum(array.nbytes for array in sent.values()) >= new.nbytes:
        return dict(model)
    return {name: model[name] for name in model if name not in names} | sent


def completed(sent: Arrays, reference: Model | None) -> Arrays:
    """The model of which :func:`difference` has made ``sent``. Raises CodecError where it is not of such a model."""
    if VALUES not in sent:
        return sent
    if reference is None:
        raise CodecError("it builds on a model that is not here")
    names = coded_names(reference)
    if sent.keys() - {VALUES, GAPS, BITS} != reference.keys() - set(names) or (GAPS in sent) == (BITS in sent):
        raise CodecError("expected values with their places, and the arrays that go in full")
    new, values = flat(reference, names), sent[VALUES]
    places = _after(sent[GAPS]) if GAPS in sent else _set_in(sent[BITS], len(new))
    if values.dtype != new.dtype or values.shape != places.shape or (len(places) and places[-1] >= len(new)):
        raise CodecError("its values do not fit their places")
    new[places] = values
    return dict(reference) | {name: sent[name] for name in sent if name in reference} | unflat(new, reference, names)


def coded_names(model: Model) -> list[str]:
    """The arrays of which only differences go, in the order of their names."""
    return [name for name in sorted(model) if is_coded(name, model[name])]


def flat(arrays: Model, names: list[str], models: tuple[int, ...] = ()) -> np.ndarray:
    """The arrays of one model one after the other, (numbers,): a copy. Of a stack of ``models``, (models, numbers)."""
    return np.concatenate([np.reshape(arrays[name], (*models, -1)) for name in names], axis=-1)


def unflat(numbers: np.ndarray, like: Model, names: list[str]) -> Arrays:
    """The arrays of which :func:`flat` has made ``numbers``, each shaped and typed as that of a model in ``like``."""
    arrays = split_vector(numbers, {name: like[name].shape for name in names})
    return {name: array.astype(like[name].dtype) for name, array in arrays.items()}


def _bits(numbers: np.ndarray) -> np.ndarray:
    """Numbers as the integers that have their bits, so that -0.0 is not 0.0 and NaN is itself."""
    return numbers.view(f"u{numbers.dtype.itemsize}")


def _gaps(places: np.ndarray) -> np.ndarray:
    """For each place the numbers skipped before it, as bytes: 255 for as many and no place yet."""
    skipped = np.diff(places, prepend=-1) - 1
    ends = np.cumsum(skipped // 255 + 1) - 1  # where each gap's last byte is
    coded = np.full(ends[-1] + 1 if len(ends) else 0, 255, dtype=np.uint8)
    coded[ends] = skipped % 255
    return coded


def _after(gaps: np.ndarray) -> np.ndarray:
    if gaps.dtype != np.uint8 or gaps.ndim != 1 or (len(gaps) and gaps[-1] == 255):
        raise CodecError("its places are not bytes that end")
    ends = np.flatnonzero(gaps < 255)
    places: np.ndarray = np.cumsum(gaps, dtype=np.int64)[ends] + np.arange(len(ends))
    return places


def _set_in(bits: np.ndarray, count: int) -> np.ndarray:
    if bits.dtype != np.uint8 or bits.shape != ((count + 7) // 8,):
        raise CodecError("its places are not a bit for every number")
    return np.flatnonzero(np.unpackbits(bits, count=count))
