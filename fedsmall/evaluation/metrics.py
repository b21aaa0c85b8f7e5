"""What models are worth on samples, many models at once."""

from collections.abc import Collection, Sequence

import numpy as np
from scipy.special import expit

from fedsmall.data.federation import Task
from fedsmall.data.outcomes import HUBER, NUMBERS, ORDINAL, kind_of, survival_of
from fedsmall.errors import PlanError
from fedsmall.evaluation import survival
from fedsmall.evaluation.outputs import by_class, log_shares, log_sum, probabilities, squared_distances
from fedsmall.methods import check_known

OF_CLASSES = (
    *("accuracy", "balanced_accuracy", "macro_f1", "sensitivity", "specificity"),
    *("auc", "average_precision", "brier", "loss"),
)
GRADED = ("kappa", "mae")  # of classes in their order, beside the others
OF_NUMBERS = ("mae", "rmse", "r2", "loss")
OF_TIMES = ("c_index", "ibs", "loss")
OF_LABELS = ("auc", "macro_f1", "subset_accuracy", "label_accuracy", "average_precision", "brier", "loss")
OF_KIND = {"classes": OF_CLASSES, "numbers": OF_NUMBERS, "times": OF_TIMES, "labels": OF_LABELS}
OTHER_NAMES = {
    **{"nll": "loss", "roc_auc": "auc", "f1": "macro_f1", "r2_score": "r2", "concordance": "c_index"},
    **{"cohen_kappa": "kappa", "quadratic_kappa": "kappa", "mean_absolute_error": "mae"},
    **{"root_mean_squared_error": "rmse"},
}
LOWER_IS_BETTER = ("loss", "mae", "rmse", "mse", "brier", "ibs", "ece")
UNEQUAL = 0.1  # how far above an equal share the commonest class may be, for accuracy to be what methods are judged by


def by_digits(number: float, digits: int = 4, sign: str = "") -> str:
    """A number by its first digits, and without a power of ten however large: 13,880 or 0.02134."""
    rounded = float(f"{number:.{digits}g}")
    return f"{rounded:{sign},.0f}" if 10**digits <= abs(rounded) < 1e15 else f"{number:{sign}.{digits}g}"


def known_metric(name: str, loss: str) -> str:
    """The metric that ``name`` means for a task of this ``loss``; PlanError where there is none of that name."""
    name = OTHER_NAMES.get(name, name)
    check_known(name, metrics_of(loss), f"metric: there is no {name!r} for this task")
    if name == "brier" and loss == "hinge":
        raise PlanError('metric: a margin is no probability, so "brier" says nothing here; use loss = "logistic"')
    return name


def metrics_of(loss: str) -> tuple[str, ...]:
    """The metrics that a task of this ``loss`` can have; of grades their own come first."""
    return (*GRADED, *OF_CLASSES) if loss == ORDINAL else OF_KIND[kind_of(loss)]


def default_metric(y: Sequence[np.ndarray], task: Task) -> str:
    """The metric by which methods are judged by default.

    Accuracy, or AUC where the commonest class is ten points over an equal share; else the first of :func:`metrics_of`.
    """
    if task.kind != "classes" or task.ordered:
        return metrics_of(task.loss)[0]
    shares = np.bincount(np.concatenate(list(y)), minlength=task.classes) / max(sum(map(len, y)), 1)
    return "auc" if shares.max() > 1 / task.classes + UNEQUAL else "accuracy"


def evaluate(outputs: np.ndarray, y: np.ndarray, task: Task) -> dict[str, float]:
    """Every metric of ``task`` that samples can show of one model's ``outputs``, (samples, outputs), by name."""
    return {name: float(value) for name, (value,) in evaluate_many(np.asarray(outputs)[None], y, task).items()}


