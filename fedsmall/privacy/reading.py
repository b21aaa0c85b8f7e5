"""Reading: whose complete record stands in one update, for whoever knows the model that it set out from.

In a layer that sees the record itself, the gradient of a unit's weights is the sum over patients of (slope * record),
and that of its bias the sum of the slopes. Where one patient alone moved a unit, as many do in small batches, change of
weights / change of bias is that patient's record, whatever the learning rate and the number of steps. It reaches dense
layers behind the input and convolutions as large as the image; attacks that invert by optimisation may find more.

:class:`Exposure` counts how many patients each party of a simulated run could read. Who knows where an update started:
the server, which sent every model out (not of sealed ones, unless of an average that it sent out itself, nor of those
in a secure sum); the site that gets a model next, where that set out from the global model, or is its own that comes
back after one other site; and everybody of the change from one global model to the next, of all sites together or of
a group (every site is taken to know every group's model, so more is counted than is seen).

Source: Phong et al. 2018, "Privacy-preserving deep learning via additively homomorphic encryption", section 3.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedsmall.data.federation import Samples
from fedsmall.plan import Plan
from fedsmall.travel.journey import Initial, RoundResult, journey, starting
from fedsmall.travel.schedule import Action, CommRound, comm_rounds_of, times_travelled
from fedsmall.wire import Arrays, first_of, stack_of_one

WITHIN = 0.01  # of the record's own norm: all its numbers together


def layers_read(model: Arrays, features: int) -> list[str]:
    """The names of the layers whose units each see a whole record of so many numbers; empty: nothing to read there."""
    weights = (name.removesuffix(".weight") for name in model if name.endswith(".weight"))
    return [layer for layer in weights if model[f"{layer}.weight"][0].size == features]


def records_read(
    start: Arrays, sent: Arrays, patients: np.ndarray, within: float = WITHIN, sizes: np.ndarray | None = None
) -> np.ndarray:
    """Which patients can be read from one update, (patients,) of bool.

    ``start`` is the model that the site set out from and ``sent`` the one that left it, by the names of ``state_dict``;
    ``patients`` are the records as the model sees them, (patients, ...). A record counts as read where all its numbers
    together are ``within`` this share of its norm, or of ``sizes``, (patients,).
    """
    records = np.asarray(patients)[None]
    all_sizes = None if sizes is None else sizes[None]
    return np.asarray(read_from_stack(stack_of_one(start), stack_of_one(sent), records, within, all_sizes)[0])


def distances_to_others(patients: np.ndarray) -> np.ndarray:
    """How far each record is from the mean of the site's others, (patients,): a size for features not at mean 0."""
    records = np.asarray(patients, dtype=np.float64).reshape(len(patients), -1)
    others = len(records) - 1
    if others < 1:
        return np.asarray(np.linalg.norm(records, axis=1))
    return np.asarray(np.linalg.norm(records - records.mean(axis=0), axis=1) * (len(records) / others))


def read_from_stack(
    start: Arrays, sent: Arrays, patients: np.ndarray, within: float = WITHIN, sizes: np.ndarray | None = None
) -> np.ndarray:
    """:func:`records_read` for many updates at once: {name: (models, ...)}, patients (models, most, ...).

    Missing patients are NaN (:func:`pad_records`), never read. The result and ``sizes`` have shape (models, most).
    """
    return np.asarray(distances(start, sent, patients, sizes) <= within)


def distances(start: Arrays, sent: Arrays, patients: np.ndarray, sizes: np.ndarray | None = None) -> np.ndarray:
    """How near the nearest candidate is to every record, as a share of its norm or of ``sizes``: (models, most)."""
    records = patients.reshape(*patients.shape[:2], -1)  # (models, most, features)
    squares = _squares(records)
    nearest = np.full(squares.shape, np.inf)
    for layer in layers_read(first_of(sent), records.shape[-1]):
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            weight, bias = f"{layer}.weight", f"{layer}.bias"
            moved = sent[weight] - start[weight]  # exact but for its own last digit: the two are close
            scale = sent[bias] - start[bias] if bias in sent else None
            nearest = np.fmin(nearest, _nearest(moved.reshape(*moved.shape[:2], -1), scale, records, squares))
    lengths = squares if sizes is None else np.square(sizes)
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = np.sqrt(np.maximum(nearest, 0) / lengths)
    shares = np.where(nearest <= 0, 0.0, shares)  # a record of nothing but zeros, too
    return np.asarray(np.where(np.isnan(shares), np.inf, shares))


def pad_records(sites: Sequence[np.ndarray]) -> np.ndarray:
    """The records of several sites as one array, (sites, most, features), NaN where a site has fewer."""
    rows = [np.asarray(records).reshape(len(records), -1) for records in sites]
    out = np.full((len(rows), max(map(len, rows)), rows[0].shape[1]), np.nan)
    for place, records in zip(out, rows, strict=True):
        place[: len(records)] = records
    return out


