"""Sites that grow trees, by xgboost or by counting for a common one, and a server that joins them."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch

from fedsmall.aggregation.combiners import Combiner, check_enough
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.aggregation.sums import whole_sum
from fedsmall.data.federation import Samples, Task
from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import evaluate
from fedsmall.extensions.boosting import histograms
from fedsmall.extensions.boosting.forest import (
    EDGES,
    SUMS,
    as_outputs,
    boosting_of,
    is_joined,
    learning_rate,
    margins,
    margins_of,
    plan_among,
    tree_rounds,
)
from fedsmall.parts import Boosting
from fedsmall.plan import Method, Plan
from fedsmall.training.stack import Stack, Tensors
from fedsmall.training.trainer import Leg, OneModelTrainer, Seat, Signals, Trained
from fedsmall.wire import Arrays

__all__ = ["check", "combiner_for", "has_ended", "note_of", "plan_among", "trainer_for"]

SLOTS = ("feature", "cut", "weight")
OBJECTIVES = {"numbers": "reg:squarederror", "two": "binary:logistic", "several": "multi:softprob"}
OPEN = (
    "the cuts of a site's trees are values of its patients, and a leaf may be of a few of them; who can read "
    "whom from trees is not counted"
)


def trainer_for(
    plan: Plan, task: Task, names: Sequence[str], samples: Sequence[Samples], seat: Seat
) -> OneModelTrainer:
    """The trainer of a plan's sites."""
    return Boosters(plan, task, names, samples, seat)


def combiner_for(plan: Plan) -> Combiner:
    """What makes the next common forest."""
    return GrowTrees(plan) if boosting_of(plan).histogram else JoinTrees()


def has_ended(plan: Plan, model: Arrays) -> bool:
    """Whether nothing would change any more: a run of trees has its number of rounds."""
    return False


def note_of(method: Method) -> str:
    """That trees which one site has grown on its own patients leave it, where they do."""
    shows_cuts = method.is_federated and method.boosting is not None and not method.boosting.histogram
    return OPEN if shows_cuts else ""


def check(plan: Plan, task: Task) -> None:
    """Raise PlanError, in one line, for a task or a schedule that trees cannot have, or a library."""
    method, boosting = plan.method, plan.method.boosting
    assert boosting is not None
    label = f"Method {method.label!r} boosts trees"
    if task.loss not in ("cross_entropy", "logistic", "mse") or (task.kind == "numbers" and task.outputs != 1):
        raise PlanError(f"{label}, which learn classes, or one number under mse; the loss of this task is {task.loss}.")
    if len(task.input_shape) != 1:
        raise PlanError(f"{label}, which take tables; a sample of {task.name!r} has shape {task.input_shape}.")
    if boosting.histogram and (method.aggregate_every != 1 or method.fraction < 1 or method.models is not None):
        raise PlanError(f"{label} by sums over all sites in every round: take aggregate_every = 1 and all sites.")
    if not (boosting.histogram or method.aggregate_every == 1 or method.models == 1 or not method.is_federated):
        raise PlanError(
            f"{label}: either sites' trees are joined every round, aggregate_every = 1, or one forest travels."
        )
    if tree_rounds(plan) < 1:
        raise PlanError(f"{label}: a tree takes {boosting.depth} rounds and the bins one; there are {plan.rounds}.")
    if not boosting.histogram and find_spec("xgboost") is None:
        raise PlanError(f"{label} with xgboost, which is not installed here: pip install 'fedsmall[boosting]'")


class JoinTrees(Combiner):
    """The common forest with all trees that sites have added to it, each in slots of its own."""

    def combine(self, common: Arrays, updates: Updates, t: int) -> Arrays:
        """The joined forest; the first site by name has the say where two wrote into one slot."""
        made = {name: np.array(array) for name, array in common.items()}
        for row in reversed(range(len(updates.sites))):
            for name, array in made.items():
                added = updates.stack[name][row] != common[name]
                array[added] = updates.stack[name][row][added]
        return made