def evaluate_many(outputs: np.ndarray, y: np.ndarray, task: Task) -> dict[str, np.ndarray]:
    """Every metric of ``task`` for each model on ``y``, (samples,) or (samples, *target_shape): (models,) by name.

    NaN where one is not defined for a model, and left out where it is defined for none. Of classes ``y`` may be each
    model's own, (models, samples).
    """
    outputs = np.asarray(outputs, dtype=np.float64)
    if not len(y):
        return {}
    with np.errstate(invalid="ignore", over="ignore"):  # outputs of a model that has diverged; its loss tells
        logs = outputs - log_sum(outputs)[..., None] if task.loss == "cross_entropy" else outputs
        losses = {"loss": _losses(logs, y, task.loss)} if "loss" in task.metrics else {}
        metrics = losses | _metrics_of_outputs(outputs, logs, y, task)
    return {name: metrics[name] for name in task.metrics if name in metrics and not np.isnan(metrics[name]).all()}


def _metrics_of_outputs(outputs: np.ndarray, logs: np.ndarray, y: np.ndarray, task: Task) -> dict[str, np.ndarray]:
    if task.kind == "classes":
        return _of_classes(outputs, logs, y, task)
    if task.kind == "labels":
        return label_metrics(outputs, y, task.metrics)
    if task.kind == "times":
        curves, cuts = survival_of(outputs), np.array(task.cuts)
        return survival.metrics_of(task.metrics, curves, cuts, *y[:, 2:4].T.astype(np.float64)) if task.cuts else {}
    apart, scale = outputs - _flat(y), task.unit[1] if task.unit else 1.0
    rows = apart.reshape(len(apart), -1)
    metrics = {"mae": np.abs(rows).mean(axis=1) * scale, "rmse": np.sqrt((rows**2).mean(axis=1)) * scale}
    return metrics | ({"r2": r2_scores(apart, _flat(y))} if "r2" in task.metrics else {})


def predicted_classes(outputs: np.ndarray) -> np.ndarray:
    """The class that every row of outputs names: (..., outputs) -> (...). A tie goes to the lower class."""
    return (outputs[..., 0] > 0).astype(np.int64) if outputs.shape[-1] == 1 else outputs.argmax(axis=-1)


def _of_classes(outputs: np.ndarray, logs: np.ndarray, y: np.ndarray, task: Task) -> dict[str, np.ndarray]:
    scores, classes = by_class(outputs, task.loss), task.classes
    guess = predicted_classes(scores)  # (models, samples)
    cell = (np.arange(len(guess))[:, None] * classes + y) * classes + guess
    table = np.bincount(cell.ravel(), minlength=len(guess) * classes**2).reshape(-1, classes, classes)
    ranked = _class_scores(scores, scores if task.ordered else logs, classes, y)
    metrics = of_matrices(table) | _of_rankings(*ranked, task.metrics)
    if "brier" in task.metrics:
        metrics["brier"] = squared_distances(probabilities(outputs, task.loss), y).mean(axis=-1)
    return metrics


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
        "kappa": kappa_of(table),
        "mae": distance_of(table),
    }


def _of_rankings(scores: np.ndarray, positive: np.ndarray, asked: Collection[str]) -> dict[str, np.ndarray]:
    """Means over classes, (models,), of scores (models, labels, samples) and who is positive, (labels, samples)."""
    of_rankings = {"auc": area, "average_precision": average_precision}
    return {name: known_mean(of(scores, positive)) for name, of in of_rankings.items() if name in asked}


