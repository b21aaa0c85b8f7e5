"""The fold of replica trees into their anchors, weighted by how far each replica strayed from its parent.

From the leaves up: alpha_r = div_r / sum(div), parent <- (sum(alpha_r * replica_r) + parent) / 2; with the "simple"
fold (RepFL) parent and replicas count alike. All sites' trees are folded in one pass over stacked arrays.

Source: Ghilea and Rekik, "Replica Tree-based Federated Learning using Limited Data", Algorithm 2. Two departures: where
all divergences are zero the weights are equal, and a divergence counts for at least a floor, 1e-4 of the parent's own
size for the L2 norm: once replicas have converged their distances are noise, and so would be the weights.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np

from fedsmall.errors import PlanError
from fedsmall.parts import Tree
from fedsmall.replicas.tree import ANCHOR, ReplicaTree, level_of, parent_of, row_name, split_row
from fedsmall.wire import Arrays, is_buffer

Shared = Callable[[str], bool]
Predict = Callable[[str, Arrays], np.ndarray]
"""(site, models stacked to (models, ...)) -> outputs on the anchor's samples, (models, samples, outputs)."""

FLOOR = 1e-4  # of the parent's size: smaller distances are noise


@dataclass(frozen=True)
class Families:
    """Parents that have the same number of replicas, and what a measure of divergence may look at.

    ``parents`` (families,) and ``children`` (families, replicas) are rows of ``stack``; ``layers`` are the names of the
    shared float parameters.
    """

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


@dataclass(frozen=True)
class Divergence:
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
    normalised: np.ndarray = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    return normalised


MEASURES: dict[str, Measure] = {"l2": mean_l2, "cosine": cosine, "kl": symmetric_kl}


def measure(name: str) -> Measure:
    """The measure of divergence by name, or the user's own function given as ``"module:function"``.

    The user's function takes two models, parent and child, each a dict of named arrays (the shared parameters only),
    and returns one number >= 0. Raises PlanError where there is no such measure.
    """
    if name in MEASURES:
        return MEASURES[name]
    module, _, function = name.partition(":")
    if not function:
        raise PlanError(f'There is no diversity {name!r}; use {", ".join(MEASURES)}, or your own "module:function".')
    try:
        measured: Callable[[Arrays, Arrays], float] = getattr(import_module(module), function)
    except (ImportError, AttributeError):
        raise PlanError(f"diversity = {name!r}: Python finds no such function; is its folder on the path?") from None
    return lambda families: Divergence(_each(measured, families, name))


def _each(function: Callable[[Arrays, Arrays], float], families: Families, name: str) -> np.ndarray:
    def model(row: int) -> Arrays:
        return {layer: families.stack[layer][row] for layer in families.layers}

    values = np.array(
        [
            [float(function(model(parent), model(child))) for child in children]
            for parent, children in zip(families.parents, families.children, strict=True)
        ]
    )
    if not np.isfinite(values).all() or (values < 0).any():
        raise PlanError(f"diversity = {name!r} must return finite numbers >= 0; it returned {values.min():g}.")
    return values


def weights(divergence: Divergence) -> np.ndarray:
    """alpha, (families, replicas): floored divergences as shares of one; equal where all are zero."""
    floored = np.maximum(divergence.values, divergence.floor)
    total = floored.sum(axis=-1, keepdims=True)
    equal = np.full_like(floored, 1 / floored.shape[-1])
    alpha: np.ndarray = np.divide(floored, total, out=equal, where=total > 0)
    return alpha


def fold_trees(
    stack: Arrays,
    rows: Sequence[str],
    fold: str = "diversity",
    diversity: str = "l2",
    shared: Shared | None = None,
    predict: Predict | None = None,
) -> Arrays:
    """The anchors after every tree has been folded, stacked to (sites, ...) in the order of the anchors' rows.

    ``stack`` holds the models, (rows, ...), and ``rows`` names them, ``"site#node"`` (:func:`replicas.row_name`). All
    floats are folded, running statistics as numbers; integers are the parent's. Divergence is measured on the float
    parameters that ``shared`` names (default: all), after the replica's own replicas have been folded into it. Sums are
    taken in float64; dtypes are kept.

    Raises PlanError where ``shared`` names no layer.
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
    """The server's fold: anchors (sites, ...) as they came, folded with the replicas that came beside them.

    ``sent`` holds {"<node>/<parameter>": (sites, ...)}. Equals a fold at the sites to the bit.
    """
    nodes = ReplicaTree(int(_one(tree.fanout)), int(_one(tree.depth))).nodes
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


def _one(setting: float | tuple[float, ...]) -> float:
    return setting[0] if isinstance(setting, tuple) else setting
