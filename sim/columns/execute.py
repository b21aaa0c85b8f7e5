"""A scenario over split columns, run in one process: each party is handed messages, and nothing else."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedsmall.errors import DataError
from fedsmall.randomness import rng_for
from fedsmall.sim.columns.scenario import METHODS, Columns, PlanOfColumns
from fedsmall.vertical.active import ActiveParty
from fedsmall.vertical.boosting import Split, Tree
from fedsmall.vertical.conducting import check_common, match_parties
from fedsmall.vertical.joined import fit_joined
from fedsmall.vertical.messages import Post, hold_talk
from fedsmall.vertical.party import Party, PassiveParty
from fedsmall.vertical.tables import read_party_table, read_target


@dataclass(frozen=True)
class Done:
    """One plan that was run: what its forest is worth on the patients that were held out, and what it took."""

    plan: PlanOfColumns
    metrics: dict[str, float]
    seconds: float
    work: dict[str, float] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    sums_read: int = 0
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    trees: tuple[Tree, ...] = ()
    records: dict[str, list[Split]] = field(default_factory=dict)

    def row(self) -> dict[str, Any]:
        """What summary.json holds of it."""
        told = {"method": self.plan.label, "name": self.plan.name, "seed": self.plan.seed, **self.metrics}
        told |= {"seconds": round(self.seconds, 3), "work": self.work, "messages": self.messages, "bytes": self.bytes}
        return {**told, "splits": self.splits, "sums_read": self.sums_read}


@dataclass
class World:
    """The parties of a scenario, their identifiers matched; ``common`` is how many patients all have."""

    scenario: Columns
    active: ActiveParty
    passives: list[PassiveParty]
    classes: tuple[str, ...]
    post: Post
    common: int

    @property
    def parties(self) -> list[Party]:
        """All of them, the active one first."""
        return [self.active, *self.passives]


def world_of(scenario: Columns) -> World:
    """Read every party's table and match their identifiers."""
    task = scenario.task
    target = read_target(Path(task.columns[task.active]), task.reading)
    tables = {party: read_party_table(Path(file), task.reading) for party, file in task.columns.items()}
    for party, table in tables.items():
        if not table.columns:
            raise DataError(f"party {party!r} has no column of numbers to learn from")
    named: dict[str, Any] = {"target": target.values, "classes": len(target.classes), "class_names": target.classes}
    active = ActiveParty(task.active, tables[task.active], **named, key_bits=scenario.key_bits)
    passives = [
        PassiveParty(party, table, secret=_secret(scenario.seeds[0], party))
        for party, table in tables.items()
        if party != task.active
    ]
    post = Post({one.name: one for one in [active, *passives]})
    common = hold_talk(match_parties([active.name, *(one.name for one in passives)]), post)
    check_common(common)
    return World(scenario, active, passives, target.classes, post, common)


def _secret(seed: int, party: str) -> int:
    """A passive party's secret in a simulation, so that a run can be repeated; a real party draws its own."""
    return int.from_bytes(rng_for(seed, "secret of a party", party).bytes(16), "little")


def execute(world: World, tell: Callable[[Done], None] = lambda done: None) -> list[Done]:
    """Run all plans, in the order of the scenario."""
    found = []
    for plan in world.scenario.plans():
        found.append(run_plan(world, plan))
        tell(found[-1])
    return found


def run_plan(world: World, plan: PlanOfColumns) -> Done:
    """Grow one forest and judge it on the patients that are held out for its seed."""
    train, test = world.active.hold_out(plan.seed, world.scenario.test)
    return (_apart if METHODS[plan.name].apart else _together)(world, plan, train, test)


def _apart(world: World, plan: PlanOfColumns, train: np.ndarray, test: np.ndarray) -> Done:
    """By messages between parties."""
    for party in world.parties:
        party.clock.seconds.clear()
    world.post.messages.clear()
    world.post.bytes.clear()
    start = time.perf_counter()
    hold_talk(world.active.fit([one.name for one in world.passives], plan.settings, train), world.post)
    seconds = time.perf_counter() - start
    sent = (dict(world.post.messages), dict(world.post.bytes))
    scores = hold_talk(world.active.scores(test), world.post)
    work: dict[str, float] = {}
    for party in world.parties:
        for name, spent in party.clock.seconds.items():
            work[name] = work.get(name, 0.0) + spent
    active = world.active
    assert active.objective is not None
    assert active.ground is not None
    return Done(
        plan,
        active.objective.evaluate(scores, active.labels(test)),
        seconds,
        work,
        {f"{one} to {other}": count for (one, other), count in sent[0].items()},
        {f"{one} to {other}": count for (one, other), count in sent[1].items()},
        {party.name: len(party.records) for party in world.parties},
        active.ground.sums_read,
        {party.name: party.part() for party in world.parties},
        tuple(active.trees),
        {party.name: list(party.records) for party in world.parties},
    )


def _together(world: World, plan: PlanOfColumns, train: np.ndarray, test: np.ndarray) -> Done:
    """On joined columns, or on the active party's alone: what a simulation can do, and no real party."""
    parties = world.parties if plan.name == "Central" else world.parties[:1]
    start = time.perf_counter()
    columns = {party.name: party.values[train] for party in parties}
    made = fit_joined(columns, world.active.labels(train), world.active.classes, plan.settings, world_order(world))
    seconds = time.perf_counter() - start
    scores = made.scores({party.name: party.values[test] for party in parties})
    splits = {party: len(records) for party, records in made.records.items()}
    worth = made.objective.evaluate(scores, world.active.labels(test))
    return Done(plan, worth, seconds, splits=splits, trees=made.trees, records=made.records)


def world_order(world: World) -> Callable[[str, int, int, int], np.ndarray]:
    """The order in which each party compares its candidates: what Central needs to break ties as the parties do."""
    passives = {one.name: one for one in world.passives}

    def order(party: str, tree: int, node: int, count: int) -> np.ndarray:
        return passives[party].order(tree, node, count) if party in passives else np.arange(count)

    return order
