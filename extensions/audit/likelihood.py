"""Reading by likelihood: the records that explain, together, all updates of a site. Noise on each alone is read past.

The attacker is an honest server: it knows the recipe, every model that a site set out from, what the site sent, how
many patients it has and, from the plan's public seed, who was in which batch; no label. Of plain gradient descent
sent - start is -lr * gradient(start; X, y) + noise, with the same X and y at every communication round, so that one
likelihood over all finds what none shows alone. At the truth the misfit is 1 per number: what is beyond is left.

Several steps of a communication round are taken to be of the model that came, which is exact for one step.

Source: Balle, Cherubin & Hayes 2022, "Reconstructing training data with informed adversaries", of one who knows all but
one; Geiping et al. 2020, "Inverting gradients", of one update. The regressions over communication rounds are ours.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsmall.parts import Recipe
from fedsmall.randomness import rng_for
from fedsmall.training.batches import batch_order
from fedsmall.training.gradients.losses import Batch, Loss
from fedsmall.training.gradients.mlp import Layer, backwards, forwards
from fedsmall.training.stack import Tensors

ROUNDS = 80  # of regressions
KEPT = 3  # guesses that go on from the regressions to the descent
STEPS = 800  # of gradient descent on all layers
PACE = 0.1
FLOOR = 1e-4  # of an update's root mean square: the deviation that is reckoned with where no noise is added


class SiteUpdates(NamedTuple):
    """What a server has of a site: ``starts`` and ``moved``, {name: (comm_rounds, ...)}, are models and updates.

    ``deviation`` (comm_rounds,) is that of the noise in every number. ``rows`` (comm_rounds, batch) number the patients
    of a communication round, ``weights`` alike is the learning rate times each one's share in a step.
    """

    starts: Tensors
    moved: Tensors
    deviation: Tensor
    rows: Tensor
    weights: Tensor

    @property
    def squares(self) -> Tensor:
        """The square of each update's length, (comm_rounds,)."""
        return torch.stack([array.flatten(1).square().sum(1) for array in self.moved.values()]).sum(0)

    @property
    def size(self) -> int:
        """The numbers of a model."""
        return sum(array[0].numel() for array in self.moved.values())


class Guess(NamedTuple):
    """Records ``x`` (tries, patients, features) with answers ``y`` (tries, patients, outputs); ``misfit`` (tries,)."""

    x: Tensor
    y: Tensor
    misfit: Tensor

    def best(self, count: int) -> "Guess":
        """The tries of the least misfit, the best first."""
        rows = self.misfit.argsort()[:count]
        return Guess(*(part[rows] for part in self))


class Site(NamedTuple):
    """The chain of layers that a site trains, its loss for answers between 0 and 1, and what is seen of it."""

    layers: Sequence[Layer]
    loss: Loss
    seen: SiteUpdates


def comm_rounds_under_blur(
    starts: Tensors, sent: Tensors, kappa: float, rows: np.ndarray, weights: np.ndarray
) -> SiteUpdates:
    """Updates under blur ``kappa``, whose deviation follows from the length of what was sent, noise and all."""
    moved = {name: (sent[name].double() - start) for name, start in starts.items()}
    bare = SiteUpdates(starts, moved, torch.ones(()), torch.from_numpy(rows), torch.from_numpy(weights).double())
    mean = (bare.squares / bare.size).sqrt()
    deviation = mean * max(kappa / (1 + kappa**2) ** 0.5, FLOOR)
    return bare._replace(starts={name: start.double() for name, start in starts.items()}, deviation=deviation)


def told_their_noise(site: Site, x: Tensor, y: Tensor) -> Site:
    """The same site, seen by who knows the deviation of each update's noise: what its records leave unexplained."""
    left, _ = unexplained(site, x[None], y[None])
    least = FLOOR * (site.seen.squares.mean() / site.seen.size).sqrt()  # of an update by which nothing had moved
    deviation = (left[:, 0] / site.seen.size).sqrt().clamp_min(least)
    return site._replace(seen=site.seen._replace(deviation=deviation))


