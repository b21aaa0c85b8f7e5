"""Who has which traveller where there is no server: in hand at a site, or under way in a letter.

A traveller is one row wherever it is: a sender that keeps a letter until it is acknowledged never trains what it keeps,
and a receiver takes a letter in once. So none is lost and none is doubled, whatever is lost on the way. One that comes
late may find another at its site: they train there in the order in which they came, one a contact.
"""

import numpy as np

from fedsmall.parts import Topology
from fedsmall.randomness import rng_for
from fedsmall.travel.peers.mail import Delivered, Mail
from fedsmall.travel.schedule import bijection

TRAVELLER, PARCEL = 0, 1  # kinds of letters: a model that is handed on, a part of a sum
UNDER_WAY = -1


class Places:
    """The places of travellers that set out at the sites ``at``, (travellers,), of so many ``sites``.

    Afterwards ``at`` says who has each in hand, or -1 for one that is under way.
    """

    def __init__(self, topology: Topology, seed: int, sites: int, at: np.ndarray) -> None:
        self.topology, self.seed, self.sites = topology, seed, sites
        self.at = np.array(at)
        self.mail = Mail(seed, topology.loss, topology.delay)
        self._came = np.arange(len(at))  # in which order

    def training(self) -> np.ndarray:
        """The travellers that train next: of each site's the one that came first; (rows,), in order."""
        order = np.lexsort((self._came, self.at))
        _, first = np.unique(self.at[order], return_index=True)
        rows = order[first]
        return np.sort(rows[self.at[rows] != UNDER_WAY])

    def send_on(self, rows: np.ndarray, t: int) -> None:
        """Hand travellers on after round ``t``, by the permutation that a server would follow, or along the ring."""
        to = self.next_sites(t)[self.at[rows]]
        leaving = rows[to != self.at[rows]]
        self.mail.post(to[to != self.at[rows]], leaving, TRAVELLER)
        self.at[leaving] = UNDER_WAY

    def exchange(self) -> tuple[np.ndarray, Delivered]:
        """One exchange: gives the travellers that came, and of the parcels what the mail gives."""
        delivered = self.mail.exchange()
        travellers = delivered.kind == TRAVELLER
        rows = delivered.what[travellers]
        self.at[rows] = delivered.receiver[travellers]
        self._came[rows] = self._came.max(initial=0) + 1 + np.arange(len(rows))
        return rows, Delivered(*(column[~travellers] for column in delivered))

    def next_sites(self, t: int, exchange: int | None = None) -> np.ndarray:
        """To whom each site sends: (sites,); at a hop after round ``t``, or at an ``exchange`` of its average.

        Drawn so that every site sends to one and hears from one, itself where the lot falls so.
        """
        if self.topology.by == "ring":
            return (np.arange(self.sites) + 1) % self.sites
        if exchange is None:
            return bijection(self.seed, t, self.sites)
        drawn: np.ndarray = rng_for(self.seed, "gossip", t, exchange).permutation(self.sites)
        return drawn
