"""Algorithm 1 among sites without a server: what is different at a contact, for :mod:`fedsmall.travel.daisy_chain`.

Who sends to whom follows from the plan, which all sites know; nobody has to say it. Travellers that are under way do
not train; at an average those that come while it lasts join in, and one that comes later goes on as it is and counts in
the next. After it every site has a mean of its own, which all travellers in its hands become. What is kept and judged
as the run's model is that of one site, drawn by lot before the run.
"""

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np

from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.training.stack import Rows, Tensors, leaving
from fedsmall.travel.moments import Moment
from fedsmall.travel.peers.mail import ACKNOWLEDGEMENT_BYTES
from fedsmall.travel.peers.places import PARCEL, TRAVELLER, UNDER_WAY, Places
from fedsmall.travel.peers.push_sum import WEIGHT_BYTES, PushSum
from fedsmall.travel.schedule import Action, Contact
from fedsmall.travel.topologies import Topology
from fedsmall.travel.travellers import Travellers
from fedsmall.wire import Arrays


@final
class Peers(Topology):
    """The sites of ``travellers``, which send each other what others send a server."""

    has_places = False

    def __init__(self, plan: Plan, travellers: Travellers) -> None:
        super().__init__(plan, travellers)
        assert plan.method.topology is not None
        travellers.careful = True  # letters come and go at every contact
        self.topology, self.names = plan.method.topology, travellers.names
        self._lot = rng_for(plan.travel_seed, "the model that is kept").permutation(len(self.names))
        self._places: Places | None = None

    def walk(self, stretch: Sequence[Contact]) -> Moment:
        """Train what is in hand at one contact, and let it travel."""
        (contact,) = stretch
        travellers, places = self.travellers, self._set_out(contact)
        rows = places.training()  # in a piece of a contact those that trained in the one before: nothing has moved
        moment = travellers.walk_some(rows, places.at, contact, travellers.commons.order_rule())
        if contact.action is Action.PERMUTE:
            places.send_on(rows, contact.t)
            for _ in range(self.topology.tries):
                places.exchange()
        return moment if contact.action is Action.AGGREGATE else moment._replace(bytes_sent=self._bytes(places))

    def average(self, moment: Moment) -> Iterator[Moment]:
        """Let every site have a mean of its own, which the travellers in its hands become."""
        places = self._set_out(moment.contact)
        moment = self._agree(moment, places)
        yield moment._replace(bytes_sent=self._bytes(places))

    def _set_out(self, contact: Contact) -> Places:
        if self._places is None:
            self.travellers.depart(contact)
            self._places = Places(self.topology, self.plan.travel_seed, len(self.names), self.travellers.at)
        return self._places

    def _agree(self, moment: Moment, places: Places) -> Moment:
        """The moment with what every site has after an average; travellers in hand become that."""
        travellers = self.travellers
        sums = PushSum(len(self.names), travellers.stack.state)
        self._join(sums, places, np.flatnonzero(places.at != UNDER_WAY))
        for exchange in range(self.topology.exchanges):
            receivers, parcels = sums.halve(places.next_sites(moment.contact.t, exchange))
            places.mail.post(receivers, parcels, PARCEL)
            arrived, delivered = places.exchange()
            sums.take(delivered.receiver, delivered.what)
            self._join(sums, places, arrived)
        places.mail.withdraw(PARCEL)
        sites, means = sums.means()
        travellers.become(places.at, sites, means)
        models = self._whole(means, len(sites))
        if not len(sites):
            return moment
        kept = int(np.searchsorted(sites, self._lot[np.isin(self._lot, sites)][0]))
        return moment._replace(
            common={name: array[kept] for name, array in models.items()},
            sites=tuple(self.names[site] for site in sites),
            models=lambda: models,
        )

    def _join(self, sums: PushSum, places: Places, rows: np.ndarray) -> None:
        """Bring travellers into an average, of those in hand the ones that were trained since the last."""
        rows = rows[self.travellers.trained[rows]]
        weights = self.travellers.weights(rows)
        sums.join(places.at[rows], self.travellers.stack.rows(rows).state, weights)

    def _whole(self, means: Tensors, sites: int) -> Arrays:
        """The sites' means as arrays, with the counters of the first traveller: no mean of theirs has a meaning."""
        state = self.travellers.stack.state
        counters = {name: tensor[:1].expand(sites, *tensor.shape[1:]) for name, tensor in state.items()}
        return Rows({name: means.get(name, counters[name]) for name in state}).arrays()

    def _bytes(self, places: Places) -> int:
        """What the letters carried since the last look, as often as they were sent, and all acknowledgements."""
        stack, mail = self.travellers.stack, places.mail
        moments = Rows(leaving(self.plan.recipe, stack.optimizer)).bytes_per_row if stack.optimizer else 0
        model, floats = (
            Rows(some).bytes_per_row
            for some in (stack.state, {name: t for name, t in stack.state.items() if t.is_floating_point()})
        )
        of_kinds: Sequence[int] = mail.sent.tolist()
        total = of_kinds[TRAVELLER] * (model + moments) + of_kinds[PARCEL] * (floats + WEIGHT_BYTES)
        total += mail.acknowledged * ACKNOWLEDGEMENT_BYTES
        mail.sent[:], mail.acknowledged = 0, 0
        return total
