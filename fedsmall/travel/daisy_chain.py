"""Federated daisy-chaining on one stack of models (Kamp, Fischer & Vreeken, ICLR 2023, Algorithm 1).

Row k of the stack is a traveller: a model, and ``at[k]`` the site where it is. A permutation changes ``at``, an
aggregation the rows (of each group, where models travel in groups). Everything that runs without a network calls
:func:`daisy_chain`; at real sites :class:`strategies.daisy_chain.DaisyChain` does the same with messages, and shares
the routes, the draws, what counts and the combiners. A test holds the two together.
"""

from collections.abc import Callable, Iterable, Iterator

from fedsmall.plan import Plan
from fedsmall.travel.commons import Event
from fedsmall.travel.dynamic.balancing import is_dynamic
from fedsmall.travel.dynamic.stack import DynamicAverages
from fedsmall.travel.moments import Moment
from fedsmall.travel.peers.walk import Peers
from fedsmall.travel.regions import meet, regions_of
from fedsmall.travel.schedule import Action, Contact
from fedsmall.travel.travellers import Travellers


def daisy_chain(
    plan: Plan,
    travellers: Travellers,
    contacts: Iterable[Contact],
    due: Callable[[Contact], bool] = lambda contact: False,
) -> Iterator[Moment]:
    """Algorithm 1 over the sites of ``travellers``: a moment for each stretch of contacts that can be walked in one go.

    A stretch ends with an aggregation, and where somebody must see the models (``due``) or draw noise for them.
    Departs from Algorithm 1 as printed as :class:`~fedsmall.travel.schedule.Schedule` does: aggregation wins a tie.
    """
    commons = travellers.commons
    if plan.method.topology is not None:
        peers = Peers(plan, travellers)
        yield from (peers.walk(contact, commons.order_rule()) for contact in contacts)
        return
    dynamic = DynamicAverages(plan, travellers) if is_dynamic(plan.method) else None
    for stretch in stretches(contacts, lambda contact: travellers.careful or due(contact)):
        left = [stretch]
        while left:
            now = left.pop(0)
            moment = travellers.walk(now, commons.order_rule())  # lines 4 to 8: train, and let models travel
            if moment is None:  # a model is not what it should be: again in parts, so that it is stopped where it arose
                length = 1 if travellers.careful else (len(now) + 1) // 2
                left = [*(now[k : k + length] for k in range(0, len(now), length)), *left]
                continue
            contact = now[-1]
            if contact.action is not Action.AGGREGATE:
                yield moment
            elif dynamic is not None:
                yield from dynamic.average(moment)
            else:  # lines 9 to 12: the models become one, which all sites get
                told, between = _aggregate(plan, travellers, contact)
                events = moment.events + told
                made, kept = commons.result() if commons.agreed else None, tuple(commons.models)
                moment = moment._replace(common=made, commons=kept, of_routes=commons.of_routes, events=events)
                yield moment._replace(bytes_between=moment.bytes_between + between)
                travellers.become_common()


def _aggregate(plan: Plan, travellers: Travellers, contact: Contact) -> tuple[list[Event], int]:
    """Make the groups' next common models; plain means at once; or the regions', which may become one.

    Gives events, and the bytes that regions have sent each other.
    """
    commons = travellers.commons
    if plan.method.region_count > 1:
        travellers.group = regions_of(plan, len(travellers.names))[travellers.at]
        travellers.refused, told = commons.aggregate(travellers.updates, contact.t, travellers.gate)
        return told, commons.unite(travellers.shares()) if meet(plan, contact) else 0
    means = travellers.means()
    if means is None:
        travellers.refused, told = commons.aggregate(travellers.updates, contact.t, travellers.gate)
        return told, 0
    commons.go_on_with(means)
    travellers.refused = set()
    return [], 0


def stretches(contacts: Iterable[Contact], ends: Callable[[Contact], bool]) -> Iterator[list[Contact]]:
    """Contacts that can be walked in one go: up to the next one at whose end somebody must act."""
    stretch: list[Contact] = []
    for contact in contacts:
        stretch.append(contact)
        if contact.action is Action.AGGREGATE or ends(contact):
            yield stretch
            stretch = []
    if stretch:
        yield stretch
