"""The mathematics of boosted trees, on plain numbers: bins, losses, exact sums, what a split is worth, and trees.

At the end the same boosting on joined columns: what no one may do with real patients, and what SecureBoost must equal.
Without messages or ciphertexts. ``Central`` is this over all columns, ``Standalone`` over the active party's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import expit, softmax
from sklearn.metrics import accuracy_score, log_loss, mean_absolute_error, r2_score, roc_auc_score

from fedsmall.errors import PlanError
from fedsmall.extensions.columns.plan import Boosting, Goss, competing_parties
from fedsmall.randomness import rng_for

PRECISION = 40  # bits after the point; sums of 10**6 gradients below 8 fit 64 bits
LARGEST = 2.0**62
MISSING = -np.inf  # what is missing lies below all that is there, and so in a bin of its own where there is room

Derivatives = tuple[np.ndarray, np.ndarray]


class Split(NamedTuple):
    """A party's own record of a split: what is not above ``cut`` in its column ``column`` goes left."""

    column: int
    cut: float


class Node(NamedTuple):
    """A leaf, or a split: the ``owner``'s ``record``, with ``left`` and ``right`` as places in the tree's list."""

    owner: str = ""
    record: int = -1
    left: int = -1
    right: int = -1
    weights: tuple[float, ...] = ()


class Tree(NamedTuple):
    """Nodes, the root first; the leaves' weights belong to the outputs from ``output`` on."""

    nodes: tuple[Node, ...]
    output: int = 0


def goes_left(records: Sequence[Split], numbers: Sequence[int], values: np.ndarray) -> np.ndarray:
    """Which rows go left at which of a party's records, bool (numbers, rows); ``values`` are (rows, columns)."""
    if not len(numbers):
        return np.zeros((0, len(values)), bool)
    return np.stack([fill_missing(values[:, records[k].column]) <= records[k].cut for k in numbers])


def with_splits(trees: Sequence[Tree], records: Mapping[str, Sequence[Split]]) -> list[object]:
    """All trees with the splits in their places, for comparing forests; only who has every party's records can ask."""
    return [
        (tree.output, [(node, records[node.owner][node.record] if node.owner else None) for node in tree.nodes])
        for tree in trees
    ]


def cut_points(values: np.ndarray, bins: int) -> np.ndarray:
    """The cuts of one column, at most ``bins`` - 1 of them, in ascending order, at about equal shares.

    ``values`` (samples,) have NaN for missing. Bin j holds cut j - 1 < value <= cut j; a constant column has no cut.
    """
    distinct, counts = np.unique(fill_missing(values), return_counts=True)
    below = np.cumsum(counts)
    wanted = len(values) * np.arange(1, bins) / bins
    last = np.unique(np.searchsorted(below, wanted)) if len(distinct) > bins else np.arange(len(distinct) - 1)
    last = last[last < len(distinct) - 1]
    with np.errstate(invalid="ignore"):
        middle = distinct[last] / 2 + distinct[last + 1] / 2
    # two neighbouring floats have nothing between them, and minus infinity no middle
    return np.where((middle >= distinct[last]) & (middle < distinct[last + 1]), middle, distinct[last])


