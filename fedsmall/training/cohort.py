"""The trainer of sites that all have one architecture: K = 1 at a hospital, K = all of them in a simulation."""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fedsmall.data.federation import Samples, Task
from fedsmall.models.networks import trainable_state
from fedsmall.plan import Plan
from fedsmall.training.augmentation import check_augment
from fedsmall.training.batches import Batches, Lots, SiteSamples
from fedsmall.training.cuda_graphs import ReplayedStep
from fedsmall.training.device import choose_device, threads_of_kernel, widest_float
from fedsmall.training.gradients import LOSSES, Batch, ClippedMlp, MlpGradients, choose, clipped, mean_loss, weighted
from fedsmall.training.gradients.layers import MaskedDropout, dropout_shapes, halves
from fedsmall.training.gradients.packed import PackedGradients
from fedsmall.training.kernel import Kernel, unmet_need
from fedsmall.training.kernel.images import fuse
from fedsmall.training.optimizers import GRADIENT, SiteMemory, add_rule, fresh_state, learning_rate, rule_of, step
from fedsmall.training.stack import Rows, Stack, Tensors, index_of, rows_of, tensors_of
from fedsmall.training.trainer import Indices, OneModelTrainer, Phase, Take, TrainInput, TrainResult
from fedsmall.wire import Arrays

CACHE_BYTES = 4 * 2**20  # what a chunk of small models, with their gradients and moments, may take
DEVICE_BYTES = 2 * 2**30  # the same on an accelerator
DEVICE_NUMBERS = 4 * 2**20  # that go there into a step of packed images; their maps are some hundred times as many
PREDICTED_MODELS = 64  # models that predict at a time
PREDICTED_NUMBERS = 2**20  # numbers that go into them at a time, models times samples times features


