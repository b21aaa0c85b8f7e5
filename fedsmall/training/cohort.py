"""Cohort: local training of many sites at once, with K = 1 at a hospital and K = all of them in a simulation."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedsmall.federation import Samples, Task
from fedsmall.models.registry import build_model
from fedsmall.plan import Plan
from fedsmall.randomness import rng_for
from fedsmall.schedule import Action
from fedsmall.training.batches import Batches
from fedsmall.training.gradients import LOSSES, Batch, MlpGradients, choose, mean_loss
from fedsmall.training.gradients.prepare import MaskedDropout, dropout_shapes, prepared
from fedsmall.training.local_rules import pulled
from fedsmall.training.optimizers import fresh_state, learning_rate, step
from fedsmall.training.site_memory import SiteMemory
from fedsmall.training.stack import Rows, Stack, Tensors, stacked
from fedsmall.validation import schedule_for
from fedsmall.wire import Arrays, Traveller

CACHE_BYTES = 4 * 2**20  # what a chunk of small models, with their gradients and moments, may take
DEVICE_BYTES = 2 * 2**30  # the same on an accelerator
PREDICTED_MODELS = 64  # models that predict at a time
PREDICTED_NUMBERS = 2**20  # numbers that go into them at a time, models times samples times features


class Leg(NamedTuple):
    """A stretch of a walk: row k trains at ``sites[k]`` in rounds t - rounds + 1 .. t."""

    sites: np.ndarray
    t: int
    rounds: int


class Trained(NamedTuple):
    """What training gives besides the models.

    For each row: ``loss``, the mean over the steps of the last round; ``steps``, the optimizer steps of the last leg;
    ``examples``, the samples of the last site; ``rule``, what the local rule sends to the server, {"word/parameter":
    (rows, ...)}. ``memory`` is what the sites remember, {name: (sites of the cohort, ...)}, empty for nothing.
    """

    loss: np.ndarray
    steps: np.ndarray
    examples: np.ndarray
    rule: Arrays
    memory: Arrays


class Cohort:
    """Some sites of a federation, and all that their models need to be trained together.

    ``names`` and ``samples`` are the sites'; the same sites in any company get the same numbers. ``path`` is "auto" or
    a name of :data:`fedsmall.training.gradients.PATHS`; afterwards ``path`` and ``reason`` say which one was taken, and
    why.

    Raises PlanError where the named path does not fit the model.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        names: Sequence[str],
        samples: Sequence[Samples],
        *,
        path: str = "auto",
        device: str | torch.device | None = None,
    ) -> None:
        self.plan, self.task, self.names = plan, task, tuple(names)
        self.device = torch.device(device or "cpu")
        dtype = getattr(torch, plan.dtype)
        built = build_model(plan.model, task, plan.model_options, rng_for(plan.seed, "template"))
        model = prepared(built).to(self.device, dtype)
        self._names = tuple(model.state_dict())
        self._parameters = tuple(name for name, _ in model.named_parameters())
        self._loss = LOSSES[task.loss]
        self._gradients, self.reason = choose(model, self._loss, path)
        self.path = self._gradients.path
        shapes = dropout_shapes(model, torch.zeros(1, *task.input_shape, dtype=dtype, device=self.device))
        masks = {name: (shape, _probability(model, name)) for name, shape in shapes.items()}
        self._batches = Batches(plan, names, samples, masks, self.device)
        self._schedule = schedule_for(plan)
        recipe = plan.recipe
        self._plain = not recipe.has_state and not recipe.weight_decay and plan.method.rule == "none"

    def stack(self, travellers: Sequence[Traveller]) -> Stack:
        """The travellers' models as one stack on the device; moments that did not come start at zero."""
        stack = self.stack_of(stacked([traveller.model for traveller in travellers], self._names))
        for row, traveller in enumerate(travellers):
            for name, array in traveller.carried.items():
                stack.optimizer[name][row] = torch.from_numpy(np.array(array))
        return stack

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """A stack of tensors with a leading axis of models, which it takes for its own; without moments, zeros."""
        held = {name: tensor.to(self.device) for name, tensor in state.items()}
        parameters = {name: held[name] for name in self._parameters}
        stack = Stack(self._names, parameters, {n: held[n] for n in self._names if n not in parameters})
        if self.plan.recipe.optimizer_state != "stay":
            moments = {name: tensor.to(self.device) for name, tensor in (carried or {}).items()}
            stack.optimizer = fresh_state(parameters, self.plan.recipe) | moments
        return stack

    def train(
        self,
        stack: Stack,
        sites: Sequence[int] | np.ndarray,
        t: int,
        rounds: int,
        *,
        common: Sequence[bool] | None = None,
        rule: Mapping[str, np.ndarray] | None = None,
        memory: Mapping[str, np.ndarray] | None = None,
    ) -> Trained:
        """Train in place: row k at site number ``sites[k]`` (no site twice) in rounds t - rounds + 1 .. t.

        ``common`` says which rows are the last common model, untouched; ``rule`` is what the server sends for the local
        rule; ``memory`` is what the sites remember from the training before (``Trained.memory``), nothing at first.
        """
        return self.walk(stack, [Leg(np.asarray(sites), t, rounds)], common=common, rule=rule, memory=memory)

    def walk(
        self,
        stack: Stack,
        legs: Sequence[Leg],
        *,
        common: Sequence[bool] | None = None,
        rule: Mapping[str, np.ndarray] | None = None,
        memory: Mapping[str, np.ndarray] | None = None,
    ) -> Trained:
        """Train in place through several contacts that only move models between sites, as :meth:`train` leg by leg.

        Between two aggregations models are independent of each other, so a few walk all legs before the next few start,
        and stay in the cache meanwhile. ``common`` and ``rule`` belong to the first leg.
        """
        legs = [leg._replace(sites=np.asarray(leg.sites, dtype=np.int64)) for leg in legs]
        first, last = legs[0], legs[-1]
        if not stack.optimizer and self.plan.recipe.optimizer_state != "stay":
            stack.optimizer = fresh_state(stack.parameters, self.plan.recipe)
        remembered = SiteMemory(self.plan, stack.parameters, len(self.names), memory)
        losses = torch.zeros(len(stack), dtype=torch.float64, device=self.device)
        with torch.no_grad():
            remembered.receive(first.sites, stack.parameters, common, rule)
            for rows in self._chunks(stack, first.sites):
                part = stack.rows(rows)
                for leg in legs:
                    told = torch.zeros(len(part), dtype=torch.float64, device=self.device) if leg is last else None
                    self._leg(part, leg._replace(sites=leg.sites[rows]), remembered, told)
                assert told is not None
                losses[rows] = told
                if isinstance(rows, np.ndarray):
                    stack.put(rows, part)
            sent = remembered.close(last.sites, stack.parameters) if self._aggregates(last.t) else {}
            if self.plan.recipe.optimizer_state == "reset" and self._travelled(last.t):
                stack.optimizer = {}  # the next contact starts afresh: nothing needs to travel
        rule_sends = {name: tensor.cpu().numpy() for name, tensor in sent.items()}
        return self.told(losses.cpu().numpy(), last)._replace(rule=rule_sends, memory=remembered.arrays())

    def told(self, losses: np.ndarray, leg: Leg) -> Trained:
        """What training says of its rows besides their losses, where nothing is remembered or sent for a rule."""
        sites = np.asarray(leg.sites)
        return Trained(losses, self._batches.steps[sites] * leg.rounds, self._batches.examples[sites], {}, {})

    def predict(self, stack: Stack, x: np.ndarray) -> np.ndarray:
        """The outputs of every model on the same samples, in eval mode: (models, samples, outputs)."""
        inputs = torch.from_numpy(np.asarray(x, dtype=self.plan.dtype)).to(self.device)
        models = self._gradients.chunk or PREDICTED_MODELS
        samples = max(1, PREDICTED_NUMBERS // (models * max(1, inputs[:1].numel())))
        with torch.no_grad():
            parts = [
                torch.cat([self._outputs(part, some) for some in torch.split(inputs, samples)], 1)
                for part in (stack.rows(slice(k, k + models)) for k in range(0, len(stack), models))
            ]
        outputs: np.ndarray = torch.cat(parts).cpu().numpy()
        return outputs

    def _outputs(self, models: Stack, x: Tensor) -> Tensor:
        return self._gradients.predict(models.parameters, models.buffers, x)

    def _chunks(self, stack: Stack, sites: np.ndarray) -> list[slice | np.ndarray]:
        """Few enough rows at a time; sorted by size where that lets more of them take their steps together."""
        size = self._gradients.chunk or self._fitting(stack)
        edges = [slice(k, k + size) for k in range(0, len(stack), size)]
        order = self._batches.order(sites, self._gradients.pads)
        if order is None or len(edges) == 1:
            return list(edges)
        return [order[edge] for edge in edges]

    def _fitting(self, stack: Stack) -> int:
        bytes_per_model = 2 * Rows(stack.parameters).bytes_per_row + Rows(stack.optimizer).bytes_per_row
        return max(1, (CACHE_BYTES if self.device.type == "cpu" else DEVICE_BYTES) // bytes_per_model)

    def _leg(self, models: Stack, leg: Leg, memory: SiteMemory, losses: Tensor | None) -> None:
        """Train through one leg; ``losses`` (rows,) is filled where given. Unequal sites are brought into order."""
        order = self._batches.order(leg.sites, self._gradients.pads)
        if order is None:
            self._rounds(models, leg, memory, losses)
            return
        ordered = models.rows(order)
        self._rounds(ordered, leg._replace(sites=leg.sites[order]), memory, losses)
        models.put(order, ordered)
        if losses is not None:
            losses.copy_(losses[torch.from_numpy(np.argsort(order)).to(losses.device)])

    def _rounds(self, models: Stack, leg: Leg, memory: SiteMemory, losses: Tensor | None) -> None:
        staying = memory.moments(leg.sites)
        state = models.optimizer if staying is None else staying
        if self.plan.recipe.optimizer_state == "reset" and self._travelled(leg.t - leg.rounds):
            for tensor in state.values():
                tensor.zero_()
        words = memory.words(leg.sites)
        for t in range(leg.t - leg.rounds + 1, leg.t + 1):
            lr = learning_rate(self.plan.recipe, t, self.plan.rounds)
            self._round(models, state, words, leg.sites, t, lr, losses if t == leg.t else None)
            if words:
                memory.count(leg.sites, lr * self._batches.steps[leg.sites])
        if staying is not None:
            memory.keep(leg.sites, staying)

    def _round(
        self, models: Stack, state: Tensors, words: Tensors, sites: np.ndarray, t: int, lr: float, losses: Tensor | None
    ) -> None:
        """One round in place; where ``losses`` is given, each row's mean loss over its steps is added."""
        for rows, batch in self._batches.round(sites, t, self._gradients.pads):
            active = models if rows.stop == len(models) and rows.start == 0 else models.rows(rows)
            outputs = self._step(active, _cut(state, rows), _cut(words, rows), batch, lr)
            if losses is not None:
                share = mean_loss(self._loss, outputs, batch).double()
                losses[rows] += share / torch.from_numpy(self._batches.steps[sites[rows]]).to(share.device)

    def _step(self, models: Stack, state: Tensors, words: Tensors, batch: Batch, lr: float) -> Tensor:
        """One optimizer step in place; the outputs before it."""
        if self._plain and isinstance(self._gradients, MlpGradients):
            return self._gradients.descend(models.parameters, batch, lr)
        outputs, gradients = self._gradients(models.parameters, models.buffers, batch)
        if words:
            gradients = pulled(gradients, models.parameters, words, self.plan.method)
        step(models.parameters, gradients, state, self.plan.recipe, lr)
        return outputs

    def _aggregates(self, t: int) -> bool:
        return self._travelled(t) and (t >= self.plan.rounds or self._schedule.action(t) is Action.AGGREGATE)

    def _travelled(self, t: int) -> bool:
        """Whether models travel after round t; a look, which only a simulation takes, must not change a number."""
        if self.plan.method.family != "federated":
            return False
        due = self._schedule.action(t) in (Action.PERMUTE, Action.AGGREGATE) if t > 0 else True
        return due or t >= self.plan.rounds


def _cut(tensors: Tensors, rows: slice) -> Tensors:
    return {name: tensor[rows] for name, tensor in tensors.items()}


def _probability(model: nn.Module, name: str) -> float:
    layer = model.get_submodule(name)
    assert isinstance(layer, MaskedDropout)
    return layer.probability
