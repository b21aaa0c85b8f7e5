"""Parties with columns of one table between them, in one process, by their messages."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gmpy2")

from fedsmall.extensions.columns.active import ActiveParty
from fedsmall.extensions.columns.boosting import Joined, fit_joined, keep_order, with_splits
from fedsmall.extensions.columns.conducting import BLIND, DONE, Protocol, Stage, grow_message, lead, match_parties
from fedsmall.extensions.columns.messages import Post, Talk, hold_talk
from fedsmall.extensions.columns.party import PassiveParty, Table
from fedsmall.extensions.columns.plan import Boosting

NAMES = ("hospital", "laboratory", "clinic")
KEY_BITS = 320  # fast, and safe for nobody
EVERYTHING = {"packing": True}


@dataclass
class World:
    """An active party and passive ones; ``x`` and ``y`` are the rows that all have, in the order that they share."""

    active: ActiveParty
    passives: list[PassiveParty]
    post: Post
    columns: dict[str, np.ndarray]
    y: np.ndarray

    def fit(self, settings: Boosting, rows: np.ndarray | None = None) -> None:
        hold_talk(self.active.fit([one.name for one in self.passives], settings, self._rows(rows)), self.post)

    def scores(self, rows: np.ndarray | None = None) -> np.ndarray:
        return hold_talk(self.active.scores(self._rows(rows)), self.post)

    def joined(self, settings: Boosting, rows: np.ndarray | None = None) -> Joined:
        rows, passives = self._rows(rows), {one.name: one for one in self.passives}
        columns = {party: values[rows] for party, values in self.columns.items()}

        def order(party: str, tree: int, node: int, count: int) -> np.ndarray:
            return passives[party].order(tree, node, count) if party in passives else keep_order(party, 0, 0, count)

        return fit_joined(columns, self.y[rows], self.active.classes, settings, order)

    def grown(self) -> list[object]:
        """The forest with all its splits, which no party has."""
        return with_splits(self.active.trees, {one.name: one.records for one in [self.active, *self.passives]})

    def _rows(self, rows: np.ndarray | None) -> np.ndarray:
        return np.arange(len(self.y)) if rows is None else rows


def conduct(parties: Sequence[str], settings: Boosting, test: float) -> Talk[dict[str, Any]]:
    """Lead one run from the first message to the last, with nobody to be killed on the way."""
    phases = Protocol(parties, grow_message(parties, settings, test))
    return dict((yield from lead(phases, Stage(BLIND), DONE)).words)


def world(
    x: np.ndarray,
    y: np.ndarray,
    parts: Sequence[Sequence[int]] | int = 2,
    *,
    classes: int = 2,
    keep: bool = False,
    match: bool = True,
    key_bits: int = KEY_BITS,
) -> World:
    """Deal the columns of ``x``; every party has its rows in an order of its own."""
    rng = np.random.default_rng(0)
    dealt = np.array_split(np.arange(x.shape[1]), parts) if isinstance(parts, int) else [np.array(p) for p in parts]
    ids = np.array([f"patient {row}" for row in range(len(y))])
    orders = [rng.permutation(len(y)) if match else np.arange(len(y)) for _ in dealt]
    tables = [
        Table(tuple(ids[order]), tuple(f"x{k}" for k in columns), x[order][:, columns])
        for columns, order in zip(dealt, orders, strict=True)
    ]
    active = ActiveParty(NAMES[0], tables[0], target=y[orders[0]], classes=classes, key_bits=key_bits)
    passives = [
        PassiveParty(name, table, secret=k, least_bits=key_bits)
        for k, (name, table) in enumerate(zip(NAMES[1:], tables[1:], strict=False))
    ]
    post = Post({one.name: one for one in [active, *passives]}, keep=keep)
    if match:
        hold_talk(match_parties([active.name, *(one.name for one in passives)]), post)
    else:
        for one in [active, *passives]:
            one.matched = np.arange(len(y))
    at = orders[0][active.matched]
    columns = {one.name: x[at][:, part] for one, part in zip([active, *passives], dealt, strict=True)}
    return World(active, passives, post, columns, y[at])