def _nearest(moved: np.ndarray, scale: np.ndarray | None, records: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """The squared distance of every record to the nearest candidate, (models, most); never from a unit that is still.

    A candidate is a unit's change of weights over that of its bias; without biases, times the best factor.
    """
    products = moved @ np.swapaxes(records, 1, 2).astype(moved.dtype, copy=False)  # (models, units, most)
    lengths = _squares(moved)[..., None]  # (models, units, 1)
    if scale is None:
        distances = np.where(products == 0, np.inf, squares[:, None] - np.square(products) / lengths)
    else:
        by = scale[..., None]
        distances = lengths / by**2 - 2 * products / by + squares[:, None]
    return np.asarray(np.fmin.reduce(distances, axis=1, initial=np.inf))  # what is not a number is nowhere near


def _squares(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("...f,...f->...", vectors, vectors))


EVERYBODY, NOBODY = -1, -2  # who knows the model that an update set out from, where it is no one site
CLOSE = 0.2  # of a record's norm: not read, but near it
LOOKS = 200  # communication rounds of a run that are looked at, at most; in equal distances, where a run has more
WORK = 2e9  # products that may be spent on that
BEARS = "ours lost little at 4, and twenty points or more at 8"  # examples/attacks_and_defences.py
BORNE = (
    "{label}: exposure = {exposure:g} makes the noise in an average about {size:.2g} times as large as an update, by "
    f"an estimate; {BEARS}. A smaller model, fewer rounds, larger batches and more sites make it less."
)


def looks(plan: Plan, numbers: int, patients: int, features: int) -> float | None:
    """What blur lets be told of a record: numbers * comm_rounds / (blur**2 * patients * features); None without.

    An estimate of the information of :mod:`fedsmall.training.information`, of which it is one to two times in a run's
    first communication rounds, and more where training has come to rest.
    """
    blur = plan.privacy.blur
    return numbers * times_travelled(plan, plan.rounds) / (blur**2 * patients * features) if blur else None


def noise_borne(plan: Plan, numbers: int, patients: int, features: int, sites: int) -> str:
    """A line on how large the noise of a plan's exposure will be in an average, by an estimate; "" without one."""
    recipe, method, exposure = plan.recipe, plan.method, plan.privacy.exposure
    comm_rounds = times_travelled(plan, plan.rounds)
    if exposure is None or not comm_rounds:
        return ""
    steps = (recipe.steps or patients) * plan.rounds // comm_rounds  # of a round, each on a batch
    seen = min(patients, (recipe.batch or patients) * max(1, steps))
    every = method.aggregate_every or plan.rounds
    stretch = max(1, every // (method.permute_every or every))
    size = noise_in_average(exposure, numbers, comm_rounds, seen, features, method.averaged(sites), stretch)
    return BORNE.format(label=method.label, exposure=exposure, size=size)


def noise_in_average(
    exposure: float, numbers: int, comm_rounds: int, patients: int, features: int, models: int, stretch: int
) -> float:
    """Noise of an ``exposure`` in an average of ``models``, over a site's update: as :func:`looks` estimates it.

    ``patients`` are in a round's batches; between averages a model gathers the noise of ``stretch`` of them.
    """
    return float(np.sqrt(numbers * comm_rounds / (exposure * patients * features) * stretch / models))


class Exposure:
    """Counts, from the moments of a run over the sites ``names`` with samples ``train``, who could be read by whom."""

    def __init__(self, plan: Plan, names: tuple[str, ...], train: tuple[Samples, ...], initial: Initial) -> None:
        self.plan, self._place = plan, {name: place for place, name in enumerate(names)}
        self.layers = _layers(plan, train, initial(None))
        self.looked = 0
        self._comm_rounds = [comm_round for comm_round in comm_rounds_of(plan) if comm_round.travels]
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
        self._way, self._seen = iter(way), self._chosen(initial(None))
        self._turn = 0
        self._set_out([self._kept(model) for model in starting(plan, len(names), initial)], len(way[0].at))
        if plan.initial_models == "independent" and not plan.method.grouped:
            models = [self._kept(initial(names[site])) for site in way[0].at]
            self._start = {name: np.stack([model[name] for model in models]) for name in self._global_models[0]}
            self._from[:] = NOBODY

    def needs(self, comm_round: CommRound) -> bool:
        """Whether the models must be seen as they leave at this communication round."""
        return comm_round.t in self._seen

    def see(self, result: RoundResult) -> None:
        """Take in what has left the sites by a result, where anything has."""
        if not self.layers or not result.comm_round.travels:
            return
        passed, step = 0, next(self._way)
        while step.comm_round.t != result.comm_round.t:
            passed, step = passed + 1, next(self._way)
        if passed:  # they went unseen, so nobody knows where this update set out from
            self._known = np.zeros(len(step.at), dtype=bool)
        self._look(result, step)

    def _look(self, result: RoundResult, step: "_Step") -> None:
        sites = np.array([self._place[site] for site in result.sites], dtype=np.int64)
        rows = np.argsort(step.at)[np.searchsorted(np.sort(step.at), sites)]
        sent = self._kept(result.models())
        if self._known[rows].any():
            self.looked += 1
            start = {name: array[rows] for name, array in self._start.items()}
            near = np.where(self._known[rows][:, None], distances(start, sent, self._records[sites]), np.inf)
            near[~np.isfinite(near)] = np.inf  # where there is no patient, nothing is near
            shown = self._shown(step.comm_round, rows)
            self._take("server", near[shown], sites[shown])
            if step.to is not None:
                self._show_to_neighbours(near, sites, self._from[rows], step.to[rows])
        if result.global_models:
            self._turn += 1
            models = [self._kept(model) for model in result.global_models]
            for last, now in zip(self._global_models, models, strict=True):
                near = distances(_stack(last, 1), _stack(now, 1), self._all)[0]
                self._nearest["averages"] = np.minimum(self._nearest["averages"], near)
            self._set_out(models, step.following)
        else:
            self._go_on(sent, rows, sites, len(step.at))

    def _shown(self, comm_round: CommRound, rows: np.ndarray) -> np.ndarray:
        """Which rows the server sees as they leave their sites, and knows where they set out from: (rows,)."""
        privacy = self.plan.privacy
        every = np.ones(len(rows), dtype=bool)
        if comm_round.action is Action.PERMUTE:
            return ~every if privacy.sealed else every
        if privacy.secure:
            return ~every
        return every if not privacy.sealed else np.asarray(self._from[rows] == EVERYBODY)

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

    def _set_out(self, models: list[Arrays], count: int) -> None:
        groups = np.arange(count) % len(models)
        if self.plan.method.by_samples:
            groups[:] = self._turn % len(models)
        self._global_models = models
        self._start = {name: np.stack([model[name] for model in models])[groups] for name in models[0]}
        self._known, self._from = np.ones(count, dtype=bool), np.full(count, EVERYBODY)

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
        counts |= {"looked": self.looked, "contacts": len(self._comm_rounds)}
        counts |= {party: int((self._nearest[party] <= WITHIN).sum()) for party in parties}
        counts["close"] = {party: int((self._nearest[party] <= CLOSE).sum()) for party in parties}
        return counts | ({"curious": [float(np.median(others)), max(others)]} if "neighbours" in parties else {})

    def _chosen(self, model: Arrays) -> frozenset[int]:
        units = sum(model[f"{layer}.weight"].shape[0] for layer in self.layers)
        work = units * self._records.size * len(self._comm_rounds)
        count = min(len(self._comm_rounds), LOOKS, max(2, int(len(self._comm_rounds) * WORK / max(work, 1))))
        places = np.linspace(0, len(self._comm_rounds) - 1, count).astype(int).tolist()
        return frozenset(self._comm_rounds[k].t for place in places for k in (place - 1, place) if k >= 0)

    def _kept(self, model: Arrays) -> Arrays:
        names = [f"{layer}.{part}" for layer in self.layers for part in ("weight", "bias")]
        return {name: model[name] for name in names if name in model}


def _layers(plan: Plan, train: tuple[Samples, ...], model: Arrays) -> list[str]:
    """The layers that show whole records of one size; none under augmentation, for no such record is known here."""
    widths = {samples.x[0].size for samples in train if len(samples)}
    if plan.recipe.augment is not None or not plan.method.is_federated or len(widths) != 1:
        return []
    return layers_read(model, widths.pop())


class _Step(NamedTuple):
    """A communication round, the sites where models train and go to next, if they do, and how many go on then."""

    comm_round: CommRound
    at: np.ndarray
    to: np.ndarray | None
    following: int


def _steps(plan: Plan, samples: Sequence[int]) -> Iterator[_Step]:
    way = list(journey(plan, len(samples), samples))
    for (comm_round, at), after in zip(way, [*way[1:], None], strict=True):
        hands_on = after is not None and comm_round.action is Action.PERMUTE
        to = after[1] if after is not None else at
        yield _Step(comm_round, at, to if hands_on else None, len(to))


def _stack(model: Arrays, count: int) -> Arrays:
    return {name: np.broadcast_to(array, (count, *array.shape)) for name, array in model.items()}
