"""A model as its difference from another that its reader has: numbers and places; nothing is lost.

Where few numbers differ, the record has their values, and their places in one of two forms, whichever is smaller: a
byte for the numbers skipped before each (a gap of 255 or more takes several), or a bit for every number. Where that
saves nothing, the model goes whole, as buffers (running statistics, counters) and single numbers always do.

Departs from Stich et al. 2018 and Lin et al. 2018, who send what is to be added: new values give the very bits that the
sender has, whatever is rounded in a sum.
"""

from collections.abc import Mapping

import numpy as np

from fedsmall.codec.codes import CodecError, is_coded
from fedsmall.wire import Arrays

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
    places = {GAPS: gaps} if len(gaps) <= size else {BITS: np.packbits(_mask(changed, len(new)))}
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
    ends, models = np.cumsum([like[name].size for name in names]), numbers.shape[:-1]
    cut = np.split(numbers, ends[:-1], axis=-1)
    return {
        name: part.reshape(*models, *like[name].shape).astype(like[name].dtype)
        for name, part in zip(names, cut, strict=True)
    }


def _bits(numbers: np.ndarray) -> np.ndarray:
    """Numbers as the integers that have their bits, so that -0.0 is not 0.0 and NaN is itself."""
    return numbers.view(f"u{numbers.dtype.itemsize}")


def _mask(places: np.ndarray, count: int) -> np.ndarray:
    mask = np.zeros(count, dtype=bool)
    mask[places] = True
    return mask


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