class GrowTrees(Combiner):
    """Grows the common trees by a level, from the sum of what sites count; of hidden models it is told that alone."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def combine(self, common: Arrays, updates: Updates, t: int) -> Arrays:
        """The next common forest; raises ReplyError for fewer than three sites, where sums are secure."""
        if self.plan.method.hidden:
            check_enough(len(updates.sites), t)
        if updates.total is not None:
            return histograms.grow(self.plan, common, whole_sum(self.plan, common, updates.total, SUMS), t)
        return histograms.grow(self.plan, common, updates.stack[SUMS].sum(axis=0), t)


class Boosters(OneModelTrainer):
    """Sites that grow trees: by xgboost on from the forest that came, or by what they count for a common tree."""

    def __init__(self, plan: Plan, task: Task, names: Sequence[str], samples: Sequence[Samples], seat: Seat) -> None:
        self.plan, self.task, self.names = plan_among(plan, seat.sites), task, tuple(names)
        self.samples = tuple(map(len, samples))
        self._samples, self._seat = tuple(samples), seat
        histogram = boosting_of(plan).histogram
        self.path = "histogram sums" if histogram else "xgboost"
        self.reason = "trees from sums over sites" if histogram else "trees of xgboost, site by site"
        self.device = torch.device("cpu")

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """A stack of forests; nothing else travels with them."""
        buffers = {name: state[name] for name in (EDGES, SUMS) if name in state}
        return Stack(tuple(state), {name: state[name] for name in SLOTS}, buffers)

    def walk(self, stack: Stack, legs: Sequence[Leg], signals: Signals) -> Trained:
        """Grow trees in place, contact by contact."""
        for leg in legs:
            for t in range(leg.t - leg.rounds + 1, leg.t + 1):
                for row, site in enumerate(leg.sites):
                    self._grow(stack, row, int(site), t)
        last = legs[-1]
        losses = np.full(len(last.sites), np.nan)
        if signals.losses:
            pairs = [(row, self._samples[int(site)]) for row, site in enumerate(last.sites)]
            judged = [evaluate(self._outputs(stack, row, held.x), held.y, self.task) for row, held in pairs]
            losses = np.array([float(metrics["loss"]) for metrics in judged])
        steps = np.full(len(last.sites), last.rounds, dtype=np.int64)
        return Trained(losses, steps, np.array([self.samples[site] for site in last.sites]), {}, {})

    def predict(self, stack: Stack, x: np.ndarray) -> np.ndarray:
        """The outputs of every forest on the same samples: (models, samples, outputs)."""
        return np.stack([self._outputs(stack, row, x) for row in range(len(stack))])

    def _margin(self, stack: Stack, row: int, x: np.ndarray) -> torch.Tensor:
        feature, cut, weight = (stack.parameters[name][row] for name in SLOTS)
        held, depth = torch.from_numpy(np.ascontiguousarray(x)), boosting_of(self.plan).depth
        return margins((feature, cut, weight), held, margins_of(self.task), depth)

    def _outputs(self, stack: Stack, row: int, x: np.ndarray) -> np.ndarray:
        return np.asarray(as_outputs(self._margin(stack, row, x), self.task.outputs).numpy())

    def _grow(self, stack: Stack, row: int, site: int, t: int) -> None:
        samples, settings, weights = self._samples[site], boosting_of(self.plan), self._weights(self._samples[site])
        if settings.histogram and self.plan.method.is_federated:
            model: Arrays = {name: tensor[row].numpy() for name, tensor in stack.state.items()}
            weights = np.ones(len(samples)) if weights is None else weights
            counts = histograms.count(self.plan, self.task, model, samples.x, samples.y, weights, t)
            stack.buffers[SUMS][row] = torch.from_numpy(counts)
        elif t <= tree_rounds(self.plan):
            margin, rate = self._margin(stack, row, samples.x).numpy(), learning_rate(self.plan)
            made = grow_trees(samples.x, samples.y, margin, self.task, settings, rate, weights)
            turn = (t - 1) * self._seat.sites + self._seat.places[site] if is_joined(self.plan.method) else t - 1
            slots = slice(turn * margin.shape[1], (turn + 1) * margin.shape[1])
            for name, array in zip(SLOTS, made, strict=True):
                stack.parameters[name][row, slots] = torch.from_numpy(array).to(stack.parameters[name].dtype)

    def _weights(self, samples: Samples) -> np.ndarray | None:
        """How much each sample counts, by its class; None where all count alike."""
        of_classes = self.plan.recipe.class_weights
        return np.asarray(of_classes)[samples.y] if isinstance(of_classes, tuple) else None


class Trees(NamedTuple):
    """Slots of a forest, each (trees, nodes)."""

    feature: np.ndarray
    cut: np.ndarray
    weight: np.ndarray


def empty(trees: int, depth: int) -> Trees:
    """Slots that hold nothing yet."""
    shape = trees, 2 ** (depth + 1) - 1
    return Trees(np.full(shape, -1.0, np.float32), np.zeros(shape, np.float32), np.zeros(shape, np.float32))


def objective_of(task: Task) -> str:
    """xgboost's name for the loss."""
    return OBJECTIVES["numbers" if task.kind == "numbers" else "two" if task.classes == 2 else "several"]


def grow_trees(
    x: np.ndarray,
    y: np.ndarray,
    margin: np.ndarray,
    task: Task,
    settings: Boosting,
    rate: float,
    weights: np.ndarray | None = None,
) -> Trees:
    """The trees of a round of xgboost's ``hist`` on from ``margin`` (samples, margins); ``weights`` (samples,)."""
    import xgboost

    data = xgboost.DMatrix(x.astype(np.float32), y.reshape(-1), weight=weights)
    data.set_base_margin(margin.astype(np.float32) if margin.shape[1] > 1 else margin[:, 0].astype(np.float32))
    parameters: dict[str, Any] = {
        "objective": objective_of(task),
        "max_depth": settings.depth,
        "learning_rate": rate,
        "reg_lambda": settings.l2,
        "min_split_loss": settings.least_gain,
        "min_child_weight": settings.least_weight,
        "max_bin": settings.bins,
        "base_score": 0.5,  # not used: the margin says where this round begins
        "tree_method": "hist",
        "nthread": 1,
        "verbosity": 0,
    }
    parameters |= {"num_class": margin.shape[1]} if margin.shape[1] > 1 else {}
    return slots_of(xgboost.train(parameters, data, 1), margin.shape[1], settings.depth)


def slots_of(booster: Any, trees: int, depth: int) -> Trees:
    """The last ``trees`` trees of an xgboost booster."""
    made = empty(trees, depth)
    saved = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]["model"]["trees"]
    for slot, tree in enumerate(saved[-trees:]):
        _put(made, slot, tree, 0, 0)
    return made


def _put(made: Trees, slot: int, tree: dict[str, list[float]], node: int, place: int) -> None:
    left, right = int(tree["left_children"][node]), int(tree["right_children"][node])
    number = tree["split_conditions"][node]  # in a leaf this is its weight
    if left < 0:
        made.weight[slot, place] = number
        return
    made.feature[slot, place], made.cut[slot, place] = tree["split_indices"][node], number
    _put(made, slot, tree, left, 2 * place + 1)
    _put(made, slot, tree, right, 2 * place + 2)
