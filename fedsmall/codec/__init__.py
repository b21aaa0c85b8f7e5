"""Compressed updates: models in fewer bytes, the same for server, site and stack.

*Codes.* Every array goes as codes and a scale of its own, rounded at random, so that the mean is kept. "int8": x / s
lies between two whole numbers and becomes one of them, the nearer the likelier; s is the largest |x| over 127 (QSGD of
Alistarh et al. 2017, section 3, with that in place of the norm, and codes of one length). "half": a float16 of x over
the largest |x|, to the nearest. Buffers (running statistics, counters) and single numbers go as they are.

*Differences* lose nothing: the values that differ, and their places in the smaller of two forms: a byte for the numbers
skipped before each (a gap of 255 or more takes several), or a bit for every number. Where that saves nothing, the model
goes whole. New values give the sender's very bits, where Stich et al. and Lin et al. 2018 send what is to be added.

*Models as they are sent.* A site packs a model once, as it leaves (after clipping, noise or blur); the server opens it
to check and average it, and hands it on as it came. Moments are rounded like models, but Adam's, by which its step
divides, and all under top-k to half precision. Controls, and models that are only evaluated, go in full.

*Top-k with error feedback.* Of how a model differs from one that its reader has (a site's from what it was sent, the
server's from the last global model that the site is known to have) the largest changes go, the rest is added to the
next one. Both remember: :class:`Known` at the server; at a site, by name, the last global model ("common"), the
residuals of the last model that left ("left") and of the one before ("before", which counts again where the server did
not take the reply), and their rounds. Source: Stich, Cordonnier & Jaggi 2018, "Sparsified SGD with memory", Algorithm
1, and Aji & Heafield 2017; both ways as in Tang et al. 2019 (DoubleSqueeze); one threshold for all arrays together.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.wire import (
    BASE,
    CARRIED,
    IS_GLOBAL,
    MADE,
    MODEL,
    ROUND,
    SQUARES,
    TAKEN,
    Arrays,
    first_of,
    is_buffer,
    join,
    parts,
    split,
    split_vector,
    stack_of_one,
)

SCALES = "~scales"  # in a record, the scales of its arrays in the order of their names; no array of torch is called so
MOST = 127  # the largest code of "int8", either way
DTYPES: dict[str, np.dtype[Any]] = {"half": np.dtype(np.float16), "int8": np.dtype(np.int8)}
Like = Mapping[str, np.ndarray]  # a model, of which only names, shapes and kinds of numbers are read


class CodecError(ValueError):
    """What came holds no model in this encoding."""


def encode(models: Arrays, wire: str, rngs: Sequence[np.random.Generator] = ()) -> Arrays:
    """Models {name: (models, ...)} as they travel: codes under the same names, and scales (models, arrays).

    ``wire`` is "full" (themselves), "half" or "int8", which draws from ``rngs``, one generator a model, a draw a
    number. A model with a number that is not finite gets a scale that is not. Squares (Adam's) go as their roots.
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
    return {name: sent[name] for name in models} | {SCALES: np.concatenate(scales, axis=1)}  # as models came


def decode(sent: Arrays, wire: str, like: Like, dtype: str) -> Arrays:
    """The models that :func:`encode` has made ``sent`` of, with floats of ``dtype``.

    ``like`` is one model, {name: (...)}; what goes beside is ".../name" and shaped alike. CodecError where it is not.
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


def difference(model: Like, reference: Like | None) -> Arrays:
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


def completed(sent: Arrays, reference: Like | None) -> Arrays:
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


def coded_names(model: Like) -> list[str]:
    """The arrays of which only differences go, in the order of their names."""
    return [name for name in sorted(model) if is_coded(name, model[name])]


def flat(arrays: Like, names: list[str], models: tuple[int, ...] = ()) -> np.ndarray:
    """The arrays of one model one after the other, (numbers,): a copy. Of a stack of ``models``, (models, numbers)."""
    return np.concatenate([np.reshape(arrays[name], (*models, -1)) for name in names], axis=-1)


def unflat(numbers: np.ndarray, like: Like, names: list[str]) -> Arrays:
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


def cut(models: Arrays, received: Arrays, left: Arrays, share: float) -> tuple[Arrays, Arrays]:
    """What leaves of trained ``models`` {name: (models, ...)}, and their next residual, of same shapes.

    ``received`` are the models as they came, ``left`` the last residual (may be empty). Those numbers that then differ
    most from ``received`` leave, a ``share`` of all, rounded up, of equals the first. What is not finite goes whole.
    """
    model = first_of(models)
    if not (names := coded_names(model)):
        return models, {}
    rows = partial(flat, names=names, models=(len(models[names[0]]),))
    trained, start = rows(models), rows(received)  # (models, numbers)
    before = rows(left) if left else np.zeros_like(trained)
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = trained + before
        moved = wanted - start
    sound = np.isfinite(moved).all(axis=1, keepdims=True)
    chosen = np.stack([largest(np.abs(row), share) for row in np.where(sound, moved, 0)])
    sent = np.where(sound, np.where(chosen, wanted, start), trained)
    after = np.where(sound, np.where(chosen, 0, moved), before)
    return models | unflat(sent, model, names), unflat(after, model, names)


def cut_one(model: Arrays, received: Arrays, left: Arrays, share: float) -> tuple[Arrays, Arrays]:
    """:func:`cut` for one model, without the leading axis."""
    sent, after = cut(stack_of_one(model), stack_of_one(received), stack_of_one(left), share)
    return first_of(sent), first_of(after)


def largest(sizes: np.ndarray, share: float) -> np.ndarray:
    """Which of the ``sizes`` (numbers,) are a ``share`` of them, rounded up, and the largest; of equals the first.

    Equal are those that agree in half of their digits: the last, in which engines differ, must not choose.
    """
    digits, powers = np.frexp(sizes)
    sizes = np.ldexp(np.round(digits * 2.0 ** (np.finfo(sizes.dtype).nmant // 2)), powers)
    count = min(len(sizes), math.ceil(share * len(sizes) - 1e-9))  # 7% of 100 are 7, whatever is rounded
    if not count:
        return np.zeros(len(sizes), dtype=bool)
    least = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    chosen: np.ndarray = sizes > least
    chosen[np.flatnonzero(sizes == least)[: count - int(chosen.sum())]] = True
    return chosen


def add_residual(models: Arrays, global_model: Mapping[str, np.ndarray], sent: Mapping[str, np.ndarray]) -> Arrays:
    """Models {name: (models, ...)} trained from the one that sites were ``sent``, as if from the ``global_model``."""
    moved = {name: models[name] + (global_model[name] - sent[name]) for name in coded_names(global_model)}
    return models | moved


GLOBAL, LEFT, BEFORE, ROUNDS_OF = "common", "left", "before", "rounds"
Config = Mapping[str, Any]


def base_of(memory: Arrays, config: Config) -> Arrays | None:
    """The global model that an order builds on; None where it needs none. CodecError where it is not here."""
    base = int(config.get(BASE, -1))
    if base < 0:
        return None
    made, _ = _rounds(memory)
    if base != made:
        raise CodecError("it builds on a global model that this site does not have")
    return split(memory, GLOBAL)


def cut_at_site(model: Arrays, received: Arrays, memory: Arrays, config: Config, share: float) -> tuple[Arrays, Arrays]:
    """A trained model as it leaves, and what is remembered then; ``received`` is the model as it came in the order."""
    made, last = _rounds(memory)
    taken = int(config.get(TAKEN, 0)) >= last
    before = split(memory, LEFT if taken else BEFORE)
    sent, left = cut_one(model, received, before, share)
    global_model = split(memory, GLOBAL)
    if config.get(IS_GLOBAL) and MADE in config:
        global_model, made = received, int(config[MADE])
    rounds = {ROUNDS_OF: {"all": np.array([made, int(config[ROUND])], dtype=np.int64)}}
    return sent, join(**{GLOBAL: global_model, LEFT: left, BEFORE: before}, **rounds)


def _rounds(memory: Arrays) -> tuple[int, int]:
    """The round of the global model that a site has, and of its last model that left; -1 for none."""
    made, last = memory.get(f"{ROUNDS_OF}/all", np.array([-1, -1]))
    return int(made), int(last)


class BaseVersion(NamedTuple):
    """What an order to a site builds on: ``reference``, the global model of round ``base`` (None, -1: it is whole).

    ``taken`` is the round of the site's last answer that was used, 0 for none.
    """

    base: int
    reference: Arrays | None
    taken: int


@dataclass
class Known:
    """The last two global models, as sites read them, by the round after which each was made (0: the first).

    A site that was silent for longer is sent its model whole. ``has`` is the round of each site's global model, by
    name; ``taken`` that of its last answer that was used. ``comm_rounds`` counts those since the last global model.
    """

    models: dict[int, Arrays] = field(default_factory=dict)
    has: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)
    comm_rounds: int = 0

    @property
    def now(self) -> int:
        """The round after which the last global model was made."""
        return max(self.models)

    def tell(self, model: Arrays, t: int, share: float) -> Arrays:
        """How a global ``model`` of round ``t`` goes out: the first whole, then a ``share`` of it for each round."""
        sent = model
        if self.models:
            sent, _ = cut_one(model, self.models[self.now], {}, min(1.0, share * max(1, self.comm_rounds)))
        self.models = dict(sorted((self.models | {t: dict(sent)}).items())[-2:])
        self.comm_rounds = 0
        return sent

    def base_version(self, site: str) -> BaseVersion:
        """What an order to this site builds on."""
        base = self.has.get(site, -1)
        reference = self.models.get(base)
        return BaseVersion(-1 if reference is None else base, reference, self.taken.get(site, 0))

    def answered(self, t: int, sent: Mapping[str, bool], good: Collection[str]) -> None:
        """Record whose orders of round ``t`` brought the global model (``sent``), and whose answers are ``good``."""
        if not self.models:
            return  # models go in other forms
        self.comm_rounds += 1
        for site, global_model in sent.items():
            if site not in good:
                self.has.pop(site, None)
                continue
            self.taken[site] = t
            if global_model:
                self.has[site] = self.now


PACKED = (MODEL, CARRIED)


class SentModel(NamedTuple):
    """A model as it is ``sent`` (empty: in full), as its reader has it, and the round after which it was made."""

    sent: Arrays
    read: Arrays
    t: int = 0


def wire_of(part: str, plan: Plan) -> str:
    """In what precision a part of a message travels: of a model, itself where its largest changes alone go."""
    share = plan.method.top_share
    if part == CARRIED and (plan.recipe.optimizer == "adam" or share):
        return "half"
    return "full" if share else plan.method.wire


def pack_stack(plan: Plan, part: str, models: Arrays, names: Sequence[str], t: int) -> tuple[Arrays, int]:
    """Models, or what goes beside them, {name: (models, ...)}, as their readers get them after round ``t``.

    ``names`` are the sites that they leave. The number is the bytes of one of them on its way.
    """
    wire = wire_of(part, plan)
    sent = encode(models, wire, [stream(plan, part, t, name) for name in names])
    size = sum(array.nbytes for array in sent.values()) // max(1, len(names))
    return decode(sent, wire, first_of(models), plan.dtype), size


def pack(plan: Plan, arrays: Mapping[str, np.ndarray], site: str, t: int, reference: Arrays | None = None) -> Arrays:
    """What leaves a site after round ``t``, named as on the wire; ``reference`` is the model that the site was sent."""
    packed = {}
    for part, plain in parts(arrays).items():
        wire = wire_of(part, plan)
        coded = part in PACKED and plan.method.is_compressed
        packed[part] = first_of(encode(stack_of_one(plain), wire, [stream(plan, part, t, site)])) if coded else plain
    if plan.method.top_share is not None:
        packed[MODEL] = difference(packed[MODEL], reference)
    return join(**packed)


def unpack(plan: Plan, arrays: Arrays, like: Arrays, reference: Arrays | None = None) -> Arrays:
    """Unpack a message, named as on the wire; parts that are not packed stay as they are.

    ``like`` is a model of the run, ``reference`` the one that it may be a difference from. Raises CodecError.
    """
    return join(**{part: read_part(plan, part, packed, like, reference) for part, packed in parts(arrays).items()})


def read_part(plan: Plan, part: str, arrays: Arrays, like: Arrays, reference: Arrays | None = None) -> Arrays:
    """One part of a message, read. CodecError where it is broken."""
    if part == MODEL and plan.method.top_share is not None:
        return completed(arrays, reference)
    if part not in PACKED or SCALES not in arrays or not plan.method.is_compressed:
        return arrays
    wire = wire_of(part, plan)
    if not all(np.ndim(arrays[name]) for name in arrays if name in like and np.ndim(like[name])):
        raise CodecError("an array of the model came as a single number")
    return first_of(decode(stack_of_one(arrays), wire, like, plan.dtype))


def encode_model(plan: Plan, model: Arrays, t: int, group: int, known: Known | None = None) -> SentModel:
    """A model that the server sends of a ``group``, made after round ``t``; under top-k by what is ``known``."""
    if not plan.method.is_compressed:
        return SentModel({}, model, t)
    wire, share = plan.method.wire, plan.method.top_share
    if share is not None:
        read = (known or Known()).tell(model, t, share)
        return SentModel(read, read, t)
    sent = encode(stack_of_one(model), wire, [rng_for(plan.seed, "quantise common", t, group)])
    return SentModel(first_of(sent), first_of(decode(sent, wire, model, plan.dtype)), t)


def encode_own_model(plan: Plan, model: Arrays, site: str) -> SentModel:
    """A model of its own that a site starts with."""
    if not plan.method.is_compressed:
        return SentModel({}, model)
    sent = pack(plan, join(**{MODEL: model}), site, 0)
    return SentModel(split(sent, MODEL), split(unpack(plan, sent, model), MODEL))


def stream(plan: Plan, part: str, t: int, site: str) -> np.random.Generator:
    """The draws by which what leaves a site after round ``t`` is rounded."""
    return rng_for(plan.seed, "quantise", part, t, site)
