"""Which of the replies to a contact's orders may be used."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from flwr.app import Message

from fedsmall.errors import ReplyError
from strategies.checks import Signature, check_reply, companions, signature
from strategies.slots import Slot

Note = Callable[[str, str, str], None]


def accepted(
    orders: Sequence[tuple[Message, str]], replies: Iterable[Message], sent: Mapping[str, Slot], note: Note
) -> dict[str, Message]:
    """The replies that may be used, by site in the order of names.

    ``orders`` are the contact's, each with its site; ``sent`` is what each site was sent. A reply belongs to the order
    that it answers, whatever it says of itself. ``note(site, kind, reason)`` is told of every reply that is set aside
    and of every site that is silent.
    """
    answered = _by_order(orders, replies, note)
    good: dict[str, Message] = {}
    beside: dict[str, dict[str, Signature]] = {}
    for site in sorted(answered):
        try:
            check_reply(answered[site], signature(sent[site].model))
            good[site], beside[site] = answered[site], companions(answered[site])
        except ReplyError as error:
            note(site, "set aside", str(error))
    usual = max(beside.values(), key=list(beside.values()).count, default={})
    for site in [site for site in good if beside[site] != usual]:
        note(site, "set aside", "what came beside the model is not what most sites sent")
        del good[site]
    for site in sorted(set(sent) - set(answered)):
        note(site, "silent", "no answer before the deadline")
    return good


def _by_order(orders: Sequence[tuple[Message, str]], replies: Iterable[Message], note: Note) -> dict[str, Message]:
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
