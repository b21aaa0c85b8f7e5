"""Training samples that models do not see, with thresholds and recalibration by them: folds of the training samples."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedsmall.data.federation import Federation
from fedsmall.data.splits import deal_patients
from fedsmall.errors import PlanError, ReplyError
from fedsmall.evaluation.clinical import recalibrate, recalibration_of, thresholds_of
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.outputs import scores_of
from fedsmall.evaluation.sampling import SMALLEST
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.evaluation import Unseen
from fedsmall.sim.engines.run import DEFAULT_ENGINE, RunRecord, run_plan

FOLDS = 5


def leave_folds_out(
    federation: Federation, folds: int, by_sites: bool, rng: np.random.Generator
) -> Iterator[Federation]:
    """A federation for each fold, tested on its training samples of that fold; all rows of a patient are in one.

    By sites a fold is of whole sites; else every site's patients go to all folds. No more folds than sites or samples.
    """
    train = federation.train
    if by_sites:
        folds, order = min(folds, len(train)), rng.permutation(len(train))
        places = [np.full(len(samples), order[k] % folds) for k, samples in enumerate(train)]
    else:
        starts = np.cumsum([0, *map(len, train)])
        folds = min(folds, int(starts[-1]))
        places = [(start + deal_patients(samples, rng)) % folds for start, samples in zip(starts, train, strict=False)]
    for fold in range(folds):
        yield federation.leave_out([np.flatnonzero(place == fold) for place in places])


def with_unseen(record: RunRecord, federation: Federation) -> RunRecord:
    """The record with what its plan asks of training samples that the model had not seen: thresholds, recalibration.

    They are those that ``stop`` holds out; else, where a plan asks, the plan is run again :data:`FOLDS` times without a
    fold of them, which that model then judges. Nothing is found where that cannot be, or has no finite outputs.
    """
    unseen = record.unseen or _out_of_fold(record, federation)
    if unseen is None:
        return record
    p, positive = unseen
    if record.plan.recalibrate and (found := recalibration_of(p, positive)):
        p, record = recalibrate(p, *found), _recalibrated(record, federation, *found)
    return replace(record, thresholds=thresholds_of(record.plan, p, positive))


def _out_of_fold(record: RunRecord, federation: Federation) -> Unseen | None:
    plan = record.plan
    is_asked = plan.recalibrate or not isinstance(plan.threshold, float | None)
    if not is_asked or plan.kept_back or record.stopped or "probabilities" not in record.predictions:
        return None
    blind = plan.model_copy(update={"threshold": None, "recalibrate": False, "evaluate_every": plan.rounds})
    p, positive = [], []
    try:
        for part in leave_folds_out(federation, FOLDS, False, rng_for(plan.seed, "threshold")):
            plan_of_part = blind.model_copy(update={"sites": len(part.names)})
            found = run_plan(plan_of_part, part, DEFAULT_ENGINE, options={"device": "cpu"}).predictions
            p.append(found["probabilities"][:, 1])
            positive.append(found["labels"] == 1)
    except (PlanError, ReplyError, KeyError):
        return None
    return np.concatenate(p), np.concatenate(positive)


def _recalibrated(record: RunRecord, federation: Federation, intercept: float, slope: float) -> RunRecord:
    """The record whose predictions are recalibrated, with the metrics of these."""
    if "probabilities" not in record.predictions:
        return record
    positive = recalibrate(record.predictions["probabilities"][:, 1], intercept, slope)
    p = np.stack([1 - positive, positive], axis=1)
    outputs = scores_of(np.log(np.maximum(p, SMALLEST)), federation.task.outputs)
    metrics = evaluate(outputs, federation.test.y, federation.task)
    found = {"intercept": intercept, "slope": slope, "common": metrics}
    return replace(record, predictions={**record.predictions, "probabilities": p}, recalibration=found)
