"""Several models that answer together."""

from collections.abc import Mapping

import numpy as np
from scipy.special import entr, expit, log_expit, log_softmax, logsumexp, softmax

from fedsmall.data.outcomes import LABELS, ORDINAL
from fedsmall.evaluation.grades import log_shares, outputs_of
from fedsmall.wire import Arrays


def members_of(model: Mapping[str, np.ndarray], is_ensemble: bool) -> list[Arrays]:
    """The models of a result: itself, or one for each place of the leading axis (``Method.is_ensemble``)."""
    if not is_ensemble:
        return [dict(model)]
    count = len(next(iter(model.values()), ()))
    return [{name: array[member] for name, array in model.items()} for member in range(count)]


def answer(outputs: np.ndarray, loss: str, together: str = "probability") -> np.ndarray:
    """The outputs, (samples, outputs), of an ensemble whose members give ``outputs``, (members, samples, outputs).

    They mean the same as those of one model: for classes the logarithm of the mean probability, or the mean logit (of
    the logarithms of probabilities, so that no member has more say for the size of its numbers); for one output of two
    classes, and for labels, the log-odds of either; grades are averaged as classes; margins and numbers are averaged.
    One member answers for itself.
    Source: Lakshminarayanan et al. 2017, "Simple and scalable predictive uncertainty estimation using deep ensembles".
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
    """How far the members of an ensemble differ on each sample: two arrays, (samples,) each.

    ``outputs`` has shape (members, samples, outputs). The first is the standard deviation, over the members, of the
    probability of the class that they predict together; of margins and numbers, that of the outputs. The second is the
    mutual information of the class and the member in nats: 0 where all say the same, at most the logarithm of the
    number of members; NaN where outputs are no probabilities. Of several labels both are means over them.
    Source: Smith & Gal 2018, "Understanding measures of uncertainty for adversarial example detection".
    """
    outputs = np.asarray(outputs, dtype=np.float64)
    if loss in LABELS:
        each = np.stack([spread(outputs[..., [label]], "logistic") for label in range(outputs.shape[-1])])
        return each[:, 0].mean(axis=0), each[:, 1].mean(axis=0)
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