def _class_scores(outputs: np.ndarray, logs: np.ndarray, classes: int, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if outputs.shape[-1] == 1 or classes == 2:
        odds = outputs[..., -1] - (outputs[..., 0] if outputs.shape[-1] > 1 else 0.0)
        return odds[:, None], (y == 1)[..., None, :]
    return np.moveaxis(np.exp(logs), -1, 1), np.arange(classes)[:, None] == y[..., None, :]


def _losses(outputs: np.ndarray, y: np.ndarray, name: str) -> np.ndarray:
    if kind_of(name) == "times":
        return survival.loss_of(outputs, y.astype(np.float64))
    if kind_of(name) == "labels":  # binary cross-entropy, over samples and labels
        return np.asarray(np.logaddexp(0.0, np.where(y > 0, -outputs, outputs)).mean(axis=(1, 2)))
    if kind_of(name) == "numbers":
        return _number_losses(name, np.abs(outputs - _flat(y)))
    if name == ORDINAL:
        return grade_losses(outputs, y)
    if name == "cross_entropy":
        of_label = np.take_along_axis(outputs, np.broadcast_to(y, outputs.shape[:2])[..., None], axis=2)
        return np.asarray(-of_label[..., 0].mean(axis=1))
    margins = outputs[..., 0] * np.where(y == 1, 1.0, -1.0)
    if name == "hinge":
        return np.asarray(np.maximum(0.0, 1.0 - margins).mean(axis=1))
    if name == "logistic":
        return np.asarray(np.logaddexp(0.0, -margins).mean(axis=1))
    raise ValueError(
        f'losses are "cross_entropy", "logistic", "hinge" and those of {NUMBERS}; this task names {name!r}'
    )


def _number_losses(name: str, apart: np.ndarray) -> np.ndarray:
    if name == "mse":
        apart = apart**2
    elif name == "huber":
        apart = np.where(apart < HUBER, apart**2 / 2, HUBER * (apart - HUBER / 2))
    return np.asarray(apart.reshape(len(apart), -1).mean(axis=1))


def _flat(y: np.ndarray) -> np.ndarray:
    return y.reshape(len(y), -1).astype(np.float64)


def grade_losses(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The mean negative log-likelihood of each model: (models, samples, grades - 1) and (samples,) -> (models,)."""
    of_truth = np.take_along_axis(log_shares(outputs), y[None, :, None], axis=2)[..., 0]
    return np.asarray(-of_truth.mean(axis=1))


def kappa_of(table: np.ndarray) -> np.ndarray:
    """Cohen's quadratic kappa (1968) of counts (models, truth, called) -> (models,); NaN where all are of one grade."""
    table = np.asarray(table, dtype=np.float64)
    place = np.arange(table.shape[-1])
    apart = (place[:, None] - place) ** 2
    count = table.sum(axis=(1, 2))
    by_chance = table.sum(axis=2)[:, :, None] * table.sum(axis=1)[:, None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(1 - (apart * table).sum(axis=(1, 2)) * count / (apart * by_chance).sum(axis=(1, 2)))


def kappa(named: np.ndarray, true: np.ndarray) -> float:
    """That of one model, of the grades that it ``named`` and the ``true`` ones, (samples,) each."""
    grades = int(max(named.max(), true.max())) + 1
    return float(kappa_of(np.bincount(true * grades + named, minlength=grades**2).reshape(1, grades, grades))[0])


def distance_of(table: np.ndarray) -> np.ndarray:
    """The mean number of grades between truth and call: (models, truth, called) -> (models,)."""
    place = np.arange(table.shape[-1])
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.abs(place[:, None] - place) * table
        return np.asarray(apart.sum(axis=(1, 2)) / table.sum(axis=(1, 2)))


def average_precision(scores: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """The precision at every threshold, weighted by what recall gains there: (..., samples) each -> (...).

    Ties share one threshold, which is the last of theirs. NaN where nobody is positive.
    """
    order = np.argsort(-scores, axis=-1, kind="stable")
    ends = _ends_of_ties(np.take_along_axis(scores, order, axis=-1))
    hits = np.take_along_axis(np.broadcast_to(positive, scores.shape), order, axis=-1)
    precision = np.take_along_axis(np.cumsum(hits, axis=-1) / np.arange(1, scores.shape[-1] + 1), ends, axis=-1)
    return _where_ranked(scores, (hits * precision).sum(axis=-1), positive.sum(axis=-1))


def _ends_of_ties(ranked: np.ndarray) -> np.ndarray:
    """The last place of those that equal each value of what is in order, (..., samples) -> (..., samples)."""
    places, is_last = np.arange(ranked.shape[-1]), ranked[..., 1:] != ranked[..., :-1]
    if is_last.all():
        return np.broadcast_to(places, ranked.shape)
    ends = np.full(ranked.shape, ranked.shape[-1] - 1)
    np.copyto(ends[..., :-1], places[:-1], where=is_last)
    return np.flip(np.minimum.accumulate(np.flip(ends, axis=-1), axis=-1), axis=-1)


def mid_ranks(scores: np.ndarray) -> np.ndarray:
    """The ranks from 1 along the last axis, those of ties their mean: scipy's ``rankdata``, whose import takes long."""
    order = np.argsort(scores, axis=-1)
    ranked = np.take_along_axis(scores, order, axis=-1)
    from_above = scores.shape[-1] - np.flip(_ends_of_ties(np.flip(ranked, axis=-1)), axis=-1)
    ranks = np.empty(scores.shape)
    np.put_along_axis(ranks, order, (_ends_of_ties(ranked) + 1 + from_above) / 2, axis=-1)
    return ranks


def counts_from_above(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ``scores`` that occur from high to low, and how many positive and other samples are at or above each."""
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(scores) - 1)
    hits = np.cumsum(positive[order])[ends]
    return scores[order][ends], hits, ends + 1 - hits


def area(scores: np.ndarray, positive: np.ndarray) -> np.ndarray:
    """The area under the ROC curve by ranks (Mann and Whitney 1947), ties half: (..., samples) each -> (...)."""
    good = positive.sum(axis=-1)
    above = (mid_ranks(scores) * positive).sum(axis=-1) - good * (good + 1) / 2
    return _where_ranked(scores, above, good * (positive.shape[-1] - good))


def _where_ranked(scores: np.ndarray, total: np.ndarray, of: np.ndarray) -> np.ndarray:
    """``total`` by ``of``; NaN where that is nothing, or a score is not finite."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isfinite(scores).all(axis=-1) & (of > 0), total / of, np.nan)


def known_mean(values: np.ndarray) -> np.ndarray:
    """The mean over the classes for which a value is defined: (models, classes) -> (models,)."""
    known = ~np.isnan(values)
    count = known.sum(axis=1)
    return np.where(count > 0, np.where(known, values, 0.0).sum(axis=1) / np.maximum(count, 1), np.nan)


def label_metrics(outputs: np.ndarray, y: np.ndarray, asked: Collection[str]) -> dict[str, np.ndarray]:
    """The metrics ``asked``, (models,) each, of log-odds (models, samples, labels) and truth (samples, labels).

    Means over labels, but "subset_accuracy": the share of samples of which all labels are right.
    """
    positive = np.asarray(y) > 0
    right = (outputs > 0) == positive
    metrics = {"subset_accuracy": right.all(axis=2).mean(axis=1), "label_accuracy": right.mean(axis=(1, 2))}
    if "macro_f1" in asked:
        metrics["macro_f1"] = known_mean(f1_of(tally(outputs, y)))
    if "brier" in asked:
        metrics["brier"] = ((expit(outputs) - positive) ** 2).mean(axis=(1, 2))
    metrics |= _of_rankings(np.moveaxis(outputs, -1, 1), positive.T, asked)
    return {name: value for name, value in metrics.items() if name in asked}


def tally(outputs: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How many samples of each label are called what: (models, labels, truth, called), of absent and there each."""
    positive, called = np.asarray(y) > 0, outputs > 0  # (samples, labels), (models, samples, labels)
    cells = [[(positive == truth) & (called == call) for call in (False, True)] for truth in (False, True)]
    # in the order of its memory, too: the wire takes arrays as they lie
    return np.ascontiguousarray(np.moveaxis(np.array(cells).sum(axis=3), (0, 1), (2, 3)))


def f1_of(table: np.ndarray) -> np.ndarray:
    """F1 of each label, (..., labels), of a :func:`tally`; NaN where it is nowhere and called nowhere."""
    hits, wrong = table[..., 1, 1], table[..., 0, 1] + table[..., 1, 0]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(2 * hits / (2 * hits + wrong))


def r2_scores(apart: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The coefficient of determination, the mean over the numbers that vary: (models,)."""
    around = ((y - y.mean(axis=0)) ** 2).sum(axis=0)  # (numbers,)
    vary = around > 1e-12 * (y**2).sum(axis=0)
    if len(y) < 2 or not vary.any():
        return np.full(len(apart), np.nan)
    left = (apart**2).sum(axis=1)[:, vary]  # (models, numbers)
    return np.asarray((1 - left / around[vary]).mean(axis=1))