def bin_numbers(values: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """The bin of each value, (samples,); a value that equals a cut lies below it."""
    return np.searchsorted(cuts, fill_missing(values), side="left").astype(np.int64)


def bin_columns(values: np.ndarray, bins: int) -> tuple[list[np.ndarray], np.ndarray]:
    """The cuts of each column of a table (rows, columns), and the bins of its values, (rows, columns)."""
    cuts = [cut_points(column, bins) for column in values.T]
    numbers = [bin_numbers(column, cut) for column, cut in zip(values.T, cuts, strict=True)]
    return cuts, np.stack(numbers, axis=1) if numbers else np.zeros((len(values), 0), np.int64)


def fill_missing(values: np.ndarray) -> np.ndarray:
    """The values with :data:`MISSING` for NaN."""
    return np.where(np.isnan(values), MISSING, values)


@dataclass(frozen=True)
class Objective:
    """A loss: ``derivatives`` (scores, target) -> g and h; ``prior`` is where scores begin.

    Scores are (samples, outputs): one output for two classes and for a number, else one a class. Targets (samples,) are
    class numbers, or numbers, which scores give in standard deviations from the mean. ``bound`` is the largest |g| or h
    that rows can have, None where only the data say.
    """

    name: str
    outputs: int
    derivatives: Callable[[np.ndarray, np.ndarray], Derivatives]
    prior: np.ndarray
    bound: float | None = 1.0
    centre: float = 0.0
    spread: float = 1.0

    def predict(self, scores: np.ndarray) -> np.ndarray:
        """What scores mean: probabilities of classes (samples, classes), or a number (samples, 1)."""
        if self.name == "squared":
            return scores * self.spread + self.centre
        if self.name == "softmax":
            return np.asarray(softmax(scores, axis=1))
        return np.concatenate([expit(-scores), expit(scores)], axis=1)

    def evaluate(self, scores: np.ndarray, true: np.ndarray) -> dict[str, float]:
        """Accuracy, AUC (if all classes are there), log loss; or R2 and mean absolute error. ``true`` is (rows,)."""
        predicted = self.predict(scores)
        if self.name == "squared":
            numbers = predicted[:, 0]
            return {"r2": float(r2_score(true, numbers)), "mae": float(mean_absolute_error(true, numbers))}
        labels = np.arange(predicted.shape[1])
        metrics = {"accuracy": float(accuracy_score(true, predicted.argmax(axis=1)))}
        if len(set(true.tolist())) == len(labels):
            ranked = predicted[:, 1] if len(labels) == 2 else predicted
            metrics["auc"] = float(roc_auc_score(true, ranked, multi_class="ovr", labels=labels))
        return metrics | {"log_loss": float(log_loss(true, predicted, labels=labels))}


def objective_for(target: np.ndarray, classes: int) -> Objective:
    """The loss of a target: of 2 classes the logistic one, of more the softmax, of 0 (a number) the squared one."""
    if classes == 2:
        share = np.clip(target.mean(), 1e-6, 1 - 1e-6)
        prior = np.array([np.log(share / (1 - share))])
        return Objective("logistic", 1, _logistic_derivatives, prior)
    if classes > 2:
        shares = np.bincount(target.astype(np.int64), minlength=classes) / len(target)
        prior = np.log(np.clip(shares, 1e-6, None))
        return Objective("softmax", classes, _softmax_derivatives, prior)
    centre, spread = float(target.mean()), float(target.std()) or 1.0

    def squared(scores: np.ndarray, numbers: np.ndarray) -> Derivatives:
        return scores - (numbers[:, None] - centre) / spread, np.ones_like(scores)

    return Objective("squared", 1, squared, np.zeros(1), None, centre, spread)


def stored_objective(classes: int, prior: np.ndarray, centre: float, spread: float) -> Objective:
    """The loss of a forest that was kept: where its scores begin, and the units of a number."""
    objective = objective_for(np.arange(max(2, classes), dtype=float), classes)
    return replace(objective, prior=prior, centre=float(centre), spread=float(spread))


def _logistic_derivatives(scores: np.ndarray, target: np.ndarray) -> Derivatives:
    probability = expit(scores)
    return probability - target[:, None], probability * (1 - probability)


def _softmax_derivatives(scores: np.ndarray, target: np.ndarray) -> Derivatives:
    probability = softmax(scores, axis=1)
    return probability - np.eye(scores.shape[1])[target.astype(np.int64)], probability * (1 - probability)


def to_fixed_point(values: np.ndarray) -> np.ndarray:
    """Numbers in units of 2**-PRECISION, int64, for exact sums; PlanError where a sum might not fit 64 bits."""
    scaled = np.rint(np.ldexp(values, PRECISION))
    if not np.isfinite(scaled).all() or np.abs(scaled).sum(axis=0).max(initial=0) >= LARGEST:
        raise PlanError(
            "Gradients are too large, or too many, for exact sums in 64 bits; scale the target, or take fewer rows."
        )
    return np.asarray(scaled, np.int64)


def from_fixed_point(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers back as float64."""
    return np.ldexp(numbers.astype(np.float64), -PRECISION)


def sum_bits(rows: int, bound: float) -> int:
    """Bits that a sum over ``rows`` of numbers up to ``bound`` in size needs, its sign included."""
    return (rows * int(np.ceil(np.ldexp(bound, PRECISION)))).bit_length() + 2


class Sums(NamedTuple):
    """Sums of g and of h in whole numbers, each (..., outputs)."""

    g: np.ndarray
    h: np.ndarray


def split_gains(left: Sums, total: Sums, l2: float) -> np.ndarray:
    """What each split gains: ``left`` are (splits, outputs), ``total`` the node's own (outputs,)."""
    right = Sums(total.g - left.g, total.h - left.h)
    return np.asarray(0.5 * (_score(left, l2) + _score(right, l2) - _score(total, l2)))


def _score(sums: Sums, l2: float) -> np.ndarray:
    """The sum over outputs of G**2 / (H + l2), (...,): SecureBoost, equation 3, but for the half."""
    g, h = from_fixed_point(sums.g), from_fixed_point(sums.h)
    total = np.zeros(g.shape[:-1])
    for k in range(g.shape[-1]):  # in this order, however many splits are asked about at once
        total = total + g[..., k] ** 2 / (h[..., k] + l2)
    return total


def best_split(left: Sums, total: Sums, settings: Boosting) -> tuple[float, int] | None:
    """The largest gain and its place, the first of equal ones; None where none is above ``least_gain``."""
    if not len(left.g):
        return None
    gains = split_gains(left, total, settings.l2)
    place = int(np.argmax(gains))
    return (float(gains[place]), place) if gains[place] > settings.least_gain else None


def leaf_weights(sums: Sums, settings: Boosting) -> tuple[float, ...]:
    """What a leaf adds to each output: -G / (H + l2) times the learning rate (SecureBoost, equation 5)."""
    g, h = from_fixed_point(sums.g), from_fixed_point(sums.h)
    return tuple((-settings.learning_rate * g / (h + settings.l2)).tolist())


def candidate_bins(counts: np.ndarray, least: int) -> np.ndarray:
    """The bins of a column after which a node can be split, by the rows in each bin (bins,): those that hold a row."""
    below = np.cumsum(counts)
    return np.flatnonzero((counts > 0) & (below >= least) & (below[-1] - below >= least))


def candidate_sums(bins: np.ndarray, sums: np.ndarray, settings: Boosting) -> tuple[list[tuple[int, int]], Sums]:
    """Column and bin of each split of rows, and sums on its left, of their ``bins`` and ``sums`` (2, rows, outputs)."""
    listed: list[tuple[int, int]] = []
    below = [np.zeros((2, 0, sums.shape[2]), np.int64)]
    for column, numbers in enumerate(bins.T):
        after = candidate_bins(np.bincount(numbers, minlength=settings.bins), settings.least_samples)
        by_bin = np.zeros((settings.bins, 2, sums.shape[2]), np.int64)
        np.add.at(by_bin, numbers, sums.swapaxes(0, 1))
        below.append(by_bin.cumsum(axis=0)[after].swapaxes(0, 1))
        listed += [(column, int(number)) for number in after]
    return listed, Sums(*np.concatenate(below, axis=1))


def sample_rows(g: np.ndarray, goss: Goss | None, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The rows to grow a tree on, ascending, and factors of their gradients; ranked by ``g`` (rows, outputs)."""
    rows = len(g)
    if goss is None:
        return np.arange(rows), np.ones(rows)
    ranked = np.argsort(-np.abs(g).sum(axis=1), kind="stable")
    top = max(1, round(goss.top * rows))
    other = rng.choice(ranked[top:], max(1, round(goss.other * rows)), replace=False)
    factors = np.zeros(rows)
    factors[ranked[:top]], factors[other] = 1.0, (rows - top) / len(other)
    chosen = np.flatnonzero(factors)
    return chosen, factors[chosen]


def sampled_sums(g: np.ndarray, h: np.ndarray, rows: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Gradients in whole numbers, int64 (2, rows, outputs); 0 where a row was not sampled."""
    sums = np.zeros((2, *g.shape), np.int64)
    sums[0, rows] = to_fixed_point(g[rows] * factors[:, None])
    sums[1, rows] = to_fixed_point(h[rows] * factors[:, None])
    return sums


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
        left = goes_left(self.records[node.owner], [node.record], columns[node.owner][rows])[0]
        self._add(tree, node.left, rows[left], columns, total)
        self._add(tree, node.right, rows[~left], columns, total)


def keep_order(party: str, tree: int, node: int, count: int) -> np.ndarray:
    """Candidates compared column by column, from the lowest cut to the highest."""
    return np.arange(count)


def fit_joined(
    columns: Columns, target: np.ndarray, classes: int, settings: Boosting, order: Order = keep_order
) -> Joined:
    """Boost over all columns; ``order`` decides between splits of equal gain (as a passive party's own order does)."""
    objective, records = objective_for(target, classes), {party: list[Split]() for party in columns}
    cuts, bins = {}, {}
    for party, values in columns.items():
        cuts[party], bins[party] = bin_columns(values, settings.bins)
    scores = np.tile(objective.prior, (len(target), 1))
    trees: list[Tree] = []
    width = scores.shape[1] if settings.outputs == "many" else 1
    for t in range(settings.rounds):
        g, h = objective.derivatives(scores, target)
        for first in range(0, scores.shape[1], width):
            part = slice(first, first + width)
            rows, factors = sample_rows(g[:, part], settings.goss, rng_for(settings.seed, "goss", t, first))
            sums = sampled_sums(g[:, part], h[:, part], rows, factors)
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
                    nodes[place] = Node(weights=leaf_weights(self._total(rows), self.settings))
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
        chosen, gain = None, -np.inf
        among = rows[np.isin(rows, self.drawn)]
        for party in competing_parties(self.settings, tuple(self.bins), self.round, level):
            listed, left = candidate_sums(self.bins[party][among], self.sums[:, among], self.settings)
            if not listed:
                continue
            order = self.order(party, self.tree, place, len(listed))
            best = best_split(Sums(left.g[order], left.h[order]), self._total(among), self.settings)
            if best is not None and best[0] > gain:
                gain, chosen = best[0], (party, *listed[order[best[1]]])
        return chosen
