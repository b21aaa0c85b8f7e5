"""The uncertainty that a finite number of test samples leaves, beside that over seeds.

An interval over seeds speaks of further runs on the same data, which may all have met the same lucky test samples.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import logit

from fedsmall.data.federation import Task
from fedsmall.evaluation import survival
from fedsmall.evaluation.metrics import OF_NUMBERS, evaluate_many

GROUPS = 25  # of test samples, left out one after the other
AT_ONCE = 4096  # test samples of which all groups are judged together
BY_CLASS = ("auc", "average_precision", "balanced_accuracy", "macro_f1")  # as sure as the rarest class is large
SMALLEST = 1e-12  # probability: a logarithm must not be infinite


def worth_without(
    metrics: Sequence[str], predictions: Mapping[str, np.ndarray], loss: str = "mse"
) -> dict[str, np.ndarray]:
    """Each metric without each of up to ``GROUPS`` random groups of the test samples, or of whole patients: (groups,).

    ``predictions`` are those that a run keeps; the ``loss`` of numbers is in standard deviations. NaN where undefined.
    """
    whose = np.unique(predictions.get("patients", np.arange(len(predictions["labels"]))), return_inverse=True)[1]
    units = int(whose.max(initial=-1)) + 1
    order = np.random.default_rng(0).permutation(units)  # its own: given predictions have one error, whoever asks
    left_out = [order[group::GROUPS] for group in range(min(GROUPS, units) if units > 1 else 0)]
    rows = [np.flatnonzero(~np.isin(whose, group)) for group in left_out]
    at_once = "probabilities" in predictions and len(whose) <= AT_ONCE
    values = {name: np.full(len(rows), np.nan) for name in metrics}
    for size in {len(kept) for kept in rows}:
        alike = [group for group, kept in enumerate(rows) if len(kept) == size]
        for groups in [alike] if at_once else [[group] for group in alike]:
            worth = _worth(metrics, np.stack([rows[group] for group in groups]), predictions, loss)
            for name in worth.keys() & values:
                values[name][groups] = worth[name]
    return values


def jackknife(without: np.ndarray) -> tuple[float, float]:
    """The standard error of :func:`worth_without`'s, and its degrees of freedom (Tukey 1958)."""
    groups = len(without)
    if groups < 2 or not np.isfinite(without).all():
        return np.inf, 0.0
    return float(np.sqrt((groups - 1) * without.var())), groups - 1


def patients_behind(metric: str, predictions: Mapping[str, np.ndarray]) -> int:
    """How many test patients a metric rests on: those of a class for a recall, of the rarest class for an AUC."""
    labels = predictions["labels"]
    if "patients" in predictions:
        labels = labels[np.unique(np.c_[predictions["patients"], labels], axis=0, return_index=True)[1]]
    if metric in ("sensitivity", "specificity"):
        return int((labels == (1 if metric == "sensitivity" else 0)).sum())
    counts = np.unique(labels, return_counts=True)[1]
    return int(counts.min()) if metric in BY_CLASS and labels.ndim == 1 else len(labels)


def _worth(
    metrics: Sequence[str], rows: np.ndarray, predictions: Mapping[str, np.ndarray], loss: str
) -> dict[str, np.ndarray]:
    """The metrics of the samples of each group, ``rows`` (groups, samples); of what is no class there is one group."""
    if "probabilities" in predictions:
        outputs = np.log(np.maximum(predictions["probabilities"], SMALLEST))[rows]
        task = Task("", (), outputs.shape[-1], "cross_entropy", tuple(metrics))
        return evaluate_many(outputs, predictions["labels"][rows], task)
    y = predictions["labels"][rows[0]]
    if "survival" in predictions:
        return survival.metrics_of(metrics, predictions["survival"][rows], predictions["cuts"][0], *y.T)
    if "label_probabilities" in predictions:
        outputs = logit(np.clip(predictions["label_probabilities"][rows], SMALLEST, 1 - SMALLEST))
        return evaluate_many(outputs, y, Task("", (), outputs.shape[-1], "binary_cross_entropy", tuple(metrics)))
    outputs, y = predictions["predictions"][rows].reshape(1, len(y), -1), y.reshape(len(y), -1)
    unit = float(y.std()) or 1.0
    of_loss = evaluate_many(outputs / unit, y / unit, Task("", (), outputs.shape[-1], loss, ("loss",)))
    return evaluate_many(outputs, y, Task("", (), outputs.shape[-1], loss, tuple(OF_NUMBERS))) | of_loss


def constant_beside(predictions: Mapping[str, np.ndarray], loss: str = "mse") -> dict[str, np.ndarray]:
    """What a constant would have said in place of kept predictions: the middle of the truth, or its classes' shares."""
    y = predictions["labels"]
    if "survival" in predictions:
        middle = {"survival": np.broadcast_to(predictions["survival"].mean(axis=0), predictions["survival"].shape)}
    elif "probabilities" in predictions:
        p = predictions["probabilities"]
        middle = {"probabilities": np.broadcast_to(np.eye(p.shape[1])[y].mean(axis=0), p.shape)}
    elif "label_probabilities" in predictions:
        middle = {"label_probabilities": np.broadcast_to(y.mean(axis=0), y.shape)}
    else:
        middle = {"predictions": np.broadcast_to(np.median(y, axis=0) if loss == "l1" else y.mean(axis=0), y.shape)}
    return {**predictions, **middle}
