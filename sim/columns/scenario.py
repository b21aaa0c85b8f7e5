"""A scenario over split columns: a TOML file whose task names each party's table, as a frozen record."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import tomli_w
from pydantic import Field, ValidationError, field_validator, model_validator

from fedsmall.errors import PlanError
from fedsmall.methods import explain, nearest
from fedsmall.parts import Frozen
from fedsmall.sim.runs.scenario import assign, read
from fedsmall.vertical.intersection import check_matching
from fedsmall.vertical.plan import LEAST_BITS, Boosting, Reading

SAVES_TIME = {"packing": True, "subtraction": True, "sparse": True}


class Row(NamedTuple):
    """A method: what it sets, whether parties send each other messages, and whose columns it sees."""

    sets: dict[str, Any]
    apart: bool
    summary: str


METHODS: dict[str, Row] = {
    "Standalone": Row({}, False, "boosted trees over the columns of the party with the labels alone"),
    "SecureBoost": Row({}, True, "boosted trees over all parties' columns, gradients under encryption"),
    "SecureBoostPlus": Row(SAVES_TIME, True, "the same trees for less: packed, subtracted, sparse sums"),
    "Central": Row({}, False, "boosted trees over the joined columns: what may not be done"),
}


class Task(Reading):
    """Each party's table, the first of which has the label or the number to predict, and how it is read."""

    columns: dict[str, str]
    match: str = "ecdh"

    @model_validator(mode="after")
    def _whole(self) -> Self:
        check_matching(self.match)
        if odd := [one for one in self.columns if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", one)]:
            raise PlanError(
                f"{odd[0]!r} is no name for a party: letters, numbers, dots, dashes, underscores, 60 at most"
            )
        if len(self.columns) < 2:
            raise PlanError(
                'columns names the table of each of two parties or more: columns = {hospital = "a.csv", lab = "b.csv"}'
            )
        if (self.label is None) == (self.target is None):
            raise PlanError("a task over split columns has either a label (classes) or a target (a number)")
        return self

    @property
    def reading(self) -> Reading:
        """How the parties read their tables."""
        return Reading(**self.model_dump(exclude={"columns", "match"}))

    @property
    def active(self) -> str:
        """The party with the labels."""
        return next(iter(self.columns))


class Columns(Frozen):
    """What is run: the task, how trees grow, methods, seeds. The fields are the keys of the file.

    ``test`` is the share of the common patients that models are judged on. A method's table may set any key of
    ``boosting`` anew. ``sealed`` is whether parties that are real sites write to each other in letters: where all have
    an identity, unless it says otherwise.
    """

    name: str
    about: str = ""
    task: Task
    seeds: tuple[Annotated[int, Field(ge=0)], ...] = (0,)
    test: Annotated[float, Field(gt=0, lt=1)] = 0.25
    key_bits: int = LEAST_BITS
    sealed: bool | None = None
    boosting: dict[str, Any] = Field(default_factory=dict)
    method: tuple[dict[str, Any], ...]

    @field_validator("key_bits")
    @classmethod
    def _long_enough(cls, bits: int) -> int:
        if bits < LEAST_BITS or bits % 256:
            raise PlanError(f"key_bits = {bits}: a key that protects labels has {LEAST_BITS} bits, 3072 or 4096")
        return bits

    @model_validator(mode="after")
    def _can_be_run(self) -> Self:
        labels = [plan.label for plan in self.plans() if plan.seed == self.seeds[0]]
        if twice := [label for label in labels if labels.count(label) > 1]:
            raise PlanError(f'two methods are called {twice[0]!r}; give one of them a name of its own: label = "..."')
        return self

    def plans(self) -> list["PlanOfColumns"]:
        """All runs: seeds, in them methods in the order of the file."""
        return [self._plan(dict(table), seed) for seed in self.seeds for table in self.method]

    def _plan(self, table: dict[str, Any], seed: int) -> "PlanOfColumns":
        name, label = table.pop("name", None), table.pop("label", None)
        if name not in METHODS:
            raise PlanError(f"{name!r} is no method over split columns. {nearest(str(name), list(METHODS))}")
        try:
            settings = Boosting(**{**self.boosting, **METHODS[name].sets, **table, "seed": seed})
        except ValidationError as error:
            raise PlanError(f"Method {name!r}: {explain(error, list(Boosting.model_fields))}") from None
        return PlanOfColumns(str(name), str(label or name), seed, settings)


class PlanOfColumns(NamedTuple):
    """One method with one seed."""

    name: str
    label: str
    seed: int
    settings: Boosting


def is_of_columns(table: Mapping[str, Any]) -> bool:
    """Whether a scenario's table is one over split columns."""
    return isinstance(table.get("task"), Mapping) and "columns" in table["task"]


def load_columns(path: Path, settings: Sequence[str] = ()) -> Columns:
    """The scenario in a file, with ``settings`` ("boosting.rounds=5") laid over it; tables lie beside the file.

    Raises PlanError, one line, where something is missing or wrong.
    """
    table = read(path)
    for setting in settings:
        table = assign(table, setting)
    if not is_of_columns(table):
        raise PlanError(f'{path.name} is no scenario over split columns: task = {{columns = {{...}}, id = "..."}}')
    try:
        made = Columns(**table)
    except ValidationError as error:
        cause = error.errors()[0].get("ctx", {}).get("error")
        known = list(Task.model_fields if error.errors()[0]["loc"][:1] == ("task",) else Columns.model_fields)
        raise PlanError(f"{path.name}: {cause if isinstance(cause, PlanError) else explain(error, known)}") from None
    except PlanError as error:
        raise PlanError(f"{path.name}: {error}") from None
    found = {party: str((path.parent / file).resolve()) for party, file in made.task.columns.items()}
    return made.model_copy(update={"task": made.task.model_copy(update={"columns": found})})


def as_toml(scenario: Columns) -> bytes:
    """The scenario as a file that :func:`load_columns` reads."""
    return tomli_w.dumps(scenario.model_dump(mode="json", exclude_none=True, exclude_defaults=True)).encode()
