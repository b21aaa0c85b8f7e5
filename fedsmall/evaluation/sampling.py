"""The uncertainty that a finite number of test samples leaves, beside that over seeds.

An interval over seeds speaks of further runs on the same data, which may all have met the same lucky test samples.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.special import logit, ndtr

from fedsmall.data.federation import Task
from fedsmall.evaluation import survival
from fedsmall.evaluation.metrics import OF_NUMBERS, average_precision, evaluate, kappa
from fedsmall.evaluation.outputs import squared_distances

DRAWS = 200
GROUPS = 25  # of test samples, left out one after the other
BY_CLASS = ("auc", "average_precision", "balanced_accuracy", "macro_f1")  # as sure as the rarest class is large
SMALLEST = 1e-12  # probability: a logarithm must not be infinite

Error = Callable[[np.ndarray, np.ndarray, int | None], float]


def p_of_samples(gains: list[float], errors: list[float]) -> float:
    """The two-sided p-value of a mean gain by the test samples of one run: all seeds share these patients."""
    error = float(np.sqrt(np.mean(np.square(errors))))
    return 1.0 if error == 0 else float(2 * ndtr(-abs(np.mean(gains)) / error))


def worth_without(
    metrics: Sequence[str], predictions: Mapping[str, np.ndarray], loss: str = "mse"
) -> dict[str, np.ndarray]:
    """Each metric without each of up to ``GROUPS`` random groups of the test samples: (groups,).

    ``predictions`` are those that a run keeps; the ``loss`` of numbers is in standard deviations. NaN where undefined.
    """
    rows = len(predictions["labels"])
    order = np.random.default_rng(0).permutation(rows)  # its own: given predictions have one error, whoever asks
    values = []
    for group in range(min(GROUPS, rows) if rows > 1 else 0):
        kept = np.ones(rows, dtype=bool)
        kept[order[group::GROUPS]] = False
        values.append(_worth(metrics, {name: array[kept] for name, array in predictions.items()}, loss))
    return {name: np.array([value.get(name, np.nan) for value in values]) for name in metrics}


def jackknife(without: np.ndarray) -> tuple[float, float]:
    """The standard error of :func:`worth_without`'s, and its degrees of freedom (Tukey 1958)."""
    groups = len(without)
    if groups < 2 or not np.isfinite(without).all():
        return np.inf, 0.0
    return float(np.sqrt((groups - 1) * without.var())), groups - 1


def patients_behind(metric: str, labels: np.ndarray) -> int:
    """How many test samples a metric rests on: those of a class for a recall, of the rarest class for an AUC."""
    if metric in ("sensitivity", "specificity"):
        return int((labels == (1 if metric == "sensitivity" else 0)).sum())
    counts = np.unique(labels, return_counts=True)[1]
    return int(counts.min()) if metric in BY_CLASS and labels.ndim == 1 else len(labels)


def _worth(metrics: Sequence[str], predictions: Mapping[str, np.ndarray], loss: str) -> dict[str, float]:
    y = predictions["labels"]
    if "survival" in predictions:
        worth = survival.metrics_of(metrics, predictions["survival"][None], predictions["cuts"][0], *y.T)
        return {name: float(value[0]) for name, value in worth.items()}
    if "probabilities" in predictions:
        outputs, loss = np.log(np.maximum(predictions["probabilities"], SMALLEST)), "cross_entropy"
    elif "label_probabilities" in predictions:
        outputs = logit(np.clip(predictions["label_probabilities"], SMALLEST, 1 - SMALLEST))
        loss = "binary_cross_entropy"
    else:
        outputs, y = predictions["predictions"].reshape(len(y), -1), y.reshape(len(y), -1)
        unit = float(y.std()) or 1.0
        of_loss = evaluate(outputs / unit, y / unit, Task("", (), outputs.shape[1], loss, ("loss",)))
        return evaluate(outputs, y, Task("", (), outputs.shape[1], loss, tuple(OF_NUMBERS))) | of_loss
    return evaluate(outputs, y, Task("", (), outputs.shape[1], loss, tuple(metrics)))


