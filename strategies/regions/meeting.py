"""Before the first contact: a region tells what its sites told together, and learns what all regions agreed on."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall.data.standardise import Scaling, Sums
from fedsmall.errors import PlanError
from fedsmall.exact import in_parts
from fedsmall.run_sheet import ROWS
from fedsmall.strategies.regions.line import Line
from fedsmall.strategies.server.agreed import keep_scaling, keep_weights
from fedsmall.strategies.server.rolls import told_at_roll
from fedsmall.wire import Arrays, join

Answers = Mapping[str, Mapping[str, Any]]
WORDS = ("task", "signature")  # on which the sites of a region have agreed


def agree_above(line: Line, folder: Path, answers: Answers, sums: Mapping[str, Sequence[Sums]]) -> None:
    """Let a region's sites, whose ``answers`` to the roll and ``sums`` by kind are here, agree with all others'.

    What came of it is kept in the run's folder, where it is looked for before sites are asked. Raises PlanError where
    the regions agreed on less than these sites need.
    """
    scaled = all(answer.get("scaled") for answer in answers.values())
    words = {word: answers[min(answers)].get(word) for word in WORDS}
    words |= {"scaled": scaled, ROWS: json.dumps(told_at_roll(answers)["rows"])}
    agreed = line.meet(words, join(**{kind: together(each) for kind, each in sums.items()}))
    if scaled and set(agreed.arrays) != {"mean", "scale"}:
        raise PlanError("the features of this region are scaled, and those of another are not: all must hold the same")
    if scaled:
        keep_scaling(folder, Scaling(**agreed.arrays))
    if isinstance(weights := agreed.words.get("class_weights"), list):
        keep_weights(folder, weights)


def together(sums: Sequence[Sums]) -> Arrays:
    """The sums of several sites as one, exactly: {"count": (parts, features), ...}, padded with zeros."""
    parts = {name: in_parts([getattr(each, name) for each in sums]) for name in ("count", "total", "squares")}
    most = max(map(len, parts.values()))
    return {name: np.pad(array, ((0, most - len(array)), (0, 0))) for name, array in parts.items()}
