"""Combiners: many models into the next global one, as the last step of every method of ours.

A combiner may remember something between aggregations.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fedsmall.aggregation.aggregate import aggregate
from fedsmall.aggregation.server_optimizers import SERVERS, Updates, known_options, parameters_of, server_step
from fedsmall.aggregation.sums import LEAST, length, mean_of, summand
from fedsmall.errors import PlanError, ReplyError
from fedsmall.parts import Tree
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.replicas import fold_sent, tree_at
from fedsmall.wire import Arrays, Restorable, stack_of_one


class Combiner(Restorable, ABC):
    """Turns a stack of models into the global one; ``half_of`` names the method whose other half our clients do."""

    half_of = ""
    takes_mean = False  # of the updates it wants nothing but their mean, and takes one that has been made
    memory: Arrays = {}  # noqa: RUF012  (from one aggregation to the next; replaced, and never written into)

    @abstractmethod
    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The new global model after round ``t``; ``global_model`` is the one before it."""

    def order_rule(self) -> Arrays:
        """What the local rule at the sites needs from the server, sent with every order."""
        return {}

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """What it remembers."""
        return self.memory, {}

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self.memory = dict(arrays)

    def checkpoint(self) -> Callable[[], None]:
        """A call that makes it remember again what it remembers now, for an aggregate that may not be used."""
        arrays, words = self.state()
        return partial(self.restore, {name: np.array(array) for name, array in arrays.items()}, words)


class Aggregate(Combiner):
    """The aggregate itself: ``aggregator`` is a name of :data:`~fedsmall.aggregation.aggregate.AGGREGATORS`.

    Accumulates in float64, keeps dtypes, carries integer buffers, is blind to order. Source: McMahan et al. 2017.
    """

    def __init__(self, aggregator: str = "mean", options: Mapping[str, float] | None = None, seed: int = 0) -> None:
        self.aggregator, self.options, self.seed = aggregator, dict(options or {}), seed
        self.takes_mean = type(self) is Aggregate and aggregator == "mean"

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The aggregate of the stack, or the one that has been made."""
        if updates.aggregate:
            return updates.aggregate
        rng = rng_for(self.seed, "aggregate", t)
        return aggregate(updates.stack, self.aggregator, updates.weights, self.options, rng)


class ServerStep(Combiner):
    """Moves the global model by a row of :data:`~fedsmall.aggregation.server_optimizers.SERVERS`.

    ``options`` are its settings; ``aggregate`` makes one model of the sites' first. PlanError for what is unknown.
    """

    def __init__(
        self, server: str, aggregate: Combiner | None = None, options: Mapping[str, float] | None = None, seed: int = 0
    ) -> None:
        if server not in SERVERS:
            raise PlanError(f"There is no server optimizer {server!r}. Known: {', '.join(SERVERS)}.")
        self.server, self.aggregate, self.seed = server, aggregate or Aggregate(), seed
        self.options, self.half_of = known_options(server, options or {}), SERVERS[server].half_of
        self.takes_mean = type(self) is ServerStep and self.aggregate.takes_mean and not self.half_of

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The next global model; raises ReplyError where SCAFFOLD's controls did not come."""
        if self.server == "scaffold":
            _check_controls(global_model, updates)
        returned = replace(updates, aggregate=self.aggregate.combine(global_model, updates, t))
        moved, self.memory = server_step(self.server, global_model, self.memory, returned, self.options)
        return moved

    def order_rule(self) -> Arrays:
        """What every order carries: SCAFFOLD's server control c; nothing for most."""
        return SERVERS[self.server].orders(self.memory)