def constant_beside(predictions: Mapping[str, np.ndarray], loss: str = "mse") -> dict[str, np.ndarray]:
    """What a constant would have said in place of kept predictions of numbers, times or labels: their own middle."""
    y = predictions["labels"]
    if "survival" in predictions:
        middle = {"survival": np.broadcast_to(predictions["survival"].mean(axis=0), predictions["survival"].shape)}
    elif "label_probabilities" in predictions:
        middle = {"label_probabilities": np.broadcast_to(y.mean(axis=0), y.shape)}
    else:
        middle = {"predictions": np.broadcast_to(np.median(y, axis=0) if loss == "l1" else y.mean(axis=0), y.shape)}
    return {**predictions, **middle}


def error_over_constant(metric: str, p: np.ndarray, y: np.ndarray, commonest: int | None) -> float | None:
    """The standard error by test samples of how far a model is ahead in ``metric`` of always saying ``commonest``.

    ``p`` (samples, classes) are probabilities, ``y`` (samples,) classes. The AUC's error is that under chance (Mann and
    Whitney 1947); recalls are moved towards one half (Agresti and Coull 1998). None without formula.
    """
    if metric not in ERRORS or len(y) < 2:
        return None
    return float(ERRORS[metric](p, y, commonest))


def _of_accuracy(p: np.ndarray, y: np.ndarray, commonest: int | None) -> float:
    right = (p.argmax(axis=1) == y).astype(float)
    ahead = right if commonest is None else right - (y == commonest)
    return _error_of_mean(ahead) or _recall_error(right)


def _error_of_mean(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _recall_error(right: np.ndarray) -> float:
    share = (right.sum() + 1) / (len(right) + 2)
    return float(np.sqrt(share * (1 - share) / (len(right) + 2)))


def _of_balanced_accuracy(p: np.ndarray, y: np.ndarray, _: int | None) -> float:
    guess, labels = p.argmax(axis=1), np.unique(y)
    return float(np.sqrt(sum(_recall_error(guess[y == label] == label) ** 2 for label in labels)) / len(labels))


def _of_auc(p: np.ndarray, y: np.ndarray, _: int | None) -> float:
    labels = [1] if p.shape[1] == 2 else [label for label in range(p.shape[1]) if (y == label).any()]
    counts = [(int((y == label).sum()), int((y != label).sum())) for label in labels]
    return float(np.mean([np.sqrt((len(y) + 1) / (12 * good * bad)) if good and bad else 0.5 for good, bad in counts]))


def _of_average_precision(p: np.ndarray, y: np.ndarray, _: int | None) -> float:
    labels = np.arange(p.shape[1])[p.shape[1] == 2 :]
    values = [
        np.nanmean(average_precision(p[rows].T[labels], y[rows] == labels[:, None])) for rows in _draw_rows(len(y))
    ]
    return float(np.nanstd(values, ddof=1))


def _of_kappa(p: np.ndarray, y: np.ndarray, _: int | None) -> float:
    named = p.argmax(axis=1)
    return float(np.nanstd([kappa(named[rows], y[rows]) for rows in _draw_rows(len(y))], ddof=1))


def _draw_rows(rows: int) -> np.ndarray:
    return np.random.default_rng(0).integers(rows, size=(DRAWS, rows))  # its own: given predictions have one error


def _of_distance(p: np.ndarray, y: np.ndarray, commonest: int | None) -> float:
    return _error_of_mean(np.abs(p.argmax(axis=1) - y) - (0 if commonest is None else np.abs(commonest - y)))


ERRORS: dict[str, Error] = {
    "accuracy": _of_accuracy,
    "balanced_accuracy": _of_balanced_accuracy,
    "sensitivity": lambda p, y, _: _recall_error(p.argmax(axis=1)[y == 1] == 1),
    "specificity": lambda p, y, _: _recall_error(p.argmax(axis=1)[y == 0] == 0),
    "auc": _of_auc,
    "average_precision": _of_average_precision,
    "brier": lambda p, y, _: _error_of_mean(squared_distances(p, y)),
    "kappa": _of_kappa,
    "mae": _of_distance,
    "loss": lambda p, y, _: _error_of_mean(np.log(np.maximum(p[np.arange(len(y)), y], 1e-300))),
}
