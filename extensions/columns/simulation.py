"""A scenario over split columns: a TOML file whose task names each party's table, run in one process by messages."""

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Self

import numpy as np
from pydantic import Field, ValidationError, field_validator, model_validator

from fedsmall.errors import DataError, PlanError
from fedsmall.extensions.columns.active import ActiveParty
from fedsmall.extensions.columns.boosting import Split, Tree, fit_joined, keep_order
from fedsmall.extensions.columns.conducting import check_common, match_parties
from fedsmall.extensions.columns.intersection import check_matching
from fedsmall.extensions.columns.messages import Post, hold_talk
from fedsmall.extensions.columns.party import Party, PassiveParty, read_party_table, read_target
from fedsmall.extensions.columns.plan import COLUMNS, LEAST_BITS, Boosting, Reading
from fedsmall.methods import explain, nearest
from fedsmall.parts import Frozen
from fedsmall.randomness import rng_for
from fedsmall.sim.runs.files import read_json, write_json
from fedsmall.sim.runs.scenario import assign, read

SAVES_TIME = {"packing": True}
PARTIES = "parties"  # in a run's folder


class Row(NamedTuple):
    """A method: what it sets, whether parties send each other messages, and whose columns it sees."""

    sets: dict[str, Any]
    apart: bool
    summary: str


METHODS: dict[str, Row] = {
    "Standalone": Row({}, False, "boosted trees over the columns of the party with the labels alone"),
    "SecureBoost": Row({}, True, "boosted trees over all parties' columns, gradients under encryption"),
    "SecureBoostPlus": Row(SAVES_TIME, True, "the same trees for less: packed sums"),
    "Central": Row({}, False, "boosted trees over the joined columns: what may not be done"),
}


