"""Replica trees: the virtual copies of a site's model, the samples that each of them trains on, and their fold.

A site's own model is the *anchor*. It has ``fanout`` replicas, each of these has as many, ``depth`` levels down; every
replica lacks a block of its parent's samples. A node is named by the way to it: ``""`` is the anchor, ``"2"`` its third
replica, ``"2.0"`` the first replica of that. A cohort's row is a node, ``"site#2.0"``, the anchor's the site.

The fold goes from the leaves up: alpha_r = div_r / sum(div), parent <- (sum(alpha_r * replica_r) + parent) / 2; with
the "simple" fold (RepFL) parent and replicas count alike. Source: Ghilea and Rekik, "Replica Tree-based Federated
Learning using Limited Data", Algorithms 1 and 2. Two departures: where all divergences are zero the weights are equal,
and a divergence counts for at least a floor, for distances of replicas that have converged are noise.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from fedsmall.data.splits import classes_of
from fedsmall.entry_points import own_function
from fedsmall.errors import PlanError
from fedsmall.models.own_models import with_own_model
from fedsmall.parts import Tree
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.wire import Arrays, is_buffer

ANCHOR = ""
MARK = "#"  # between a site's name and a node's


@dataclass(frozen=True)
class ReplicaTree:
    """One site's tree: ``fanout`` r replicas of every inner node, ``depth`` d levels, ``drop`` p of the samples."""

    fanout: int = 3
    depth: int = 1
    drop: float = 0.1
    perturbation: Literal["random", "stratified"] = "random"

    def __post_init__(self) -> None:
        if self.fanout < 1 or self.depth < 0:
            raise PlanError(f"a tree has a fanout >= 1 and a depth >= 0; got {self.fanout} and {self.depth}")
        if not 0 <= self.drop < 1:
            raise PlanError(f"drop = {self.drop:g} would leave a replica without samples; take 0 <= drop < 1")

    @property
    def nodes(self) -> tuple[str, ...]:
        """Every node's name, the anchor first, level by level."""
        levels = [[ANCHOR]]
        for _ in range(self.depth):
            levels.append([child for node in levels[-1] for child in self.children(node)])
        return tuple(node for level in levels for node in level)

    def children(self, node: str) -> tuple[str, ...]:
        """The names of a node's replicas; none for a leaf."""
        if level_of(node) == self.depth:
            return ()
        stem = f"{node}." if node else ""
        return tuple(f"{stem}{place}" for place in range(self.fanout))

    def __len__(self) -> int:
        """The number of models, the anchor included: 1 + r + r**2 + ... + r**d."""
        return sum(self.fanout**level for level in range(self.depth + 1))


def level_of(node: str) -> int:
    """How many steps a node is from the anchor."""
    return node.count(".") + 1 if node else 0


def parent_of(node: str) -> str:
    """The name of the node that a replica was made from."""
    return node.rpartition(".")[0]


def row_name(site: str, node: str) -> str:
    """The name of a node's row in a cohort; it also names the stream of its batches."""
    return f"{site}{MARK}{node}" if node else site


def split_row(row: str) -> tuple[str, str]:
    """The site and the node that a row belongs to."""
    site, _, node = row.partition(MARK)
    return site, node


def tree_at(tree: Tree, place: int, sites: int) -> ReplicaTree:
    """The tree of the site at ``place`` of ``sites``, in the order of their names, from the plan's settings.

    Raises PlanError where a setting given per site is not given for every site.
    """
    given = _per_site(tree, sites).items()
    settings = {name: setting[place] if isinstance(setting, tuple) else setting for name, setting in given}
    return ReplicaTree(**settings, perturbation=tree.perturbation)


def _per_site(tree: Tree, sites: int) -> dict[str, Any]:
    settings = {"fanout": tree.fanout, "depth": tree.depth, "drop": tree.drop}
    for name, setting in settings.items():
        if isinstance(setting, tuple) and len(setting) != sites:
            raise PlanError(
                f"tree.{name} has {len(setting)} values for {sites} sites; give one value, or one per site."
            )
    return settings


def plan_at(plan: Plan, place: int, sites: int) -> Plan:
    """The plan as the site at ``place`` of ``sites`` follows it: settings and models given per site are its own."""
    return with_trees_of(with_own_model(plan, place, sites), [place], sites)


