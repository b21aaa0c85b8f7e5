"""Compressed updates: what of a run travels in fewer bytes, and by which draws, for server, site and stack alike.

A site packs what it has trained once, as it leaves (after clipping, noise or blur). The server opens it to check and
average it, and hands it on as it came, so that a hop rounds once; it packs what an average has made. Moments are
rounded like models, Adam's to half precision at most, for its step divides by them. What a local rule sends (SCAFFOLD's
controls), and models that are only evaluated, go in full.

Under top-k (:mod:`fedsmall.codec.top`) a model is a difference from one that its reader has: a site's from what it was
sent, the server's from the last global model that the site is known to have. Moments then go in half precision.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedsmall.codec.codes import SCALES, CodecError, completed, decode, difference, encode
from fedsmall.codec.top import Known
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.wire import CARRIED, MODEL, Arrays, first_of, join, parts, split, stack_of_one

PACKED = (MODEL, CARRIED)


class Parcel(NamedTuple):
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


def parcel(plan: Plan, model: Arrays, t: int, group: int, known: Known | None = None) -> Parcel:
    """A model that the server sends of a ``group``, made after round ``t``; under top-k by what is ``known``."""
    if not plan.method.is_compressed:
        return Parcel({}, model, t)
    wire, share = plan.method.wire, plan.method.top_share
    if share is not None:
        read = (known or Known()).tell(model, t, share)
        return Parcel(read, read, t)
    sent = encode(stack_of_one(model), wire, [rng_for(plan.seed, "quantise common", t, group)])
    return Parcel(first_of(sent), first_of(decode(sent, wire, model, plan.dtype)), t)


def own_parcel(plan: Plan, model: Arrays, site: str) -> Parcel:
    """A model of its own that a site starts with."""
    if not plan.method.is_compressed:
        return Parcel({}, model)
    sent = pack(plan, join(**{MODEL: model}), site, 0)
    return Parcel(split(sent, MODEL), split(unpack(plan, sent, model), MODEL))


def stream(plan: Plan, part: str, t: int, site: str) -> np.random.Generator:
    """The draws by which what leaves a site after round ``t`` is rounded."""
    return rng_for(plan.seed, "quantise", part, t, site)
