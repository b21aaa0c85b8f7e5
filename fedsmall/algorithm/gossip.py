"""Algorithm 1 among sites without a server: messages that may be lost, who has which model, averages by gossip.

A model is one row wherever it is: a sender keeps a message until it is acknowledged and does not train it; a receiver
takes each in once, by its number (the alternating-bit protocol of Bartlett, Scantlebury & Wilkinson 1969). Models under
way do not train; several at a site train in order of arrival, one a communication round. An average takes those that
come while it lasts, and all models in a site's hands become its mean. The run's model is that of a site drawn by lot.

The mean of models: every site keeps half of a sum and sends the other half on, weight and all; a site that holds the
sum s with the weight w takes s / w for the mean. All sums and weights together stay what they were; where each exchange
is a random permutation, the sites' mean square distance from the one mean halves with every one. Sums are messages too,
for a lost one would shift the mean. Source: Kempe, Dobra & Gehrke 2003, protocol Push-Sum.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from fedsmall import parts
from fedsmall.algorithm.model_states import ModelStates
from fedsmall.algorithm.topologies import Topology
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.training.stack import Rows, Tensors, leaving_state
from fedsmall.travel.journey import RoundResult
from fedsmall.travel.schedule import Action, CommRound, bijection
from fedsmall.wire import Arrays

ACKNOWLEDGEMENT_BYTES = 16  # a sender's number and the message's
ACKNOWLEDGED = 3  # times: one that gets lost costs a whole model more
WEIGHT_BYTES = 8
MODEL_SENT, SHARE = 0, 1  # kinds of messages: a model that is handed on, a part of a sum
UNDER_WAY = -1


class Delivered(NamedTuple):
    """Messages that have come for the first time: what they hold, of which kind, and to whom: (messages,) each."""

    what: np.ndarray
    kind: np.ndarray
    receiver: np.ndarray


class Mail:
    """The open messages of all sites, in exchanges: each sends what is due and brings what arrives.

    ``sent`` counts messages by kind, ``acknowledged`` acknowledgements, until emptied; the rest is Topology's.
    """

    def __init__(self, seed: int, loss: float = 0.0, delay: int = 0) -> None:
        self.seed, self.loss, self.delay = seed, loss, delay
        self.exchanges = 0
        self.sent, self.acknowledged = np.zeros(2, dtype=np.int64), 0
        self._numbers = 0
        self._open = np.zeros((5, 0), dtype=np.int64)  # number, receiver, what, kind, the exchange to send it in
        self._flying = np.zeros((3, 0), dtype=np.int64)  # number, the exchange in which it arrives, acknowledgement
        self._had = np.zeros(0, dtype=bool)  # by its receiver: messages from number _oldest on
        self._oldest = 0

    def post(self, receivers: np.ndarray, what: np.ndarray, kind: int) -> None:
        """Give up messages of a ``kind`` (0 or 1) for these ``receivers``; they leave with the next exchange."""
        numbers = self._numbers + np.arange(len(what))
        self._numbers += len(what)
        due = np.full(len(what), self.exchanges + 1)
        messages = np.array([numbers, receivers, what, np.full(len(what), kind), due], dtype=np.int64)
        self._open = np.concatenate([self._open, messages], axis=1)
        self._had = np.concatenate([self._had, np.zeros(len(what), dtype=bool)])

    def exchange(self) -> Delivered:
        """Send what is due, bring what arrives, acknowledge it; gives the messages that come for the first time."""
        self.exchanges += 1
        rng = rng_for(self.seed, "letters", self.exchanges)
        due = self._open[4] <= self.exchanges
        self.sent += np.bincount(self._open[3, due], minlength=2)
        self._open[4, due] = self.exchanges + 1 + 2 * self.delay  # no sooner, for the answer may be under way
        self._fly(rng, self._open[0, due], acknowledgement=False)
        ids = self._take_landed(acknowledgement=False)
        ids = ids[self._had[ids - self._oldest] | np.isin(ids, self._open[0])]  # else they were withdrawn
        fresh = np.unique(ids[~self._had[ids - self._oldest]])
        self._had[fresh - self._oldest] = True
        self.acknowledged += ACKNOWLEDGED * len(ids)
        self._fly(rng, np.repeat(ids, ACKNOWLEDGED), acknowledgement=True)
        messages = self._open[:, np.searchsorted(self._open[0], fresh)]
        known = self._take_landed(acknowledgement=True)
        self._open = self._open[:, ~np.isin(self._open[0], known)]
        self._forget()
        return Delivered(messages[2], messages[3], messages[1])

    def withdraw(self, kind: int) -> None:
        """Send messages of a kind no more; those under way are not handed over."""
        self._open = self._open[:, self._open[3] != kind]

    def _fly(self, rng: np.random.Generator, numbers: np.ndarray, acknowledgement: bool) -> None:
        lasting = rng.random(len(numbers)) >= self.loss
        due = self.exchanges + rng.integers(0, self.delay + 1, len(numbers))
        flying = np.array([numbers, due, np.full(len(numbers), acknowledgement)], dtype=np.int64)[:, lasting]
        self._flying = np.concatenate([self._flying, flying], axis=1)

    def _take_landed(self, acknowledgement: bool) -> np.ndarray:
        down = (self._flying[1] <= self.exchanges) & (self._flying[2] == acknowledgement)
        numbers: np.ndarray = self._flying[0, down]
        self._flying = self._flying[:, ~down]
        return numbers

    def _forget(self) -> None:
        oldest = min(self._open[0].min(initial=self._numbers), self._flying[0].min(initial=self._numbers))
        self._had, self._oldest = self._had[oldest - self._oldest :], int(oldest)


class Places:
    """The places ``at`` which models are: (models,) numbers of ``sites``, or -1 for one under way."""

    def __init__(self, topology: parts.Topology, seed: int, sites: int, at: np.ndarray) -> None:
        self.topology, self.seed, self.sites = topology, seed, sites
        self.at = np.array(at)
        self.mail = Mail(seed, topology.loss, topology.delay)
        self._came = np.arange(len(at))  # in which order

    def training(self) -> np.ndarray:
        """The models that train next: of each site's the one that came first; (rows,), in order."""
        order = np.lexsort((self._came, self.at))
        _, first = np.unique(self.at[order], return_index=True)
        rows = order[first]
        return np.sort(rows[self.at[rows] != UNDER_WAY])

    def send_on(self, rows: np.ndarray, t: int) -> None:
        """Hand models on after round ``t``, by the permutation that a server would follow, or along the ring."""
        to = self.next_sites(t)[self.at[rows]]
        departing = rows[to != self.at[rows]]
        self.mail.post(to[to != self.at[rows]], departing, MODEL_SENT)
        self.at[departing] = UNDER_WAY

    def exchange(self) -> tuple[np.ndarray, Delivered]:
        """One exchange: gives the models that came, and of the shares what the mail gives."""
        delivered = self.mail.exchange()
        is_model = delivered.kind == MODEL_SENT
        rows = delivered.what[is_model]
        self.at[rows] = delivered.receiver[is_model]
        self._came[rows] = self._came.max(initial=0) + 1 + np.arange(len(rows))
        return rows, Delivered(*(column[~is_model] for column in delivered))

    def next_sites(self, t: int, exchange: int | None = None) -> np.ndarray:
        """To whom each site sends: (sites,); at a hop after round ``t``, or at an ``exchange`` of its average."""
        if self.topology.by == "ring":
            return (np.arange(self.sites) + 1) % self.sites
        if exchange is None:
            return bijection(self.seed, t, self.sites)
        return np.asarray(rng_for(self.seed, "gossip", t, exchange).permutation(self.sites))


