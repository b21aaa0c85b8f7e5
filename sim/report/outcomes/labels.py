"""What a page shows of a model of several labels at once: each label by itself, and all of a sample together."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure

from fedsmall.evaluation.clinical import Curve, roc
from fedsmall.evaluation.metrics import label_metrics
from fedsmall.evaluation.statistics import Scale
from fedsmall.sim.report.figures import INK, square
from fedsmall.sim.report.outcomes.figures import MANY, Told, legend, reliability, reliability_of
from fedsmall.sim.runs.files import as_csv

MOST_LABELS = len(MANY)
FIFTHS = 5  # of noisy shares, in few samples
Statistic = Callable[[np.ndarray, np.ndarray], float]


def _metric(name: str) -> Statistic:
    def of(p: np.ndarray, y: np.ndarray) -> float:
        return float(label_metrics(_log_odds(p)[None], y, (name,))[name][0])

    return of


def _log_odds(p: np.ndarray) -> np.ndarray:
    return np.asarray(np.log(np.clip(p, 1e-300, None)) - np.log1p(-np.clip(p, None, 1 - 1e-16)))


OF_ALL: dict[str, tuple[Statistic, Scale]] = {
    "ROC-AUC, the mean over labels": (_metric("auc"), "share"),
    "F1, the mean over labels": (_metric("macro_f1"), "share"),
    "share of samples of which all labels are right": (_metric("subset_accuracy"), "share"),
    "share of all labels that are right": (_metric("label_accuracy"), "share"),
}
OF_EACH = {"ROC-AUC": "auc", "F1": "macro_f1", "average precision": "average_precision"}


def statistics(names: Sequence[str]) -> dict[str, tuple[Statistic, Scale]]:
    """What is told of a model: of all labels, and of each."""
    found = dict(OF_ALL)
    for label, name in enumerate(names):
        found |= {f"{name}: {word}": (_of_one(label, metric), "share") for word, metric in OF_EACH.items()}
    return found


def _of_one(label: int, metric: str) -> Statistic:
    of = _metric(metric)
    return lambda p, y: of(p[:, [label]], y[:, [label]])


def figures(names: Sequence[str], p: np.ndarray, y: np.ndarray) -> list[Told]:
    """The ROC curve of each label, and how often each is there over the probability that the model gives it."""
    shown = list(enumerate(names))[:MOST_LABELS]
    curves = {name: roc(p[:, k], y[:, k] > 0) for k, name in shown if 0 < y[:, k].mean() < 1}
    fifths = {name: reliability_of(p[:, k], y[:, k], FIFTHS) for k, name in shown}
    points = [[name, f"{a:.6g}", f"{b:.6g}"] for name, curve in curves.items() for a, b in zip(*curve[:2], strict=True)]
    groups = [[name, *(f"{cell:.6g}" for cell in row)] for name, rows in fifths.items() for row in rows]
    return [
        (
            _roc(curves),
            "ROC curves",
            "ROC curve of each label. Steps are of test samples: keep this page as you keep those.",
            as_csv([["label", "1_minus_specificity", "sensitivity"], *points]),
            "roc.csv",
        ),
        (
            reliability(fifths),
            "calibration",
            "How many have each label over the probability that the model gives it, in fifths of the test samples in "
            "the order of that probability. On the diagonal it is as frequent as the model says.",
            as_csv([["label", "samples", "predicted", "observed"], *groups]),
            "calibration.csv",
        ),
    ]


def _roc(curves: dict[str, Curve]) -> Figure:
    figure, axes = square("1 - specificity", "sensitivity")
    axes.plot([0, 1], [0, 1], color=INK, lw=0.9, ls=(0, (1, 2)))
    for (name, curve), look in zip(curves.items(), MANY, strict=False):
        axes.plot(*curve[:2], color=look.colour, ls=look.dashes, lw=1.6, label=name)
    legend(axes)
    return figure
