"""The attack by likelihood on a method of a scenario: one federation is trained, and some of its sites are read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedsmall.data.federation import Federation
from fedsmall.extensions.audit import likelihood
from fedsmall.extensions.audit.federations import World, name_in, side_by_side, world_as_it_is
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from fedsmall.training.gradients.layers import as_trained, halves
from fedsmall.training.gradients.losses import LOSSES
from fedsmall.training.gradients.mlp import layers_of
from fedsmall.training.stack import Tensors

PLAIN = ("FedAvg", "FedDC", "DaisyChain")  # methods whose sites take the steps of plain gradient descent
SITES = 2  # that are attacked
MOST_COMM_ROUNDS = 200  # of a site that are looked at; of more some, in equal distances
CLOSE = 0.2  # of a record's norm
SOFT = {"cross_entropy": "soft_cross_entropy", "logistic": "soft_logistic"}  # of soft labels
LONGEST = 1e6  # an update: beyond, noise has fed on itself, and there is nothing to read


@dataclass(frozen=True)
class Explained:
    """What one likelihood over all updates read at some sites: of ``patients``, ``close`` came within a fifth.

    ``error`` is the median distance from a record as a share of its norm; ``named`` of the estimates are nearest to
    their own patient's record. ``misfit`` is what the guesses left unexplained, ``at_truth`` what the records leave.
    """

    patients: int
    close: int
    error: float
    named: int
    misfit: float
    at_truth: float


class Target(NamedTuple):
    """A site as a server sees it, and what it does not see: ``records`` (patients, features) and ``answers``."""

    site: likelihood.Site
    records: Tensor
    answers: Tensor


def why_not_explained(plan: Plan) -> str:
    """Why the updates of a plan are not attacked so; "" where they are."""
    method, recipe = plan.method, plan.recipe
    if not method.is_federated or method.hidden:
        return "no server sees single models"
    varied = recipe.momentum or recipe.weight_decay or recipe.class_weights or recipe.lr_schedule != "constant"
    if recipe.optimizer != "sgd" or varied or method.name not in PLAIN or method.is_compressed:
        return "updates are not steps of plain gradient descent"
    if plan.privacy.counted:
        return "its noise is no blur"
    return "its model is no mlp" if plan.model not in ("mlp", "linear") or plan.model_options.get("dropout") else ""


def explain(plan: Plan, data_root: Path | None = None, sites: int = SITES) -> Explained | str:
    """What is read at the first sites of the plan's own federation, or why that is not tried."""
    federation = build_federation(plan, data_root)
    if why := why_not_explained(plan) or ("" if federation.task.loss in SOFT else "its outcome is no class"):
        return why
    errors, named, misfits = [], 0, []
    for number, target in enumerate(targets_of(plan, federation, sites)):
        if not target.site.seen.squares.max() < LONGEST**2:  # which nan is not either
            return "it diverged"
        records, left = read(target, rng_for(plan.seed, "audit", "likelihood", number))
        errors.append((records - target.records).norm(dim=1) / target.records.norm(dim=1))
        named += int((likelihood.nearest_patients(records, target.records) == torch.arange(len(records))).sum())
        misfits.append((left, likelihood.misfit(target.site, target.records[None], target.answers[None]).item()))
    if not errors:
        return f"none of the first {sites} sites took part"
    every, (left, at_truth) = torch.cat(errors), np.mean(misfits, axis=0).tolist()
    return Explained(len(every), int((every <= CLOSE).sum()), float(every.median()), named, left, at_truth)


def read(target: Target, rng: np.random.Generator) -> tuple[Tensor, float]:
    """The best guess of a site's records, and its misfit; where no batch tells patients apart, each beside its own."""
    patients = len(target.answers)
    is_whole = target.site.seen.rows.shape[1] % patients == 0  # steps of all patients: their order is any
    guess = likelihood.read_by_likelihood(target.site, patients, rng)
    records = guess.x[0]
    if is_whole:
        records = records[linear_sum_assignment(torch.cdist(target.records, records))[1]]
    return records, float(guess.misfit[0])


def targets_of(plan: Plan, federation: Federation, sites: int) -> Iterator[Target]:
    """The first sites of a federation that is trained once by the plan, with what a server sees of them."""
    task, layers = federation.task, layers_of(halves(plan, federation.task).head)
    samples = as_trained(plan, task, federation.train)
    for place, seen in enumerate(_comm_rounds(plan, world_as_it_is(plan, federation), sites)):
        if not seen:
            continue
        rounds, starts, sent = zip(*seen, strict=True)
        x, y = samples[place].x.reshape(len(samples[place]), -1), torch.from_numpy(samples[place].y)
        name = name_in(0, federation.names[place])
        batches = likelihood.public_batches(plan.recipe, plan.seed, name, len(x), rounds)
        comm_rounds = likelihood.comm_rounds_under_blur(
            _stacked(starts), _stacked(sent), plan.privacy.blur or 0.0, *batches
        )
        answers = torch.eye(task.outputs)[y] if task.outputs > 1 else y[:, None]
        site, records = likelihood.Site(layers, LOSSES[SOFT[task.loss]], comm_rounds), torch.from_numpy(x).double()
        if plan.privacy.exposure:
            site = likelihood.told_their_noise(site, records, answers.double())
        yield Target(site, records, answers.double())


def _comm_rounds(plan: Plan, world: World, sites: int) -> list[list[tuple[range, Tensors, Tensors]]]:
    """Of the first sites and some communication rounds of each: the rounds, and the models that came and left."""
    found: list[list[tuple[range, Tensors, Tensors]]] = [[] for _ in world.names[:sites]]
    is_known = True
    for step in side_by_side(plan, world, np.zeros((1, 0), dtype=bool)):
        for row, place in enumerate(step.at.tolist()):
            if place < len(found) and is_known and step.comm_round.travels:
                rounds = range(step.comm_round.t - step.comm_round.rounds + 1, step.comm_round.t + 1)
                found[place].append((rounds, _row(step.received, row), _row(step.sent, row)))
        is_known = step.comm_round.travels
    places = [
        np.unique(np.linspace(0, len(of_site) - 1, min(len(of_site), MOST_COMM_ROUNDS)).astype(int))
        for of_site in found
    ]
    return [[of_site[k] for k in some] for of_site, some in zip(found, places, strict=True)]


def _row(models: Tensors, row: int) -> Tensors:
    return {name: tensor[row].clone() for name, tensor in models.items()}


def _stacked(models: Sequence[Tensors]) -> Tensors:
    return {name: torch.stack([model[name] for model in models]) for name in models[0]}
