"""Columns of a table that hold what is predicted where it is no class: a number, a time until an event, labels."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmall.data.cells import check_no_text, is_missing, number_block
from fedsmall.data.outcomes import LEAST_GRADES, LEAST_LABELS, Amount, Findings, Outcome, Survival
from fedsmall.data.sources.files import is_number, plain
from fedsmall.errors import DataError, PlanError

if TYPE_CHECKING:
    from pandas import DataFrame

EVENTS = {"1": 1.0, "true": 1.0, "yes": 1.0, "0": 0.0, "false": 0.0, "no": 0.0}
MOST_INTERVALS = 100
MANY = 20  # classes that are all numbers, from which on a label looks like a number to be predicted


def in_order(label: str | None, target: str | None, classes: Any, order: Any) -> tuple[str | None, str | None, Any]:
    """Label, target and classes where a target's grades are in ``order``: it is a label then, of these classes.

    PlanError where nothing has these grades, or they are not three or more in a list.
    """
    if order is None:
        return label, target, classes
    if target is None or label is not None or classes is not None:
        raise PlanError(
            'order lists the grades of a target, from the lowest to the highest: target = "grade", order = ["0", "I", '
            '"II"]; leave label and classes out'
        )
    if isinstance(order, str) or not isinstance(order, Sequence | Mapping) or len(order) < LEAST_GRADES:
        raise PlanError(
            f'order lists {LEAST_GRADES} grades or more, from the lowest to the highest, as in ["0", "I", "II"]; '
            f"two are classes of a label; got {order!r}"
        )
    return target, None, order


def asked_outcome(
    label: str | None, target: str | None, targets: Any, survival: Mapping[str, Any], classes: Any
) -> Outcome | None:
    """What a task's table asks to be predicted, None for classes; PlanError where it asks for two things or none."""
    said = {name: value for name, value in survival.items() if value is not None}
    asked = [
        name for name, column in {"label": label, "target": target, "targets": targets}.items() if column is not None
    ]
    asked += [" and ".join(said)] if said else []
    if len(asked) != 1:
        raise PlanError(
            'task \'csv\' needs one of label, as in label = "disease" (classes), target, as in target = "age" (a '
            "number), targets, a list of columns of 0 and 1, and time with event (survival); this one has "
            f"{', '.join(asked) or 'none'}"
        )
    if classes is not None and label is None:
        raise PlanError("classes are for a label; leave classes out")
    if said:
        return _survival(**survival)
    if targets is not None:
        return _findings(targets)
    return None if target is None else Amount(name=target)


def _findings(targets: Any) -> Findings:
    listed = isinstance(targets, Sequence) and not isinstance(targets, str) and all(isinstance(t, str) for t in targets)
    if not listed or len(targets) < LEAST_LABELS:
        raise PlanError(
            f"targets lists {LEAST_LABELS} columns or more that hold 0 or 1; one is a label, or a number as target; "
            f"got {targets!r}"
        )
    if twice := [name for name in targets if targets.count(name) > 1]:
        raise PlanError(f"targets lists {twice[0]!r} twice; each label is there once")
    return Findings(names=tuple(targets))


def _survival(time: str | None, event: str | None, cuts: Any, intervals: Any) -> Survival:
    if time is None or event is None:
        raise PlanError('survival is time and event, as in time = "months", event = "died" (1: it happened, 0: not)')
    if cuts is not None and intervals is not None:
        raise PlanError("cuts say what the intervals are, and intervals how many; remove one of them")
    if intervals is not None and (type(intervals) is not int or not 1 <= intervals <= MOST_INTERVALS):
        raise PlanError(f"intervals is a whole number from 1 to {MOST_INTERVALS}; got {intervals!r}")
    if cuts is None:
        return Survival(name=time, event=event, intervals=intervals or 10)
    good = isinstance(cuts, Sequence) and len(cuts) > 0 and all(type(cut) in (int, float) for cut in cuts)
    if not good or not all(low < high < float("inf") for low, high in pairwise([0, *cuts])):
        raise PlanError(
            f"cuts are the ends of intervals, from low to high and above 0, as in [12, 24, 60]; got {cuts!r}"
        )
    return Survival(name=time, event=event, intervals=len(cuts), stated=tuple(map(float, cuts)))


def is_amount(outcomes: Sequence[Any]) -> bool:
    """Whether y of all sites are numbers to be predicted: more than 20 of different values are not whole."""
    arrays = [np.asarray(y).ravel() for y in outcomes]
    return all(y.dtype.kind in "fiu" for y in arrays) and _fractions(np.unique(np.concatenate(arrays))) > MANY


def _fractions(numbers: np.ndarray) -> int:
    return int((np.isfinite(numbers) & (numbers != np.round(numbers))).sum())


def check_label(label: str, classes: Sequence[str]) -> None:
    """Raise DataError where a label's classes, which nobody listed, look like numbers to be predicted."""
    if len(classes) < MANY or not all(map(is_number, classes)):
        return
    target = json.dumps(label, ensure_ascii=False)
    raise DataError(
        f"column {label!r} holds {len(classes)} different numbers. To predict the number itself: target = {target} in "
        f"place of label. If each is a class, list them: classes = [{', '.join(classes)}]"
    )


def read_outcome(frame: "DataFrame", outcome: Outcome, markers: Sequence[str] = ()) -> np.ndarray:
    """What is predicted as it was read, in float64: a number (rows, 1), a time and its event (rows, 2), or labels.

    Raises DataError for text, for rows without it, for times below 0 and events that are not 0 or 1.
    """
    if outcome.kind == "findings":
        return np.stack([_yes_or_no(frame, column, markers, "there", "absent") for column in outcome.names], axis=1)
    first = _numbers(frame, outcome.name, markers)
    if outcome.kind == "amount":
        return first[:, None]
    if (first < 0).any():
        raise DataError(f"column {outcome.name!r} is below 0 in {(first < 0).sum()} of {len(frame)} rows; it is a time")
    return np.stack([first, _yes_or_no(frame, outcome.event, markers, "it happened", "not yet")], axis=1)


def _yes_or_no(frame: "DataFrame", column: str, markers: Sequence[str], one: str, zero: str) -> np.ndarray:
    """A column of 0 and 1, or words for them, (rows,); ``one`` and ``zero`` say what they mean."""
    check_filled(frame, column, markers)
    said = frame[column].map(lambda cell: EVENTS.get(plain(cell).lower(), np.nan)).to_numpy(dtype=np.float64)
    if (odd := np.isnan(said)).any():
        raise DataError(f"column {column!r} is neither 1 ({one}) nor 0 ({zero}) in {odd.sum()} of {len(frame)} rows")
    return np.asarray(said)


def check_filled(frame: "DataFrame", column: str, markers: Sequence[str]) -> None:
    """Raise DataError, with how many, where a column that must hold something is empty."""
    empty = is_missing(frame[column], markers)
    if empty.any():
        raise DataError(f"column {column!r} is empty in {empty.sum()} of {len(frame)} rows; drop those rows")


def _numbers(frame: "DataFrame", column: str, markers: Sequence[str]) -> np.ndarray:
    check_filled(frame, column, markers)
    values, text = number_block(frame[[column]], markers)
    check_no_text(frame, [column], text)
    return values[:, 0]
