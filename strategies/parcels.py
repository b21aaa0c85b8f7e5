"""Models in messages that do not go in full: opened to be judged and averaged.

Rounded ones are handed on as they came; those of which only changes go, as changes of what the next site has.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from flwr.app import ArrayRecord, Message, RecordDict

from fedsmall.aggregation.combiners import Updates
from fedsmall.codec.check_wire import in_codes, top_share
from fedsmall.codec.codes import CodecError
from fedsmall.codec.differences import BITS, GAPS, VALUES, difference
from fedsmall.codec.known import Known
from fedsmall.codec.parcels import PACKED, own_parcel, parcel, read_part
from fedsmall.codec.top import owed
from fedsmall.errors import ReplyError
from fedsmall.plan import Plan
from fedsmall.travel.commons import Commons
from fedsmall.wire import BASE, MADE, MODEL, TAKEN, Arrays
from strategies.checks import Signature, check_headers, check_record, read_array, signature
from strategies.records import array_records, to_arrays, to_record
from strategies.slots import Slot

Records = dict[str, ArrayRecord]


def fresh_slot(plan: Plan | None, record: ArrayRecord, t: int, group: int, known: Known) -> Slot:
    """What sites are sent of a group's common model that was made after round ``t``, 0 for the first."""
    if plan is None or not in_codes(plan):
        return Slot(record, common=True, group=group)
    made = parcel(plan, to_arrays(record), t, group, known)
    return Slot(to_record(made.read), common=True, group=group, packed={MODEL: to_record(made.sent)})


def own_slot(plan: Plan, model: Arrays, site: str) -> Slot:
    """What a site is sent that starts with a model of its own."""
    made = own_parcel(plan, model, site)
    return Slot(to_record(made.read), packed={MODEL: to_record(made.sent)} if made.sent else {})


def renew(
    fresh: Sequence[Slot], plan: Plan | None, before: Sequence[Arrays], models: Sequence[Arrays], t: int, known: Known
) -> list[Slot]:
    """What sites are sent of the groups' ``models`` after round ``t``; of those that are as ``before``, the same."""
    groups = enumerate(zip(models, before, fresh, strict=True))
    return [
        slot if model is last else fresh_slot(plan, to_record(model), t, k, known) for k, (model, last, slot) in groups
    ]


Words = dict[str, dict[str, int]]


def addressed(plan: Plan | None, known: Known, slots: Mapping[str, Slot]) -> tuple[dict[str, Slot], Words]:
    """Slots as their sites are sent them, and the words that tell a site what its order builds on."""
    if plan is None or top_share(plan) is None:
        return dict(slots), {}
    made: dict[tuple[int, int], Slot] = {}
    words: Words = {}
    for site, slot in slots.items():
        base, reference, taken = known.ground(site)
        if (id(slot), base) not in made:
            sent = to_record(difference(to_arrays(slot.model), reference))
            made[id(slot), base] = replace(slot, packed={**slot.packed, MODEL: sent})
        words[site] = {BASE: base, TAKEN: taken, **({MADE: known.now} if slot.common else {})}
    return {site: made[id(slot), words[site][BASE]] for site, slot in slots.items()}, words


def owing(plan: Plan | None, fresh: Slot, common: Arrays, updates: Updates) -> Updates:
    """What counts in an average, with what sites were not told of the ``common`` model that it came of."""
    if plan is None or top_share(plan) is None:
        return updates
    return replace(updates, stack=owed(updates.stack, common, to_arrays(fresh.model)))


def in_full(fresh: Sequence[Slot], commons: Commons) -> ArrayRecord:
    """The largest common model as the server has it, which is what sites are sent unless that is rounded."""
    group = commons.largest()
    return to_record(commons.models[group]) if fresh[group].packed else fresh[group].model


def open_reply(
    came: dict[str, Records],
    plan: Plan | None,
    like: Slot,
    sent: Mapping[str, Slot],
    site: str,
    reply: Message,
) -> None:
    """Put the numbers in place of the codes in a site's reply; its records as they came go into ``came``.

    ``like`` holds a model of the run; ``sent`` is what sites were sent, of which changes come. Nothing is done under no
    plan, or where travellers go in full. Raises ReplyError where what came is no such model.
    """
    if plan is None or not like.packed or reply.has_error():
        return
    model = to_arrays(sent.get(site, like).model)
    came[site] = decode_content(plan, reply.content, signature(like.packed[MODEL]), model)


def decode_content(plan: Plan, content: RecordDict, coded: Signature, model: Arrays) -> Records:
    """Put the numbers in place of the codes in what a site has answered; gives its records as they came.

    ``coded`` are the arrays of a model in codes; ``model`` is the one that the site was sent. Raises ReplyError where
    what came is no such model.
    """
    kept = {key: record for key, record in array_records(content).items() if key in PACKED}
    for key, record in kept.items():
        check_headers(record)
        if key == MODEL and top_share(plan) is not None:
            _check_difference(record, model)
        elif key == MODEL:
            check_record(record, coded)
        _read(content, key, record, plan, model)
    return kept


def _read(content: RecordDict, key: str, record: ArrayRecord, plan: Plan, like: Arrays) -> None:
    arrays = {name: read_array(name, array) for name, array in record.items()}
    try:
        content[key] = to_record(read_part(plan, key, arrays, like, like))
    except CodecError as error:
        raise ReplyError(str(error)) from None


def _check_difference(record: ArrayRecord, of: Arrays) -> None:
    """Raise ReplyError where arrays are larger than a difference from a model like this can have."""
    came, own = signature(record), {name: (array.shape, str(array.dtype)) for name, array in of.items()}
    most = sum(math.prod(shape) for shape, _ in own.values())
    for name, (shape, _) in came.items():
        part = name in (VALUES, GAPS, BITS) and len(shape) == 1 and shape[0] <= 2 * most
        if not part and came[name] != own.get(name):
            raise ReplyError(f"array {name[:80]!r}: is not of a model of this run, nor of a difference from one")
