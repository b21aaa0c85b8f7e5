"""What a model's outputs are worth on samples: losses as in training, everything else by scikit-learn."""

import numpy as np
from scipy.special import expit, log_softmax, softmax
from sklearn.metrics import confusion_matrix, f1_score, roc_auc_score

from fedsmall.federation import Task


def evaluate(outputs: np.ndarray, y: np.ndarray, task: Task) -> dict[str, float]:
    """The metrics of one model: ``outputs`` (samples, outputs) on labels ``y`` (samples,), or targets for "l1".

    Classes get accuracy, loss, macro F1, sensitivity and specificity (macro averages over the classes, as in the
    tables of RepTreeFL), and the area under the ROC curve (one against the rest) where every class occurs. Regression
    gets loss and mae.
    """
    if task.loss == "l1":
        error = float(np.abs(outputs - y).mean())
        return {"loss": error, "mae": error}
    outputs = np.asarray(outputs, dtype=np.float64)
    labels = predicted(outputs)
    sensitivity, specificity = _rates(y, labels, task.classes)
    metrics = {
        "accuracy": float((labels == y).mean()),
        "loss": mean_loss(outputs, y, task.loss),
        "macro_f1": float(f1_score(y, labels, labels=range(task.classes), average="macro", zero_division=0)),
        "sensitivity": sensitivity,
        "specificity": specificity,
    }
    return metrics | _area(outputs, y, task.classes)


def accuracies(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The accuracy of many models at once: (models, samples, outputs) -> (models,)."""
    shares: np.ndarray = (predicted(outputs) == y).mean(axis=-1)
    return shares


def predicted(outputs: np.ndarray) -> np.ndarray:
    """The class of each sample, (..., samples, outputs) -> (..., samples); one output says class 1 where positive."""
    if outputs.shape[-1] == 1:
        return (outputs[..., 0] > 0).astype(np.int64)
    labels: np.ndarray = outputs.argmax(axis=-1)
    return labels


def mean_loss(outputs: np.ndarray, y: np.ndarray, loss: str) -> float:
    """The mean loss of one model by its name in :class:`fedsmall.federation.Task`."""
    if loss == "cross_entropy":
        return float(-log_softmax(outputs, axis=1)[np.arange(len(y)), y].mean())
    margins = (2 * y - 1) * outputs[:, 0]
    if loss == "hinge":
        return float(np.maximum(0, 1 - margins).mean())
    return float(np.logaddexp(0, -margins).mean())


def _rates(y: np.ndarray, labels: np.ndarray, classes: int) -> tuple[float, float]:
    """Macro sensitivity and specificity; a class that does not occur is left out of the former."""
    table = confusion_matrix(y, labels, labels=range(classes)).astype(np.float64)
    true, of_class, told = np.diag(table), table.sum(axis=1), table.sum(axis=0)
    others = table.sum() - of_class
    occurs = of_class > 0
    sensitivity = (true[occurs] / of_class[occurs]).mean()
    has_others = others > 0
    false_alarms = (told - true)[has_others] / others[has_others]
    return float(sensitivity), float(1 - false_alarms.mean()) if has_others.any() else float("nan")


def _area(outputs: np.ndarray, y: np.ndarray, classes: int) -> dict[str, float]:
    if len(np.unique(y)) < classes or not np.isfinite(outputs).all():
        return {}
    if outputs.shape[1] == 1:
        return {"auc": float(roc_auc_score(y, expit(outputs[:, 0])))}
    shares = softmax(outputs, axis=1)
    if classes == 2:
        return {"auc": float(roc_auc_score(y, shares[:, 1]))}
    return {"auc": float(roc_auc_score(y, shares, multi_class="ovr", labels=range(classes)))}
