"""What a site tells of the common model at a run's end, on its own held-out patients: sums and counts, and no patient.

The sums are those of :mod:`fedsmall.evaluation.out_of_fold`, and beside them how many of each class are called what.
Those of all sites together show what one central test set of the same patients would: every metric of a table exactly,
the area under the ROC curve but for pairs that share a bin, and the average precision not at all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedsmall.evaluation import out_of_fold
from fedsmall.evaluation.clinical import Estimate, auc
from fedsmall.evaluation.metrics import GRADED, f1_of, of_matrices, predicted
from fedsmall.evaluation.out_of_fold import auc_error, together
from fedsmall.evaluation.outputs import by_class
from fedsmall.evaluation.unseen import over_hospitals
from fedsmall.federation import Task
from fedsmall.wire import Arrays

CALLED = "called"  # (classes, classes): how many of each class, by rows, are called what at even odds


def shapes_of(task: Task) -> dict[str, tuple[int, ...]]:
    """What a site tells under this task, by name, and its shape."""
    counted = {} if task.kind != "classes" else {CALLED: (task.classes, task.classes)}
    return out_of_fold.shapes_of(task) | counted


def told_of(outputs: np.ndarray, y: np.ndarray, task: Task) -> Arrays:
    """The sums over samples with targets ``y`` for which a model gives ``outputs``, (samples, outputs): float64."""
    sums = out_of_fold.told_of(outputs, y, task)
    if task.kind != "classes":
        return sums
    named = predicted(by_class(out_of_fold.bounded(outputs, task), task.loss))
    cells = np.bincount(y * task.classes + named, minlength=task.classes**2)
    return sums | {CALLED: cells.reshape(task.classes, -1).astype(np.float64)}


def figures(sums: Mapping[str, np.ndarray], task: Task) -> dict[str, float]:
    """The metrics that sums show, under the names that tables have for them, and "ece"."""
    found = out_of_fold.figures(sums, task)
    if not found or CALLED not in sums:
        return found
    counted = {name: float(value[0]) for name, value in of_matrices(sums[CALLED][None]).items()}
    left_out = () if task.ordered else GRADED
    return found | {name: value for name, value in counted.items() if np.isfinite(value) and name not in left_out}


def judged_at_home(told: Mapping[str, Arrays], task: Task) -> dict[str, Any]:
    """What a page needs of the sums that sites ``told``, as JSON holds it: of each site, and of all "together".

    Of a site "count", "metrics", the matrix "called", "auc_error", of two classes "auc" with its ends, and of labels
    "each" of them; of all besides, for each row of scores, the ROC curve at the edges of bins, "confidence", and
    "over_sites", the metrics with the interval over hospitals of :func:`fedsmall.evaluation.unseen.over_hospitals`.
    """
    whole = together(told[site] for site in sorted(told))
    curves = [[points.tolist() for points in roc_points(whole, row)] for row in range(len(whole.get("scores", ())))]
    of_all = _shown(whole, task) | {"sites": len(told), "roc": curves}
    of_all |= {"confidence": whole["confidence"].tolist()} if "confidence" in whole else {}
    of_all["over_sites"] = over_hospitals(told, lambda sums: figures(sums, task))
    return {"sites": {site: _shown(told[site], task) for site in sorted(told)}, "together": of_all}


def _shown(sums: Arrays, task: Task) -> dict[str, Any]:
    called = {CALLED: sums[CALLED].astype(int).tolist()} if CALLED in sums else {}
    found = {"count": int(sums["count"]), "metrics": figures(sums, task), "auc_error": auc_error(sums), **called}
    found |= {"each": each_label(sums)} if task.kind == "labels" else {}
    return found | ({"auc": list(area(sums)[:3])} if task.kind == "classes" and task.classes == 2 else {})


def each_label(sums: Mapping[str, np.ndarray]) -> list[dict[str, float | None]]:
    """Of each label how many have it ("there"), and its "auc" and "f1"; None where one is not defined."""
    found = []
    for scores, table in zip(sums["scores"], sums["tally"], strict=True):
        values = {"auc": area({"scores": scores[None]}).value, "f1": float(f1_of(table[None])[0])}
        told = {name: value if np.isfinite(value) else None for name, value in values.items()}
        found.append({"there": float(table[1].sum()), **told})
    return found


def area(sums: Mapping[str, np.ndarray]) -> Estimate:
    """The AUC of class 1 of two with DeLong's interval; pairs that share a bin count half. NaN where one is missing."""
    outside, inside = sums["scores"][0].astype(np.int64)
    places = np.arange(len(inside))
    scores = np.concatenate([np.repeat(places, inside), np.repeat(places, outside)])
    return auc(scores, np.arange(len(scores)) < inside.sum())


def roc_points(sums: Mapping[str, np.ndarray], label: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """False positive rate and sensitivity at the edges of the bins of scores, from nobody to everybody: (points,) each.

    ``label`` is the row of "scores": 0 for class 1 of two. NaN where one kind of sample is missing.
    """
    outside, inside = sums["scores"][label][:, ::-1]  # from high scores to low
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = [np.append(0.0, np.cumsum(counts) / counts.sum()) for counts in (outside, inside)]
    return rates[0], rates[1]


def written(sums: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Sums as JSON holds them."""
    return {name: np.asarray(values).tolist() for name, values in sums.items()}


def read(told: Mapping[str, Sequence[Any] | float]) -> Arrays:
    """Sums as :func:`written` has written them."""
    return {name: np.asarray(values, dtype=np.float64) for name, values in told.items()}
