"""How a round cuts the samples of many sites into batches, each site by its own stream."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedsmall.data.federation import Samples
from fedsmall.parts import Recipe
from fedsmall.plan import Plan
from fedsmall.privacy.discrete_gaussian import grid_for
from fedsmall.privacy.patient_level import (
    Chance,
    Protection,
    chance_for,
    epsilon_of,
    protection_of,
    reported_samples,
    shares_of,
    steps_of,
)
from fedsmall.randomness import rng_for
from fedsmall.training.augmentation import DRAWS, augment_images
from fedsmall.training.gradients import Batch
from fedsmall.training.stack import Tensors
from fedsmall.training.trainer import Indices


def batch_size(recipe: Recipe, samples: Samples) -> int:
    """The samples of a full batch; of pooled samples, that of every site together, where a round is of steps."""
    sites = samples.pooled if recipe.steps is not None else ()
    return sum(min(recipe.batch or n, n) for n in sites or (len(samples),))


def batch_order(sizes: Sequence[int], samples: int, rng: np.random.Generator) -> list[np.ndarray]:
    """A round's batches as sample numbers: every epoch draws a fresh order; a batch of the whole site draws nothing."""
    if sizes[0] == samples:
        return [np.arange(samples)] * len(sizes)
    epochs = -(-sum(sizes) // samples)
    drawn = np.concatenate([rng.permutation(samples) for _ in range(epochs)])
    return np.split(drawn, np.cumsum(sizes))[: len(sizes)]


Masks = Mapping[str, tuple[tuple[int, ...], float]]  # of dropout layers by name: a sample's shape, and the probability
Shapes = Mapping[str, tuple[int, ...]]


class SiteSamples(ABC):
    """The samples of all sites on the device, which are drawn in batches; ``masks`` are dropout layers.

    ``examples`` and ``steps`` are each site's samples and steps of a round, (sites,); ``largest`` the most of a step.
    """

    examples: np.ndarray
    steps: np.ndarray
    largest: int

    def __init__(
        self, plan: Plan, names: Sequence[str], samples: Sequence[Samples], masks: Masks, device: torch.device
    ) -> None:
        self._plan, self._names, self._masks, self._device = plan, tuple(names), masks, device
        self._dtype = getattr(torch, plan.dtype)
        self.x = concatenate([s.x for s in samples], self._dtype, device)  # (all samples, ...)
        self.y = concatenate([s.y for s in samples], self._dtype, device)
        self._counts = np.array([len(s) for s in samples])
        self._first = np.cumsum(self._counts) - self._counts

    @abstractmethod
    def round(self, sites: np.ndarray, t: int, pads: bool) -> Iterator[tuple[slice, Batch]]:
        """The steps of round t at these sites, in the :meth:`order`: rows that go together, and their batches."""

    def order(self, sites: np.ndarray, pads: bool) -> np.ndarray | None:
        """Rows in another order, so that those are first which go on longest; None where all take equal steps."""
        return None


class Batches(SiteSamples):
    """Consecutive batches of each site's samples in an order that is drawn.

    ``still`` is every site's :meth:`index` where no round draws, else None.
    """

    def __init__(
        self, plan: Plan, names: Sequence[str], samples: Sequence[Samples], masks: Masks, device: torch.device
    ) -> None:
        super().__init__(plan, names, samples, masks, device)
        self.examples = self._counts
        batches = [batch_size(plan.recipe, of_site) for of_site in samples]
        kinds = list(zip(self.examples.tolist(), batches, strict=True))
        known = {kind: plan.recipe.batch_sizes(*kind) for kind in set(kinds)}
        sizes = [known[kind] for kind in kinds]
        self.steps = np.array([len(s) for s in sizes])
        self.sizes = np.zeros((len(sizes), self.steps.max()), dtype=np.int64)  # (sites, steps), 0 once a site has ended
        for site, mine in enumerate(sizes):
            self.sizes[site, : len(mine)] = mine
        self.largest = int(self.sizes.max())
        self.uniform = bool((self.sizes == self.sizes[0]).all())
        draws = bool((self.examples > batches).any())
        self.still = None if draws else self.index(np.arange(len(names)), 0)
        self._blocks: tuple[Tensor, ...] | None = None
        once = self.uniform and self.steps[0] == 1 and plan.recipe.augment is None
        if not draws and not masks and once:  # a round is every site's whole data
            self._blocks = tuple(part.view(len(names), -1, *part.shape[1:]) for part in (self.x, self.y))

    def taken(self, site: int, t: int) -> np.ndarray:
        """The numbers of the site's samples that are in a batch of round ``t``, rising."""
        numbers: np.ndarray = np.unique(self.index(np.array([site]), t).cpu().numpy()) - self._first[site]
        return numbers

    def order(self, sites: np.ndarray, pads: bool) -> np.ndarray | None:
        """Rows by falling size where sites differ in a way that matters, so that active ones are first; or None."""
        if self.uniform or (pads and bool((self.steps[sites] == self.steps[sites[0]]).all())):
            return None
        return np.lexsort((-self.examples[sites], -self.steps[sites]))

    def round(self, sites: np.ndarray, t: int, pads: bool) -> Iterator[tuple[slice, Batch]]:
        """As :meth:`SiteSamples.round`."""
        if self._blocks is not None:
            where = torch.from_numpy(sites).to(self._device)
            x, y = (block.index_select(0, where) for block in self._blocks)
            yield slice(0, len(sites)), Batch(x, y, None, {})
            return
        index = self.index(sites, t) if self.still is None else self.still[torch.from_numpy(sites).to(self._device)]
        chances = self._chances(sites, t)
        for step, masks in enumerate(self._drawn_masks(sites, t)):
            for rows, size in self._together(sites, step, pads):
                weight = self._weight(sites, step, rows, size) if pads else None
                masks_of_batch = {name: mask[rows, :size] for name, mask in masks.items()}
                where = index[rows, step, :size]
                batch = Batch(gather(self.x, where), gather(self.y, where), weight, masks_of_batch)
                if chances is not None:
                    changed = augment_images(batch.x, chances[rows, step, :size], self._plan.recipe.augment or {})
                    batch = batch._replace(x=changed)
                yield rows, batch

    def _together(self, sites: np.ndarray, step: int, pads: bool) -> list[tuple[slice, int]]:
        sizes = self.sizes[sites, step]
        active = int((sizes > 0).sum())  # a prefix: the rows are ordered
        if active == 0:
            return []
        if pads:
            return [(slice(0, active), int(sizes[:active].max()))]
        edges = [0, *(np.flatnonzero(np.diff(sizes[:active])) + 1).tolist(), active]
        return [(slice(a, b), int(sizes[a])) for a, b in pairwise(edges)]

    def _chances(self, sites: np.ndarray, t: int) -> np.ndarray | None:
        """The numbers by which the images of round t are changed, (rows, steps, batch, DRAWS); None where none are."""
        if self._plan.recipe.augment is None:
            return None
        full = np.zeros((len(sites), self.sizes.shape[1], int(self.sizes[sites].max()), DRAWS))
        for row, site in enumerate(sites.tolist()):
            rng = rng_for(self._plan.seed, "augment", self._names[site], t)
            for step, size in enumerate(self.sizes[site, : self.steps[site]]):
                full[row, step, :size] = rng.random((size, DRAWS))
        return full

    def _weight(self, sites: np.ndarray, step: int, rows: slice, size: int) -> Tensor | None:
        sizes = self.sizes[sites[rows], step][:, None]
        if (sizes == size).all():
            return None
        return torch.from_numpy((np.arange(size) < sizes) / sizes).to(self._device, self._dtype)

    def _drawn_masks(self, sites: np.ndarray, t: int) -> list[Tensors]:
        """The dropout masks of round t, one record a step, each (rows, batch, *shape)."""
        steps = int(self.steps[sites].max())
        if not self._masks:
            return [{}] * steps
        shape = (steps, len(sites), int(self.sizes[sites].max()))
        full = {name: np.zeros((*shape, *rest), self._plan.dtype) for name, (rest, _) in self._masks.items()}
        for row, site in enumerate(sites.tolist()):
            rng = rng_for(self._plan.seed, "dropout", self._names[site], t)
            for step, size in enumerate(self.sizes[site, : self.steps[site]]):
                for name, (rest, p) in self._masks.items():
                    full[name][step, row, :size] = (rng.random((size, *rest)) >= p) / max(1 - p, 1e-12)
        return [{name: torch.from_numpy(f[s]).to(self._device) for name, f in full.items()} for s in range(steps)]

    def index(self, sites: np.ndarray, t: int) -> Tensor:
        """The numbers of the samples of round t, (rows, steps, batch); filled up with each site's first sample."""
        shape = (len(sites), self.sizes.shape[1], int(self.sizes[sites].max()))
        index = np.empty(shape, dtype=np.int64)
        index[...] = self._first[sites, None, None]
        drawn: dict[tuple[str, int], list[np.ndarray]] = {}  # sites of one name and size draw alike
        for row, site in enumerate(sites.tolist()):
            key = self._names[site], int(self.examples[site])
            if key not in drawn:
                rng = rng_for(self._plan.seed, "batches", key[0], t)
                drawn[key] = batch_order(self.sizes[site, : self.steps[site]].tolist(), key[1], rng)
            for step, mine in enumerate(drawn[key]):
                index[row, step, : len(mine)] = self._first[site] + mine
        return torch.from_numpy(index).to(self._device)


def gather(samples: Tensor, index: Tensor) -> Tensor:
    """The samples of these numbers, (*index.shape, ...)."""
    return samples.index_select(0, index.reshape(-1)).view(*index.shape, *samples.shape[1:])


def concatenate(arrays: Sequence[np.ndarray], dtype: torch.dtype, device: torch.device) -> Tensor:
    """The samples of all sites one after the other: floats of the given dtype, or whole numbers, (all samples, ...)."""
    everything = torch.from_numpy(np.concatenate(arrays))
    return everything.to(device, dtype if everything.is_floating_point() else torch.int64)


class Lots(SiteSamples):
    """Poisson batches: every sample joins each step's lot independently."""

    def __init__(
        self,
        plan: Plan,
        names: Sequence[str],
        samples: Sequence[Samples],
        masks: Masks,
        device: torch.device,
        shapes: Shapes,
        indices: Indices,
    ) -> None:
        super().__init__(plan, names, samples, masks, device)
        self._shapes, self._secret = dict(shapes), indices.secret
        self.protections, self._shares = protections(plan, samples, indices), [shares_of(mine) for mine in samples]
        self.examples = np.array([reported_samples(plan, len(s)) for s in samples])
        assert plan.recipe.steps is not None
        self.steps = np.full(len(names), plan.recipe.steps)
        self.largest = int(self._counts.max())

    def round(self, sites: np.ndarray, t: int, pads: bool) -> Iterator[tuple[slice, Batch]]:
        """As :meth:`SiteSamples.round`."""
        chances = [chance_for(self._plan.seed, self._names[site], t, self._secret) for site in sites]
        guards = [self.protections[site] for site in sites]
        for _ in range(int(self.steps[0])):
            lots = [
                np.arange(samples) if guard.rate >= 1 else np.flatnonzero(chance.uniform(samples) < guard.rate)
                for chance, guard, samples in zip(chances, guards, self._counts[sites].tolist(), strict=True)
            ]
            size = max(1, *map(len, lots))
            index, weight = np.empty((len(sites), size), dtype=np.int64), np.zeros((len(sites), size))
            index[...] = self._first[sites, None]
            for row, (lot, guard, site) in enumerate(zip(lots, guards, sites.tolist(), strict=True)):
                index[row, : len(lot)] += lot
                weight[row, : len(lot)] = self._shares[site][lot] / guard.lot
            masks, where = self._drop(chances, lots, size), torch.from_numpy(index).to(self._device)
            shares = torch.from_numpy(weight).to(self._device, self._dtype)
            taken = gather(self.x, where), gather(self.y, where), shares, masks
            yield slice(0, len(sites)), Batch(*taken, *self._noise(chances, guards))

    def _noise(self, chances: list[Chance], guards: list[Protection]) -> tuple[Tensors, Tensor]:
        """What is added to the gradients of every parameter, (rows, ...), as views of one block, and rows' grids."""
        numbers = sum(map(math.prod, self._shapes.values()))
        deviations = [guard.deviation(numbers) for guard in guards]
        grid = torch.tensor([grid_for(deviation) for deviation in deviations], dtype=torch.float64)
        multiples = [
            chance.multiples(numbers, deviation / step)
            for chance, deviation, step in zip(chances, deviations, grid.tolist(), strict=True)
        ]
        block = (torch.stack(multiples) * grid[:, None]).to(self._device)
        parts = torch.split(block, [math.prod(shape) for shape in self._shapes.values()], dim=1)
        pairs = zip(self._shapes.items(), parts, strict=True)
        return {name: part.view(len(chances), *shape) for (name, shape), part in pairs}, grid.to(self._device)

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


def protections(plan: Plan, samples: Sequence[Samples], indices: Indices) -> list[Protection]:
    """What each site's local steps do for its patients."""
    return [
        protection_of(plan, shares_of(mine), place, indices.sites, len(mine.pooled) or 1)
        for place, mine in zip(indices.of_sites, samples, strict=True)
    ]


def epsilons_spent(plan: Plan, samples: Sequence[Samples], rounds: int, indices: Indices) -> list[float]:
    """What each site's patients have spent after so many rounds: epsilon at the plan's delta."""
    pairs = zip(protections(plan, samples, indices), indices.of_sites, strict=True)
    charges = (guard.charge(steps_of(plan, place, indices.sites, rounds)) for guard, place in pairs)
    return [epsilon_of([charge], plan.privacy.delta) for charge in charges]
