"""What models are worth on samples, many models at once: the sites' own models are judged at every evaluation of a run.

``outputs`` are the last layers of all models, (models, samples, outputs): a column for each class, or one column that
is positive for class 1. Class 1 is the positive one of two; with more classes every metric but accuracy is the mean
over classes. The metrics are scikit-learn's (tests hold them to it), which takes models one by one: with fifty sites
and small test sets that costs more than all training.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import logsumexp

from fedsmall.data.outcomes import NUMBERS, ORDINAL, kind_of, survival_of
from fedsmall.errors import PlanError
from fedsmall.evaluation import grades, labels, numbers, survival
from fedsmall.evaluation.areas import area, average_precision, known_mean
from fedsmall.evaluation.probabilities import by_class, probabilities, squared_distances
from fedsmall.federation import Task
from fedsmall.methods import nearest

OF_CLASSES = (
    "accuracy",
    "balanced_accuracy",
    "macro_f1",
    "sensitivity",
    "specificity",
    "auc",
    "average_precision",
    "brier",
    "loss",
)
GRADED = ("kappa", "mae")  # of classes in their order, beside the others
OF_NUMBERS = ("mae", "rmse", "r2", "loss")
OF_TIMES = ("c_index", "ibs", "loss")
OF_LABELS = ("auc", "macro_f1", "subset_accuracy", "label_accuracy", "average_precision", "brier", "loss")
OF_KIND = {"classes": OF_CLASSES, "numbers": OF_NUMBERS, "times": OF_TIMES, "labels": OF_LABELS}
OTHER_NAMES = {"nll": "loss", "roc_auc": "auc", "f1": "macro_f1"}
OTHER_NAMES |= {
    "cohen_kappa": "kappa",
    "quadratic_kappa": "kappa",
    "mean_absolute_error": "mae",
    "root_mean_squared_error": "rmse",
    "r2_score": "r2",
    "concordance": "c_index",
}
LOWER_IS_BETTER = ("loss", "mae", "rmse", "mse", "brier", "ibs", "ece")
UNEQUAL = 0.1  # how far above an equal share the commonest class may be, for accuracy to be what methods are judged by


def known_metric(name: str, loss: str) -> str:
    """The metric that ``name`` means for a task of this ``loss``; PlanError where there is none of that name."""
    able = metrics_of(loss)
    name = OTHER_NAMES.get(name, name)
    if name not in able:
        raise PlanError(f"metric: there is no {name!r} for this task. {nearest(name, list(able))}")
    if name == "brier" and loss == "hinge":
        raise PlanError('metric: a margin is no probability, so "brier" says nothing here; use loss = "logistic"')
    return name


def metrics_of(loss: str) -> tuple[str, ...]:
    """The metrics that a task of this ``loss`` can have; of grades their own come first."""
    return (*GRADED, *OF_CLASSES) if loss == ORDINAL else OF_KIND[kind_of(loss)]


def default_metric(y: Sequence[np.ndarray], task: Task) -> str:
    """What methods are judged by where nobody says: accuracy, or the AUC where accuracy would be fooled.

    It would be where the commonest class of the training samples, the sites' ``y``, holds ten points more than an equal
    share (60% of two classes, 43% of three): then a prediction that looks at no sample already seems to be worth
    something. Grades are judged by their kappa, numbers by their mean absolute error, times by the concordance index,
    labels by their AUC.
    """
    if task.kind != "classes" or task.ordered:
        return metrics_of(task.loss)[0]
    shares = np.bincount(np.concatenate(list(y)), minlength=task.classes) / max(sum(map(len, y)), 1)
    return "auc" if shares.max() > 1 / task.classes + UNEQUAL else "accuracy"


def evaluate(outputs: np.ndarray, y: np.ndarray, task: Task) -> dict[str, float]:
    """Every metric of ``task`` that these samples can show of one model, by name; ``outputs`` are (samples, outputs).

    A metric that is not defined for the samples, such as the AUC where all are of one class, is left out, and so is
    every metric for no samples at all.
    """
    return {name: float(value) for name, (value,) in evaluate_many(np.asarray(outputs)[None], y, task).items()}


def evaluate_many(outputs: np.ndarray, y: np.ndarray, task: Task) -> dict[str, np.ndarray]:
    """Every metric of ``task`` for each model on ``y``, (samples,) or (samples, *target_shape): (models,) by name.

    The names are those of :func:`metrics_of` ("auc" and "average_precision" are of one class against the rest).
    NaN where one is not defined for a model, and left out where it is
    defined for none.
    """
    outputs = np.asarray(outputs, dtype=np.float64)
    if not len(y):
        return {}
    with np.errstate(invalid="ignore", over="ignore"):  # outputs of a model that has diverged; its loss tells
        found = {"loss": _losses(outputs, y, task.loss)}
        if task.kind == "numbers":
            found |= numbers.metrics_of(outputs, _flat(y), task.unit[1] if task.unit else 1.0, task.metrics)
        if task.kind == "times":
            found |= _of_times(outputs, y, task)
        if task.kind == "labels":
            found |= labels.metrics_of(outputs, y, task.metrics)
    if task.kind == "classes":
        scores = by_class(outputs, task.loss)
        found |= _of_classes(scores, y, task.classes, with_auc="auc" in task.metrics)
        if "average_precision" in task.metrics:
            found["average_precision"] = _average_precision(scores, y, task.classes)
        if "brier" in task.metrics:
            found["brier"] = squared_distances(probabilities(outputs, task.loss), y).mean(axis=-1)
    return {name: found[name] for name in task.metrics if name in found and not np.isnan(found[name]).all()}


def predicted(outputs: np.ndarray) -> np.ndarray:
    """The class that every row of outputs names: (..., outputs) -> (...). A tie goes to the lower class."""
    return (outputs[..., 0] > 0).astype(np.int64) if outputs.shape[-1] == 1 else outputs.argmax(axis=-1)


def _of_classes(outputs: np.ndarray, y: np.ndarray, classes: int, with_auc: bool) -> dict[str, np.ndarray]:
    guess = predicted(outputs)  # (models, samples)
    cell = (np.arange(len(guess))[:, None] * classes + y) * classes + guess
    table = np.bincount(cell.ravel(), minlength=len(guess) * classes**2).reshape(-1, classes, classes)
    return of_matrices(table) | ({"auc": _auc(outputs, y, classes)} if with_auc else {})


def of_matrices(table: np.ndarray) -> dict[str, np.ndarray]:
    """The metrics that follow from how many of each class are called what, (models, truth, called): (models,) each."""
    hits = np.diagonal(table, axis1=1, axis2=2)  # (models, classes)
    members, named = table.sum(axis=2), table.sum(axis=1)
    others = table.sum(axis=(1, 2))[:, None] - members
    with np.errstate(invalid="ignore", divide="ignore"):
        sensitivity = hits / members
        specificity = (others - (named - hits)) / others
        f1 = 2 * hits / (members + named)
        accuracy = hits.sum(axis=1) / members.sum(axis=1)
    two = table.shape[1] == 2
    return {
        "accuracy": accuracy,
        "balanced_accuracy": known_mean(sensitivity),
        "macro_f1": known_mean(f1),
        "sensitivity": sensitivity[:, 1] if two else known_mean(sensitivity),
        "specificity": specificity[:, 1] if two else known_mean(specificity),
        "kappa": grades.kappa_of(table),
        "mae": grades.distance_of(table),
    }


def _average_precision(outputs: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    each = [
        [average_precision(scores[k], y == label) for label, scores in _scores(outputs, classes)]
        for k in range(len(outputs))
    ]
    return known_mean(np.array(each))


def _auc(outputs: np.ndarray, y: np.ndarray, classes: int) -> np.ndarray:
    return known_mean(np.stack([area(scores, y == label) for label, scores in _scores(outputs, classes)], axis=1))


def _scores(outputs: np.ndarray, classes: int) -> list[tuple[int, np.ndarray]]:
    """How much each class is spoken for, (models, samples), by class; of two classes class 1 alone."""
    if outputs.shape[-1] == 1 or classes == 2:
        return [(1, outputs[..., -1] - (outputs[..., 0] if outputs.shape[-1] > 1 else 0.0))]
    with np.errstate(invalid="ignore", over="ignore"):
        shares = np.exp(outputs - logsumexp(outputs, axis=-1, keepdims=True))
    return [(label, shares[..., label]) for label in range(classes)]


def _losses(outputs: np.ndarray, y: np.ndarray, name: str) -> np.ndarray:
    if kind_of(name) == "times":
        return survival.loss_of(outputs, y.astype(np.float64))
    if kind_of(name) == "labels":
        return labels.loss_of(outputs, y)
    if kind_of(name) == "numbers":
        return numbers.loss_of(name, outputs, _flat(y))
    if name == ORDINAL:
        return grades.loss_of(outputs, y)
    if name == "cross_entropy":
        of_label = np.take_along_axis(outputs, y[None, :, None], axis=2)[..., 0]
        return np.asarray((logsumexp(outputs, axis=2) - of_label).mean(axis=1))
    margins = outputs[..., 0] * np.where(y == 1, 1.0, -1.0)
    if name == "hinge":
        return np.asarray(np.maximum(0.0, 1.0 - margins).mean(axis=1))
    if name == "logistic":
        return np.asarray(np.logaddexp(0.0, -margins).mean(axis=1))
    raise ValueError(
        f'losses are "cross_entropy", "logistic", "hinge" and those of {NUMBERS}; this task names {name!r}'
    )


def _of_times(outputs: np.ndarray, y: np.ndarray, task: Task) -> dict[str, np.ndarray]:
    """How well mean times are in order, and the error of the curves; none before the sites agree on intervals."""
    if not task.cuts:
        return {}
    curves, seen = survival_of(outputs), (np.array(task.cuts), *y[:, 2:4].T.astype(np.float64))
    ways = {"c_index": survival.concordance, "ibs": survival.integrated_brier}
    return {name: way(curves, *seen) for name, way in ways.items() if name in task.metrics}


def _flat(y: np.ndarray) -> np.ndarray:
    """Targets as (samples, numbers) in float64."""
    return y.reshape(len(y), -1).astype(np.float64)
