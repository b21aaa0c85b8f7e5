"""Sites that grow trees, by xgboost or by counting for a global one, and a server that joins them.

Boosting from histograms that others have summed: what a site counts, and what a server makes of the sums. xgboost's
``hist`` (Chen & Guestrin 2016, equations 6 and 7, depth by depth) in our own code, for it has no public call for trees
from sums. Gradients are whole numbers, so sums are the same bits in any order. In the first round sites count values in
a fine grid, from which all have the same bins; then every round is a level.
"""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.special import expit, softmax

from fedsmall.aggregation.combiners import Combiner, check_enough
from fedsmall.aggregation.server_optimizers import Updates
from fedsmall.aggregation.sums import whole_sum
from fedsmall.data.federation import Samples, Task
from fedsmall.errors import PlanError
from fedsmall.evaluation.metrics import evaluate
from fedsmall.extensions.boosting.forest import (
    EDGES,
    SUMS,
    as_outputs,
    boosting_of,
    is_joined,
    learning_rate,
    margins,
    margins_of,
    places,
    plan_among,
    tree_rounds,
)
from fedsmall.parts import Boosting
from fedsmall.plan import Method, Plan
from fedsmall.training.stack import Stack, Tensors
from fedsmall.training.trainer import Indices, OneModelTrainer, Phase, TrainInput, TrainResult
from fedsmall.wire import Arrays

ONE = 2.0**30  # of gradients in whole numbers
REACH = 4.0  # the grid goes so many standard deviations either way, in the units that sites agree on
LEAST_GAIN = 1e-6  # as xgboost has it


class BoostingStep(NamedTuple):
    """The boosting round and the level of its trees that a round of the run is for."""

    boost: int
    level: int


def step_at(plan: Plan, t: int) -> BoostingStep | None:
    """What round ``t`` is for; None for the one in which bins are agreed, and after the last tree."""
    boost, level = divmod(t - 2, boosting_of(plan).depth)
    return BoostingStep(boost, level) if t > 1 and boost < tree_rounds(plan) else None


def count_at_site(
    plan: Plan, task: Task, model: Arrays, x: np.ndarray, y: np.ndarray, weight: np.ndarray, t: int
) -> np.ndarray:
    """What a site adds in round ``t``, int64 of the histograms' shape; ``weight`` (samples,) is each sample's."""
    step, shape = step_at(plan, t), model[SUMS].shape
    if step is not None:
        return _count_level(step, boosting_of(plan).depth, task, model, x, y, weight)
    sums = np.zeros(shape, np.int64)
    if t == 1:
        features, cells = shape[2], int(np.prod(shape)) // shape[0] // shape[2]
        cell = np.searchsorted(grid(cells), x.astype(np.float32), side="right")  # (samples, features)
        counts = np.stack([np.bincount(cell[:, k], minlength=cells) for k in range(features)])
        sums[0] = counts.reshape(features, shape[1], shape[3], 2).swapaxes(0, 1)
    return sums


def grid(cells: int) -> np.ndarray:
    """The ends of the cells of the fine grid, (cells - 1,), in float32."""
    return np.linspace(-REACH, REACH, cells - 1, dtype=np.float32)


