"""A cohort of sites that grow replica trees: the interface of :class:`Cohort`, with more models behind each row.

Every node of every tree is a row of an inner cohort, named "site#node", with samples of its own. A round grows the
trees from their anchors, trains all nodes at once, and folds each tree into its anchor; only that is seen outside, but:

- ``fold_at = "server"``: in a round that ends with an aggregation the replicas' models leave the site beside the
  anchor's, as {"<node>/<parameter>": ...} in what the local rule sends, and the server folds.
- ``travel = "trees"``: a tree lives on until the next aggregation, and its replicas travel with the anchor as part of
  the state that is carried, {"replica/<node>/<parameter or moment>": ...}; there they are folded, where they are.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch

from fedsmall.data.federation import Samples, Task
from fedsmall.features import check_features
from fedsmall.models.own_models import is_shared, shared_layers
from fedsmall.parts import Tree
from fedsmall.plan import Plan
from fedsmall.replicas import ANCHOR, Shared, fold_trees, forest, measure, row_name, split_row, subsets
from fedsmall.training.cohort import Cohort
from fedsmall.training.in_folds import SitesInFolds
from fedsmall.training.information import BudgetedCohort
from fedsmall.training.mixed import MixedCohort
from fedsmall.training.stack import REPLICA, Rows, Stack, Tensors, index_of
from fedsmall.training.trainer import Indices, OneModelTrainer, Phase, Trainer, TrainInput, TrainResult, WrappedTrainer
from fedsmall.wire import Arrays, ModelState


def cohort_for(
    plan: Plan,
    task: Task,
    names: Sequence[str],
    samples: Sequence[Samples],
    *,
    path: str = "auto",
    device: str | torch.device = "cpu",
    indices: Indices | None = None,
) -> Trainer:
    """The trainer of a plan's sites, which have the ``indices`` in the federation (default: they are all of it)."""
    whole = indices or Indices.of_all(len(names))
    if (extension := plan.method.extension) is not None:
        return extension.trainer_for(plan, task, names, samples, whole)  # type: ignore[no-any-return]
    everyone = list(names)

    def of_one_kind(
        kind: Plan, task: Task, names: Sequence[str], samples: Sequence[Samples], indices: Indices = whole
    ) -> OneModelTrainer:
        if kind.method.tree is None:  # what these are for, privacy of patients, does not go with folds of samples
            cohort = Cohort(kind, task, names, samples, path=path, device=device, indices=indices)
            return cohort if plan.privacy.exposure is None else BudgetedCohort(cohort, samples, indices.secret)
        shared = partial(is_shared, shared=shared_layers(plan)) if plan.has_own_models else None
        return TreeCohort(kind, task, names, samples, path=path, device=device, shared=shared)

    def of_a_group(kind: Plan, task: Task, names: Sequence[str], samples: Sequence[Samples]) -> OneModelTrainer:
        places = tuple(whole.of_sites[everyone.index(name)] for name in names)
        with warnings.catch_warnings():  # that a few sites of a kind train one by one is nothing to be warned of
            warnings.simplefilter("ignore", UserWarning)
            return of_one_kind(kind, task, names, samples, whole._replace(of_sites=places))

    if plan.has_own_models:
        return MixedCohort(plan, task, names, samples, of_a_group)
    if plan.method.by_samples:
        return SitesInFolds(plan, task, names, samples, of_one_kind)
    return of_one_kind(plan, task, names, samples)


