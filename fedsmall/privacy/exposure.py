"""How many patients each party of a simulated run could read from what it saw (:mod:`fedsmall.privacy.reading`).

Only a simulation holds all updates and all patients. Who knows where an update started:

- the server, which sent every model out; not of models that are sealed on their way, unless it makes an average of them
  that it sent out itself, nor of those of which it sees a secure sum;
- the site that gets a traveller next, where that set out from the common model, or is one that this site had sent
  itself and that comes back after one other site;
- everybody, of the change from one common model to the next, which is of all sites together, or of a group's (every
  site is taken to know every group's model, so more is counted than is seen).

A lower bound: other attacks find more, and of a long run some contacts are looked at, not all.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedsmall.data.federation import Samples
from fedsmall.plan import Plan
from fedsmall.privacy.reading import WITHIN, distances, layers_read, pad_records
from fedsmall.travel.journey import journey
from fedsmall.travel.moments import Initial, Moment, starting
from fedsmall.travel.schedule import Action, Contact, contacts_of
from fedsmall.wire import Arrays

EVERYBODY, NOBODY = -1, -2  # who knows the model that an update set out from, where it is no one site
CLOSE = 0.2  # of a record's norm: not read, but near it
LOOKS = 200  # contacts of a run that are looked at, at most; in equal distances, where a run has more
WORK = 2e9  # products that may be spent on that


class Exposure:
    """Counts, from the moments of a run, who could be read by whom.

    ``train`` are the samples of the sites ``names``, ``initial`` gives a site's first model (None: the global one).
    """

    def __init__(self, plan: Plan, names: tuple[str, ...], train: tuple[Samples, ...], initial: Initial) -> None:
        self.plan, self._place = plan, {name: place for place, name in enumerate(names)}
        self._initial, self._names = initial, names
        self.layers = _layers(plan, train, initial(None))
        self.looked = 0
        self._contacts = [contact for contact in contacts_of(plan) if contact.travels]
        if not self.layers:
            self._seen: frozenset[int] = frozenset()
            return
        self._records = pad_records([samples.x for samples in train])  # (sites, most, features)
        recorded = ~np.isnan(self._records).any(axis=2)
        self._number = np.cumsum(recorded).reshape(recorded.shape) - 1  # of every record
        self._all = self._records[recorded][None]  # (1, patients, features)
        parties = ("server", "neighbours", "averages")
        self._nearest = {party: np.full(recorded.sum(), np.inf) for party in parties}  # they have come to each record
        self._of_site: list[set[int]] = [set() for _ in names]
        way = list(_steps(plan, [len(samples) for samples in train]))
        self._way, self._seen = iter(way), self._chosen()
        self._turn = 0
        self._set_out([self._kept(model) for model in starting(plan, len(names), initial)], len(way[0].at))
        if plan.initial_models == "independent" and not plan.method.grouped:
            self._set_out_alone(way[0].at)

    def needs(self, contact: Contact) -> bool:
        """Whether the models must be seen as they leave at this contact."""
        return contact.t in self._seen

    def see(self, moment: Moment) -> None:
        """Take in what leaves the sites at a moment, where anything does."""
        if not self.layers or not moment.contact.travels:
            return
        passed, step = 0, next(self._way)
        while step.contact.t != moment.contact.t:
            passed, step = passed + 1, next(self._way)
        if passed:  # they went unseen, so nobody knows where this update set out from
            self._known = np.zeros(len(step.at), dtype=bool)
        self._look(moment, step)

    def _look(self, moment: Moment, step: "_Step") -> None:
        sites = np.array([self._place[site] for site in moment.sites], dtype=np.int64)
        rows = np.argsort(step.at)[np.searchsorted(np.sort(step.at), sites)]
        sent = self._kept(moment.models())
        if self._known[rows].any():
            self.looked += 1
            start = {name: array[rows] for name, array in self._start.items()}
            near = np.where(self._known[rows][:, None], distances(start, sent, self._records[sites]), np.inf)
            near[~np.isfinite(near)] = np.inf  # where there is no patient, nothing is near
            self._shown_to_server(near, sites, self._shown(step.contact, rows))
            if step.to is not None:
                self._show_to_neighbours(near, sites, self._from[rows], step.to[rows])
        if moment.commons:
            self._turn += 1
            commons = [self._kept(model) for model in moment.commons]
            for last, now in zip(self._commons, commons, strict=True):
                near = distances(_stack(last, 1), _stack(now, 1), self._all)[0]
                self._nearest["averages"] = np.minimum(self._nearest["averages"], near)
            self._set_out(commons, step.following)
        else:
            self._go_on(sent, rows, sites, len(step.at))

    def _shown(self, contact: Contact, rows: np.ndarray) -> np.ndarray:
        """Which rows the server sees as they leave their sites, and knows where they set out from: (rows,)."""
        privacy = self.plan.privacy
        every = np.ones(len(rows), dtype=bool)
        if contact.action is Action.PERMUTE:
            return ~every if privacy.sealed else every
        if privacy.secure:
            return ~every
        return every if not privacy.sealed else np.asarray(self._from[rows] == EVERYBODY)

    def _shown_to_server(self, near: np.ndarray, sites: np.ndarray, shown: np.ndarray) -> None:
        self._take("server", near[shown], sites[shown])

    def _show_to_neighbours(self, near: np.ndarray, sites: np.ndarray, set_out: np.ndarray, to: np.ndarray) -> None:
        known = (to != sites) & ((set_out == EVERYBODY) | (set_out == to))
        self._take("neighbours", near[known], sites[known])
        read = known[:, None] & (near <= WITHIN)
        for row in np.flatnonzero(read.any(axis=1)):
            self._of_site[to[row]] |= set(self._number[sites[row]][read[row]].tolist())

    def _take(self, party: str, near: np.ndarray, sites: np.ndarray) -> None:
        is_near = np.isfinite(near)
        records = self._number[sites][is_near]
        self._nearest[party][records] = np.minimum(self._nearest[party][records], near[is_near])

    def _set_out(self, commons: list[Arrays], count: int) -> None:
        """Let so many travellers set out from the global models of their groups."""
        groups = np.arange(count) % len(commons)
        if self.plan.method.by_samples:
            groups[:] = self._turn % len(commons)
        self._commons = commons
        self._start = {name: np.stack([model[name] for model in commons])[groups] for name in commons[0]}
        self._known, self._from = np.ones(count, dtype=bool), np.full(count, EVERYBODY)

    def _set_out_alone(self, at: np.ndarray) -> None:
        models = [self._kept(self._initial(self._names[site])) for site in at]
        self._start = {name: np.stack([model[name] for model in models]) for name in self._commons[0]}
        self._from[:] = NOBODY

    def _go_on(self, sent: Arrays, rows: np.ndarray, sites: np.ndarray, count: int) -> None:
        self._known, self._from = np.zeros(count, dtype=bool), np.full(count, NOBODY)
        self._known[rows], self._from[rows] = True, sites
        self._start = {name: np.empty((count, *array.shape[1:]), array.dtype) for name, array in sent.items()}
        for name, array in sent.items():
            self._start[name][rows] = array

    def result(self) -> dict[str, Any]:
        """Who could be read by whom, in numbers of patients; {"blind": true} where this attack has no layer to read.

        "server", "neighbours" (any site that is handed a model) and "averages" (any site, from global models) are
        counts of "patients"; "curious" is how many of others' records one site reads: [median, most]. "close" has the
        first three again, for records of which somebody comes within a fifth.
        """
        if not self.layers:
            return {"blind": True}
        others = [len(read) for read in self._of_site]
        parties = list(self._nearest) if self.plan.method.permutes else ["server", "averages"]
        counts: dict[str, Any] = {"patients": len(self._nearest["server"])}
        counts |= {"looked": self.looked, "contacts": len(self._contacts)}
        counts |= {party: int((self._nearest[party] <= WITHIN).sum()) for party in parties}
        counts["close"] = {party: int((self._nearest[party] <= CLOSE).sum()) for party in parties}
        return counts | ({"curious": [float(np.median(others)), max(others)]} if "neighbours" in parties else {})

    def _chosen(self) -> frozenset[int]:
        units = sum(self._kept(self._initial(None))[f"{layer}.weight"].shape[0] for layer in self.layers)
        work = units * self._records.size * len(self._contacts)
        count = min(len(self._contacts), LOOKS, max(2, int(len(self._contacts) * WORK / max(work, 1))))
        places = np.linspace(0, len(self._contacts) - 1, count).astype(int).tolist()
        return frozenset(self._contacts[k].t for place in places for k in (place - 1, place) if k >= 0)

    def _kept(self, model: Arrays) -> Arrays:
        names = [f"{layer}.{part}" for layer in self.layers for part in ("weight", "bias")]
        return {name: model[name] for name in names if name in model}


def _layers(plan: Plan, train: tuple[Samples, ...], model: Arrays) -> list[str]:
    """The layers that show whole records, where sites send models and their records are of one size.

    None under augmentation: what could be read is then no record that is known here.
    """
    widths = {samples.x[0].size for samples in train if len(samples)}
    if plan.recipe.augment is not None or not plan.method.is_federated or len(widths) != 1:
        return []
    return layers_read(model, widths.pop())


class _Step(NamedTuple):
    """A contact, the sites at which travellers train for it, and where they go to next, if it hands them on.

    ``following`` is how many travel to the next contact.
    """

    contact: Contact
    at: np.ndarray
    to: np.ndarray | None
    following: int


def _steps(plan: Plan, samples: Sequence[int]) -> Iterator[_Step]:
    way = list(journey(plan, len(samples), samples))
    for (contact, at), after in zip(way, [*way[1:], None], strict=True):
        hands_on = after is not None and contact.action is Action.PERMUTE
        to = after[1] if after is not None else at
        yield _Step(contact, at, to if hands_on else None, len(to))


def _stack(model: Arrays, count: int) -> Arrays:
    return {name: np.broadcast_to(array, (count, *array.shape)) for name, array in model.items()}
