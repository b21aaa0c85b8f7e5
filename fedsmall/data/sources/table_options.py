"""What a scenario says of a table, looked at before the table is read: a wrong word is one line, whatever the data."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedsmall.errors import PlanError

WORDS = {"label": "outcome", "patient": "patient_id", "sheet": "2024"}
LISTS = {"features": '["age", "dose"]', "drop": '["remark"]', "categorical": '["sex"]'}


def check_options(separator: Any, decimal: Any, **options: Any) -> None:
    """Raise PlanError for an option that is not of its kind; an option that is None was not given."""
    for name, mark in (("separator", separator), ("decimal", decimal)):
        if mark is not None and not (isinstance(mark, str) and len(mark) == 1 and mark not in '\r\n"'):
            raise PlanError(f'{name} is one character, as in {name} = ","; got {mark!r}')
    for name, value in options.items():
        if name in WORDS and value is not None and not isinstance(value, str):
            raise PlanError(f'{name} is text, as in {name} = "{WORDS[name]}"; got {value!r}')
        if name in LISTS and value is not None and not _lists(value):
            raise PlanError(f"{name} lists columns, as in {name} = {LISTS[name]}; got {value!r}")
    if options.get("label") is not None and options["label"] in (options.get("features") or ()):
        raise PlanError(f"{options['label']!r} is the label, and can be no feature: a model would be told the answer")


def _lists(value: Any) -> bool:
    """Whether a value lists columns, or says values of each."""
    if isinstance(value, Mapping):
        return all(isinstance(known, Sequence) and not isinstance(known, str) for known in value.values())
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(one, str) for one in value)
