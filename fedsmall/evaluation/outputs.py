"""What outputs mean: probabilities, grades, and several models that answer together."""

from collections.abc import Mapping
from functools import reduce

import numpy as np
from scipy.special import entr, expit, log_expit, log_softmax, logsumexp, softmax

from fedsmall.data.outcomes import LABELS, ORDINAL, kind_of
from fedsmall.wire import Arrays


def cumulative(outputs: np.ndarray) -> np.ndarray:
    """The log-odds of being above each grade but the highest, falling: (..., grades - 1), as outputs are; float64."""
    outputs = np.asarray(outputs, dtype=np.float64)
    steps = np.cumsum(np.logaddexp(0, outputs[..., 1:]), axis=-1)
    return np.concatenate([outputs[..., :1], outputs[..., :1] - steps], axis=-1)


def log_shares(outputs: np.ndarray) -> np.ndarray:
    """The logarithms of the grades' probabilities, (..., grades) in float64, of ``outputs`` (..., grades - 1).

    A grade between two has p = s(step) s(log-odds before) s(-log-odds behind): no difference of two close numbers.
    """
    outputs, odds = np.asarray(outputs, dtype=np.float64), cumulative(outputs)
    none = np.zeros_like(odds[..., :1])
    between = [none, log_expit(outputs[..., 1:]), none]
    return np.asarray(
        np.concatenate([none, log_expit(odds)], axis=-1)
        + np.concatenate([log_expit(-odds), none], axis=-1)
        + np.concatenate(between, axis=-1)
    )


def outputs_of(logs: np.ndarray) -> np.ndarray:
    """The outputs of which :func:`log_shares` is ``logs``, to a constant: (..., grades) -> (..., grades - 1)."""
    logs = logs - np.logaddexp.reduce(logs, axis=-1, keepdims=True)
    below = np.logaddexp.accumulate(logs, axis=-1)  # of this grade or a lower one
    above = np.flip(np.logaddexp.accumulate(np.flip(logs, axis=-1), axis=-1), axis=-1)  # of this grade or a higher one
    first = above[..., 1:2] - logs[..., :1]
    return np.asarray(np.concatenate([first, logs[..., 1:-1] - below[..., :-2] - above[..., 2:]], axis=-1))


def log_sum(outputs: np.ndarray) -> np.ndarray:
    """The logarithm of the sum of exponentials, (..., classes) -> (...): scipy's bits in a fifth of its time."""
    most = reduce(np.maximum, np.moveaxis(outputs, -1, 0))[..., None]  # class by class: rows are short
    of_most = outputs == most
    count = np.maximum(of_most @ np.ones(outputs.shape[-1]), 1)  # none where one is not a number
    rest = np.where(of_most, 0.0, np.exp(outputs - np.where(np.isfinite(most), most, 0.0))).sum(axis=-1)
    return np.asarray(np.log1p(rest / count) + np.log(count) + most[..., 0])


def probabilities(outputs: np.ndarray, loss: str) -> np.ndarray:
    """The probability of each class, (..., samples, classes) in float64, from ``outputs``, (..., samples, outputs).

    One output for two classes is the log-odds of class 1, or a margin. ValueError for a loss that is not of classes.
    """
    if kind_of(loss) != "classes":
        raise ValueError("numbers are predicted here, not classes, so there are no probabilities")
    outputs = by_class(outputs, loss)
    if outputs.shape[-1] > 1:
        return np.asarray(softmax(outputs, axis=-1))
    return np.concatenate([expit(-outputs), expit(outputs)], axis=-1)


def by_class(outputs: np.ndarray, loss: str) -> np.ndarray:
    """Outputs as scores whose softmax are probabilities, (..., classes), or (..., 1) for class 1 of two."""
    return log_shares(outputs) if loss == ORDINAL else np.asarray(outputs, dtype=np.float64)


def scores_of(logs: np.ndarray, outputs: int) -> np.ndarray:
    """The outputs, (samples, outputs), that say the ``logs`` of classes' probabilities; a single one is log-odds."""
    return logs if outputs > 1 else np.asarray(logs[:, 1:] - logs[:, :1])


