"""The lots that a round takes from the samples of many sites under patient-level privacy, and its steps' noise."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch

from fedsmall.federation import Samples
from fedsmall.plan import Plan
from fedsmall.privacy.patient_level import (
    Chance,
    Protection,
    chance_for,
    epsilon_of,
    protection_of,
    steps_of,
    told_samples,
)
from fedsmall.training.batches import joined, taken
from fedsmall.training.gradients import Batch
from fedsmall.training.stack import Tensors
from fedsmall.training.trainer import Seat

Shapes = Mapping[str, tuple[int, ...]]


class Lots:
    """In the place of :class:`fedsmall.training.batches.Batches`: every sample joins each step's lot independently.

    A batch's ``weight`` is 1 / the expected size of a lot for a sample that is in it and 0 for one that only fills up,
    so a lot may be empty; its ``noise`` is what is added to the gradients. ``shapes`` are the parameters'; ``masks`` as
    for ``Batches``.
    """

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        samples: Sequence[Samples],
        masks: dict[str, tuple[tuple[int, ...], float]],
        device: torch.device,
        shapes: Shapes,
        seat: Seat,
    ) -> None:
        self._names, self._masks, self._device, self._shapes = tuple(names), masks, device, dict(shapes)
        self._dtype = getattr(torch, plan.dtype)
        self._x = joined([s.x for s in samples], self._dtype, device)
        self._y = joined([s.y for s in samples], self._dtype, device)
        self._counts = np.array([len(s) for s in samples])
        self._first = np.cumsum(self._counts) - self._counts
        self.protections = protections(plan, samples, seat)
        self._seed, self._secret = plan.seed, seat.secret
        self.examples = np.array([told_samples(plan, len(s)) for s in samples])  # (sites,)
        assert plan.recipe.steps is not None
        self.steps = np.full(len(names), plan.recipe.steps)

    def order(self, sites: np.ndarray, pads: bool) -> np.ndarray | None:
        """None: all sites take equally many steps, together."""
        return None

    def round(self, sites: np.ndarray, t: int, pads: bool) -> Iterator[tuple[slice, Batch]]:
        """The steps of round t at these sites, as :meth:`fedsmall.training.batches.Batches.round` gives them."""
        chances = [chance_for(self._seed, self._names[site], t, self._secret) for site in sites]
        mine = [self.protections[site] for site in sites]
        for _ in range(int(self.steps[0])):
            lots = [
                _lot(chance, guard.rate, int(self._counts[site]))
                for chance, guard, site in zip(chances, mine, sites, strict=True)
            ]
            size = max(1, *map(len, lots))
            index, weight = np.empty((len(sites), size), dtype=np.int64), np.zeros((len(sites), size))
            index[...] = self._first[sites, None]
            for row, (lot, guard) in enumerate(zip(lots, mine, strict=True)):
                index[row, : len(lot)] += lot
                weight[row, : len(lot)] = 1 / guard.lot
            yield slice(0, len(sites)), self._batch(index, weight, self._drop(chances, lots, size), chances, mine)

    def _batch(
        self, index: np.ndarray, weight: np.ndarray, masks: Tensors, chances: list[Chance], guards: list[Protection]
    ) -> Batch:
        where = torch.from_numpy(index).to(self._device)
        known = torch.from_numpy(weight).to(self._device, self._dtype)
        return Batch(taken(self._x, where), taken(self._y, where), known, masks, self._noise(chances, guards))

    def _noise(self, chances: list[Chance], guards: list[Protection]) -> Tensors:
        """What is added to the gradients of every parameter, (rows, ...), as views of one block."""
        numbers = sum(map(math.prod, self._shapes.values()))
        block = torch.empty(len(chances), numbers, dtype=self._dtype)
        for row, chance in zip(block, chances, strict=True):
            chance.fill_normal(row)
        block *= torch.tensor([[guard.deviation] for guard in guards], dtype=self._dtype)
        block, start, noise = block.to(self._device), 0, {}
        for name, shape in self._shapes.items():
            stop = start + math.prod(shape)
            noise[name] = block[:, start:stop].view(len(chances), *shape)
            start = stop
        return noise

    def _drop(self, chances: list[Chance], lots: list[np.ndarray], size: int) -> Tensors:
        """Dropout masks, (rows, size, *shape): a sample's own, whoever else is in its lot."""
        masks = {}
        for name, (shape, p) in self._masks.items():
            full = np.zeros((len(lots), size, *shape))
            for row, (chance, lot) in enumerate(zip(chances, lots, strict=True)):
                drawn = chance.uniform(len(lot) * math.prod(shape)).reshape(len(lot), *shape)
                full[row, : len(lot)] = (drawn >= p) / max(1 - p, 1e-12)
            masks[name] = torch.from_numpy(full).to(self._device, self._dtype)
        return masks


def protections(plan: Plan, samples: Sequence[Samples], seat: Seat) -> list[Protection]:
    """What each site's local steps do for its patients."""
    return [
        protection_of(plan, len(mine), place, seat.sites, len(mine.pooled) or 1)
        for place, mine in zip(seat.places, samples, strict=True)
    ]


def spent(plan: Plan, samples: Sequence[Samples], rounds: int, seat: Seat) -> list[float]:
    """What each site's patients have spent after so many rounds: epsilon at the plan's delta."""
    privacy = plan.method.privacy
    assert privacy is not None
    steps = [steps_of(plan, place, seat.sites, rounds) for place in seat.places]
    guards = protections(plan, samples, seat)
    return [epsilon_of([guard.charge(taken)], privacy.delta) for guard, taken in zip(guards, steps, strict=True)]


def _lot(chance: Chance, rate: float, samples: int) -> np.ndarray:
    """The numbers of the samples that are in a lot, each by a draw of its own; none is drawn where all always are."""
    return np.arange(samples) if rate >= 1 else np.flatnonzero(chance.uniform(samples) < rate)
