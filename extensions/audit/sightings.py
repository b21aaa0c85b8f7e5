"""What is seen of each candidate in many federations: raw numbers, of which each party's view picks its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedsmall.data.federation import Task
from fedsmall.data.outcomes import ORDINAL, kind_of
from fedsmall.extensions.audit.federations import Step, World
from fedsmall.models.registry import initial_model
from fedsmall.plan import Plan
from fedsmall.privacy.reading import layers_read, pad_records, read_from_stack
from fedsmall.training.batches import gather
from fedsmall.training.gradients.layers import as_trained, halves
from fedsmall.training.gradients.losses import LOSSES
from fedsmall.training.gradients.mlp import forward, layers_of
from fedsmall.training.stack import Rows, Tensors, stacked
from fedsmall.travel.journey import journey
from fedsmall.travel.schedule import Action
from fedsmall.wire import Arrays

CACHE_BYTES = 2 * 2**20  # what the models that are judged at a time may take, and their records

Outputs = Callable[[Tensors, Tensor], Tensor]  # models and (models, records, ...): (models, records, outputs)


class Confidence:
    """Judges models on the records ``x`` (records, ...) with targets ``y``, which it holds."""

    def __init__(self, plan: Plan, task: Task, x: np.ndarray, y: np.ndarray, device: str = "cpu") -> None:
        cut = halves(plan, task)
        model, x = cut.head.to(device).eval(), cut.seen(np.asarray(x, dtype=plan.dtype))
        self._outputs, self._loss, self._device = outputs_of(model), task.loss, device
        self._x = torch.from_numpy(x).to(device)
        self._y = torch.from_numpy(np.asarray(y)).to(device)

    def __call__(self, models: Tensors, records: np.ndarray) -> np.ndarray:
        """How sure model k is of ``records[k]``, (models, few) numbers, as :func:`sureness`: (models, few) float32."""
        model_bytes = Rows(models).bytes_per_row + 4 * records.shape[1] * self._x[:1].numel()
        size, index = max(1, CACHE_BYTES // model_bytes), torch.from_numpy(records).to(self._device)
        with torch.no_grad():
            parts = [self._part(models, index, slice(k, k + size)) for k in range(0, len(records), size)]
        return np.asarray(torch.cat(parts).numpy())

    def _part(self, models: Tensors, index: Tensor, rows: slice) -> Tensor:
        outputs = self._outputs({name: tensor[rows] for name, tensor in models.items()}, gather(self._x, index[rows]))
        return sureness(outputs, gather(self._y, index[rows]), self._loss).to("cpu", torch.float32)


def outputs_of(model: nn.Module) -> Outputs:
    """The outputs of many models of one kind, each on records of its own; linear layers as stacked products."""
    try:
        layers = [layer for layer in layers_of(model) if layer.kind != "dropout"]
    except ValueError:  # no chain of linear layers
        return vmap(lambda state, x: functional_call(model, state, (x,)))

    def stacked(state: Tensors, x: Tensor) -> Tensor:
        x = x.flatten(2)
        for layer in layers:
            x = forward(layer, state, x, {})
        return x

    return stacked


def sureness(outputs: Tensor, y: Tensor, loss: str) -> Tensor:
    """The scores of outputs (..., outputs) for targets ``y`` (...), scaled as LiRA's: the logit of the confidence."""
    if kind_of(loss) in ("times", "labels"):
        return -LOSSES[loss].value(outputs, y)
    if kind_of(loss) == "numbers":
        return -(outputs.reshape(y.shape) - y).abs().flatten(2).mean(-1)
    if loss == ORDINAL:
        surprise = LOSSES[loss].value(outputs, y)
        return -surprise - torch.log(-torch.expm1(-surprise.clamp_min(1e-30)))
    if outputs.shape[-1] == 1:
        return outputs[..., 0] * (2.0 * y - 1.0)
    right = outputs.gather(-1, y[..., None])[..., 0]
    others = outputs.scatter(-1, y[..., None], -torch.inf).logsumexp(-1)
    return right - others


OLDEST = 8  # communication rounds: what a site left in a model longer ago is not looked for
MOST_AVERAGES = 12  # at which single models are looked at for what earlier sites left in them
READ_RUNS = 4  # federations in which records are read
SERVER = -1


class Visit(NamedTuple):
    """A model sent at communication round number ``place``, ``age`` - 1 of them after ``site`` had sent it.

    It went to the site ``to``, an average to :data:`SERVER`. ``sender`` had sent it and knows its state before.
    """

    place: int
    age: int
    site: int
    to: int
    sender: int


