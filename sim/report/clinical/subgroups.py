"""Subgroup by subgroup: the model that is shown, on parts of the test samples that a scenario names.

Of a group below ``FLOOR`` samples nothing is shown, nor of another where all samples less those shown would give it
away.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedsmall.data.subgroups import UNKNOWN
from fedsmall.evaluation.clinical import AtThreshold, Estimate, at_threshold, auc, wilson
from fedsmall.sim.report.clinical.shown import Clinical

CUT = re.compile(r"(?P<below>below )?(?P<low>-?[\d.]+(e[-+]?\d+)?)( to below .*| or more)?$")
FLOOR = 8  # samples of a group whose figures are shown, as of a hospital; of fewer they are as good as labels


@dataclass(frozen=True)
class AtGroup:
    """The model shown on one group; only ``column`` and ``group`` where it is hidden.

    For two classes ``area`` and ``errors`` at the chosen threshold, for more ``accuracy``.
    """

    column: str
    group: str
    samples: int = 0
    positive: int = 0
    area: Estimate | None = None
    errors: AtThreshold | None = None
    accuracy: Estimate | None = None

    @property
    def hidden(self) -> bool:
        """Whether it is too small to be shown, or would show one that is."""
        return not self.samples


def subgroups(shown: Clinical) -> list[AtGroup]:
    """Every group of every column that the scenario names, in order; none where it names none."""
    return [at for column, names in shown.said.groups.items() for at in _of_column(shown, column, names)]


def hidden_groups(sizes: Mapping[str, int], floor: int = FLOOR) -> set[str]:
    """Which of a column's groups are not shown: those below the floor, and more until together they reach it.

    Else the figures of all samples less those of the groups shown would be those of a few.
    """
    by_size = sorted(sizes, key=lambda name: (sizes[name], name))
    hidden = [name for name in by_size if sizes[name] < floor]
    while hidden and len(hidden) < len(by_size) and sum(sizes[name] for name in hidden) < floor:
        hidden.append(by_size[len(hidden)])
    return set(hidden)


def _of_column(shown: Clinical, column: str, names: np.ndarray) -> list[AtGroup]:
    sizes = dict(zip(*(each.tolist() for each in np.unique(names, return_counts=True)), strict=True))
    hidden = hidden_groups(sizes)
    return [
        AtGroup(column, name) if name in hidden else _at(shown, column, name, names == name)
        for name in sorted(sizes, key=_place)
    ]


def _at(shown: Clinical, column: str, name: str, mine: np.ndarray) -> AtGroup:
    p, y = shown.said.p[mine], shown.said.y[mine]
    if not shown.two:
        return AtGroup(column, name, len(y), accuracy=wilson(int((p.argmax(axis=1) == y).sum()), len(y)))
    positive = y == 1
    errors = at_threshold(p[:, 1], positive, shown.chosen[0][1])
    return AtGroup(column, name, len(y), int(positive.sum()), auc(p[:, 1], positive), errors)


def _place(name: str) -> tuple[bool, float, str]:
    """Where a group stands: parts of numbers from low to high, words by the alphabet, the unknown last."""
    cut = CUT.match(name)
    low = np.inf if cut is None else -np.inf if cut["below"] else float(cut["low"])
    return name == UNKNOWN, low, name
