"""What models of several labels at once are worth, many models together: each label by itself, and all of a sample.

scikit-learn's (tests hold them to it): a label is called where its probability is above one half. Means over labels are
over those for which a value is defined.
"""

from collections.abc import Collection

import numpy as np
from scipy.special import expit

from fedsmall.evaluation.areas import area, average_precision, known_mean


def loss_of(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean binary cross-entropy of each model, over samples and labels: (models, samples, labels) -> (models,)."""
    return np.asarray(np.logaddexp(0.0, np.where(y > 0, -outputs, outputs)).mean(axis=(1, 2)))


def metrics_of(outputs: np.ndarray, y: np.ndarray, asked: Collection[str]) -> dict[str, np.ndarray]:
    """The metrics ``asked``, (models,) each, of log-odds (models, samples, labels) and truth (samples, labels).

    "auc", "average_precision" and "macro_f1" are means over labels, "subset_accuracy" is the share of samples of which
    all labels are right, "label_accuracy" that of all labels.
    """
    there, called = np.asarray(y) > 0, outputs > 0
    right = called == there
    found = {"subset_accuracy": right.all(axis=2).mean(axis=1), "label_accuracy": right.mean(axis=(1, 2))}
    if "macro_f1" in asked:
        found["macro_f1"] = known_mean(f1_of(tally(outputs, y)))
    if "auc" in asked:
        found["auc"] = known_mean(np.stack([area(outputs[..., k], there[:, k]) for k in range(there.shape[1])], axis=1))
    if "average_precision" in asked:
        each = [[average_precision(model[:, k], there[:, k]) for k in range(there.shape[1])] for model in outputs]
        found["average_precision"] = known_mean(np.array(each))
    if "brier" in asked:
        found["brier"] = ((expit(outputs) - there) ** 2).mean(axis=(1, 2))
    return {name: value for name, value in found.items() if name in asked}


def tally(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How many samples of each label are called what: (models, labels, truth, called), of absent and there each."""
    there, called = np.asarray(y) > 0, outputs > 0  # (samples, labels), (models, samples, labels)
    cells = [[(there == truth) & (called == call) for call in (False, True)] for truth in (False, True)]
    # in the order of its memory, too: the wire takes arrays as they lie
    return np.ascontiguousarray(np.moveaxis(np.array(cells).sum(axis=3), (0, 1), (2, 3)))


def f1_of(table: np.ndarray) -> np.ndarray:
    """F1 of each label, (..., labels), of a :func:`tally`; NaN where it is nowhere and called nowhere."""
    hits, wrong = table[..., 1, 1], table[..., 0, 1] + table[..., 1, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(2 * hits / (2 * hits + wrong))
