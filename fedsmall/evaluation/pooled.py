"""Logistic regression on the pooled rows of a simulation: what a knowing user would hold every network against."""

import warnings
from typing import Any

import numpy as np

from fedsmall.data.federation import Federation, Samples, Task
from fedsmall.evaluation.metrics import evaluate

LABEL = "logistic regression, pooled (scikit-learn)"
STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # scikit-learn's C, the inverse of the penalty
FOLDS, TOLERANCE = 3, 1e-3
MOST = 2_000_000  # numbers times classes; a larger fit would take longer than many a run


def pooled_logistic(federation: Federation, own_models: bool = False) -> dict[str, Any] | None:
    """The regression's metrics, as :func:`fedsmall.evaluation.trivial.trivial` has its own; None where there is none.

    There is none of numbers, times, labels or grades, of sites with own models, of one class, or beyond ``MOST``.
    """
    task = federation.task
    if own_models or task.kind != "classes" or task.ordered or not len(federation.test):
        return None
    x = np.concatenate([_flat(samples) for samples in federation.train])
    y = np.concatenate([samples.y for samples in federation.train])
    if len(np.unique(y)) < 2 or x.size * task.classes > MOST:
        return None
    model = _fit(x, y)
    judged = {name: {"common": _judge(model, samples, task), "sites": {}} for name, samples in federation.extra}
    return {"label": LABEL, "common": _judge(model, federation.test, task), "sites": {}, "extra": judged}


def _fit(x: np.ndarray, y: np.ndarray) -> Any:
    """The regression with the penalty that its own cross-validation takes, or C = 1 where a class is of one patient."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    folds = min(FOLDS, int(np.unique(y, return_counts=True)[1].min()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # attributes that its next releases rename, and fits that stop early
        if folds < 2:
            return LogisticRegression(max_iter=1000, tol=TOLERANCE).fit(x, y)
        by_loss = {"scoring": "neg_log_loss", "max_iter": 1000, "tol": TOLERANCE}
        return LogisticRegressionCV(Cs=STRENGTHS, cv=folds, **by_loss).fit(x, y)


def _judge(model: Any, samples: Samples, task: Task) -> dict[str, float]:
    logs = np.full((len(samples), task.classes), np.log(1e-12))  # a class without a training sample
    with np.errstate(divide="ignore"):
        logs[:, model.classes_] = np.maximum(model.predict_log_proba(_flat(samples)), np.log(1e-12))
    outputs = logs if task.outputs > 1 else logs[:, 1:] - logs[:, :1]
    return evaluate(outputs, samples.y, task)


def _flat(samples: Samples) -> np.ndarray:
    return samples.x.reshape(len(samples), -1).astype(np.float64)