@dataclass(frozen=True)
class Sightings:
    """What is seen in r federations of s communication rounds, c candidates and a averages.

    ``members`` (r, c) says who was in. ``before`` and ``after`` (r, s, c): how sure of a candidate the model was that
    came to his site, and that which left it; NaN where the site took no part. ``moved`` (r, s, c): the size of that
    update. ``global_models`` (r, a + 1, c): how sure the global models were, the initial one first; ``stepped`` (r, a)
    by how much they moved. ``sure``: what each of ``visits`` says of the candidates of its site, (r, its candidates).

    ``read`` (federations read, s, sites, patients): whose record stands in the update of his site; ``read_average``
    (federations read, sites, patients): in the change of a global model; ``present`` alike: who was there.
    ``readable``: whether the model has a layer that sees whole records.
    """

    members: np.ndarray
    before: np.ndarray
    after: np.ndarray
    moved: np.ndarray
    global_models: np.ndarray
    stepped: np.ndarray
    visits: tuple[Visit, ...]
    sure: tuple[np.ndarray, ...]
    read: np.ndarray
    read_average: np.ndarray
    present: np.ndarray
    readable: bool


class Route:
    """Where the models of a plan's run go, and which of them somebody of ``observers`` receives."""

    def __init__(self, plan: Plan, sites: int, observers: tuple[int, ...]) -> None:
        self.comm_rounds = list(journey(plan, sites))
        actions = [comm_round.action for comm_round, _ in self.comm_rounds]
        self.averaged = np.array([action is Action.AGGREGATE for action in actions])
        together = plan.initial_models == "common"
        self.set_out = np.array([together, *self.averaged[:-1]])  # all models had just become one
        self.hops = Action.PERMUTE in actions
        averages = np.flatnonzero(self.averaged)
        evenly = np.linspace(0, len(averages) - 1, min(MOST_AVERAGES, len(averages)))
        self._looked = set(averages[evenly.astype(int)].tolist())
        self._observers = set(observers)

    def next_sites(self, place: int) -> np.ndarray | None:
        """Where the models of communication round ``place`` train next, as they were sent; None where they do not."""
        if self.averaged[place] or place + 1 == len(self.comm_rounds):
            return None
        return self.comm_rounds[place + 1][1]

    def visits(self, place: int) -> list[tuple[int, Visit]]:
        """What of communication round ``place`` is looked at: a model, and one of the sites that it has visited."""
        comm_round, at = self.comm_rounds[place]
        visits = []
        for number in range(len(at)):
            if comm_round.action is Action.AGGREGATE:
                to, seen = SERVER, self.hops and place in self._looked
            elif comm_round.action is Action.PERMUTE:
                to = int(self.comm_rounds[place + 1][1][number])
                seen = to in self._observers
            else:
                continue
            visits += [(number, visit) for visit in self._way(place, number, to)] if seen else []
        return visits

    def _way(self, place: int, number: int, to: int) -> Iterator[Visit]:
        for age in range(1, OLDEST + 1):
            then = place - age + 1
            first = bool(self.set_out[then]) or then == 0
            sender = SERVER if first else int(self.comm_rounds[then - 1][1][number])
            yield Visit(place, age, int(self.comm_rounds[then][1][number]), to, sender)
            if first:
                return


class Notes:
    """Writes down the steps of some federations as they come; ``members`` (federations, candidates) are in."""

    def __init__(self, plan: Plan, world: World, members: np.ndarray, route: Route, reads: int) -> None:
        self.plan, self.world, self.members, self.route = plan, world, members, route
        x, y = (np.concatenate([getattr(records, name) for records in world.candidates]) for name in "xy")
        self._sure = Confidence(plan, world.task, x, y)
        first, most = np.cumsum(world.sizes) - world.sizes, max(1, world.sizes.max())
        filled = np.minimum(np.arange(most), np.maximum(world.sizes - 1, 0)[:, None]) + first[:, None]
        self._own = np.minimum(filled, world.sizes.sum() - 1)  # (sites, most): each site's candidates, filled up
        self._real = np.arange(most) < world.sizes[:, None]
        start = initial_model(plan, world.task)
        self._reading = Reader(world, members[: min(reads, len(members))], start)
        shape = (len(members), len(route.comm_rounds), int(world.sizes.sum()))
        self.before, self.after, self.moved = (np.full(shape, np.nan, dtype=np.float32) for _ in range(3))
        self._last = stacked([start] * len(members), list(start))
        self.global_models, self.stepped = [self._of_all(self._last)], [np.zeros((len(members), 0))]
        self.visits: list[Visit] = []
        self.sure: list[np.ndarray] = []

    def take(self, place: int, step: Step) -> None:
        """Write down the communication round number ``place``."""
        at = step.at
        if place == 0:
            self._put(self.before, 0, at, self._sureness_of(step.received, self._own[at]))
        records, after = self._own[at], self.route.next_sites(place)
        asked = records if after is None else np.concatenate([records, self._own[after]], axis=1)
        judged = self._sureness_of(step.sent, asked)
        self._put(self.after, place, at, judged[..., : records.shape[1]])
        if after is not None:
            self._put(self.before, place + 1, after, judged[..., records.shape[1] :])
        size = _distance(step.sent, step.received).reshape(-1, len(at), 1)
        self._put(self.moved, place, at, np.repeat(size, records.shape[1], axis=2))
        self._take_visits(place, step)
        self._reading.take(step)
        if step.global_models:
            self.global_models.append(self._of_all(step.global_models))
            self.stepped.append(_distance(step.global_models, self._last)[:, None])
            self._reading.take_average(self._last, step.global_models)
            self._last = step.global_models
            if place + 1 < len(self.route.comm_rounds):
                taking_part = np.isin(self.world.site_of, self.route.comm_rounds[place + 1][1])
                self.before[:, place + 1, taking_part] = self.global_models[-1][:, taking_part]

    def result(self) -> Sightings:
        """All that was written down."""
        return Sightings(
            members=self.members,
            before=self.before,
            after=self.after,
            moved=self.moved,
            global_models=np.stack(self.global_models, axis=1),
            stepped=np.concatenate(self.stepped, axis=1),
            visits=tuple(self.visits),
            sure=tuple(self.sure),
            read=np.stack(self._reading.read, axis=1),
            read_average=self._reading.average,
            present=self._reading.present,
            readable=self._reading.possible,
        )

    def _sureness_of(self, models: Tensors, records: np.ndarray) -> np.ndarray:
        """What all federations' models say of ``records`` (models, few): (federations, models, few)."""
        runs = len(self.members)
        return self._sure(models, np.tile(records, (runs, 1))).reshape(runs, *records.shape)

    def _put(self, into: np.ndarray, place: int, at: np.ndarray, seen: np.ndarray) -> None:
        real = self._real[at]
        into[:, place, self._own[at][real]] = seen[:, real]

    def _of_all(self, models: Tensors) -> np.ndarray:
        everyone = np.arange(int(self.world.sizes.sum()))
        return self._sure(models, np.repeat(everyone[None], len(self.members), axis=0))

    def _take_visits(self, place: int, step: Step) -> None:
        """What models in others' hands say of sites before the last one; all of one model are judged at once."""
        by_model: dict[int, list[Visit]] = {}
        for number, visit in self.route.visits(place):
            by_model.setdefault(number, []).append(visit)
        for number, visits in by_model.items():
            last, *older = visits
            self.sure.append(self.after[:, place, self.world.site_of == last.site])
            if older:
                sites = np.array([visit.site for visit in older])
                models = {name: tensor[number :: len(step.at)] for name, tensor in step.sent.items()}
                seen = self._sureness_of(models, self._own[sites].reshape(1, -1))
                seen = seen.reshape(len(self.members), len(sites), -1)
                self.sure += [seen[:, k, self._real[site]] for k, site in enumerate(sites)]
            self.visits += visits