class FoldTrees(Combiner):
    """Folds every site's replica tree into its anchor, and gives the anchors to ``inner`` (RepTreeFL, Algorithm 1)."""

    half_of = "RepTreeFL"

    def __init__(self, tree: Tree, inner: Combiner) -> None:
        self.tree, self.inner = tree, inner

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The anchors, folded, made into one; raises ReplyError where a replica did not come with its anchor."""
        _check_replicas(self.tree, updates)
        folded = fold_sent(self.tree, updates.stack, updates.rule, updates.sites)
        return self.inner.combine(global_model, replace(updates, stack=folded, rule={}), t)


class Summed(Combiner):
    """Gives ``inner`` one model, the mean from the exact sum of all, whether it sees the models or their sum alone.

    The mean is made in float64 and rounded once, at the end, to the dtypes of the global model.
    """

    def __init__(self, plan: Plan, inner: Combiner) -> None:
        self.plan, self.inner = plan, inner

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The next global model; raises ReplyError for fewer than three sites, and for numbers that are too large."""
        sites = len(updates.sites)
        check_enough(sites, t)
        total = self._total(global_model, updates) if updates.total is None else updates.total
        mean = mean_of(self.plan, global_model, total, sites, updates.weights, updates.steps)
        single = Updates(
            sites=("the sum",),
            stack=stack_of_one(mean.model),
            weights=None,
            steps=np.ones(1),
            rule=stack_of_one(mean.rule),
            sites_in_all=(updates.sites_in_all or sites) / sites,  # what is divided by it are means of so many
        )
        made = self.inner.combine(global_model, single, t)
        return {name: array.astype(global_model[name].dtype) for name, array in made.items()}

    def _total(self, global_model: Arrays, updates: Updates) -> np.ndarray:
        counts = np.ones(len(updates.sites)) if updates.weights is None else updates.weights
        among = int(updates.sites_in_all) or len(updates.sites)
        total = np.zeros(length(self.plan, global_model), np.uint64)
        for row, (examples, steps) in enumerate(zip(counts, updates.steps, strict=True)):
            model = {name: array[row] for name, array in updates.stack.items()}
            rule = {name: array[row] for name, array in updates.rule.items()}
            total += summand(self.plan, model, global_model, rule, examples, steps, among)
        return total

    def order_rule(self) -> Arrays:
        """What ``inner`` says."""
        return self.inner.order_rule()

    def state(self) -> tuple[Arrays, dict[str, Any]]:
        """What ``inner`` remembers."""
        return self.inner.state()

    def restore(self, arrays: Arrays, words: Mapping[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self.inner.restore(arrays, words)


def check_enough(sites: int, t: int, least: int = LEAST) -> None:
    """Raise ReplyError where too few sites are left for a secure sum at round ``t``."""
    if sites < least:
        few = f"a secure sum has {sites} of the {least} sites that it takes at least"
        raise ReplyError(f"At round {t} {few}; wait until the others are back.")


def combiner_for(plan: Plan) -> Combiner:
    """The combiner of a plan's method, seeded with the plan's seed. Raises PlanError for a setting it does not have."""
    method = plan.method
    if (extension := method.extension) is not None:
        return extension.combiner_for(plan)  # type: ignore[no-any-return]
    combiner: Combiner = Aggregate(method.aggregator, method.aggregator_options, plan.seed)
    if method.server_tree is not None:
        combiner = FoldTrees(method.server_tree, combiner)
    if method.server != "none":
        shared = {"fednova": {"momentum": plan.recipe.momentum}, "feddyn": {"alpha": method.feddyn_alpha}}
        options = {**shared.get(method.server, {}), **method.server_options}
        combiner = ServerStep(method.server, combiner, options, plan.seed)
    return Summed(plan, combiner) if plan.privacy.secure else combiner


def _check_controls(global_model: Arrays, updates: Updates) -> None:
    shapes = {
        f"control/{name}": (len(updates.sites), *global_model[name].shape) for name in parameters_of(global_model)
    }
    for name, shape in shapes.items():
        shape_sent = updates.rule[name].shape if name in updates.rule else "nothing"
        if shape_sent != shape:
            raise ReplyError(
                f"SCAFFOLD expects {name!r} of shape {shape} from {len(updates.sites)} sites; came {shape_sent}."
            )


def _check_replicas(tree: Tree, updates: Updates) -> None:
    nodes = tree_at(tree, 0, 1).nodes
    for node in nodes[1:]:
        for name, array in updates.stack.items():
            sent = updates.rule.get(f"{node}/{name}")
            if sent is None or sent.shape != array.shape:
                raise ReplyError(
                    f"The server is to fold trees of {len(nodes)} models, and array {name!r} of "
                    f"replica {node} did not come with every anchor."
                )
