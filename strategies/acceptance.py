"""Which of the replies to a contact's orders may be used."""

from collections.abc import Callable, Iterable, Sequence

from flwr.app import Message

from fedsmall.errors import ReplyError
from fedsmall.strategies.checks import NotFinite, companions
from fedsmall.wire import BLURRED, METRICS

Note = Callable[[str, str, str], None]


def accepted(
    orders: Sequence[tuple[Message, str]],
    replies: Iterable[Message],
    note: Note,
    check: Callable[[str, Message], None],
) -> tuple[dict[str, Message], dict[str, str]]:
    """The replies that may be used, by site in the order of names; and the sites whose models are not finite, and why.

    ``orders`` are the contact's, each with its site. ``check(site, reply)`` raises ReplyError, or NotFinite where
    numbers alone are wrong. A reply belongs to the order that it answers, whatever it says of itself.
    ``note(site, kind, reason)`` is told of every reply that is set aside, of every site that is silent, and of those
    that blurred what they sent.
    """
    answered = by_order(orders, replies, note)
    good: dict[str, Message] = {}
    spoilt: dict[str, str] = {}
    for site in sorted(answered):
        try:
            check(site, answered[site])
            good[site] = answered[site]
        except NotFinite as error:
            spoilt[site] = str(error)
        except ReplyError as error:
            note(site, "set aside", str(error))
    for site, reply in good.items():
        if kappa := reply.content.metric_records[METRICS].get(BLURRED):
            note(site, "blurred", f"patients could be read from its update: it added noise {kappa:g} times as large")
    for site in sorted({site for _, site in orders} - set(answered)):
        note(site, "silent", "no answer before the deadline")
    return good, spoilt


def leave_out_unusual(good: dict[str, Message], note: Note) -> None:
    """Take those out that sent something else beside the model than most sites did."""
    beside = {site: companions(reply) for site, reply in good.items()}
    usual = max(beside.values(), key=list(beside.values()).count, default={})
    for site in [site for site in good if beside[site] != usual]:
        note(site, "set aside", "what came beside the model is not what most sites sent")
        del good[site]


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
