"""What every model is held against: a trivial prediction, and logistic regression on the pooled rows of a simulation.

A trivial prediction looks at no sample: the commonest training class (the lower of two), the mean of the targets (their
median where the loss is "l1"), the curve of all training samples, or the share of each label.
"""

import warnings
from typing import Any

import numpy as np

from fedsmall.data.federation import Federation, Samples, Task, join, task_at
from fedsmall.evaluation.metrics import evaluate
from fedsmall.evaluation.outputs import outputs_of, probabilities, scores_of
from fedsmall.evaluation.survival import interval_log_odds

POOLED = "logistic regression, pooled (scikit-learn)"
STRENGTHS = (0.01, 0.1, 1.0, 10.0)  # scikit-learn's C, the inverse of the penalty
FOLDS, TOLERANCE = 3, 1e-3
MOST = 2_000_000  # numbers times classes; a larger fit would take longer than many a run
LABELS = {
    "l1": "always the median",
    "mse": "always the mean",
    "huber": "always the mean",
    "hazard": "one curve for all",
    "binary_cross_entropy": "each label's share",
}


def trivial(federation: Federation, own_models: bool = False) -> dict[str, Any]:
    """The trivial predictor of a federation, judged as its models are; with ``own_models`` each site has its own."""
    task, sites = federation.task, zip(federation.names, federation.held_out, strict=False)
    homes = {name: samples for name, samples in sites if samples}
    predictor: dict[str, Any] = {"label": LABELS.get(task.loss, "the majority class")}
    if own_models:
        trained = dict(zip(federation.names, federation.train, strict=True))
        at_home = [_evaluate_constant(trained[name].y, samples, task) for name, samples in homes.items()]
        return predictor | {"common": None, "sites": _means(at_home), "extra": {}}
    y = np.concatenate([samples.y for samples in federation.train])
    extra: dict[str, Any] = {
        name: {"common": _evaluate_constant(y, samples, task), "sites": {}} for name, samples in federation.extra
    }
    if homes:
        extra["held_out"] = {name: _evaluate_constant(y, samples, task) for name, samples in homes.items()}
    named = {"class": int(np.bincount(y).argmax())} if task.kind == "classes" else {}
    common = _evaluate_constant(y, federation.test, task)
    return named | predictor | {"common": common, "sites": {}, "extra": extra}


def trivial_for(y: np.ndarray, task: Task) -> dict[str, Any]:
    """The trivial predictor where all that is known are the classes ``y`` of the patients judged by, (samples,)."""
    worth = evaluate(np.tile(constant(y, task), (len(y), 1)), y, task)
    named = {"class": int(np.bincount(y).argmax())}
    return named | {"label": "the majority class", "common": worth, "sites": {}, "extra": {}}


def constant(y: np.ndarray, task: Task) -> np.ndarray:
    """The outputs that the trivial predictor gives for every sample, from the training targets ``y``: (outputs,)."""
    if task.kind == "times":
        return interval_log_odds(y, task.outputs)
    if task.kind == "labels":
        positives = y.sum(axis=0)
        return np.asarray(np.log((positives + 1) / (len(y) - positives + 1)))  # one more of each: no loss is infinite
    if task.kind == "numbers":
        flat = y.reshape(len(y), -1)
        return np.asarray(np.median(flat, axis=0) if task.loss == "l1" else flat.mean(axis=0, dtype=np.float64))
    counts = np.bincount(y, minlength=task.classes)
    if task.outputs > 1:
        logs = np.log((counts + 1) / (len(y) + task.classes))  # one more of each: no loss is infinite
        return outputs_of(logs) if task.ordered else np.asarray(logs)
    lead = np.log((counts[1] + 1) / (counts[0] + 1))
    return np.array([(1.0 if lead > 0 else -1.0) if task.loss == "hinge" else lead])