class Reader:
    """Reads records in some federations, as :mod:`fedsmall.privacy.reading` does; ``members`` are those in them."""

    def __init__(self, world: World, members: np.ndarray, model: Arrays) -> None:
        always, drawn = (as_trained(world.plan, world.task, samples) for samples in (world.fixed, world.candidates))
        everyone = [np.concatenate([f.x, c.x]) for f, c in zip(always, drawn, strict=True)]
        self._records = pad_records(everyone)  # (sites, patients, features)
        self.possible = bool(layers_read(model, self._records.shape[2]))
        self.present = np.zeros((len(members), *self._records.shape[:2]), dtype=bool)
        for run, row in enumerate(members):
            cuts = np.split(row, np.cumsum(world.sizes)[:-1])
            for site, (fixed, drawn_in) in enumerate(zip(world.fixed, cuts, strict=True)):
                everyone_in = np.concatenate([np.ones(len(fixed), bool), drawn_in])
                self.present[run, site, : len(everyone_in)] = everyone_in
        self.read: list[np.ndarray] = []
        self.average = np.zeros_like(self.present)

    def take(self, step: Step) -> None:
        """Read what the sites' updates of one communication round show."""
        runs, shown = len(self.present), np.zeros_like(self.present)
        if runs and self.possible:
            patients = np.where(self.present[..., None], self._records, np.nan)[:, step.at]
            patients = patients.reshape(-1, *patients.shape[2:])
            rows = slice(0, len(patients))
            read = read_from_stack(_cut(step.received, rows), _cut(step.sent, rows), patients)
            shown[:, step.at] = read.reshape(runs, len(step.at), -1)
        self.read.append(shown)

    def take_average(self, before: Tensors, after: Tensors) -> None:
        """Read what the change of the global models shows."""
        runs = len(self.present)
        if runs and self.possible:
            patients = np.where(self.present[..., None], self._records, np.nan)
            patients = patients.reshape(runs, -1, patients.shape[-1])
            shown = read_from_stack(_cut(before, slice(0, runs)), _cut(after, slice(0, runs)), patients)
            self.average |= shown.reshape(self.present.shape)


def join_sightings(parts: list[Sightings]) -> Sightings:
    """What was seen in several parts of the federations, as one; records are read in the first."""
    first = parts[0]
    names = ("members", "before", "after", "moved", "global_models", "stepped")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    sure = tuple(np.concatenate(records) for records in zip(*(part.sure for part in parts), strict=True))
    return replace(first, **arrays, sure=sure)


def _cut(models: Tensors, rows: slice) -> Arrays:
    return Rows({name: tensor[rows] for name, tensor in models.items()}).arrays()


def _distance(a: Tensors, b: Tensors) -> np.ndarray:
    """The size of what lies between models, over all their floats: (models,)."""
    return Rows({name: tensor - b[name] for name, tensor in a.items()}).norms()
