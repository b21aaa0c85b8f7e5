"""What a model is worth on samples; by scikit-learn where it has the metric.

``outputs`` are a model's last layer, (samples, outputs): a column for each class, or one column that is positive for
class 1. Class 1 is the positive one of two; with more classes every metric but accuracy is the mean over classes.
"""

import warnings

import numpy as np
from scipy.special import logsumexp
from sklearn import metrics

from fedsmall.federation import Task


def evaluate(outputs: np.ndarray, y: np.ndarray, task: Task) -> dict[str, float]:
    """Every metric of ``task`` that these samples can show, by name.

    "accuracy", "balanced_accuracy", "macro_f1", "sensitivity", "specificity", "auc" (one against the rest) and "loss"
    (the mean); for regression "mae" and "loss". A metric that is not defined for the samples, such as the AUC where all
    are of one class, is left out, and so is every metric for no samples at all.
    """
    outputs = np.asarray(outputs, dtype=np.float64)
    if not len(y):
        return {}
    found = {"mae": _mae(outputs, y)} if task.loss == "l1" else _of_classes(outputs, y, task.classes)
    found["loss"] = loss(outputs, y, task.loss)
    return {name: value for name, value in found.items() if name in task.metrics and not np.isnan(value)}


def accuracies(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The accuracies of many models on the same samples: (models, samples, outputs) and (samples,) -> (models,)."""
    correct: np.ndarray = predicted(outputs) == y
    shares: np.ndarray = correct.mean(axis=-1)
    return shares


def predicted(outputs: np.ndarray) -> np.ndarray:
    """The class that every row of outputs names: (..., outputs) -> (...). A tie goes to the lower class."""
    return (outputs[..., 0] > 0).astype(np.int64) if outputs.shape[-1] == 1 else outputs.argmax(axis=-1)


def loss(outputs: np.ndarray, y: np.ndarray, name: str) -> float:
    """The mean over samples of the loss called ``name``, in float64."""
    if name == "l1":
        return _mae(outputs, y)
    if name == "cross_entropy":
        return float(np.mean(logsumexp(outputs, axis=1) - outputs[np.arange(len(y)), y]))
    margins = outputs[:, 0] * np.where(y == 1, 1.0, -1.0)
    if name == "hinge":
        return float(np.mean(np.maximum(0.0, 1.0 - margins)))
    if name == "logistic":
        return float(np.mean(np.logaddexp(0.0, -margins)))
    raise ValueError(f'losses are "cross_entropy", "logistic", "hinge" and "l1"; this task names {name!r}')


def _of_classes(outputs: np.ndarray, y: np.ndarray, classes: int) -> dict[str, float]:
    guess = predicted(outputs)
    table = metrics.confusion_matrix(y, guess, labels=np.arange(classes))  # (true, predicted)
    sensitivities, specificities = _rates(table)
    two = classes == 2
    return {
        "accuracy": float(np.mean(guess == y)),
        "balanced_accuracy": _mean(sensitivities),
        "macro_f1": float(metrics.f1_score(y, guess, average="macro", zero_division=0.0)),
        "sensitivity": float(sensitivities[1]) if two else _mean(sensitivities),
        "specificity": float(specificities[1]) if two else _mean(specificities),
        "auc": _auc(outputs, y, classes),
    }


def _rates(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sensitivity and specificity of each class from the confusion matrix, NaN where there is no sample of it."""
    hits, members, named = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    others = table.sum() - members
    with np.errstate(invalid="ignore", divide="ignore"):
        return hits / members, (others - (named - hits)) / others


def _auc(outputs: np.ndarray, y: np.ndarray, classes: int) -> float:
    """Area under the ROC curve: of class 1 of two, else the mean over the classes that occur, each against the rest."""
    if not np.isfinite(outputs).all():
        return float("nan")
    if outputs.shape[1] == 1 or classes == 2:
        return _area(outputs[:, -1] - (outputs[:, 0] if outputs.shape[1] > 1 else 0.0), y == 1)
    shares = np.exp(outputs - logsumexp(outputs, axis=1, keepdims=True))
    return _mean(np.array([_area(shares[:, label], y == label) for label in range(classes)]))


def _area(scores: np.ndarray, positive: np.ndarray) -> float:
    return float(metrics.roc_auc_score(positive, scores)) if positive.any() and not positive.all() else float("nan")


def _mean(values: np.ndarray) -> float:
    """The mean over those that are defined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # none is defined: NaN is the answer
        return float(np.nanmean(values))


def _mae(outputs: np.ndarray, y: np.ndarray) -> float:
    return float(np.mean(np.abs(outputs.reshape(y.shape) - y)))