def _evaluate_constant(y: np.ndarray, samples: Samples, task: Task) -> dict[str, float]:
    task = task_at(task, y)
    return evaluate(np.tile(constant(y, task), (len(samples), 1)), samples.y, task)


def _means(rows: list[dict[str, float]]) -> dict[str, float]:
    shared = [name for name in (rows[0] if rows else {}) if all(name in metrics for metrics in rows)]
    values = {name: [metrics[name] for metrics in rows] for name in shared}
    spread = {f"{name}_sd": float(np.std(of, ddof=1)) if len(of) > 1 else 0.0 for name, of in values.items()}
    return {f"{name}_mean": float(np.mean(of)) for name, of in values.items()} | spread


def pooled_logistic(federation: Federation, own_models: bool = False) -> dict[str, Any] | None:
    """The regression's metrics, as :func:`trivial` has its own, and its "predictions"; None where there is none.

    There is none of numbers, times, labels or grades, of sites with own models, of one class, or beyond ``MOST``.
    """
    task = federation.task
    if own_models or task.kind != "classes" or task.ordered or not len(federation.test):
        return None
    everybody = join(federation.train)
    if len(np.unique(everybody.y)) < 2 or everybody.x.size * task.classes > MOST:
        return None
    model = _fit(everybody)
    judged = {
        name: {"common": evaluate(_outputs(model, samples, task), samples.y, task), "sites": {}}
        for name, samples in federation.extra
    }
    outputs, truth = _outputs(model, federation.test, task), federation.test.y
    predictions = {"probabilities": probabilities(outputs, task.loss), "labels": truth, **federation.test.of_patients}
    common = evaluate(outputs, truth, task)
    return {"label": POOLED, "common": common, "sites": {}, "extra": judged, "predictions": predictions}


def folds_of(samples: Samples, folds: int) -> Any:
    """So many folds for scikit-learn; of whole patients, if these have several samples and all parts all classes."""
    whose = samples.of_patients.get("patients", np.arange(0))
    if folds < 2 or len(np.unique(whose)) < folds:
        return folds
    from sklearn.model_selection import StratifiedGroupKFold

    parts = list(StratifiedGroupKFold(folds).split(_flat(samples), samples.y, whose))
    classes = len(np.unique(samples.y))
    return parts if all(len(np.unique(samples.y[rows])) == classes for part in parts for rows in part) else folds


def _fit(samples: Samples) -> Any:
    """The regression with the penalty that its own cross-validation takes, or C = 1 where a class is of one patient."""
    from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

    x, y = _flat(samples), samples.y
    folds = min(FOLDS, int(np.unique(y, return_counts=True)[1].min()))
    with warnings.catch_warnings(action="ignore"):  # attributes that its next releases rename, fits that stop early
        if folds < 2:
            return LogisticRegression(max_iter=1000, tol=TOLERANCE).fit(x, y)
        by_loss = {"scoring": log_likelihood, "max_iter": 1000, "tol": TOLERANCE}
        return LogisticRegressionCV(Cs=STRENGTHS, cv=folds_of(samples, folds), **by_loss).fit(x, y)


def log_likelihood(model: Any, x: np.ndarray, y: np.ndarray) -> float:
    """The mean of classes ``y`` under a model of scikit-learn's, whose "neg_log_loss" takes longer than a fit."""
    shares = model.predict_proba(x)[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    return float(np.log(np.clip(shares, 1e-12, None)).mean())


def _outputs(model: Any, samples: Samples, task: Task) -> np.ndarray:
    logs = np.full((len(samples), task.classes), np.log(1e-12))  # a class without a training sample
    with np.errstate(divide="ignore"):
        logs[:, model.classes_] = np.maximum(model.predict_log_proba(_flat(samples)), np.log(1e-12))
    return scores_of(logs, task.outputs)


def _flat(samples: Samples) -> np.ndarray:
    return samples.x.reshape(len(samples), -1).astype(np.float64)