def with_trees_of(plan: Plan, places: Sequence[int], sites: int) -> Plan:
    """The plan for sites with the trees of those at these ``places`` of ``sites``: settings given per site are theirs.

    A place may come several times.
    """
    if plan.method.tree is None:
        return plan
    settings = _per_site(plan.method.tree, sites).items()
    own = {name: tuple(setting[place] for place in places) for name, setting in settings if isinstance(setting, tuple)}
    method = plan.method.model_copy(update={"tree": plan.method.tree.model_copy(update=own)})
    return plan.model_copy(update={"method": method})


def forest(tree: Tree, sites: int) -> tuple[ReplicaTree, ...]:
    """The trees of all sites, in the order of their names."""
    return tuple(tree_at(tree, place, sites) for place in range(sites))


def subsets(tree: ReplicaTree, y: np.ndarray, seed: int, site: str) -> Mapping[str, np.ndarray]:
    """The samples of every node, as ascending indices into the site's targets ``y`` of shape (samples, ...).

    Replica j of a parent that holds n samples lacks block j of them: floor(p * n) samples, the blocks disjoint over j
    as far as n allows (after that every sample is lacked equally often, to within one). The blocks are drawn from a
    stream named by seed, site and parent. A "stratified" block takes from each class its share, and the last sample of
    one only where it would else be too small.
    """
    held = {ANCHOR: np.arange(len(y))}
    classes = classes_of(y)
    for node in tree.nodes:
        parent, children = held[node], tree.children(node)
        if not children:
            continue
        rng = rng_for(seed, "replicas", site, node)
        if tree.perturbation == "stratified":
            blocks = _stratified_blocks(classes[parent], tree, rng)
        else:
            blocks = _blocks(len(parent), block_size(len(parent), tree.drop), tree.fanout, rng)
        for child, block in zip(children, blocks, strict=True):
            held[child] = np.delete(parent, block)
    return held


def block_size(samples: int, drop: float) -> int:
    """floor(drop * samples), where 0.29 * 100 counts as 29."""
    return int(np.floor(drop * samples + 1e-9))


def idle(tree: Tree, samples: Sequence[int]) -> str | None:
    """A line where replicas lack no sample of their anchor at some site, of sites with so many ``samples``."""
    trees = forest(tree, len(samples))
    same = [n for grown, n in zip(trees, samples, strict=True) if grown.depth and not block_size(n, grown.drop)]
    if not same:
        return None
    copies = max(len(grown) for grown in trees)
    return (
        f"replicas lack no sample of their anchor at {len(same)} of {len(samples)} sites (drop times samples is below "
        f"1): that is plain averaging at {copies} times the work; take drop = "
        f"{np.ceil(100 / min(same)) / 100:g} or more"
    )


def _blocks(samples: int, size: int, fanout: int, rng: np.random.Generator) -> np.ndarray:
    """``fanout`` blocks of ``size`` positions each, (fanout, size): consecutive in one random circle of samples."""
    circle = rng.permutation(samples)
    places = np.arange(fanout)[:, None] * size + np.arange(size)
    blocks: np.ndarray = circle[places % max(samples, 1)]
    return blocks


def _stratified_blocks(classes: np.ndarray, tree: ReplicaTree, rng: np.random.Generator) -> np.ndarray:
    """Blocks of positions, (fanout, size), made of a block of every class."""
    size = block_size(len(classes), tree.drop)
    values, counts = np.unique(classes, return_counts=True)
    blocks = [
        np.flatnonzero(classes == value)[_blocks(count, share, tree.fanout, rng)]
        for value, count, share in zip(values, counts, _shares(counts, size), strict=True)
    ]
    return np.hstack(blocks) if blocks else np.zeros((tree.fanout, 0), dtype=np.int64)


def _shares(counts: np.ndarray, size: int) -> np.ndarray:
    """How many samples of each class a block of ``size`` takes: proportional, by largest remainder, the last ones last.

    Nothing is refused: by which blocks can be had a plan would count the samples of a class.
    """
    exact = size * counts / max(1, counts.sum())
    most = counts - 1 if size <= (counts - 1).sum() else counts
    shares: np.ndarray = np.minimum(np.floor(exact + 1e-9).astype(np.int64), most)
    while shares.sum() < size:
        shares[np.argmax(np.where(shares < most, exact - shares, -np.inf))] += 1
    return shares


Shared = Callable[[str], bool]
Predict = Callable[[str, Arrays], np.ndarray]
"""(site, models stacked to (models, ...)) -> outputs on the anchor's samples, (models, samples, outputs)."""