class Shares(NamedTuple):
    """Halves that were sent together, from number ``first`` on: ``sums`` in the models' own dtypes, as they travel."""

    first: int
    sums: Tensors
    weights: np.ndarray


def floats_of(tensors: Tensors) -> Tensors:
    """The tensors of which there is a mean: all but counters."""
    return {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}


class PushSum:
    """What so many ``sites`` hold of a sum of models that are ``like`` these; counters are no part of it."""

    def __init__(self, sites: int, like: Tensors) -> None:
        floats = floats_of(like)
        self._dtypes = {name: tensor.dtype for name, tensor in floats.items()}
        self.sums: Tensors = {n: torch.zeros((sites, *t.shape[1:]), dtype=torch.float64) for n, t in floats.items()}
        self.weights = np.zeros(sites)
        self._shares: list[Shares] = []
        self._taken: dict[int, int] = {}  # how many of those that were sent together have come
        self._sent = 0

    def join(self, sites: np.ndarray, models: Tensors, weights: np.ndarray) -> None:
        """Add models, {name: (models, ...)}, at these ``sites``, each with its weight."""
        factor, index = torch.from_numpy(np.asarray(weights, dtype=np.float64)), torch.from_numpy(sites)
        for name, held in self.sums.items():
            part = models[name].to(device="cpu", dtype=torch.float64)
            held.index_add_(0, index, part * factor.reshape(-1, *[1] * (part.dim() - 1)))
        np.add.at(self.weights, sites, weights)

    def halve(self, to: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Send half of what every site holds ``to`` another, (sites,): gives receivers and the shares' numbers."""
        senders = np.flatnonzero((self.weights > 0) & (to != np.arange(len(to))))
        index = torch.from_numpy(senders)
        halves = {name: (held[index] / 2).to(self._dtypes[name]) for name, held in self.sums.items()}
        for name, held in self.sums.items():
            held[index] -= halves[name].to(torch.float64)  # what rounding left over stays here
        self.weights[senders] /= 2
        self._shares.append(Shares(self._sent, halves, self.weights[senders]))
        numbers = self._sent + np.arange(len(senders))
        self._sent += len(senders)
        return to[senders], numbers

    def take(self, receivers: np.ndarray, numbers: np.ndarray) -> None:
        """Add shares that have come, by their numbers."""
        for first, sums, weights in self._shares:
            inside = (numbers >= first) & (numbers < first + len(weights))
            if inside.any():
                rows = numbers[inside] - first
                into = torch.from_numpy(receivers[inside])
                for name, held in self.sums.items():
                    held.index_add_(0, into, sums[name][torch.from_numpy(rows)].to(torch.float64))
                np.add.at(self.weights, receivers[inside], weights[rows])
                self._taken[first] = self._taken.get(first, 0) + len(rows)
        self._shares = [share for share in self._shares if self._taken.get(share.first, 0) < len(share.weights)]

    def means(self) -> tuple[np.ndarray, Tensors]:
        """The sites that have a mean, in order, and what they have: {name: (sites, ...)} in the models' dtypes."""
        sites = np.flatnonzero(self.weights > 0)
        weights, index = torch.from_numpy(self.weights[sites]), torch.from_numpy(sites)
        means = {
            name: (held[index] / weights.reshape(-1, *[1] * (held.dim() - 1))).to(self._dtypes[name])
            for name, held in self.sums.items()
        }
        return sites, means


class Peers(Topology):
    """The sites of ``states``, which send each other what others send a server, to whom ``PLACES`` say."""

    has_places = False
    PLACES: type[Places] = Places  # a package may bring its own (fedsmall.topologies)

    def __init__(self, plan: Plan, states: ModelStates) -> None:
        super().__init__(plan, states)
        assert plan.method.topology is not None
        states.careful = True  # messages come and go at every communication round
        states.move = lambda at, before, comm_round: at  # they bring models
        self.topology, self.names = plan.method.topology, states.names
        self._lot = rng_for(plan.travel_seed, "the model that is kept").permutation(len(self.names))
        self._places: Places | None = None

    def walk(self, stretch: Sequence[CommRound]) -> RoundResult:
        """Train what is in hand at one communication round, and let it travel."""
        (comm_round,) = stretch
        states, places = self.states, self._set_out(comm_round)
        rows = places.training()  # in a piece of a round those that trained in the one before: nothing has moved
        result = states.walk_some(rows, places.at, comm_round)
        if comm_round.action is Action.PERMUTE:
            places.send_on(rows, comm_round.t)
            for _ in range(self.topology.tries):
                places.exchange()
        return result if comm_round.action is Action.AGGREGATE else result._replace(bytes_sent=self._bytes(places))

    def average(self, result: RoundResult) -> Iterator[RoundResult]:
        """Let every site have a mean of its own, which the models in its hands become."""
        places = self._set_out(result.comm_round)
        yield self._agree(result, places)._replace(bytes_sent=self._bytes(places))

    def _set_out(self, comm_round: CommRound) -> Places:
        if self._places is None:
            self.states.depart(comm_round)
            self._places = self.PLACES(self.topology, self.plan.travel_seed, len(self.names), self.states.at)
        return self._places

    def _agree(self, result: RoundResult, places: Places) -> RoundResult:
        states = self.states
        sums = PushSum(len(self.names), states.stack.state)
        self._bring_in(sums, places, np.flatnonzero(places.at != UNDER_WAY))
        for exchange in range(self.topology.exchanges):
            receivers, shares = sums.halve(places.next_sites(result.comm_round.t, exchange))
            places.mail.post(receivers, shares, SHARE)
            arrived, delivered = places.exchange()
            sums.take(delivered.receiver, delivered.what)
            self._bring_in(sums, places, arrived)
        places.mail.withdraw(SHARE)
        sites, means = sums.means()
        states.become(places.at, sites, means)
        models = self._whole(means, len(sites))
        if not len(sites):
            return result
        kept = int(np.searchsorted(sites, self._lot[np.isin(self._lot, sites)][0]))
        return result._replace(
            global_model={name: array[kept] for name, array in models.items()},
            sites=tuple(self.names[site] for site in sites),
            models=lambda: models,
        )

    def _bring_in(self, sums: PushSum, places: Places, rows: np.ndarray) -> None:
        """Bring models into an average: of those in hand the ones that were trained since the last."""
        rows = rows[self.states.trained[rows]]
        sums.join(places.at[rows], self.states.stack.rows(rows).state, self.states.weights(rows))

    def _whole(self, means: Tensors, sites: int) -> Arrays:
        """The sites' means as arrays, with the counters of the first model, which have no mean."""
        state = self.states.stack.state
        counters = {name: tensor[:1].expand(sites, *tensor.shape[1:]) for name, tensor in state.items()}
        return Rows({name: means.get(name, counters[name]) for name in state}).arrays()

    def _bytes(self, places: Places) -> int:
        stack, mail = self.states.stack, places.mail
        moments = Rows(leaving_state(self.plan.recipe, stack.optimizer)).bytes_per_row if stack.optimizer else 0
        model, floats = (Rows(some).bytes_per_row for some in (stack.state, floats_of(stack.state)))
        of_kinds: Sequence[int] = mail.sent.tolist()
        total = of_kinds[MODEL_SENT] * (model + moments) + of_kinds[SHARE] * (floats + WEIGHT_BYTES)
        total += mail.acknowledged * ACKNOWLEDGEMENT_BYTES
        mail.sent[:], mail.acknowledged = 0, 0
        return total