class TreeCohort(WrappedTrainer):
    """Sites, each with its tree of replicas; used as a :class:`Cohort` of the same sites.

    A row's loss, steps and examples are the anchor's. ``shared`` names the layers on which diversity is measured, all
    by default. Raises PlanError where a tree cannot be had from a site's samples.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        names: Sequence[str],
        samples: Sequence[Samples],
        *,
        path: str = "auto",
        device: str | torch.device = "cpu",
        shared: Shared | None = None,
    ) -> None:
        assert plan.method.tree is not None
        self._shared = shared
        self.tree: Tree = plan.method.tree
        trees = forest(self.tree, len(names))
        check_features(plan)
        measure(self.tree.diversity)  # which is to be found before anything is trained
        self._samples = dict(zip(names, samples, strict=True))
        nodes = [(site, node) for site, tree in zip(names, trees, strict=True) for node in tree.nodes]
        held = {
            site: subsets(tree, self._samples[site].y, plan.seed, site) for site, tree in zip(names, trees, strict=True)
        }
        parts = [self._samples[site][held[site][node]] for site, node in nodes]
        self._rows = tuple(row_name(site, node) for site, node in nodes)
        self._nodes = trees[0].nodes  # of every site, where trees must be equal
        self._of_site = [np.flatnonzero([owner == site for owner, _ in nodes]) for site in names]
        inner = Cohort(plan, task, self._rows, parts, path=path, device=device)
        super().__init__(plan, names, [*map(len, samples)], inner)

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """As :meth:`Trainer.stack_of`, of anchors; with whole trees that travel, replicas are in its optimizer part."""
        moments = {name: tensor for name, tensor in (carried or {}).items() if not is_replica(name)}
        stack = self._within.stack_of(state, moments)
        if self.tree.travel == "trees":
            own = own_state(stack)
            replicas = ((f"{REPLICA}/{node}/{name}", own[name]) for node in self._nodes[1:] for name in own)
            stack.optimizer |= {name: tensor.clone() for name, tensor in replicas}
        replicas = ((name, tensor) for name, tensor in (carried or {}).items() if is_replica(name))
        stack.optimizer |= {name: tensor.to(self.device) for name, tensor in replicas}
        return stack

    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """As :meth:`Trainer.walk`: the anchors come back folded, unless the server is to fold them."""
        take = self._keep if self.tree.travel == "trees" else self._grow_and_fold
        for phase in phases:
            trained = take(stack, phase, inputs)
            inputs = TrainInput(memory=trained.memory)
        return trained

    def _grow_and_fold(self, stack: Stack, phase: Phase, inputs: TrainInput) -> TrainResult:
        rows, parents = self._spread(phase.sites)
        inputs = self._to_nodes(inputs, parents)
        for t in range(phase.t - phase.rounds + 1, phase.t + 1):
            first, last = t == phase.t - phase.rounds + 1, t == phase.t
            nodes = stack.rows(parents)
            round_phase = Phase(rows, t, 1, phase.arrived and first, phase.closes and last)
            trained = self._within.walk(nodes, [round_phase], inputs)
            inputs = self._to_nodes(TrainInput(memory=self._narrowed(trained.memory)), parents)
            put_anchors(stack, nodes, self._anchor_places(rows))
            sent = self._end_round(stack, nodes, rows, parents, round_phase.closes)
        return self._anchors(trained, rows, sent, phase.rounds)

    def _end_round(self, stack: Stack, nodes: Stack, rows: np.ndarray, parents: np.ndarray, closes: bool) -> Arrays:
        models = Rows(nodes.state).arrays()
        if self.tree.fold_at == "server" and closes:
            return self._sent(models, parents)
        if len(nodes) > len(stack):
            names, tree = [self._rows[row] for row in rows], self.tree
            folded = fold_trees(models, names, tree.fold, tree.diversity, self._shared, self._predict)
            for name, tensor in stack.state.items():
                tensor.copy_(torch.from_numpy(folded[name]))
        return {}

    def _sent(self, models: Arrays, parents: np.ndarray) -> Arrays:
        """The replicas' models by node and name, each (rows, ...); trees are equal where the server folds."""
        count, size = int(parents.max()) + 1, len(self._nodes)
        return {
            f"{node}/{name}": array.reshape(count, size, *array.shape[1:])[:, place].copy()
            for place, node in enumerate(self._nodes)
            if node != ANCHOR
            for name, array in models.items()
        }

    def _keep(self, stack: Stack, phase: Phase, inputs: TrainInput) -> TrainResult:
        rows, parents = self._spread(phase.sites)
        nodes = plant_trees(stack, self._nodes, inputs.flags(len(stack)))
        trained = self._within.walk(nodes, [phase._replace(sites=rows)], self._to_nodes(inputs, parents))
        anchors = self._anchor_places(rows)
        for name, tensor in own_state(nodes).items():  # every row carries the replicas, which follow their anchor's
            for place, node in enumerate(self._nodes[1:], 1):
                stack.optimizer[f"{REPLICA}/{node}/{name}"].copy_(tensor[index_of(anchors + place, tensor)])
        put_anchors(stack, nodes, anchors)
        sent = self._end_round(stack, nodes, rows, parents, True) if phase.closes else {}
        return self._anchors(trained, rows, sent, 1)

    def _spread(self, sites: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For the nodes of some sites: their rows in the inner cohort, and which of the given rows each grows from."""
        rows = [self._of_site[site] for site in sites]
        return np.concatenate(rows), np.repeat(np.arange(len(sites)), [len(nodes) for nodes in rows])

    def _anchor_places(self, rows: np.ndarray) -> np.ndarray:
        return np.flatnonzero([split_row(self._rows[row])[1] == ANCHOR for row in rows])

    def _to_nodes(self, inputs: TrainInput, parents: np.ndarray) -> TrainInput:
        """The inputs of the nodes: those of their anchor, and their site's memory, one for its tree."""
        owner = np.repeat(np.arange(len(self.names)), [len(rows) for rows in self._of_site])
        is_global = None if inputs.is_global is None else np.asarray(inputs.is_global)[parents]
        return TrainInput(is_global, inputs.rule, {name: array[owner] for name, array in inputs.memory.items()})

    def _narrowed(self, memory: Arrays) -> Arrays:
        anchors = np.array([rows[0] for rows in self._of_site])
        return {name: array[anchors] for name, array in memory.items()}

    def _predict(self, site: str, models: Arrays) -> np.ndarray:
        rows = len(next(iter(models.values())))
        states = [ModelState({name: array[row] for name, array in models.items()}) for row in range(rows)]
        return self._within.predict(self._within.stack(states), self._samples[site].x)

    def _anchors(self, trained: TrainResult, rows: np.ndarray, sent: Arrays, times: int) -> TrainResult:
        anchors = self._anchor_places(rows)
        losses, steps, examples = trained.loss[anchors], trained.steps[anchors] * times, trained.examples[anchors]
        return TrainResult(losses, steps, examples, sent, self._narrowed(trained.memory))


def is_replica(name: str) -> bool:
    """Whether a carried array belongs to a replica, and not to the anchor's optimizer."""
    return name.startswith(f"{REPLICA}/")


def own_state(stack: Stack) -> Tensors:
    """A row's arrays without the replicas that it carries: parameters, buffers and moments."""
    return stack.state | {name: tensor for name, tensor in stack.optimizer.items() if not is_replica(name)}


def plant_trees(stack: Stack, nodes: Sequence[str], young: np.ndarray) -> Stack:
    """All nodes of all rows' trees as one stack, row by row; the trees of ``young`` rows are grown anew."""
    fresh = torch.from_numpy(young).to(next(iter(stack.parameters.values())).device)

    def join_replicas(tensors: Mapping[str, torch.Tensor]) -> Tensors:
        grown = {}
        for name, own in tensors.items():
            columns = [own]
            for node in nodes[1:]:
                theirs = stack.optimizer[f"{REPLICA}/{node}/{name}"]
                columns.append(torch.where(fresh.reshape(-1, *[1] * (own.dim() - 1)), own, theirs))
            grown[name] = torch.stack(columns, dim=1).flatten(0, 1)  # (rows * nodes, ...)
        return grown

    moments = {name: tensor for name, tensor in stack.optimizer.items() if not is_replica(name)}
    return Stack(stack.names, join_replicas(stack.parameters), join_replicas(stack.buffers), join_replicas(moments))


def put_anchors(stack: Stack, nodes: Stack, anchors: np.ndarray) -> None:
    """Write the anchors among trained nodes, models and moments, back into their rows."""
    state = own_state(nodes)
    for name, tensor in own_state(stack).items():
        tensor.copy_(state[name][index_of(anchors, tensor)])
