"""Training samples that models do not see, and a threshold by them: a cross-validation within the training samples."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedsmall.data.federation import Federation, Samples
from fedsmall.errors import PlanError, ReplyError
from fedsmall.evaluation.clinical import thresholds_of
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.run import DEFAULT_ENGINE, RunRecord, run_plan

FOLDS = 5


def leave_folds_out(
    federation: Federation, folds: int, by_sites: bool, rng: np.random.Generator
) -> Iterator[Federation]:
    """A federation for each fold, tested on its training samples of that fold; all rows of a patient are in one.

    By sites a fold is of whole sites; else every site's patients are dealt to all folds. No more folds than sites, or
    than samples.
    """
    train = federation.train
    if by_sites:
        folds, order = min(folds, len(train)), rng.permutation(len(train))
        places = [np.full(len(samples), order[k] % folds) for k, samples in enumerate(train)]
    else:
        starts = np.cumsum([0, *map(len, train)])
        folds = min(folds, int(starts[-1]))
        places = [(start + _dealt(samples, rng)) % folds for start, samples in zip(starts, train, strict=False)]
    for fold in range(folds):
        yield federation.leave_out([np.flatnonzero(place == fold) for place in places])


def _dealt(samples: Samples, rng: np.random.Generator) -> np.ndarray:
    patients = np.arange(len(samples)) if samples.patients is None else samples.patients
    names, whose = np.unique(patients, return_inverse=True)
    return np.asarray(rng.permutation(len(names))[whose])


def with_thresholds(record: RunRecord, federation: Federation) -> RunRecord:
    """The record with the thresholds that its plan asks for, where no sample was kept back to find them by.

    The plan is run again :data:`FOLDS` times without a fold of its training samples, which that model then judges. None
    are found where a fold cannot be trained without, or a model of one has no finite outputs.
    """
    plan = record.plan
    is_asked = not isinstance(plan.threshold, float | None)
    if not is_asked or plan.kept_back or record.stopped or "probabilities" not in record.predictions:
        return record
    blind = plan.model_copy(update={"threshold": None, "evaluate_every": plan.rounds})
    p, positive = [], []
    try:
        for part in leave_folds_out(federation, FOLDS, False, rng_for(plan.seed, "threshold")):
            plan_of_part = blind.model_copy(update={"sites": len(part.names)})
            found = run_plan(plan_of_part, part, DEFAULT_ENGINE, options={"device": "cpu"}).predictions
            p.append(found["probabilities"][:, 1])
            positive.append(found["labels"] == 1)
    except (PlanError, ReplyError, KeyError):
        return record
    return replace(record, thresholds=thresholds_of(plan, np.concatenate(p), np.concatenate(positive)))