def gradients(task: Task, margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivatives of the loss by the margins, each (samples, margins), as xgboost has them."""
    if task.kind == "numbers":
        return margin - y.reshape(-1, 1), np.ones_like(margin)
    if margin.shape[1] == 1:
        p = expit(margin)
        return p - y.reshape(-1, 1), p * (1 - p)
    p = softmax(margin, axis=1)
    return p - np.eye(margin.shape[1])[y], 2 * p * (1 - p)


def _count_level(
    step: BoostingStep, depth: int, task: Task, model: Arrays, x: np.ndarray, y: np.ndarray, weight: np.ndarray
) -> np.ndarray:
    count, nodes, features, bins, _ = model[SUMS].shape
    samples, done = torch.from_numpy(np.ascontiguousarray(x)), step.boost * count
    feature, cut, leaves = (torch.from_numpy(np.array(model[name])) for name in ("feature", "cut", "weight"))
    before = margins((feature[:done], cut[:done], leaves[:done]), samples, count, depth)
    g, h = gradients(task, before.numpy().astype(np.float64), y)
    whole = np.rint(np.stack([g, h], axis=2) * weight[:, None, None] * ONE).astype(np.int64)  # (samples, margins, 2)
    trees = slice(done, done + count)
    at = places(feature[trees], cut[trees], samples, depth).numpy() - (2**step.level - 1)  # in the level
    edges, values = model[EDGES].astype(np.float32), x.astype(np.float32)
    bin_of = np.stack([np.searchsorted(edges[k], values[:, k], side="right") for k in range(features)], axis=1)
    sums = np.zeros((count, nodes, features, bins, 2), np.int64)
    for k in range(count):
        reached = at[:, k] >= 0  # others are in a leaf above
        np.add.at(sums[k], (at[reached, k, None], np.arange(features), bin_of[reached]), whole[reached, k, None])
    return sums


def grow(plan: Plan, global_model: Arrays, sums: np.ndarray, t: int) -> Arrays:
    """The global forest after round ``t``, in which sites have counted ``sums`` together."""
    made = {name: np.array(array) for name, array in global_model.items()}
    made[SUMS][...] = 0
    step = step_at(plan, t)
    if step is None:
        if t == 1:
            made[EDGES][...] = agreed_edges(sums)
        return made
    count = len(sums)
    for k in range(count):
        for node in range(2**step.level):
            _split(plan, made, step.boost * count + k, 2**step.level - 1 + node, sums[k, node])
    return made


def agreed_edges(counts: np.ndarray) -> np.ndarray:
    """The edges of bins of equal shares, (features, bins - 1), between filled cells of the fine grid's counts."""
    _, _, features, bins, _ = counts.shape
    by_cell = counts[0].swapaxes(0, 1).reshape(features, -1)
    ends = grid(by_cell.shape[1])
    return np.stack([_edges(row, ends, bins) for row in by_cell])


def _edges(counts: np.ndarray, ends: np.ndarray, bins: int) -> np.ndarray:
    filled = np.flatnonzero(counts)
    last = np.arange(len(filled) - 1)
    if len(filled) > bins:
        below = np.cumsum(counts[filled])
        last = np.unique(np.searchsorted(below, below[-1] * np.arange(1, bins) / bins))
        last = last[last < len(filled) - 1]
    edges = ends[(filled[last] + filled[last + 1] - 1) // 2] if len(last) else ends[-1:]
    return np.concatenate([edges, np.repeat(edges[-1:], bins - 1 - len(edges))])  # an edge twice is an empty bin


def _split(plan: Plan, made: Arrays, tree: int, node: int, sums: np.ndarray) -> None:
    """Split one node where that gains enough, by its histogram (features, bins, 2); where nobody is, nothing gains."""
    settings, rate = boosting_of(plan), learning_rate(plan)
    whole = sums[0].sum(axis=0) / ONE
    if node == 0:
        made["weight"][tree, 0] = leaf(whole, settings, rate)
    left = sums.cumsum(axis=1)[:, :-1] / ONE  # (features, bins - 1, 2)
    right = whole - left
    gain = score(left, settings) + score(right, settings) - score(whole, settings)
    able = (left[..., 1] >= settings.least_weight) & (right[..., 1] >= settings.least_weight)
    able &= (left[..., 1] > 0) & (right[..., 1] > 0)
    gain = np.where(able, gain, -np.inf)
    best = int(np.argmax(gain))
    if gain.flat[best] <= max(LEAST_GAIN, settings.least_gain):
        return
    feature, after = np.unravel_index(best, gain.shape)
    made["feature"][tree, node], made["cut"][tree, node] = feature, made[EDGES][feature, after]
    made["weight"][tree, node] = 0
    for child, half in ((2 * node + 1, left), (2 * node + 2, right)):
        made["weight"][tree, child] = leaf(half[feature, after], settings, rate)


def score(sums: np.ndarray, settings: Boosting) -> np.ndarray:
    """G**2 / (H + l2) of sums (..., 2)."""
    return np.asarray(sums[..., 0] ** 2 / (sums[..., 1] + settings.l2))


def leaf(sums: np.ndarray, settings: Boosting, rate: float) -> float:
    """What a leaf adds: -G / (H + l2) times the learning rate."""
    return float(-rate * sums[0] / (sums[1] + settings.l2))


__all__ = ["check", "combiner_for", "has_ended", "note_of", "note_of_end", "plan_among", "trainer_for"]

SLOTS = ("feature", "cut", "weight")
OBJECTIVES = {"numbers": "reg:squarederror", "two": "binary:logistic", "several": "multi:softprob"}
OPEN = (
    "the cuts of a site's trees are values of its patients, and a leaf may be of a few of them; who can read "
    "whom from trees is not counted"
)


def combiner_for(plan: Plan) -> Combiner:
    """What makes the next global forest."""
    return GrowTrees(plan) if boosting_of(plan).histogram else JoinTrees()


def has_ended(plan: Plan, model: Arrays) -> bool:
    """Whether nothing would change any more: a run of trees has its number of rounds."""
    return False


def note_of(method: Method) -> str:
    """That trees which one site has grown on its own patients leave it, where they do."""
    shows_cuts = method.is_federated and method.boosting is not None and not method.boosting.histogram
    return OPEN if shows_cuts else ""


def note_of_end(plan: Plan, model: Arrays, rounds: int) -> str:
    """Nothing: a forest of fewer trees is a forest."""
    return ""


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
    """The global forest with all trees that sites have added to it, each in slots of its own."""

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The joined forest; the first site by name has the say where two wrote into one slot."""
        made = {name: np.array(array) for name, array in global_model.items()}
        for row in reversed(range(len(updates.sites))):
            for name, array in made.items():
                added = updates.stack[name][row] != global_model[name]
                array[added] = updates.stack[name][row][added]
        return made


class GrowTrees(Combiner):
    """Grows the global trees by a level, from the sum of what sites count; of hidden models it is told that alone."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def combine(self, global_model: Arrays, updates: Updates, t: int) -> Arrays:
        """The next global forest; raises ReplyError for fewer than three sites, where sums are secure."""
        if self.plan.method.hidden:
            check_enough(len(updates.sites), t)
        if updates.total is not None:
            return grow(self.plan, global_model, whole_sum(self.plan, global_model, updates.total, SUMS), t)
        return grow(self.plan, global_model, updates.stack[SUMS].sum(axis=0), t)


class Boosters(OneModelTrainer):
    """Sites that grow trees: by xgboost on from the forest that came, or by what they count for a global tree."""

    def __init__(self, plan: Plan, task: Task, names: Sequence[str], samples: Sequence[Samples], at: Indices) -> None:
        self.plan, self.task, self.names = plan_among(plan, at.sites), task, tuple(names)
        self.samples, self._samples, self._at = tuple(map(len, samples)), tuple(samples), at
        self.path = "histogram sums" if boosting_of(plan).histogram else "xgboost"
        self.device = torch.device("cpu")

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """A stack of forests; nothing else travels with them."""
        buffers = {name: state[name] for name in (EDGES, SUMS) if name in state}
        return Stack(tuple(state), {name: state[name] for name in SLOTS}, buffers)

    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """Grow trees in place, communication round by communication round."""
        for phase in phases:
            for t in range(phase.t - phase.rounds + 1, phase.t + 1):
                for row, site in enumerate(phase.sites):
                    self._grow(stack, row, int(site), t)
        last = phases[-1]
        losses = np.full(len(last.sites), np.nan)
        if inputs.losses:
            pairs = [(row, self._samples[int(site)]) for row, site in enumerate(last.sites)]
            judged = [evaluate(self._outputs(stack, row, held.x), held.y, self.task) for row, held in pairs]
            losses = np.array([float(metrics["loss"]) for metrics in judged])
        steps = np.full(len(last.sites), last.rounds, dtype=np.int64)
        return TrainResult(losses, steps, np.array([self.samples[site] for site in last.sites]), {}, {})

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
            counts = count_at_site(self.plan, self.task, model, samples.x, samples.y, weights, t)
            stack.buffers[SUMS][row] = torch.from_numpy(counts)
        elif t <= tree_rounds(self.plan):
            margin, rate = self._margin(stack, row, samples.x).numpy(), learning_rate(self.plan)
            made = grow_trees(samples.x, samples.y, margin, self.task, settings, rate, weights)
            turn = (t - 1) * self._at.sites + self._at.of_sites[site] if is_joined(self.plan.method) else t - 1
            slots = slice(turn * margin.shape[1], (turn + 1) * margin.shape[1])
            for name, array in zip(SLOTS, made, strict=True):
                stack.parameters[name][row, slots] = torch.from_numpy(array).to(stack.parameters[name].dtype)

    def _weights(self, samples: Samples) -> np.ndarray | None:
        """How much each sample counts, by its class; None where all count alike."""
        of_classes = self.plan.recipe.class_weights
        return np.asarray(of_classes)[samples.y] if isinstance(of_classes, tuple) else None


trainer_for = Boosters


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
