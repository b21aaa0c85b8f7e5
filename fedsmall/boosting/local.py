"""One round of xgboost at a site: the trees that it would add to a forest, as slots of one."""

import json
from typing import Any, NamedTuple

import numpy as np

from fedsmall.federation import Task
from fedsmall.parts import Boosting

OBJECTIVES = {"numbers": "reg:squarederror", "two": "binary:logistic", "several": "multi:softprob"}


class Trees(NamedTuple):
    """Slots of a forest, each (trees, nodes)."""

    feature: np.ndarray
    cut: np.ndarray
    weight: np.ndarray


def empty(trees: int, depth: int) -> Trees:
    """Slots that hold nothing yet."""
    shape = trees, 2 ** (depth + 1) - 1
    return Trees(np.full(shape, -1.0, np.float32), np.zeros(shape, np.float32), np.zeros(shape, np.float32))


def objective_of(task: Task) -> str:
    """xgboost's word for the loss."""
    return OBJECTIVES["numbers" if task.kind == "numbers" else "two" if task.classes == 2 else "several"]


def grown(
    x: np.ndarray,
    y: np.ndarray,
    margin: np.ndarray,
    task: Task,
    settings: Boosting,
    rate: float,
    weights: np.ndarray | None = None,
) -> Trees:
    """The trees of one round of xgboost's ``hist``, on from a forest that says ``margin`` (samples, margins).

    ``weights`` (samples,) is how much each counts.
    """
    import xgboost

    held = xgboost.DMatrix(x.astype(np.float32), y.reshape(-1), weight=weights)
    held.set_base_margin(margin.astype(np.float32) if margin.shape[1] > 1 else margin[:, 0].astype(np.float32))
    told: dict[str, Any] = {
        "objective": objective_of(task),
        "max_depth": settings.depth,
        "learning_rate": rate,
        "reg_lambda": settings.l2,
        "min_split_loss": settings.least_gain,
        "min_child_weight": settings.least_weight,
        "max_bin": settings.bins,
        "base_score": 0.5,  # not used: the margin says where this round begins
        "tree_method": "hist",
        "nthread": 1,
        "verbosity": 0,
    }
    told |= {"num_class": margin.shape[1]} if margin.shape[1] > 1 else {}
    return slots_of(xgboost.train(told, held, 1), margin.shape[1], settings.depth)


def slots_of(booster: Any, trees: int, depth: int) -> Trees:
    """The last ``trees`` trees of an xgboost booster."""
    made = empty(trees, depth)
    told = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]["model"]["trees"]
    for slot, tree in enumerate(told[-trees:]):
        _put(made, slot, tree, 0, 0)
    return made


def _put(made: Trees, slot: int, tree: dict[str, list[float]], node: int, place: int) -> None:
    left, right = int(tree["left_children"][node]), int(tree["right_children"][node])
    number = tree["split_conditions"][node]  # in a leaf this is its weight
    if left < 0:
        made.weight[slot, place] = number
        return
    made.feature[slot, place], made.cut[slot, place] = tree["split_indices"][node], number
    _put(made, slot, tree, left, 2 * place + 1)
    _put(made, slot, tree, right, 2 * place + 2)
