"""The sums that a site has told, over all runs: two tables of nearly the same patients must not differ by one of them.

Of each feature by itself :mod:`fedsmall.clients.telling.told` says whether new sums may be told. A feature is its name
(or its place, where it has none), so that another choice of columns is no way around.
"""

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedsmall.clients.telling.told import Verdict, digest, recall, remembered, verdict, write
from fedsmall.data.raw_site import BALANCED, RawSite, class_sums, one_hot
from fedsmall.data.standardise import Sums
from fedsmall.errors import PlanError
from fedsmall.features import check_features
from fedsmall.plan import Plan


class Told(NamedTuple):
    """What may be told now, and for how many features it is what was told before."""

    sums: Sums
    again: int


class ToldSums:
    """The memory of one site, in the file ``path``: {"key", "features"}.

    Of a feature it holds, by its name, a :data:`fedsmall.clients.telling.told.Entry`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def answer(self, sums: Sums, x: np.ndarray, names: tuple[str, ...], floor: int) -> Told:
        """The sums that may be told of ``x`` (samples, features), where NaN is a missing value; remembers them."""
        known = recall(self.path, features={})
        columns = x.reshape(len(x), -1)
        flat = np.stack([sums.count.ravel(), sums.total.ravel(), sums.squares.ravel()])  # (3, features)
        again = 0
        for index in np.flatnonzero(flat[0]):
            name = names[index] if names else f"{columns.shape[1]} features, {index}"
            before = known["features"].get(name)
            now = _digests(columns[:, index], known)
            allowed = verdict(before, now, floor)
            if allowed is Verdict.NEW:
                known["features"][name] = remembered(before, now, flat[:, index].tolist())
            elif allowed is Verdict.LAST:
                flat[:, index] = before["last"] if before else 0.0
                again += 1
        write(self.path, known)
        shape = sums.count.shape
        return Told(Sums(*(row.reshape(shape) for row in flat)), again)


def told_classes(raw: RawSite, plan: Plan, floor: int, path: Path) -> Sums:
    """What a site may tell of its classes, each a feature called "class NAME", for weights that a plan asks for.

    Raises PlanError where the plan asks for none, or for a privacy that such counts would break.
    """
    task = raw.task
    if plan.recipe.class_weights != BALANCED or task.kind != "classes":
        raise PlanError("this plan balances no classes; the site tells no counts of them")
    check_features(plan)
    names = tuple(f"class {name}" for name in task.class_names or range(task.classes))
    floor = max(floor, raw.floor)
    sums = class_sums(raw.train.y, task.classes, floor)
    return ToldSums(path).answer(sums, one_hot(raw.train.y, task.classes), names, floor).sums


def _digests(values: np.ndarray, known: dict[str, Any]) -> Counter[str]:
    present = values[~np.isnan(values)].astype(np.float64)
    return Counter(digest(value.tobytes(), known, 8) for value in present)
