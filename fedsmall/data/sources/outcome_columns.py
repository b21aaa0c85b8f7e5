"""Columns of a table that hold what is predicted where it is no class: a number, or a time until an event."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from fedsmall.data.cells import check_no_text, is_missing, number_block
from fedsmall.data.outcomes import LEAST_GRADES, Amount, Outcome, Survival
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


def asked_outcome(label: str | None, target: str | None, survival: Mapping[str, Any], classes: Any) -> Outcome | None:
    """What a task's table asks to be predicted, None for classes; PlanError where it asks for two things or none."""
    said = {name: value for name, value in survival.items() if value is not None}
    asked = [name for name, column in {"label": label, "target": target}.items() if column is not None]
    asked += [" and ".join(said)] if said else []
    if len(asked) != 1:
        raise PlanError(
            'task \'csv\' needs one of label, as in label = "disease" (classes), target, as in target = "age" (a '
            f"number), and time with event (survival); this one has {', '.join(asked) or 'none'}"
        )
    if classes is not None and label is None:
        raise PlanError("classes are for a label; leave classes out")
    if said:
        return _survival(**survival)
    return None if target is None else Amount(name=target)


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


def label_notes(label: str | None, classes: Sequence[str]) -> list[str]:
    """What should be known of a label whose classes look like numbers to be predicted."""
    if len(classes) < MANY or not all(map(is_number, classes)):
        return []
    return [
        f"Column {label!r} holds {len(classes)} different numbers, and each is a class here. To predict the number "
        f"itself: target = {label!r} in place of label".replace("'", '"')
    ]


def read_outcome(frame: "DataFrame", outcome: Outcome, markers: Sequence[str] = ()) -> np.ndarray:
    """What is predicted as it was read, in float64: a number (rows, 1), or a time and its event (rows, 2).

    Raises DataError for text, for rows without it, for times below 0 and events that are not 0 or 1.
    """
    first = _numbers(frame, outcome.name, markers)
    if outcome.kind == "amount":
        return first[:, None]
    if (first < 0).any():
        raise DataError(f"column {outcome.name!r} is below 0 in {(first < 0).sum()} of {len(frame)} rows; it is a time")
    check_filled(frame, outcome.event, markers)
    events = frame[outcome.event].map(lambda cell: EVENTS.get(plain(cell).lower(), np.nan)).to_numpy(dtype=np.float64)
    if (odd := np.isnan(events)).any():
        raise DataError(
            f"column {outcome.event!r} is neither 1 (it happened) nor 0 (not yet) in {odd.sum()} of {len(frame)} rows"
        )
    return np.stack([first, events], axis=1)


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
