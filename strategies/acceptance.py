"""Which of the replies to a contact's orders may be used."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from flwr.app import ArrayRecord, Message

from fedsmall.errors import ReplyError
from fedsmall.travel.gate import halves, largest, outsize, size, too_large
from fedsmall.wire import BLURRED, METRICS, MODEL
from strategies.checks import Limits, NotFinite, Signature, check_reply, companions
from strategies.records import array_records, stacked, to_arrays
from strategies.slots import Slot

Note = Callable[[str, str, str], None]


def accepted(
    orders: Sequence[tuple[Message, str]],
    replies: Iterable[Message],
    expected: Signature,
    note: Note,
    limits: Callable[[str], Limits],
    opened: Callable[[str, Message], None] = lambda site, reply: None,
) -> tuple[dict[str, Message], dict[str, str]]:
    """The replies that may be used, by site in the order of names; and the sites whose models are not finite, and why.

    ``orders`` are the contact's, each with its site; ``expected`` are the arrays of a model of the run, and ``limits``
    what a site may say; ``opened`` puts numbers in place of codes in a site's reply. A reply belongs to the order that
    it answers, whatever it says of itself. ``note(site, kind, reason)`` is told of every other reply that is set aside,
    of every site that is silent, and of those that blurred what they sent.
    """
    answered = by_order(orders, replies, note)
    good: dict[str, Message] = {}
    spoilt: dict[str, str] = {}
    beside: dict[str, dict[str, Signature]] = {}
    for site in sorted(answered):
        try:
            opened(site, answered[site])
            check_reply(answered[site], expected, limits(site))
            good[site], beside[site] = answered[site], companions(answered[site])
        except NotFinite as error:
            spoilt[site] = str(error)
        except ReplyError as error:
            note(site, "set aside", str(error))
    usual = max(beside.values(), key=list(beside.values()).count, default={})
    for site in [site for site in good if beside[site] != usual]:
        note(site, "set aside", "what came beside the model is not what most sites sent")
        del good[site]
    for site, reply in good.items():
        if kappa := reply.content.metric_records[METRICS].get(BLURRED):
            note(site, "blurred", f"patients could be read from its update: it added noise {kappa:g} times as large")
    note_silent((site for _, site in orders), answered, note)
    return good, spoilt


def note_silent(sent: Iterable[str], answered: Iterable[str], note: Note) -> None:
    """Note the sites that were sent an order and have not ``answered``."""
    for site in sorted(set(sent) - set(answered)):
        note(site, "silent", "no answer before the deadline")


def oversized(
    good: Mapping[str, Message], sent: Mapping[str, Slot], common: ArrayRecord, gate: float, alone: bool = False
) -> dict[str, str]:
    """The sites of good replies whose models are too large (:func:`fedsmall.travel.gate.too_large`), and why."""
    if not (gate and good):
        return {}
    came = stacked([array_records(reply.content)[MODEL] for reply in good.values()])
    were = stacked([sent[site].model for site in good])
    reasons = too_large(came, were, to_arrays(common), gate, alone=alone)
    return {site: reasons[row] for row, site in enumerate(good) if row in reasons}


def absurd(sent: Mapping[str, Slot], common: ArrayRecord) -> set[str]:
    """The sites that were sent a traveller which others had made absurd (:func:`fedsmall.travel.gate.outsize`)."""
    models = np.array([size(halves(to_arrays(slot.model))[0]) for slot in sent.values()])
    beside = np.array([size(to_arrays(slot.carried)) if slot.carried else 0.0 for slot in sent.values()])
    judged = zip(sent, outsize(models, beside, to_arrays(common)), strict=True)
    return {site for site, bad in judged if bad and sent[site].by}


def sound(slots: Iterable[Slot], common: ArrayRecord) -> bool:
    """Whether no traveller has outgrown the last common model (:func:`fedsmall.travel.gate.largest`)."""
    bound = largest(to_arrays(common))
    return all(slot.common or size(to_arrays(slot.model)) <= bound for slot in slots)


def by_order(orders: Sequence[tuple[Message, str]], replies: Iterable[Message], note: Note) -> dict[str, Message]:
    """The first reply to each order, by site."""
    sites = {order.metadata.message_id: site for order, site in orders}
    answered: dict[str, Message] = {}
    for reply in replies:
        site = sites.get(reply.metadata.reply_to_message_id)
        if site is None or site in answered:
            note(site or "?", "set aside", "answers no order of this contact, or answers it twice")
            continue
        answered[site] = reply
    return answered
