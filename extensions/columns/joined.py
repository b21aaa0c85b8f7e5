"""The same boosting on joined columns: what no one may do with real patients, and what SecureBoost must equal.

Without messages or ciphertexts. ``Central`` is this over all columns, ``Standalone`` over the active party's.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from fedsmall.extensions.columns import boosting
from fedsmall.extensions.columns.boosting import Node, Objective, Split, Sums, Tree
from fedsmall.extensions.columns.plan import Boosting, competing_parties
from fedsmall.randomness import rng_for

Columns = Mapping[str, np.ndarray]  # by party, the active one first: (rows, its columns)
Order = Callable[[str, int, int, int], np.ndarray]  # party, tree, node, candidates -> in which order they are compared


@dataclass(frozen=True)
class Joined:
    """A forest whose every split is known: ``records`` by party."""

    trees: tuple[Tree, ...]
    records: dict[str, list[Split]]
    objective: Objective

    def scores(self, columns: Columns) -> np.ndarray:
        """What the trees say of rows, (rows, outputs)."""
        rows = len(next(iter(columns.values())))
        total = np.tile(self.objective.prior, (rows, 1))
        for tree in self.trees:
            self._add(tree, 0, np.arange(rows), columns, total)
        return total

    def _add(self, tree: Tree, place: int, rows: np.ndarray, columns: Columns, total: np.ndarray) -> None:
        node = tree.nodes[place]
        if not node.owner:
            total[rows, tree.output : tree.output + len(node.weights)] += node.weights
            return
        left = boosting.goes_left(self.records[node.owner], [node.record], columns[node.owner][rows])[0]
        self._add(tree, node.left, rows[left], columns, total)
        self._add(tree, node.right, rows[~left], columns, total)


def keep_order(party: str, tree: int, node: int, count: int) -> np.ndarray:
    """Candidates compared column by column, from the lowest cut to the highest."""
    return np.arange(count)


def fit_joined(
    columns: Columns, target: np.ndarray, classes: int, settings: Boosting, order: Order = keep_order
) -> Joined:
    """Boost over all columns; ``order`` decides between splits of equal gain (as a passive party's own order does)."""
    objective, records = boosting.objective_for(target, classes), {party: list[Split]() for party in columns}
    cuts, bins = {}, {}
    for party, values in columns.items():
        cuts[party], bins[party] = boosting.bin_columns(values, settings.bins)
    scores = np.tile(objective.prior, (len(target), 1))
    trees: list[Tree] = []
    width = scores.shape[1] if settings.outputs == "many" else 1
    for t in range(settings.rounds):
        g, h = objective.derivatives(scores, target)
        for first in range(0, scores.shape[1], width):
            part = slice(first, first + width)
            rows, factors = boosting.sample_rows(g[:, part], settings.goss, rng_for(settings.seed, "goss", t, first))
            sums = boosting.sampled_sums(g[:, part], h[:, part], rows, factors)
            nodes, leaves = _Growing(bins, cuts, records, settings, order, t, len(trees), rows, sums).grow()
            trees.append(Tree(tuple(nodes), first))
            for place, inside in leaves:
                scores[inside, part] += nodes[place].weights
    return Joined(tuple(trees), records, objective)


@dataclass(frozen=True)
class _Growing:
    """One tree in the making."""

    bins: Columns
    cuts: Mapping[str, list[np.ndarray]]
    records: dict[str, list[Split]]
    settings: Boosting
    order: Order
    round: int
    tree: int
    drawn: np.ndarray
    sums: np.ndarray  # (2, rows, outputs)

    def grow(self) -> tuple[list[Node], list[tuple[int, np.ndarray]]]:
        nodes, leaves = [Node()], []
        level_rows = [(0, np.arange(self.sums.shape[1]))]
        for level in range(self.settings.depth + 1):
            deeper = []
            for place, rows in level_rows:
                split = self._split(place, rows, level) if level < self.settings.depth else None
                if split is None:
                    nodes[place] = Node(weights=boosting.leaf_weights(self._total(rows), self.settings))
                    leaves.append((place, rows))
                    continue
                party, column, after = split
                self.records[party].append(Split(column, float(self.cuts[party][column][after])))
                nodes[place] = Node(party, len(self.records[party]) - 1, len(nodes), len(nodes) + 1)
                left = self.bins[party][rows, column] <= after
                deeper += [(len(nodes), rows[left]), (len(nodes) + 1, rows[~left])]
                nodes += [Node(), Node()]
            level_rows = deeper
        return nodes, leaves

    def _total(self, rows: np.ndarray) -> Sums:
        return Sums(*self.sums[:, rows].sum(axis=1))

    def _split(self, place: int, rows: np.ndarray, level: int) -> tuple[str, int, int] | None:
        """The party, column and bin of the best split; the first party in order where several are equal."""
        chosen, gain = None, -np.inf
        among = rows[np.isin(rows, self.drawn)]
        for party in competing_parties(self.settings, tuple(self.bins), self.round, level):
            listed, left = boosting.candidate_sums(self.bins[party][among], self.sums[:, among], self.settings)
            if not listed:
                continue
            order = self.order(party, self.tree, place, len(listed))
            best = boosting.best_split(Sums(left.g[order], left.h[order]), self._total(among), self.settings)
            if best is not None and best[0] > gain:
                gain, chosen = best[0], (party, *listed[order[best[1]]])
        return chosen