class Cohort(OneModelTrainer):
    """Some sites of a federation, and all that their models need to be trained together.

    The same sites in any company get the same numbers. ``path`` is "auto" or a name of
    :data:`fedsmall.training.gradients.PATHS`, then the one taken. ``device`` is a word of
    :mod:`fedsmall.training.device`, or torch's own. ``indices`` are the sites' in the federation (None: all).

    Raises PlanError where the named path does not fit the model, or the device is not here.
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
        indices: Indices | None = None,
    ) -> None:
        self.plan, self.task, self.names = plan, task, tuple(names)
        self.samples = tuple(map(len, samples))
        dtype = getattr(torch, plan.dtype)
        self._halves = halves(plan, task)
        if plan.recipe.augment is not None:
            check_augment(task, self._halves.body is not None)
        model = self._halves.head
        self._names = tuple(trainable_state(model))
        self._parameters = tuple(name for name, parameter in model.named_parameters() if parameter.requires_grad)
        self._loss = LOSSES[task.loss]
        if isinstance(plan.recipe.class_weights, tuple):
            self._loss = weighted(self._loss, plan.recipe.class_weights)
        self._gradients = choose(model, self._loss, path)
        if plan.privacy.is_patient_level:
            assert plan.privacy.clip is not None
            self._gradients = clipped(self._gradients, plan.privacy.clip)
        self.path = self._gradients.path
        parameters = sum(tensor.numel() for tensor in model.parameters())
        self.device = choose_device(device, parameters, 1 if self.path == "loop" else len(names), plan.dtype)
        model.to(self.device)  # in place: what computes gradients holds this model
        shape = self._halves.seen(np.zeros((1, *task.input_shape), plan.dtype)).shape
        shapes = dropout_shapes(model, torch.zeros(shape, dtype=dtype, device=self.device))
        samples = [replace(own, x=self._halves.seen(own.x)) for own in samples]  # pooled ones stay pooled
        layers = {name: cast(MaskedDropout, model.get_submodule(name)) for name in shapes}
        masks = {name: (shape, layers[name].probability) for name, shape in shapes.items()}
        self._batches: SiteSamples
        if plan.privacy.is_patient_level:
            sizes = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
            self._batches = Lots(plan, names, samples, masks, self.device, sizes, indices or Indices.of_all(len(names)))
        else:
            self._batches = Batches(plan, names, samples, masks, self.device)
        self._kernel: Kernel | None = None
        if threads := threads_of_kernel(device):
            self._take_kernel(threads)
        recipe, method = plan.recipe, plan.method
        self.averages = (
            self._kernel is not None
            and (method.rule == "none" or (method.rule == "proximal" and method.everyone(len(names))))
            and (not recipe.has_state or recipe.optimizer_state == "reset")
        )
        self._plain = not recipe.has_state and not recipe.weight_decay and plan.method.rule == "none"
        known = self.path in ("mlp", "conv")  # layers that do the same each time, which a network of one's own need not
        self._step = ReplayedStep(self._train_step) if known and self.device.type == "cuda" else self._train_step

    def _take_kernel(self, threads: int) -> None:
        plan, gradients = self.plan, self._gradients
        if isinstance(gradients, PackedGradients):
            need = fuse(plan, gradients, threads, self._batches.x[:1].numel() * self._batches.largest)
        elif not (need := unmet_need(plan, gradients)):
            assert isinstance(self._batches, Batches)
            self._kernel = Kernel(plan, self.task, gradients, self._loss, self._batches, threads)
        self.path, self.unmet_need = self.path if need else "kernel", need or ""

    def stack_of(self, state: Tensors, carried: Tensors | None = None) -> Stack:
        """As :meth:`Trainer.stack_of`."""
        return self.put_together(self._names, self._parameters, state, carried)

    def walk(self, stack: Stack, phases: Sequence[Phase], inputs: TrainInput) -> TrainResult:
        """As :meth:`Trainer.walk`.

        Between two aggregations models are independent, so a few that fit the cache walk all phases first.
        """
        first, last = phases[0], phases[-1]
        if not stack.optimizer and self.plan.recipe.optimizer_state != "stay":
            stack.optimizer = fresh_state(stack.parameters, self.plan.recipe)
        remembered = SiteMemory(self.plan, stack.parameters, len(self.names), inputs.memory)
        losses, mean = torch.full((len(stack),), torch.nan, dtype=widest_float(self.device), device=self.device), None
        with torch.no_grad():
            remembered.receive(first.sites, stack.parameters, inputs.is_global, inputs.rule)
            if self._kernel is not None:
                of_last, mean = self._kernel.walk(stack, phases, remembered, inputs.losses)
                losses = losses if of_last is None else of_last
            for rows in () if self._kernel is not None else self._chunks(stack, first.sites):
                part = stack.rows(rows)
                for phase in phases:
                    asked = phase is last and inputs.losses
                    of_last = torch.zeros_like(losses[: len(part)]) if asked else None
                    self._phase(part, phase._replace(sites=phase.sites[rows]), remembered, of_last)
                if of_last is not None:
                    losses[index_of(rows, losses)] = of_last
                if isinstance(rows, np.ndarray):
                    stack.put(rows, part)
            sent = remembered.close(last.sites, stack.parameters) if last.closes else {}
        rule = {name: tensor.cpu().numpy() for name, tensor in sent.items()}
        trained = self.report(losses.cpu().numpy().astype(np.float64), last)
        return trained._replace(rule=rule, memory=remembered.arrays(), mean=mean)

    def average(
        self, stack: Stack, model: Arrays, walks: Sequence[Sequence[Phase]], memory: Arrays, take: Take
    ) -> tuple[int, TrainResult | None]:
        """As :meth:`Trainer.average`, by the kernel."""
        assert self._kernel is not None
        remembered = SiteMemory(self.plan, stack.parameters, len(self.names), memory)
        with torch.no_grad():
            sites, every = walks[0][0].sites, np.ones(len(stack), dtype=bool)
            remembered.receive(sites, stack.parameters, every, {})
            starts = self._kernel.average(stack, model, walks, remembered, take)
            if not starts:
                return 0, None
            last, start = walks[len(starts) - 1], tensors_of(starts[-1])
            received = {name: tensor.expand(len(stack), *tensor.shape) for name, tensor in start.items()}
            remembered.receive(last[0].sites, received, every, {})
            self._kernel.rounds(last, remembered)
        nothing = np.full(len(stack), np.nan)
        return len(starts), self.report(nothing, last[-1])._replace(memory=remembered.arrays())

    def taken(self, site: int, phase: Phase) -> np.ndarray:
        """The numbers of a site's samples that a phase trains on, rising."""
        assert isinstance(self._batches, Batches)
        return np.unique(
            np.concatenate([self._batches.taken(site, t) for t in range(phase.t - phase.rounds + 1, phase.t + 1)])
        )

    def seen(self, x: np.ndarray) -> np.ndarray:
        """As :meth:`Trainer.seen`."""
        return self._halves.seen(x)

    def report(self, losses: np.ndarray, phase: Phase) -> TrainResult:
        """What training gives where nothing is remembered or sent for a rule."""
        steps, examples = self._batches.steps[phase.sites] * phase.rounds, self._batches.examples[phase.sites]
        return TrainResult(losses, steps, examples, {}, {})

    def predict(self, stack: Stack, x: np.ndarray) -> np.ndarray:
        """As :meth:`OneModelTrainer.predict`."""
        inputs = torch.from_numpy(self.seen(np.asarray(x, dtype=self.plan.dtype))).to(self.device)
        models, predict = self._gradients.chunk or PREDICTED_MODELS, self._gradients.predict
        samples = max(1, PREDICTED_NUMBERS // (models * max(1, inputs[:1].numel())))
        with torch.no_grad():
            parts = [
                torch.cat([predict(part.parameters, part.buffers, some) for some in torch.split(inputs, samples)], 1)
                for part in (stack.rows(slice(k, k + models)) for k in range(0, len(stack), models))
            ]
        outputs: np.ndarray = torch.cat(parts).cpu().numpy()
        return outputs

    def _chunks(self, stack: Stack, sites: np.ndarray) -> list[slice | np.ndarray]:
        bytes_per_model = 2 * Rows(stack.parameters).bytes_per_row + Rows(stack.optimizer).bytes_per_row
        on_cpu = self.device.type == "cpu"
        size = max(1, (CACHE_BYTES if on_cpu else DEVICE_BYTES) // bytes_per_model)
        if self._gradients.chunk is not None and (on_cpu or self.path != "conv"):
            size = self._gradients.chunk
        elif self._gradients.chunk is not None:
            size = min(size, max(1, DEVICE_NUMBERS // (self._batches.x[0].numel() * self._batches.largest)))
        edges = [slice(k, k + size) for k in range(0, len(stack), size)]
        order = self._batches.order(sites, self._gradients.pads)
        if order is None or len(edges) == 1:
            return list(edges)
        return [order[edge] for edge in edges]

    def _phase(self, models: Stack, phase: Phase, memory: SiteMemory, losses: Tensor | None) -> None:
        """Train through one phase; ``losses`` (rows,) is filled where given."""
        order = self._batches.order(phase.sites, self._gradients.pads)
        if order is None:
            self._rounds(models, phase, memory, losses)
            return
        ordered = models.rows(order)
        self._rounds(ordered, phase._replace(sites=phase.sites[order]), memory, losses)
        models.put(order, ordered)
        if losses is not None:
            losses.copy_(losses[index_of(np.argsort(order), losses)])

    def _rounds(self, models: Stack, phase: Phase, memory: SiteMemory, losses: Tensor | None) -> None:
        staying = memory.moments(phase.sites)
        state = models.optimizer if staying is None else staying
        if self.plan.recipe.optimizer_state == "reset" and phase.arrived:
            for tensor in state.values():
                tensor.zero_()
        if GRADIENT in rule_of(self.plan.method).remembers and phase.arrived:
            gradient = self._standing_gradient(models, phase.sites, phase.t - phase.rounds + 1)
            memory.keep(phase.sites, {f"{GRADIENT}/{name}": tensor for name, tensor in gradient.items()})
        variables = memory.variables(phase.sites)
        for t in range(phase.t - phase.rounds + 1, phase.t + 1):
            lr = learning_rate(self.plan.recipe, t, self.plan.rounds)
            self._round(models, state, variables, phase.sites, t, lr, losses if t == phase.t else None)
            memory.count(phase.sites, lr, self._batches.steps)
        if staying is not None:
            memory.keep(phase.sites, staying)

    def _standing_gradient(self, models: Stack, sites: np.ndarray, t: int) -> Tensors:
        steps = torch.from_numpy(self._batches.steps[sites]).to(self.device)
        mean = {name: torch.zeros_like(tensor) for name, tensor in models.parameters.items()}
        for rows, batch in self._batches.round(sites, t, self._gradients.pads):
            active = models.rows(rows).clone()
            _, gradients = self._gradients(active.parameters, active.buffers, batch)
            for name, gradient in gradients.items():
                mean[name][rows] += gradient / steps[rows].reshape(-1, *[1] * (gradient.dim() - 1))
        return mean

    def _round(
        self,
        models: Stack,
        state: Tensors,
        variables: Tensors,
        sites: np.ndarray,
        t: int,
        lr: float,
        losses: Tensor | None,
    ) -> None:
        """One round in place; where ``losses`` (rows,) is given, each row's mean loss over its steps is added."""
        steps = self._batches.steps[sites]
        for rows, batch in self._batches.round(sites, t, self._gradients.pads):
            active = models if rows.stop == len(models) and rows.start == 0 else models.rows(rows)
            outputs = self._step(active, rows_of(state, rows), rows_of(variables, rows), batch, lr)
            if losses is not None:
                share = mean_loss(self._loss, outputs, batch).to(losses.dtype)
                losses[rows] += share / torch.from_numpy(steps[rows]).to(share.device)

    def _train_step(self, models: Stack, state: Tensors, variables: Tensors, batch: Batch, lr: float) -> Tensor:
        if self._plain and isinstance(self._gradients, MlpGradients | ClippedMlp):
            return self._gradients.descend(models.parameters, batch, lr)
        outputs, gradients = self._gradients(models.parameters, models.buffers, batch)
        if variables:
            gradients = add_rule(gradients, models.parameters, variables, self.plan.method)
        step(models.parameters, gradients, state, self.plan.recipe, lr)
        return outputs
