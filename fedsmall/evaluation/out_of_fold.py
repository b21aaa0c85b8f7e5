"""What a site tells of models that never saw it, judged on its own samples: sums and binned counts, and no sample.

Sums of several sites add up to those of all their samples together, and say what a consortium wants to know: loss,
accuracy, Brier score and calibration exactly, the area under the ROC curve but for pairs that share a bin.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
from scipy.special import log_softmax, logsumexp

from fedsmall.evaluation.metrics import evaluate, f1_of, known_mean, predicted, tally
from fedsmall.evaluation.outputs import by_class, squared_distances
from fedsmall.exact import exact_sum
from fedsmall.federation import Task
from fedsmall.wire import Arrays

# of the bins of scores, in log-odds (margins, under the hinge loss): .04 wide in the middle, an eighth of the score
# further out, so that models of small and of large scores are told apart alike
EDGES = 8 / np.sinh(4.0) * np.sinh(np.linspace(-4.0, 4.0, 65))
CONFIDENCES = 10  # bins of the probability of the class that is named


def shapes_of(task: Task) -> dict[str, tuple[int, ...]]:
    """What a site tells under this task, by name, and its shape.

    "count" and the sums "loss", "correct" and "brier" are numbers, and so are, of numbers, "absolute" and "squared"
    (errors in the unit that the site knows); "scores" counts samples (classes, outside or of the
    class, bins of their score), of class 1 alone where there are two; "confidence" has for each bin of confidence how
    many samples, the sum of their confidences, and how many of them are right: (3, bins). Of labels "whole" counts
    samples of which all are right, and "tally" is that of :mod:`fedsmall.evaluation.metrics`.
    """
    told: dict[str, tuple[int, ...]] = {"count": (), "loss": ()}
    if task.kind == "numbers":
        return told | {"absolute": (), "squared": ()}
    if task.kind == "times":
        return told
    if task.kind == "labels":
        scores, tally = (task.outputs, 2, len(EDGES) + 1), (task.outputs, 2, 2)
        return told | {"whole": (), "brier": (), "scores": scores, "tally": tally}
    told |= {"correct": (), "scores": (1 if task.classes == 2 else task.classes, 2, len(EDGES) + 1)}
    return told if task.loss == "hinge" else told | {"brier": (), "confidence": (3, CONFIDENCES)}


def told_of(outputs: np.ndarray, y: np.ndarray, task: Task) -> Arrays:
    """The sums over samples with targets ``y`` for which a model gives ``outputs``, (samples, outputs): float64.

    A model that gives no number knows nothing: its outputs count as zeros there, and none as larger than a million.
    """
    outputs = bounded(outputs, task)
    loss = evaluate(outputs, y, Task(task.name, task.input_shape, task.classes, task.loss, ("loss",)))["loss"]
    sums: dict[str, float | np.ndarray] = {"count": len(y), "loss": max(0.0, loss * len(y))}
    if task.kind == "numbers":
        found = evaluate(outputs, y, replace(task, metrics=("mae", "rmse")))
        sums |= {"absolute": found["mae"] * len(y), "squared": found["rmse"] ** 2 * len(y)}
    if task.kind == "labels":
        found = evaluate(outputs, y, replace(task, metrics=("subset_accuracy", "brier")))
        sums |= {"whole": found["subset_accuracy"] * len(y), "brier": found["brier"] * len(y)}
        sums |= {"scores": _scores(outputs, y, task), "tally": tally(outputs[None], y)[0]}
    if task.kind == "classes":
        outputs = by_class(outputs, task.loss)
        right = predicted(outputs) == y
        sums |= {"correct": right.sum(), "scores": _scores(outputs, y, task)}
        if task.loss != "hinge":
            shares = np.exp(_logs(outputs))  # (samples, classes)
            sums |= {"brier": squared_distances(shares, y).sum(), "confidence": _confidence(shares.max(axis=1), right)}
    return {name: np.asarray(value, dtype=np.float64) for name, value in sums.items()}


def bounded(outputs: np.ndarray, task: Task) -> np.ndarray:
    """Outputs, (samples, outputs), as sums take them: zeros in place of what is no number, none beyond a million."""
    outputs = np.nan_to_num(np.asarray(outputs, dtype=np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    return outputs if task.kind not in ("classes", "labels") else np.clip(outputs, -1e6, 1e6)


def by_folds(folds: np.ndarray, x: np.ndarray, outputs_of: Callable[[int, np.ndarray], np.ndarray]) -> np.ndarray:
    """Outputs, (samples, outputs), for each sample of ``x`` those of the models of its own fold's route.

    ``folds`` is (samples,), and ``outputs_of`` gives what the models of a route say of some samples.
    """
    said = {fold: outputs_of(fold, x[folds == fold]) for fold in np.unique(folds).tolist()}
    first = next(iter(said.values()))
    outputs = np.empty((len(x), *first.shape[1:]), first.dtype)
    for fold, theirs in said.items():
        outputs[folds == fold] = theirs
    return outputs


def together(told: Iterable[Mapping[str, np.ndarray]]) -> Arrays:
    """The sums of several sites as one, each number rounded once."""
    every = list(told)
    return {name: exact_sum([sums[name] for sums in every]) for name in (every[0] if every else {})}


def figures(sums: Mapping[str, np.ndarray], task: Task) -> dict[str, float]:
    """The metrics that sums show, by name; those that they cannot show (the AUC of one class) are left out.

    "loss" (of probabilities the negative log-likelihood), "accuracy", "brier" (of two classes that of class 1), "auc"
    (one against the rest, the mean over classes) and "ece", the expected calibration error over ten bins of confidence.
    """
    count = float(sums["count"])
    if not count:
        return {}
    found = {"loss": float(sums["loss"]) / count}
    if task.kind == "numbers":
        absolute, squared = float(sums["absolute"]) / count, float(sums["squared"]) / count
        return found | {"mae": absolute, "rmse": squared**0.5}
    if task.kind == "times":
        return found
    if "brier" in sums:
        found["brier"] = float(sums["brier"]) / count
    if task.kind == "labels":
        found |= _of_labels(sums["tally"], float(sums["whole"]) / count)
    else:
        found["accuracy"] = float(sums["correct"]) / count
    if "confidence" in sums:
        _, sure, right = sums["confidence"]
        found["ece"] = float(np.abs(sure - right).sum() / count)
    area, _ = _area(sums["scores"])
    return found if np.isnan(area) else found | {"auc": area}


def _of_labels(tally: np.ndarray, whole: float) -> dict[str, float]:
    """The metrics of labels that follow from how many are called what, (labels, truth, called)."""
    found = {"subset_accuracy": whole, "label_accuracy": float(np.trace(tally.sum(axis=0)) / tally.sum())}
    f1 = float(known_mean(f1_of(tally)[None])[0])
    return found if np.isnan(f1) else found | {"macro_f1": f1}


def auc_error(sums: Mapping[str, np.ndarray]) -> float:
    """How far the AUC of :func:`figures` can be from that of the scores themselves, at most.

    A pair of samples of which only one is of the class counts half where both scores are in one bin, and may have
    counted nothing or one. Zero where there is no AUC.
    """
    return 0.0 if "scores" not in sums else float(np.nan_to_num(_area(sums["scores"])[1]))


def _area(scores: np.ndarray) -> tuple[float, float]:
    """The AUC, and half the share of pairs that share a bin, as means over the classes that have both kinds."""
    outside, inside = scores[:, 0], scores[:, 1]  # (classes, bins)
    pairs = outside.sum(axis=1) * inside.sum(axis=1)
    if not (pairs > 0).any():
        return float("nan"), float("nan")
    below = np.cumsum(outside, axis=1) - outside
    ties = (inside * outside).sum(axis=1) / 2
    known = pairs > 0
    won = ((inside * below).sum(axis=1) + ties)[known] / pairs[known]
    return float(won.mean()), float((ties[known] / pairs[known]).mean())


def _scores(outputs: np.ndarray, y: np.ndarray, task: Task) -> np.ndarray:
    values = _odds(outputs, task)  # (samples, classes)
    counts = np.zeros((values.shape[1], 2, len(EDGES) + 1))
    bins = np.digitize(values, EDGES)
    for column in range(values.shape[1]):
        inside = y[:, column] > 0 if task.kind == "labels" else y == (1 if task.classes == 2 else column)
        np.add.at(counts[column], (inside.astype(np.int64), bins[:, column]), 1)
    return counts


def _odds(outputs: np.ndarray, task: Task) -> np.ndarray:
    """Log-odds of each class against the rest, of class 1 alone of two, or of each label: (samples, classes)."""
    if outputs.shape[1] == 1 or task.kind == "labels":
        return outputs
    if task.classes == 2:
        return np.asarray(outputs[:, 1:] - outputs[:, :1])
    others = [np.delete(outputs, label, axis=1) for label in range(task.classes)]
    return np.stack([outputs[:, label] - logsumexp(rest, axis=1) for label, rest in enumerate(others)], axis=1)


def _logs(outputs: np.ndarray) -> np.ndarray:
    """The logarithms of the classes' probabilities, (samples, classes)."""
    both = np.concatenate([np.zeros_like(outputs), outputs], axis=1) if outputs.shape[1] == 1 else outputs
    return np.asarray(log_softmax(both, axis=1))


def _confidence(sure: np.ndarray, right: np.ndarray) -> np.ndarray:
    bins = np.minimum((sure * CONFIDENCES).astype(np.int64), CONFIDENCES - 1)
    weights = (np.ones_like(sure), sure, right.astype(np.float64))
    return np.stack([np.bincount(bins, weights=each, minlength=CONFIDENCES) for each in weights])
