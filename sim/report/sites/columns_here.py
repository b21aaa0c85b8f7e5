"""What a hospital keeps of a forest over split columns, for its own page: its plan, its part, and what it is worth."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from fedsmall.clients.columns.desk import PART, WORTH
from fedsmall.clients.columns.notebook import Notebook
from fedsmall.clients.columns.say import described
from fedsmall.clients.upkeep.at_rest import opened
from fedsmall.vertical.plan import ColumnPlan


class OwnColumns(NamedTuple):
    """``lines`` say what the run was, ``cuts`` how many of each own column were taken; ``worth`` is the active's."""

    lines: list[str]
    cuts: list[tuple[str, int]]
    worth: dict[str, Any]
    over: bool


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(opened(path.read_bytes())))


def own_columns(folder: Path, site: str) -> OwnColumns | None:
    """What the folder of a run at a site holds of a forest; None where the run was of models that travel."""
    if (plan := Notebook(folder).plan()) is None or '"of":{' in plan:
        return None
    part = _read(folder / PART) if (folder / PART).exists() else {"columns": [], "records": []}
    taken = [column for column, _ in part["records"]]
    cuts = [(name, taken.count(k)) for k, name in enumerate(part["columns"])]
    worth = _read(folder / WORTH) if (folder / WORTH).exists() else {}
    return OwnColumns(described(ColumnPlan.model_validate_json(plan), site), cuts, worth, (folder / PART).exists())
