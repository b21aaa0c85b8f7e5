"""Replica trees: the virtual copies of a site's model, and the samples that each of them trains on.

A site's own model is the *anchor*. It has ``fanout`` replicas, each of these has as many, ``depth`` levels down; every
replica lacks a block of its parent's samples. A node is named by the way to it: ``""`` is the anchor, ``"2"`` its third
replica, ``"2.0"`` the first replica of that. A row of a cohort is a site's node, ``"site#2.0"``; the anchor's row is
the bare site.

A tree is grown from the anchor when the round begins (model and optimizer state alike) and folded into it when the
round ends (:mod:`fedsmall.replicas.fold`); whole trees that travel live until they are aggregated.

Source: Ghilea and Rekik, "Replica Tree-based Federated Learning using Limited Data", Algorithms 1 and 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedsmall.data.splits import classes_of
from fedsmall.errors import PlanError
from fedsmall.models.own_models import with_own_model
from fedsmall.parts import Tree
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for

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

    settings = {
        name: setting[place] if isinstance(setting, tuple) else setting
        for name, setting in _per_site(tree, sites).items()
    }
    return ReplicaTree(**settings, perturbation=tree.perturbation)


def own_tree(tree: Tree, place: int, sites: int) -> Tree:
    """The plan's tree as the site at ``place`` of ``sites`` alone sees it: with one value for each setting."""
    settings = _per_site(tree, sites).items()
    values = {name: setting[place] for name, setting in settings if isinstance(setting, tuple)}
    return tree.model_copy(update=values)


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
    plan = with_own_model(plan, place, sites)
    if plan.method.tree is None:
        return plan
    tree = own_tree(plan.method.tree, place, sites)
    return plan.model_copy(update={"method": plan.method.model_copy(update={"tree": tree})})


def forest(tree: Tree, sites: int) -> tuple[ReplicaTree, ...]:
    """The trees of all sites, in the order of their names."""
    return tuple(tree_at(tree, place, sites) for place in range(sites))


def subsets(tree: ReplicaTree, y: np.ndarray, seed: int, site: str) -> Mapping[str, np.ndarray]:
    """The samples of every node, as ascending indices into the site's targets ``y`` of shape (samples, ...).

    Replica j of a parent that holds n samples lacks block j of them: floor(p * n) samples, the blocks disjoint over j
    as far as n allows (after that every sample is lacked equally often, to within one). The blocks are drawn from a
    stream named by seed, site and parent, the same in every round. A "stratified" block takes from each class its share
    (to within one sample, the whole block being floor(p * n) exactly) and never a class's last sample.

    Raises PlanError where a stratified block cannot be had: a class of one sample, or a block that would take a class
    whole.
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
    """A line where replicas lack no sample of their anchor at some site, of sites with so many ``samples``; else None.

    Such replicas are the anchor again, but for the order of batches.
    """
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
        for value, count, share in zip(values, counts, _shares(values, counts, size), strict=True)
    ]
    return np.hstack(blocks) if blocks else np.zeros((tree.fanout, 0), dtype=np.int64)


def _shares(values: np.ndarray, counts: np.ndarray, size: int) -> np.ndarray:
    """How many samples of each class a block of ``size`` takes: proportional, by largest remainder, never all."""
    if size == 0:
        return np.zeros(len(counts), dtype=np.int64)
    for value, count in zip(values, counts, strict=True):
        if count < 2:
            raise PlanError(
                f"A stratified perturbation needs two samples of every class; class {value} has one among "
                f'{counts.sum()}. Use perturbation = "random", or a tree of less depth.'
            )
    exact = size * counts / counts.sum()
    shares: np.ndarray = np.minimum(np.floor(exact + 1e-9).astype(np.int64), counts - 1)
    while shares.sum() < size:
        room = np.where(shares < counts - 1, exact - shares, -np.inf)
        if np.isneginf(room).all():
            raise PlanError(
                f"Dropping {size} of {counts.sum()} samples cannot leave one of each of {len(counts)} classes; "
                'take a smaller drop, or perturbation = "random".'
            )
        shares[np.argmax(room)] += 1
    return shares
