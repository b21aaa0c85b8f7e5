"""The attack by likelihood on a method of a scenario: one federation is trained, and some of its sites are read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedsmall.data.federation import Samples
from fedsmall.errors import PlanError
from fedsmall.extensions.audit.federations import World, side_by_side
from fedsmall.extensions.audit.likelihood import (
    Site,
    contacts_under_blur,
    counted_answers,
    misfit,
    nearest_patients,
    public_batches,
    read_by_likelihood,
)
from fedsmall.plan import Plan
from fedsmall.planning.tasks import build_federation
from fedsmall.randomness import rng_for
from fedsmall.training.distillation import SOFT
from fedsmall.training.frozen_body import as_trained, halves
from fedsmall.training.gradients.losses import LOSSES
from fedsmall.training.gradients.mlp import layers_of
from fedsmall.training.stack import Tensors

SITES = 4  # that are attacked
MOST_CONTACTS = 200  # of a site that are looked at; of more some, in equal distances
MOST_WAYS = 15  # of labels that are tried each; beyond, labels are found together with the records
CLOSE = 0.2  # of a record's norm


@dataclass(frozen=True)
class Explained:
    """What one likelihood over all contacts read at some sites: of ``patients``, ``close`` came within a fifth.

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

    site: Site
    records: Tensor
    answers: Tensor


def why_not_explained(plan: Plan) -> str:
    """Why the updates of a plan are not attacked so; "" where they are."""
    method, recipe = plan.method, plan.recipe
    varied = recipe.momentum or recipe.weight_decay or recipe.class_weights or recipe.lr_schedule != "constant"
    reasons = {
        "no server sees single models": not method.is_federated or method.hidden,
        "updates are not steps of plain gradient descent": recipe.optimizer != "sgd"
        or bool(varied or method.tree or method.rule != "none" or method.is_compressed),
        "its noise is no blur": method.privacy is not None and method.privacy.counted,
        "its model is no mlp": plan.model not in ("mlp", "linear") or bool(plan.model_options.get("dropout")),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def explain(plan: Plan, data_root: Path | None = None) -> Explained:
    """What is read at the first sites of the plan's own federation. PlanError where the plan is not attacked so."""
    errors, named, misfits = [], 0, []
    for number, target in enumerate(targets_of(plan, data_root)):
        records, left = read(target, rng_for(plan.seed, "audit", "likelihood", number))
        errors.append((records - target.records).norm(dim=1) / target.records.norm(dim=1))
        named += int((nearest_patients(records, target.records) == torch.arange(len(records))).sum())
        misfits.append((left, misfit(target.site, target.records[None], target.answers[None]).item()))
    every = torch.cat(errors)
    left, at_truth = np.mean(misfits, axis=0).tolist()
    return Explained(len(every), int((every <= CLOSE).sum()), float(every.median()), named, left, at_truth)


def read(target: Target, rng: np.random.Generator) -> tuple[Tensor, float]:
    """The best guess of a site's records, and its misfit; where no batch tells patients apart, each beside its own."""
    patients, outputs = target.answers.shape
    ways = counted_answers(patients, outputs) if patients <= MOST_WAYS else None
    is_whole = target.site.seen.rows.shape[1] % patients == 0
    guess = read_by_likelihood(target.site, rng, ways if is_whole and ways is not None and len(ways) <= MOST_WAYS else None, patients)
    records = guess.x[0]
    if is_whole:
        records = records[linear_sum_assignment(torch.cdist(target.records, records))[1]]
    return records, float(guess.misfit[0])


def targets_of(plan: Plan, data_root: Path | None = None, sites: int = SITES) -> Iterator[Target]:
    """The first sites of the plan's own federation, which is trained once. PlanError where it is not attacked so."""
    federation = build_federation(plan, data_root)
    if why := why_not_explained(plan) or ("" if federation.task.loss in SOFT else "its outcome is no class"):
        raise PlanError(f"one likelihood over all updates is not tried here: {why}")
    samples = as_trained(plan, federation.task, federation.train)
    nobody = tuple(Samples(of_site.x[:0], of_site.y[:0]) for of_site in samples)
    world = World(plan, federation.task, federation.names, federation.train, nobody, 0.0)
    seen = _contacts(plan, world, sites)
    loss, layers = LOSSES[SOFT[federation.task.loss]], layers_of(halves(plan, federation.task).head)
    kappa = plan.method.privacy.blur or 0.0 if plan.method.privacy else 0.0
    for place, (rounds, starts, sent) in enumerate(seen):
        x, y = samples[place].x.reshape(len(samples[place]), -1), torch.from_numpy(samples[place].y)
        batches = public_batches(plan.recipe, plan.seed, run_name(0, federation.names[place]), len(x), rounds)
        answers = y[:, None].double() if federation.task.outputs == 1 else torch.eye(federation.task.outputs).double()[y]
        site = Site(layers, loss, contacts_under_blur(starts, sent, kappa, *batches))
        yield Target(site, torch.from_numpy(x).double(), answers)


def _contacts(plan: Plan, world: World, sites: int) -> list[tuple[list[range], Tensors, Tensors]]:
    """Of each of the first sites: the rounds of every contact, and the models that came and left, (contacts, ...)."""
    found: list[list[tuple[range, Tensors, Tensors]]] = [[] for _ in world.names[:sites]]
    is_known = True
    for step in side_by_side(plan, world, np.zeros((1, 0), dtype=bool)):
        for row, place in enumerate(step.at.tolist()):
            if place < len(found) and is_known and step.contact.travels:
                rounds = range(step.contact.t - step.contact.rounds + 1, step.contact.t + 1)
                found[place].append((rounds, _row(step.received, row), _row(step.sent, row)))
        is_known = step.contact.travels
    return [_together(contacts) for contacts in found if contacts]


def _row(models: Tensors, row: int) -> Tensors:
    return {name: tensor[row].clone() for name, tensor in models.items()}


def _together(contacts: Sequence[tuple[range, Tensors, Tensors]]) -> tuple[list[range], Tensors, Tensors]:
    places = np.unique(np.linspace(0, len(contacts) - 1, min(len(contacts), MOST_CONTACTS)).astype(int)).tolist()
    rounds, starts, sent = zip(*(contacts[place] for place in places), strict=True)
    stacked = ({name: torch.stack([model[name] for model in models]) for name in models[0]} for models in (starts, sent))
    return list(rounds), *stacked
