"""From a model's outputs to probabilities and to the class that is named, for runs and for saved models alike."""

import numpy as np
from scipy.special import expit, softmax

from fedsmall.data.outcomes import ORDINAL, kind_of
from fedsmall.evaluation.grades import log_shares


def probabilities(outputs: np.ndarray, loss: str) -> np.ndarray:
    """The probability of each class, (..., samples, classes) in float64, from ``outputs``, (..., samples, outputs).

    One output for two classes is the log-odds of class 1. A margin (the loss is "hinge") is no log-odds, and is
    treated as one: its "probabilities" rank as margins do, and are not calibrated.

    Raises ValueError for a loss that is not of classes.
    """
    if kind_of(loss) != "classes":
        raise ValueError("numbers are predicted here, not classes, so there are no probabilities")
    outputs = by_class(outputs, loss)
    if outputs.shape[-1] > 1:
        return np.asarray(softmax(outputs, axis=-1))
    return np.concatenate([expit(-outputs), expit(outputs)], axis=-1)


def by_class(outputs: np.ndarray, loss: str) -> np.ndarray:
    """Outputs as scores of the classes, of which the softmax is their probabilities: those of grades are turned to it.

    (..., classes), or (..., 1) where that is positive for class 1 of two; float64.
    """
    return log_shares(outputs) if loss == ORDINAL else np.asarray(outputs, dtype=np.float64)


def named_classes(outputs: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """The class that each row of ``outputs`` names: (..., outputs) -> (...); a tie goes to the lower class.

    Of two classes it is class 1 where its probability is above ``threshold``, compared as log-odds, in which nothing is
    rounded; of more it is the likeliest.
    """
    outputs = np.asarray(outputs, dtype=np.float64)
    if outputs.shape[-1] > 2:
        return np.asarray(outputs.argmax(axis=-1))
    odds = outputs[..., -1] - (outputs[..., 0] if outputs.shape[-1] == 2 else 0.0)
    return np.asarray((odds > np.log(threshold) - np.log1p(-threshold)).astype(np.int64))


def squared_distances(shares: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How far probabilities (..., samples, classes) are from what was so, (..., samples): the mean is the Brier score.

    The sum over classes of (p - y)^2; of two classes that of class 1 alone, as scikit-learn has it.
    """
    squares = ((shares - np.eye(shares.shape[-1])[y]) ** 2).sum(axis=-1)
    return np.asarray(squares / 2 if shares.shape[-1] == 2 else squares)