class Task(Reading):
    """Each party's table, the first of which has the label or the number to predict, and how it is read."""

    columns: dict[str, str]
    match: str = "ecdh"

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        check_matching(self.match)
        if odd := [name for name in self.columns if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", name)]:
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

    ``test`` is the share to judge by; a method's table overrides ``boosting``; with identities real sites encrypt.
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
    def _is_long_enough(cls, bits: int) -> int:
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
            raise PlanError(f"Method {name!r}: {explain(error, Boosting)}") from None
        return PlanOfColumns(str(name), str(label or name), seed, settings)


class PlanOfColumns(NamedTuple):
    """One method with one seed."""

    name: str
    label: str
    seed: int
    settings: Boosting


def load_columns(path: Path, settings: Sequence[str] = ()) -> Columns:
    """The scenario in a file beside its tables, with ``settings`` ("boosting.rounds=5") laid over; else PlanError."""
    table = read(path)
    for setting in settings:
        table = assign(table, setting)
    if not isinstance(table.get("task"), Mapping) or COLUMNS not in table["task"]:
        raise PlanError(f'{path.name} is no scenario over split columns: task = {{columns = {{...}}, id = "..."}}')
    try:
        scenario = Columns(**table)
    except ValidationError as error:
        cause = error.errors()[0].get("ctx", {}).get("error")
        raise PlanError(f"{path.name}: {cause if isinstance(cause, PlanError) else explain(error, Columns)}") from None
    except PlanError as error:
        raise PlanError(f"{path.name}: {error}") from None
    files = {party: str((path.parent / file).resolve()) for party, file in scenario.task.columns.items()}
    return scenario.model_copy(update={"task": scenario.task.model_copy(update={"columns": files})})


@dataclass(frozen=True)
class Done:
    """One plan that was run; messages and bytes by "sender to receiver", splits, parts and records by party."""

    plan: PlanOfColumns
    metrics: dict[str, float]
    seconds: float
    trees: tuple[Tree, ...]
    records: dict[str, list[Split]]
    work: dict[str, float] = field(default_factory=dict)
    messages: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    sums_read: int = 0
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def splits(self) -> dict[str, int]:
        """How many splits each party has."""
        return {party: len(records) for party, records in self.records.items()}

    def row(self) -> dict[str, Any]:
        """What summary.json holds of it."""
        row = {"method": self.plan.label, "name": self.plan.name, "seed": self.plan.seed, **self.metrics}
        row |= {"seconds": round(self.seconds, 3), "work": self.work, "messages": self.messages, "bytes": self.bytes}
        return {**row, "splits": self.splits, "sums_read": self.sums_read}


@dataclass
class World:
    """The parties of a scenario, their identifiers matched; ``common`` is how many patients all have."""

    scenario: Columns
    active: ActiveParty
    passives: list[PassiveParty]
    post: Post
    common: int

    @property
    def parties(self) -> list[Party]:
        """All of them, the active one first."""
        return [self.active, *self.passives]

    def order(self, party: str, tree: int, node: int, count: int) -> np.ndarray:
        """The order in which a party compares its candidates: what Central needs to break ties as the parties do."""
        passive = next((other for other in self.passives if other.name == party), None)
        return keep_order(party, tree, node, count) if passive is None else passive.order(tree, node, count)


def world_of(scenario: Columns) -> World:
    """Read every party's table and match their identifiers."""
    task, seed = scenario.task, scenario.seeds[0]
    target = read_target(Path(task.columns[task.active]), task.reading)
    tables = {party: read_party_table(Path(file), task.reading) for party, file in task.columns.items()}
    for party, table in tables.items():
        if not table.columns:
            raise DataError(f"party {party!r} has no column of numbers to learn from")
    words: dict[str, Any] = {"target": target.values, "classes": len(target.classes), "class_names": target.classes}
    active = ActiveParty(task.active, tables.pop(task.active), key_bits=scenario.key_bits, **words)
    # a real party draws its own secret; here it is drawn so that a run can be repeated
    secrets = {party: rng_for(seed, "secret of a party", party).bytes(16) for party in tables}
    numbers = {party: int.from_bytes(secret, "little") for party, secret in secrets.items()}
    passives = [PassiveParty(party, table, secret=numbers[party]) for party, table in tables.items()]
    post = Post({party.name: party for party in [active, *passives]})
    common = hold_talk(match_parties(list(post.parties)), post)
    check_common(common)
    return World(scenario, active, passives, post, common)


def execute(world: World, tell: Callable[[Done], None] = lambda done: None) -> list[Done]:
    """Run all plans, in the order of the scenario; each forest is judged on the patients held out for its seed."""
    done = []
    for plan in world.scenario.plans():
        train, test = world.active.hold_out(plan.seed, world.scenario.test)
        done.append((_run_apart if METHODS[plan.name].apart else _run_joined)(world, plan, train, test))
        tell(done[-1])
    return done


def _run_apart(world: World, plan: PlanOfColumns, train: np.ndarray, test: np.ndarray) -> Done:
    active, post = world.active, world.post
    for party in world.parties:
        party.clock.seconds.clear()
    post.messages.clear()
    post.bytes.clear()
    start = time.perf_counter()
    hold_talk(active.fit([party.name for party in world.passives], plan.settings, train), post)
    seconds = time.perf_counter() - start
    carried = post.messages, post.bytes
    messages, size = (Counter({" to ".join(way): n for way, n in counts.items()}) for counts in carried)
    scores = hold_talk(active.scores(test), post)
    work: dict[str, float] = {}
    for party in world.parties:
        for name, spent in party.clock.seconds.items():
            work[name] = work.get(name, 0.0) + spent
    assert active.objective is not None
    assert active.data is not None
    metrics, trees = active.objective.evaluate(scores, active.labels(test)), tuple(active.trees)
    records = {party.name: list(party.records) for party in world.parties}
    parts = {party.name: party.part() for party in world.parties}
    return Done(plan, metrics, seconds, trees, records, work, messages, size, active.data.sums_read, parts)


def _run_joined(world: World, plan: PlanOfColumns, train: np.ndarray, test: np.ndarray) -> Done:
    active, parties = world.active, world.parties if plan.name == "Central" else world.parties[:1]
    start = time.perf_counter()
    columns = {party.name: party.values[train] for party in parties}
    forest = fit_joined(columns, active.labels(train), active.classes, plan.settings, world.order)
    seconds = time.perf_counter() - start
    scores = forest.scores({party.name: party.values[test] for party in parties})
    metrics = forest.objective.evaluate(scores, active.labels(test))
    return Done(plan, metrics, seconds, forest.trees, dict(forest.records))


def part_file(folder: Path, party: str, label: str, seed: int) -> Path:
    """Where a party keeps its part of a forest."""
    return folder / PARTIES / party / f"{re.sub(r'[^A-Za-z0-9._+-]+', '-', label)}-seed{seed}.json"


def write_parts(done: Done, folder: Path) -> None:
    """Write each party's part of a forest that was grown apart."""
    for party, part in done.parts.items():
        write_json(part_file(folder, party, done.plan.label, done.plan.seed), part)


def predict(folder: Path, scenario: Columns, label: str, seed: int, files: Mapping[str, Path]) -> list[dict[str, Any]]:
    """What a forest says of the patients that all of ``files`` (one for each party) have, as rows for a CSV.

    Raises PlanError for a run or a party that is not there, DataError for tables that cannot be used.
    """
    task = scenario.task
    if missing := [party for party in task.columns if party not in files]:
        raise PlanError(f"{missing[0]!r} has columns in this run, and no table was given for it: {missing[0]}=FILE")
    if unknown := [party for party in files if party not in task.columns]:
        raise PlanError(f"{unknown[0]!r} is no party of this run; there are {', '.join(task.columns)}")
    parties = dict[str, Party]()
    for party in task.columns:
        path = part_file(folder, party, label, seed)
        if not path.exists():
            which = f"{label!r} with seed {seed}" if label else "SecureBoost or SecureBoostPlus, others are not kept,"
            raise PlanError(f"{folder} holds no forest of {which} at {party!r}")
        part = read_json(path)
        table = read_party_table(files[party], task.reading, part["columns"])
        parties[party] = (ActiveParty if party == task.active else PassiveParty).from_part(party, table, part)
    active, post = parties[task.active], Post(parties)
    assert isinstance(active, ActiveParty)
    common = hold_talk(match_parties(list(parties)), post)
    if not common:
        raise DataError("no patient is in all of these tables")
    return active.prediction_rows(task.reading, hold_talk(active.scores(np.arange(common)), post))
