"""Small networks on the CPU by compiled C: every model walks all its rounds in cache, and models share the threads.

Asked for by the device "kernel", or "kernel:4" for four threads, whose number changes no bit. Where it has not been
built (:mod:`fedsmall.training.kernel.build`) or a plan is not of its kind (:data:`NEEDS`), torch trains instead, and at
sites of their own always. Its numbers are torch's to 1e-5 over 200 rounds of float32; in float64 torch trains.
"""

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedsmall.data.federation import Task
from fedsmall.data.outcomes import HUBER
from fedsmall.plan import Plan
from fedsmall.training.batches import Batches
from fedsmall.training.gradients import Gradients, MlpGradients
from fedsmall.training.gradients.losses import Loss
from fedsmall.training.optimizers import GRADIENT, SiteMemory, add_rule, learning_rate, rule_of
from fedsmall.training.stack import Stack, Tensors
from fedsmall.training.trainer import Mean, Phase, Take
from fedsmall.wire import Arrays

LIBRARY = Path(__file__).with_name("kernel.so")
SETS = ("plain", "AVX2", "AVX-512 on half its width", "AVX-512")  # of instructions, as in vectors.h
LANES = (4, 8, 8, 16)  # numbers in a vector of each
VERSION, LAYERS, PARTS = 5, 8, 5  # as in kernel.c
NUMBERS = 2**24  # sample numbers that a call takes at most, beyond one round
SHORT = 2**23  # parameters times samples times steps: below, more threads pay only where nothing else has their cores
AGAIN = 64  # short walks, after which the slower number of threads is tried again
SUMS = 8  # of models, which make a mean: as many whatever the threads, lest bits depend on them

# rows of the enumeration in kernel.c: what has the same slope is one of them
LOSSES = {
    "cross_entropy": 0, "soft_cross_entropy": 1, "logistic": 2, "soft_logistic": 2, "binary_cross_entropy": 2,
    "hinge": 3, "l1": 4, "mse": 5, "huber": 6, "hazard": 7, "ordinal": 8,
}  # fmt: skip


@cache
def library() -> ctypes.CDLL | None:
    """The kernel as it was built, if it was, in this version, and for a machine like this."""
    try:
        built = ctypes.CDLL(str(LIBRARY))
    except OSError:  # it is not there, or OpenMP's library is not
        return None
    return built if built.version() == VERSION else None


def share_out(name: str, of: ctypes.Structure, parts: int, threads: int, several: int = 1) -> None:
    """Let threads walk from a part to another, by the function ``name``; each takes about ``several`` shares."""
    built: Any = library()
    if built.share_out(getattr(built, name), ctypes.byref(of), parts, min(parts, several * threads), threads):
        raise MemoryError("no memory for what the kernel works in")


class Need(NamedTuple):
    """What a plan must have for the kernel to train it."""

    name: str
    is_met: Callable[[Plan, Gradients], bool]


# of everything that C trains
FLOAT32 = Need("numbers in float32", lambda plan, gradients: plan.dtype == "float32")
BUILT = Need("to have been built here, in this version", lambda plan, gradients: library() is not None)
NEEDS = (
    FLOAT32,
    Need("linear layers and ReLUs, at most eight of the former, and no clipping", lambda plan, of: bool(_layers(of))),
    Need("samples as they are", lambda plan, gradients: plan.recipe.augment is None),
    Need("moments that go with their model", lambda plan, gradients: plan.recipe.optimizer_state != "stay"),
    Need("no gradient that a site remembers", lambda plan, gradients: GRADIENT not in rule_of(plan.method).remembers),
    BUILT,
)


def unmet_need(plan: Plan, gradients: Gradients, needs: Sequence[Need] = NEEDS) -> str | None:
    """The first of ``needs`` that is not met; None where the kernel trains."""
    return next((need.name for need in needs if not need.is_met(plan, gradients)), None)


def describe_kernel() -> str:
    """Version and instruction set, as a run's record names them: "1 (AVX2)"; empty where there is none."""
    built = library()
    return "" if built is None else f"{VERSION} ({SETS[built.best()]})"


_WHOLE = ("layers", "loss", "targets", "adam", "rounds", "models", "parts", "steps", "most", "stride")
_POINTERS = ("count", "x", "y", "share", "index", "size", "site", "row", "fresh", "rate", "pull")
_NUMBERS = ("momentum", "decay", "beta1", "beta2", "epsilon", "huber")