def public_batches(
    recipe: Recipe, seed: int, site: str, patients: int, rounds: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Who is in the steps of each of these ``rounds``' updates, and with what weight: (comm_rounds, batch)."""
    sizes = recipe.batch_sizes(patients)
    rows, weights = np.zeros((2, len(rounds), max(map(len, rounds)) * sum(sizes)))
    for place, some in enumerate(rounds):
        orders = [part for t in some for part in batch_order(sizes, patients, rng_for(seed, "batches", site, t))]
        width = sum(map(len, orders))
        rows[place, :width] = np.concatenate(orders)
        weights[place, :width] = np.concatenate([np.full(len(part), recipe.lr / len(part)) for part in orders])
    return rows.astype(np.int64), weights


def read_by_likelihood(site: Site, patients: int, rng: np.random.Generator, tries: int = 16) -> Guess:
    """The best guess of a site's records and answers of some tries, (1, ...): regressions, then gradient descent."""
    outputs, features = (
        site.seen.moved[f"{site.layers[end].name}.weight"].shape[axis] for end, axis in ((-1, 1), (0, 2))
    )
    y = torch.full((tries, patients, outputs), 1 / max(outputs, 2), dtype=torch.float64)
    x = torch.from_numpy(rng.standard_normal((tries, patients, features)))
    with torch.no_grad():
        for _ in range(ROUNDS):
            x, y = _regress(site, x, y)
        guess = Guess(x, y, misfit(site, x, y)).best(KEPT)
    return _descend(site, guess).best(1)


def misfit(site: Site, x: Tensor, y: Tensor) -> Tensor:
    """Squares of what guesses leave unexplained, in units of the noise, per number: (tries,); 1 at the truth."""
    left, _ = unexplained(site, x, y)
    return (left / site.seen.deviation[:, None] ** 2).sum(0) / (site.seen.size * len(left))


def _descend(site: Site, guess: Guess) -> Guess:
    """Guesses after gradient descent (Adam) on the misfit of all layers."""
    x, y = (part.clone().requires_grad_() for part in guess[:2])
    optimizer = torch.optim.Adam([x, y], PACE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        left = misfit(site, x, y)
        now, is_better = Guess(x.detach(), y.detach(), left.detach()), left.detach() < guess.misfit
        guess = Guess(
            *(torch.where(is_better.view(-1, *[1] * (a.ndim - 1)), a, b) for a, b in zip(now, guess, strict=True))
        )
        left.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return guess


def nearest_patients(found: Tensor, records: Tensor) -> Tensor:
    """The patient whom each found record names: the one at the smallest angle, (found,)."""
    unit = [rows / rows.norm(dim=1, keepdim=True).clamp_min(1e-12) for rows in (found, records)]
    return torch.argmax(unit[0] @ unit[1].mT, dim=1)


def unexplained(site: Site, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The squared lengths of what guesses leave of each update and of what they make of it, (comm_rounds, tries)."""
    cross, own = torch.zeros(()), torch.zeros(())
    for layer, slope, before in _passes(site, x, y):
        cross = cross + torch.linalg.vecdot(slope, before @ site.seen.moved[f"{layer.name}.weight"].mT[:, None]).sum(-1)
        if layer.bias:
            cross = cross + torch.linalg.vecdot(slope.sum(2), site.seen.moved[f"{layer.name}.bias"][:, None])
        own = own + ((slope @ slope.mT) * (before @ before.mT + layer.bias)).sum((-1, -2))
    return site.seen.squares[:, None] + 2 * cross + own, own


def _regress(site: Site, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Records that best explain the first layer, and answers that best explain the last, given all slopes before."""
    (last, slope, before), *_, (first, behind, _) = [*_passes(site, x, y)] * 2
    weights, variance = site.seen.weights[:, None, :, None], site.seen.deviation[:, None, None, None] ** 2
    records = _solve(
        site,
        x,
        behind @ behind.mT / variance,
        -behind @ site.seen.moved[f"{first.name}.weight"][:, None] / variance,
        1.0,
    )
    known = slope + weights * y[:, site.seen.rows].transpose(0, 1)
    grams = (before @ before.mT + last.bias) / variance
    cross = before @ site.seen.moved[f"{last.name}.weight"].mT[:, None] / variance
    if last.bias:
        cross = cross + site.seen.moved[f"{last.name}.bias"][:, None, None] / variance
    middle = 1 / max(y.shape[-1], 2)
    answers = _solve(site, y, weights * grams * weights.mT, weights * (cross + grams @ (known - weights * middle)), 4.0)
    return records, (answers + middle).clamp(0, 1)


def _solve(site: Site, like: Tensor, products: Tensor, cross: Tensor, ridge: float) -> Tensor:
    """The regression of all patients, from each update's products (comm_rounds, tries, batch, batch) of those in it."""
    tries, patients = like.shape[:2]
    rows, of_try = site.seen.rows[:, None], torch.arange(tries)[:, None]
    left = torch.zeros(tries, patients, patients, dtype=like.dtype)
    left.index_put_((of_try[..., None], rows[..., :, None], rows[..., None, :]), products, accumulate=True)
    right = torch.zeros_like(like).index_put_((of_try, rows), cross, accumulate=True)
    records: Tensor = torch.linalg.solve(left + ridge * torch.eye(patients, dtype=like.dtype), right)
    return records


def _passes(site: Site, x: Tensor, y: Tensor) -> Iterator[tuple[Layer, Tensor, Tensor]]:
    """Each linear layer from the last: weighted slopes and inputs, (comm_rounds, tries, batch, width) both."""
    seen, shape = site.seen, (len(x), site.seen.rows.shape[1])
    records, answers = (part[:, seen.rows].transpose(0, 1).flatten(1, 2) for part in (x, y))
    outputs, inputs = forwards(site.layers, seen.starts, Batch(records, answers, None, {}))
    slope = site.loss.slope(outputs, answers) * seen.weights.repeat(1, len(x))[..., None]
    for layer, behind, before in backwards(site.layers, seen.starts, Batch(records, answers, None, {}), inputs, slope):
        yield layer, behind.view(len(behind), *shape, -1), before.reshape(len(before), *shape, -1)
