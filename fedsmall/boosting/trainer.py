"""The trainer of boosted trees: what a network's training is in a round, growing trees is here."""

from collections.abc import Sequence

import numpy as np
import torch

from fedsmall.boosting import histograms, local
from fedsmall.boosting.forest import HISTOGRAM_WORDS, as_outputs, margins, margins_of
from fedsmall.boosting.slots import boosting_of, joins, learning_rate, tree_rounds, with_forest
from fedsmall.evaluation.metrics import evaluate
from fedsmall.federation import Samples, Task
from fedsmall.plan import Plan
from fedsmall.training.stack import Stack, Tensors
from fedsmall.training.trainer import Leg, OneModelTrainer, Seat, Signals, Trained
from fedsmall.wire import Arrays

SLOTS = ("feature", "cut", "weight")


class Boosters(OneModelTrainer):
    """Sites that grow trees: by xgboost on from the forest that came, or by what they count for a common tree."""

    def __init__(self, plan: Plan, task: Task, names: Sequence[str], samples: Sequence[Samples], seat: Seat) -> None:
        self.plan, self.task, self.names = with_forest(plan, seat.sites), task, tuple(names)
        self.samples = tuple(map(len, samples))
        self._samples, self._seat = tuple(samples), seat
        histogram = boosting_of(plan).histogram
        self.path = "histogram sums" if histogram else "xgboost"
        self.reason = "trees from sums over sites" if histogram else "trees of xgboost, site by site"
        self.device = torch.device("cpu")

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """A stack of forests; nothing else travels with them."""
        buffers = {name: state[name] for name in HISTOGRAM_WORDS if name in state}
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
            losses = np.array([self._loss(stack, row, int(site)) for row, site in enumerate(last.sites)])
        steps = np.full(len(last.sites), last.rounds, dtype=np.int64)
        return Trained(losses, steps, np.array([self.samples[site] for site in last.sites]), {}, {})

    def predict(self, stack: Stack, x: np.ndarray) -> np.ndarray:
        """The outputs of every forest on the same samples: (models, samples, outputs)."""
        return np.stack(
            [as_outputs(self._margin(stack, row, x), self.task.outputs).numpy() for row in range(len(stack))]
        )

    def _margin(self, stack: Stack, row: int, x: np.ndarray) -> torch.Tensor:
        feature, cut, weight = (stack.parameters[name][row] for name in SLOTS)
        held, depth = torch.from_numpy(np.ascontiguousarray(x)), boosting_of(self.plan).depth
        return margins((feature, cut, weight), held, margins_of(self.task), depth)

    def _loss(self, stack: Stack, row: int, site: int) -> float:
        own = self._samples[site]
        outputs = as_outputs(self._margin(stack, row, own.x), self.task.outputs).numpy()
        return float(evaluate(outputs, own.y, self.task)["loss"])

    def _grow(self, stack: Stack, row: int, site: int, t: int) -> None:
        own = self._samples[site]
        if boosting_of(self.plan).histogram and self.plan.method.family == "federated":
            model: Arrays = {name: tensor[row].numpy() for name, tensor in stack.state.items()}
            weight = np.ones(len(own)) if (weights := self._weights(own)) is None else weights
            told = histograms.counted(self.plan, self.task, model, own.x, own.y, weight, t)
            stack.buffers[histograms.SUMS][row] = torch.from_numpy(told)
        elif t <= tree_rounds(self.plan):
            self._add(stack, row, site, t)

    def _add(self, stack: Stack, row: int, site: int, t: int) -> None:
        """One round of xgboost, written into the slots of this round, and of this site where all add at once."""
        own, settings = self._samples[site], boosting_of(self.plan)
        margin = self._margin(stack, row, own.x).numpy()
        made = local.grown(own.x, own.y, margin, self.task, settings, learning_rate(self.plan), self._weights(own))
        turn = (t - 1) * self._seat.sites + self._seat.places[site] if joins(self.plan.method) else t - 1
        slots = slice(turn * margin.shape[1], (turn + 1) * margin.shape[1])
        for name, array in zip(SLOTS, made, strict=True):
            stack.parameters[name][row, slots] = torch.from_numpy(array).to(stack.parameters[name].dtype)

    def _weights(self, own: Samples) -> np.ndarray | None:
        """How much each sample counts, by its class; None where all count alike."""
        of_classes = self.plan.recipe.class_weights
        return np.asarray(of_classes)[own.y] if isinstance(of_classes, tuple) else None
