"""What a model loses on test samples when one column is shuffled (Breiman 2001, "Random forests", section 10)."""

from dataclasses import replace

import numpy as np

from fedsmall.data.federation import Federation
from fedsmall.data.preparation import Columns
from fedsmall.evaluation.metrics import LOWER_IS_BETTER, OTHER_NAMES, evaluate_many
from fedsmall.evaluation.outputs import answer
from fedsmall.models.registry import initial_model
from fedsmall.randomness import rng_for
from fedsmall.sim.engines.evaluation import members_of
from fedsmall.sim.engines.run import RunRecord
from fedsmall.training.stack import tensors_of
from fedsmall.training.trainer import OneModelTrainer
from fedsmall.training.trees import cohort_for
from fedsmall.wire import Arrays

SHUFFLES = 10
MOST_COLUMNS, MOST_SAMPLES = 200, 2000


def importance_of(record: RunRecord, federation: Federation) -> dict[str, list[float]]:
    """By column of a table how much worse the global model's metric is with it shuffled: mean, and standard deviation.

    The values of a category are shuffled together. Empty where there is no global model, no table or no test sample.
    """
    plan, task, form = record.plan, federation.task, getattr(record.preparation, "form", None)
    if not isinstance(form, Columns) or len(form.columns) > MOST_COLUMNS or not len(federation.test):
        return {}
    if record.model is None or plan.has_own_models:
        return {}
    trainer = cohort_for(plan, task, federation.names, federation.train)
    if not isinstance(trainer, OneModelTrainer):
        return {}
    rng = rng_for(plan.seed, "importance")
    some = rng.permutation(len(federation.test))[:MOST_SAMPLES]
    x, y = federation.test.x[some], federation.test.y[some]
    trained: Arrays = {name: record.model[name] for name in initial_model(plan, task)}
    stack = trainer.stack_of(tensors_of(members_of(plan, trained)))
    metric = OTHER_NAMES.get(plan.metric or "accuracy", plan.metric or "accuracy")
    judged, sign = replace(task, metrics=(metric,)), 1 if metric in LOWER_IS_BETTER else -1

    def score(of: np.ndarray) -> np.ndarray:
        outputs = answer(trainer.predict(stack, of.reshape(-1, *x.shape[1:])), task.loss, plan.method.together)
        values = evaluate_many(outputs.reshape(len(of), len(x), -1), y, judged)
        return values.get(metric, np.full(len(of), np.nan))

    whole, begin, found = score(x[None])[0], 0, {}
    for column in form.columns:
        at = slice(begin, begin + len(form.categories.get(column, [column])))
        begin = at.stop
        shuffled = np.repeat(x[None], SHUFFLES, axis=0)
        rows = np.stack([rng.permutation(len(x)) for _ in range(SHUFFLES)])
        shuffled[:, :, at] = x[rows][:, :, at]
        losses = sign * (score(shuffled) - whole)
        if np.isfinite(losses).all():
            found[column] = [float(losses.mean()), float(losses.std(ddof=1))]
    return found
