"""What is settled before the first tree: how trees grow, how tables are read, and who takes part at real sites."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedsmall.parts import Frozen
from fedsmall.planning.run_sheet import Sheet

COLUMNS = "columns"  # the task's key, the action, the record and the word of an order's config
MESSAGE = "message"  # in the record: one message of a party, as bytes
COLUMN_SHEET = "columns.json"  # in a run's folder, in place of a sheet of models that travel
LEAST_BITS = 2048  # of a key that protects labels


class Goss(BaseModel):
    """Gradient-based one-side sampling: ``top`` of all rows by gradient, and ``other`` of them at random from the rest.

    The latter count (1 - top) / other times, with both rounded to whole rows. Source: Ke et al. 2017 (LightGBM).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    top: Annotated[float, Field(gt=0, lt=1)] = 0.2
    other: Annotated[float, Field(gt=0, lt=1)] = 0.1

    @model_validator(mode="after")
    def _leaves_some_out(self) -> "Goss":
        if self.top + self.other >= 1:
            raise ValueError(f"goss takes fewer than all rows: top + other is {self.top + self.other:g}, not below 1")
        return self


class Boosting(BaseModel):
    """How a forest is grown over columns that several parties hold.

    ``rounds`` trees (of several classes one each) of ``depth`` levels, over at most ``bins`` bins a column; ``l2`` is
    the papers' lambda, ``least_gain`` their gamma, ``least_samples`` a split's least side; the rest is cost alone.

    ``trees``: ``joint`` (all columns compete at every node), ``mixed`` (each tree is of one party's columns, in turn)
    or ``layered`` (the first ``passive_levels`` levels are of the passive parties' columns). With ``outputs = "many"``
    one tree has a weight for each class in every leaf. Sources: Cheng et al. 2021 (SecureBoost); Chen et al. 2021.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    rounds: Annotated[int, Field(ge=1, le=1000)] = 20
    depth: Annotated[int, Field(ge=1, le=10)] = 3
    bins: Annotated[int, Field(ge=2, le=256)] = 32
    learning_rate: Annotated[float, Field(gt=0, le=1)] = 0.3
    l2: Annotated[float, Field(gt=0)] = 1.0
    least_gain: Annotated[float, Field(ge=0)] = 0.0
    least_samples: Annotated[int, Field(ge=1)] = 5
    seed: int = 0
    packing: bool = False
    subtraction: Annotated[bool, Field(exclude=True)] = False  # both saved a hundredth of a tree's time, and do
    sparse: Annotated[bool, Field(exclude=True)] = False  # nothing any more: scenarios that have them still run
    goss: Goss | None = None
    trees: Literal["joint", "mixed", "layered"] = "joint"
    passive_levels: Annotated[int, Field(ge=1)] = 2
    outputs: Literal["one", "many"] = "one"

    @model_validator(mode="after")
    def _layers_fit(self) -> "Boosting":
        if self.trees == "layered" and self.passive_levels >= self.depth:
            raise ValueError(
                f"layered trees keep levels for the active party: passive_levels is {self.passive_levels}, "
                f"and the depth is {self.depth}"
            )
        return self


def competing_parties(settings: Boosting, parties: tuple[str, ...], t: int, level: int) -> tuple[str, ...]:
    """The parties whose columns compete in round ``t``, so deep in a tree; the active one is the first of all."""
    if settings.trees == "mixed":
        return (parties[t % len(parties)],)
    if settings.trees == "layered":
        return parties[1:] if level < settings.passive_levels else parties[:1]
    return parties


class Reading(Frozen):
    """How parties read their tables: ``id`` names whose a row is, ``label`` (or ``target``, a number) what is learnt.

    ``classes`` fixes the classes and their order, ``drop`` leaves columns out, ``missing`` are words for no value.
    """

    id: str
    label: str | None = None
    target: str | None = None
    classes: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class ForestOf(Frozen):
    """The run whose forest is asked: its name, and the id that tells it from another that had its name before."""

    run: str
    id: str = ""


class ColumnPlan(Frozen):
    """What is learnt at real sites, of which the first has the labels; or ``of`` whose run a forest is asked."""

    parties: Annotated[tuple[str, ...], Field(min_length=2)]
    reading: Reading
    settings: Boosting
    test: Annotated[float, Field(gt=0, lt=1)] = 0.25
    key_bits: Annotated[int, Field(ge=LEAST_BITS, le=8 * LEAST_BITS)] = LEAST_BITS
    sealed: bool = False
    of: ForestOf | None = None

    @property
    def most_trees(self) -> int:
        """How many trees may be grown: as many in a round as there are classes, two where the plan names none."""
        classes = len(self.reading.classes or ("", "")) if self.reading.label is not None else 1
        return self.settings.rounds * (1 if classes <= 2 or self.settings.outputs == "many" else classes)

    @property
    def active(self) -> str:
        """The site with the labels."""
        return self.parties[0]


class ColumnSheet(Sheet):
    """A run over split columns. ``roll`` holds the identities of the consortium's sites, where there are envelopes."""

    columns: ColumnPlan
    roll: dict[str, str] = Field(default_factory=dict)