FLOOR = 1e-4  # of the parent's size: smaller distances are noise


@dataclass(frozen=True)
class Families:
    """Parents (families,) and their ``children`` (families, replicas), rows of ``stack``; of ``layers``."""

    stack: Arrays
    parents: np.ndarray
    children: np.ndarray
    layers: tuple[str, ...]
    sites: tuple[str, ...]
    predict: Predict | None = None

    def layer(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A layer of the parents, (families, 1, size), and of the children, (families, replicas, size), in float64."""
        flat = self.stack[name].reshape(len(self.stack[name]), -1)
        parents = flat[self.parents].astype(np.float64)[:, None]
        return parents, flat[self.children].astype(np.float64)


class Divergence(NamedTuple):
    """What a measure says of some families: divergences and floors, both (families, replicas) or broadcast to it."""

    values: np.ndarray
    floor: np.ndarray | float = 0.0


Measure = Callable[[Families], Divergence]


def mean_l2(families: Families) -> Divergence:
    """The mean over layers (named arrays) of the L2 norm of child minus parent: the paper's measure."""
    values = np.zeros(families.children.shape)
    sizes = np.zeros((len(families.parents), 1))
    for name in families.layers:
        parent, child = families.layer(name)
        values += np.linalg.norm(child - parent, axis=-1)
        sizes += np.linalg.norm(parent, axis=-1)
    return Divergence(values / len(families.layers), FLOOR * sizes / len(families.layers))


def cosine(families: Families) -> Divergence:
    """One minus the cosine of the angle between child and parent, all layers taken as one vector."""
    dot, left, right = (np.zeros(families.children.shape) for _ in range(3))
    for name in families.layers:
        parent, child = families.layer(name)
        dot += (parent * child).sum(axis=-1)
        left += (parent * parent).sum(axis=-1)
        right += (child * child).sum(axis=-1)
    lengths = np.sqrt(left * right)
    similarity = np.divide(dot, lengths, out=np.ones_like(dot), where=lengths > 0)
    return Divergence(np.clip(1 - similarity, 0, None), FLOOR**2 / 2)


def symmetric_kl(families: Families) -> Divergence:
    """The mean over the anchor's samples of KL(p, q) + KL(q, p) of the predicted classes, in nats."""
    if families.predict is None:
        raise PlanError('diversity = "kl" needs the anchor\'s samples, which only the site has; use fold_at = "site".')
    values = np.zeros(families.children.shape)
    for place, (site, parent, children) in enumerate(
        zip(families.sites, families.parents, families.children, strict=True)
    ):
        rows = np.concatenate([[parent], children])
        log_p = _log_probabilities(families.predict(site, {name: a[rows] for name, a in families.stack.items()}))
        gap = log_p[1:] - log_p[:1]  # (replicas, samples, classes)
        values[place] = ((np.exp(log_p[1:]) - np.exp(log_p[:1])) * gap).sum(axis=-1).mean(axis=-1)
    return Divergence(np.clip(values, 0, None), FLOOR**2)


def _log_probabilities(outputs: np.ndarray) -> np.ndarray:
    """Log-probabilities of the classes, (..., classes), from scores; one score stands for the second of two classes."""
    scores = outputs.astype(np.float64)
    if scores.shape[-1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=-1)
    return np.asarray(scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True))


MEASURES: dict[str, Measure] = {"l2": mean_l2, "cosine": cosine, "kl": symmetric_kl}


def measure(name: str) -> Measure:
    """The measure of divergence by name, or the user's own function given as ``"module:function"``.

    It takes two models, parent and child, as dicts of shared arrays, and returns a number >= 0. PlanError for none.
    """
    if name in MEASURES:
        return MEASURES[name]
    if ":" not in name:
        raise PlanError(f'There is no diversity {name!r}; use {", ".join(MEASURES)}, or your own "module:function".')
    measured: Callable[[Arrays, Arrays], float] = own_function("diversity", name)
    return lambda families: Divergence(_each(measured, families, name))


def _each(function: Callable[[Arrays, Arrays], float], families: Families, name: str) -> np.ndarray:
    def model(row: int) -> Arrays:
        return {layer: families.stack[layer][row] for layer in families.layers}

    pairs = zip(families.parents, families.children, strict=True)
    values = np.array([[float(function(model(own), model(child))) for child in children] for own, children in pairs])
    if not np.isfinite(values).all() or (values < 0).any():
        raise PlanError(f"diversity = {name!r} must return finite numbers >= 0; it returned {values.min():g}.")
    return values