def named_classes(outputs: np.ndarray, threshold: float = 0.5) -> np.ndarray:
    """The class of each row: class 1 of two where its log-odds are above the threshold's, else the likeliest."""
    outputs = np.asarray(outputs, dtype=np.float64)
    if outputs.shape[-1] > 2:
        return np.asarray(outputs.argmax(axis=-1))
    odds = outputs[..., -1] - (outputs[..., 0] if outputs.shape[-1] == 2 else 0.0)
    return np.asarray((odds > np.log(threshold) - np.log1p(-threshold)).astype(np.int64))


def squared_distances(shares: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The Brier score of each sample, (..., samples): of two classes that of class 1 alone (scikit-learn's)."""
    squares = ((shares - np.eye(shares.shape[-1])[y]) ** 2).sum(axis=-1)
    return np.asarray(squares / 2 if shares.shape[-1] == 2 else squares)


def members_of(model: Mapping[str, np.ndarray], is_ensemble: bool) -> list[Arrays]:
    """The models of a result: itself, or one for each place of the leading axis (``Method.is_ensemble``)."""
    if not is_ensemble:
        return [dict(model)]
    count = len(next(iter(model.values()), ()))
    return [{name: array[member] for name, array in model.items()} for member in range(count)]


def answer(outputs: np.ndarray, loss: str, together: str = "probability") -> np.ndarray:
    """The outputs, (samples, outputs), of an ensemble whose members give ``outputs``, (members, samples, outputs).

    Of classes the logarithm of the mean probability, or the mean log-probability; of one output and of labels the
    log-odds of either; margins and numbers are averaged. Source: Lakshminarayanan et al. 2017.
    """
    outputs = np.asarray(outputs, dtype=np.float64)
    if len(outputs) == 1:
        return np.asarray(outputs[0])
    if loss == "cross_entropy":
        shares = log_softmax(outputs, axis=-1)
        mean = shares.mean(axis=0) if together == "logit" else logsumexp(shares, axis=0) - np.log(len(outputs))
        return np.asarray(mean)
    if loss == ORDINAL:
        return outputs_of(answer(log_shares(outputs), "cross_entropy", together))
    if loss in ("logistic", *LABELS) and together == "probability":
        # the log-odds of the mean, from the logarithms of both classes' probabilities
        return np.asarray(logsumexp(log_expit(outputs), axis=0) - logsumexp(log_expit(-outputs), axis=0))
    return np.asarray(outputs.mean(axis=0))


def spread(outputs: np.ndarray, loss: str) -> tuple[np.ndarray, np.ndarray]:
    """How far the members of an ensemble differ on each sample: two arrays, (samples,).

    The standard deviation of the probability of the ensemble's class (of margins and numbers, of outputs), and the
    mutual information of class and member in nats, NaN without them; means of labels. Source: Smith and Gal 2018.
    """
    outputs = np.asarray(outputs, dtype=np.float64)
    if loss in LABELS:
        by_label = np.stack([spread(outputs[..., [label]], "logistic") for label in range(outputs.shape[-1])])
        return by_label[:, 0].mean(axis=0), by_label[:, 1].mean(axis=0)
    if loss == "logistic":
        shares = np.concatenate([expit(-outputs), expit(outputs)], axis=-1)  # (members, samples, 2)
    elif loss in ("cross_entropy", ORDINAL):
        shares = softmax(log_shares(outputs) if loss == ORDINAL else outputs, axis=-1)
    else:
        return outputs.std(axis=0).mean(axis=-1), np.full(outputs.shape[1], np.nan)
    mean = shares.mean(axis=0)  # (samples, classes)
    deviation = np.take_along_axis(shares.std(axis=0), mean.argmax(axis=-1)[:, None], axis=-1)[:, 0]
    information = entr(mean).sum(axis=-1) - entr(shares).sum(axis=-1).mean(axis=0)
    return deviation, np.maximum(information, 0)