class _Walk(ctypes.Structure):
    """``struct walk`` of kernel.c."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in _WHOLE),
        ("width", ctypes.c_int32 * (LAYERS + 1)),
        ("relu", ctypes.c_int32 * LAYERS),
        ("array", ctypes.c_void_p * 2 * LAYERS * PARTS),
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_double) for name in _NUMBERS),
        *((name, ctypes.c_void_p) for name in ("outputs", "start", "weight", "total", "square")),
    )


class _Layer(NamedTuple):
    name: str
    bias: bool
    relu: bool


def _layers(gradients: Gradients) -> list[_Layer]:
    """The linear layers of a chain that the kernel knows, each with whether a ReLU follows; empty for any other."""
    if not isinstance(gradients, MlpGradients):
        return []
    after = [*(layer.kind for layer in gradients.layers[1:]), "end"]
    found = [
        _Layer(layer.name, layer.bias, behind == "relu")
        for layer, behind in zip(gradients.layers, after, strict=True)
        if layer.kind == "linear"
    ]
    known = len(found) + sum(layer.relu for layer in found) == len(gradients.layers)
    return found if known and not found[-1].relu and len(found) <= LAYERS else []


class Kernel:
    """The walk of a plan that meets :data:`NEEDS`, on the samples of ``batches``; ``loss`` has the classes' weights.

    ``set`` is that of :data:`SETS` whose instructions it takes, by default what is fastest on this processor.
    """

    def __init__(
        self, plan: Plan, task: Task, gradients: Gradients, loss: Loss, batches: Batches, threads: int
    ) -> None:
        self._plan, self._loss, self._batches, self._layers = plan, loss, batches, _layers(gradients)
        built: Any = library()
        self._threads, self.set = threads, int(built.best())
        self._seconds = dict.fromkeys((1, threads), 0.0)  # that a model's round took last, by threads
        self._short = 0  # short walks so far
        x, y = batches.x.flatten(1), batches.y
        self._x = torch.zeros(len(x), x.shape[1] // 16 * 16 + 16)
        self._x[:, : x.shape[1]] = x
        self._x[:, x.shape[1]] = float(self._layers[0].bias)  # the input of biases
        self._y = y.reshape(len(y), -1).float()
        weights, whole = plan.recipe.class_weights, not y.is_floating_point()
        self._share = torch.tensor(weights)[y] if isinstance(weights, tuple) and whole else torch.ones(len(y))
        self._sizes = batches.sizes.astype(np.int32)
        self._still = None if batches.still is None else batches.still.numpy().astype(np.int32)
        recipe = plan.recipe
        self._struct = _Walk(
            layers=len(self._layers), loss=LOSSES[task.loss], targets=self._y.shape[1], adam=recipe.optimizer == "adam",
            steps=self._sizes.shape[1], most=int(self._sizes.max()), stride=self._x.shape[1],
            x=self._x.data_ptr(), y=self._y.data_ptr(), share=self._share.data_ptr(), size=self._sizes.ctypes.data,
            momentum=recipe.momentum, decay=recipe.weight_decay, beta1=recipe.betas[0], beta2=recipe.betas[1],
            epsilon=recipe.epsilon, huber=HUBER,
        )  # fmt: skip
        self._struct.relu[: len(self._layers)] = [layer.relu for layer in self._layers]

    def walk(
        self, stack: Stack, phases: Sequence[Phase], memory: SiteMemory, losses: bool
    ) -> tuple[Tensor | None, Mean | None]:
        """Train the models in place; with ``losses`` each row's mean over the steps of the last round, (rows,).

        Their mean is given where a mean of all is due.
        """
        rounds, means = self.rounds(phases, memory), phases[-1].closes and self._plan.method.aggregator == "mean"
        with _Arrays(self._struct, self._layers) as arrays:
            self._give(arrays, stack, memory)
            outputs, total = None, None
            size = self._most_rounds(len(stack))  # of one call, by their sample numbers
            for some in (rounds[first : first + size] for first in range(0, len(rounds), size)):
                is_last = some[-1] is rounds[-1]
                if losses and is_last:
                    outputs = self._x.new_zeros(len(stack), self._struct.steps, self._struct.most, arrays.width)
                    self._struct.outputs = outputs.data_ptr()
                if means and is_last:
                    total = self._total(phases[-1].sites)
                index, row = self._call(some)
            of_last = None if outputs is None else self._losses(outputs, index[row[-1]], phases[-1].sites)
            return of_last, None if total is None else total.mean(list(stack.parameters))

    def average(
        self, stack: Stack, model: Arrays, walks: Sequence[Sequence[Phase]], memory: SiteMemory, take: Take
    ) -> list[Arrays]:
        """Walk from a global model to the next, as far as ``take`` takes the means: from which each walk set out.

        Nobody's own model is written down; ``stack`` lends its shapes, and its moments, which start afresh.
        """
        starts: list[Arrays] = []
        if max(sum(phase.rounds for phase in phases) for phases in walks) > self._most_rounds(len(stack)):
            return starts
        with _Arrays(self._struct, self._layers) as arrays:
            self._give(arrays, stack, memory)
            total, mean = self._total(walks[0][-1].sites), None
            self._point(start=total.flat)
            for phases in walks:
                if mean is None or model is not mean.model:
                    for name, view in total.views.items():
                        view[...] = model[name]
                total.weights[:] = self._weights(phases[-1].sites)
                self._call(self.rounds(phases, memory))
                mean = total.mean(list(model))
                following = take(mean)
                if following is None:
                    break
                starts.append(model)
                model = following
        return starts

    def rounds(self, phases: Sequence[Phase], memory: SiteMemory) -> "list[_Round]":
        """The rounds of a walk with their rates, which the sites' memory adds up."""
        recipe, last = self._plan.recipe, self._plan.rounds
        rounds = [
            (phase, t, learning_rate(recipe, t, last))
            for phase in phases
            for t in range(phase.t - phase.rounds + 1, phase.t + 1)
        ]
        for phase, _, lr in rounds:
            memory.count(phase.sites, lr, self._batches.steps)
        return rounds

    def _give(self, arrays: "_Arrays", stack: Stack, memory: SiteMemory) -> None:
        for name in ("count", "pull", "outputs", "start", "weight", "total", "square"):
            setattr(self._struct, name, None)
        self._struct.models = self._struct.parts = len(stack)
        parameters = sum(tensor[0].numel() for tensor in stack.parameters.values())
        self._work = parameters * self._struct.steps * self._struct.most
        arrays.give(0, stack.parameters, "{}")
        for part, moment in enumerate(("exp_avg", "exp_avg_sq") if self._struct.adam else ("momentum",), 1):
            arrays.give(part, stack.optimizer, moment + "/{}")
        if self._struct.adam:
            self._struct.count = arrays.held(stack.optimizer["step"])
        self._remind(arrays, memory)

    def _weights(self, sites: np.ndarray) -> np.ndarray:
        """What the models at ``sites`` count in their mean, (models,)."""
        weights = self._batches.examples[sites] if self._plan.method.weighted else np.ones(len(sites))
        return np.asarray(weights / weights.sum())

    def _total(self, sites: np.ndarray) -> "_Total":
        """Where C adds up the models at ``sites`` from now on."""
        lanes, widths = LANES[self.set], list(self._struct.width)[: len(self._layers) + 1]
        spans = [(a, b, (a + lanes) // lanes * lanes) for a, b in pairwise(widths)]
        flat, views, at = np.zeros(sum((b + 3) // 4 * 4 * row for _, b, row in spans), np.float32), {}, 0
        for layer, (inputs, outputs, row) in zip(self._layers, spans, strict=True):
            rows = flat[at : at + outputs * row].reshape(outputs, row)
            views[f"{layer.name}.weight"] = rows[:, :inputs]
            if layer.bias:
                views[f"{layer.name}.bias"] = rows[:, inputs]
            at += (outputs + 3) // 4 * 4 * row
        sums, square = np.empty((min(SUMS, len(sites)), len(flat))), np.empty(len(sites), np.float32)
        total = _Total(self._weights(sites), sums, square, flat, views)
        self._point(weight=total.weights, total=sums, square=square)
        self._struct.parts = len(sums)
        return total

    def _point(self, **arrays: np.ndarray) -> None:
        for name, array in arrays.items():
            setattr(self._struct, name, array.ctypes.data)

    def _remind(self, arrays: "_Arrays", memory: SiteMemory) -> None:
        """What the local rule adds to a gradient, found by asking it: pull * (parameter - reference) + shift."""
        known, method = memory.variables(np.arange(len(self._sizes))), self._plan.method
        reference = {name.partition("/")[2]: tensor for name, tensor in known.items() if name.startswith("reference/")}
        if not reference:
            return
        none = {name: torch.zeros_like(tensor) for name, tensor in reference.items()}
        one = {name: torch.ones_like(tensor) for name, tensor in reference.items()}
        nothing = {name: torch.zeros_like(tensor) if "/" in name else tensor for name, tensor in known.items()}
        pull, *_ = add_rule(none, one, nothing, method).values()
        if pull.any():
            arrays.give(3, reference, "{}")
            self._struct.pull = arrays.held(pull.flatten(1)[:, 0])
        shift = add_rule(none, reference, known, method)
        if any(tensor.any() for tensor in shift.values()):
            arrays.give(4, shift, "{}")

    def _most_rounds(self, models: int) -> int:
        numbers = 1 if self._still is not None else self._struct.steps * self._struct.most
        return max(1, NUMBERS // (models * numbers))

    def _call(self, rounds: "Sequence[_Round]") -> tuple[np.ndarray, np.ndarray]:
        """Walk some rounds; returns sample numbers, (n, steps, most), and each model's among them, (rounds, rows)."""
        site = np.array([phase.sites for phase, _, _ in rounds], dtype=np.int32)
        index, row = self._still, site
        if index is None:
            index = np.zeros((*site.shape, self._struct.steps, self._struct.most), dtype=np.int32)
            for drawn, (phase, t, _) in zip(index, rounds, strict=True):
                numbers = self._batches.index(phase.sites, t).numpy()
                drawn[:, :, : numbers.shape[2]] = numbers
            index, row = index.reshape(-1, *index.shape[2:]), np.arange(site.size, dtype=np.int32).reshape(site.shape)
        resets = self._plan.recipe.optimizer_state == "reset"
        begins = [phase.arrived and t == phase.t - phase.rounds + 1 for phase, t, _ in rounds]
        fresh = np.array(begins, dtype=np.uint8) * resets
        self._point(index=index, site=site, row=row, fresh=fresh, rate=np.array([lr for _, _, lr in rounds]))
        self._struct.rounds = len(site)
        # several shares for a thread, so that none waits long for the last; of a short walk sharing out is the longer
        threads, several = self._threads, 4 if len(site) >= 64 else 1
        if site.size * self._work < SHORT:
            self._short += 1
            threads = sorted(self._seconds, key=self._seconds.__getitem__)[-(self._short % AGAIN == 0)]
        begun = perf_counter()
        share_out(f"walk_{self.set}", self._struct, self._struct.parts, threads, several)
        self._seconds[threads] = (perf_counter() - begun) / site.size
        return index, row

    def _losses(self, outputs: Tensor, index: np.ndarray, sites: np.ndarray) -> Tensor:
        sizes = torch.from_numpy(self._sizes[sites])[..., None]  # (rows, steps, 1)
        values = self._loss.value(outputs, self._batches.y[torch.from_numpy(index).long()])  # (rows, steps, most)
        weight = (torch.arange(self._struct.most) < sizes) / sizes.clamp_min(1)
        steps = torch.from_numpy(self._batches.steps[sites])
        return (values.double() * weight).sum((1, 2)) / steps


_Round = tuple[Phase, int, float]  # its number and its learning rate


class _Total(NamedTuple):
    """Models added up: the ``weights`` (models,), ``sums`` (parts, flat) and ``square`` (models,), of each norm.

    ``flat`` is the mean as C has it, and ``views`` its arrays: a layer's rows are weights, a bias, and zeros.
    """

    weights: np.ndarray
    sums: np.ndarray
    square: np.ndarray
    flat: np.ndarray
    views: Arrays

    def mean(self, names: Sequence[str]) -> Mean:
        self.flat[:] = self.sums.sum(0)
        return Mean({name: self.views[name].copy() for name in names}, np.sqrt(self.square))


class _Arrays:
    """Tensors as the kernel is told of them while it walks; those that are not contiguous are copied there and back."""

    def __init__(self, struct: _Walk, layers: Sequence[_Layer]) -> None:
        self._struct, self._layers = struct, layers
        self._held: list[Tensor] = []
        self._copied: list[tuple[Tensor, Tensor]] = []
        self.width = 0

    def __enter__(self) -> "_Arrays":
        ctypes.memset(self._struct.array, 0, ctypes.sizeof(self._struct.array))
        return self

    def __exit__(self, *_: object) -> None:
        for tensor, copied in self._copied:
            tensor.copy_(copied)

    def give(self, part: int, tensors: Tensors, name: str) -> None:
        """Give a part of the models' or sites' arrays, if it is there; ``name`` has {} for a parameter's."""
        if name.format(f"{self._layers[0].name}.weight") not in tensors:
            return
        for number, layer in enumerate(self._layers):
            weight = tensors[name.format(f"{layer.name}.weight")]
            self._struct.array[part][number][0] = self.held(weight)
            if layer.bias:
                self._struct.array[part][number][1] = self.held(tensors[name.format(f"{layer.name}.bias")])
            self.width, self._struct.width[number] = weight.shape[1:]
        self._struct.width[len(self._layers)] = self.width

    def held(self, tensor: Tensor) -> int:
        """The address of a tensor, which lives as long as this."""
        held = tensor.contiguous()
        self._held.append(held)
        if held is not tensor:
            self._copied.append((tensor, held))
        return held.data_ptr()