def weights(divergence: Divergence) -> np.ndarray:
    """alpha, (families, replicas): floored divergences as shares of one; equal where all are zero."""
    floored = np.maximum(divergence.values, divergence.floor)
    total = floored.sum(axis=-1, keepdims=True)
    equal = np.full_like(floored, 1 / floored.shape[-1])
    return np.asarray(np.divide(floored, total, out=equal, where=total > 0))


def fold_trees(
    stack: Arrays,
    rows: Sequence[str],
    fold: str = "diversity",
    diversity: str = "l2",
    shared: Shared | None = None,
    predict: Predict | None = None,
) -> Arrays:
    """The anchors after every tree has been folded, stacked to (sites, ...) in the order of the anchors' rows.

    ``stack`` holds the models, (rows, ...), and ``rows`` names them (:func:`row_name`). All floats are folded, integers
    are the parent's. Divergence is measured on the float parameters that ``shared`` names (default: all). Sums are
    taken in float64; dtypes are kept. Raises PlanError where ``shared`` names no layer.
    """
    layers = shared_layers(stack, shared)
    models = {name: array.copy() for name, array in stack.items()}
    for parents, children in _families(rows):
        sites = tuple(split_row(rows[parent])[0] for parent in parents)
        families = Families(models, parents, children, layers, sites, predict)
        alpha, parent_share = _coefficients(families, fold, diversity)
        for array in models.values():
            if np.issubdtype(array.dtype, np.floating):
                _fold_array(array, parents, children, alpha, parent_share)
    anchors = [row for row, name in enumerate(rows) if split_row(name)[1] == ANCHOR]
    return {name: array[anchors] for name, array in models.items()}


def fold_sent(tree: Tree, anchors: Arrays, sent: Arrays, sites: Sequence[str]) -> Arrays:
    """The server's fold of anchors (sites, ...) and {"<node>/<parameter>": (sites, ...)}, as at the sites."""
    nodes = tree_at(tree, 0, 1).nodes
    if nodes == (ANCHOR,):
        return anchors
    rows = [row_name(site, node) for site in sites for node in nodes]
    models = {
        name: np.stack([array, *(sent[f"{node}/{name}"] for node in nodes[1:])], axis=1).reshape(-1, *array.shape[1:])
        for name, array in anchors.items()
    }  # (sites * nodes, ...)
    return fold_trees(models, rows, tree.fold, tree.diversity)


def shared_layers(model: Mapping[str, np.ndarray], shared: Shared | None) -> tuple[str, ...]:
    """The names of the float parameters that all sites share; raises PlanError where there are none."""
    floats = [name for name, array in model.items() if np.issubdtype(array.dtype, np.floating) and not is_buffer(name)]
    layers = tuple(name for name in floats if shared is None or shared(name))
    if not layers:
        raise PlanError(f"shared matches none of the model's parameters, which are {', '.join(floats)}; name some.")
    return layers


def _coefficients(families: Families, fold: str, diversity: str) -> tuple[np.ndarray, float]:
    """What each replica, (families, replicas), and the parent itself count in the new parent."""
    replicas = families.children.shape[1]
    if fold == "simple":
        return np.full(families.children.shape, 1 / (replicas + 1)), 1 / (replicas + 1)
    return weights(measure(diversity)(families)) / 2, 0.5


def _fold_array(array: np.ndarray, parents: np.ndarray, children: np.ndarray, alpha: np.ndarray, share: float) -> None:
    total = share * array[parents].astype(np.float64)
    for place in range(children.shape[1]):
        weight = alpha[:, place].reshape(-1, *[1] * (array.ndim - 1))  # (families, 1, ...)
        total += weight * array[children[:, place]]
    array[parents] = total


def _families(rows: Sequence[str]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of parents, (families,), and of their replicas, (families, replicas), the deepest level first."""
    where = {split_row(row): place for place, row in enumerate(rows)}
    children: dict[tuple[str, str], list[int]] = {}
    for (site, node), place in where.items():
        if node:
            children.setdefault((site, parent_of(node)), []).append(place)
    groups: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for parent, replicas in children.items():
        groups.setdefault((-level_of(parent[1]), len(replicas)), []).append(parent)
    for group in sorted(groups):
        parents = groups[group]
        yield np.array([where[parent] for parent in parents]), np.array([children[parent] for parent in parents])
